//! The table and the launch of the row gather.

use super::plan::{Launch, Plan, Room};
use crate::ops::{Checked, GatherRows};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    out: u64,
    bytes: u64,
    rows: i32,
    pad: i32,
}

/// Bytes that a block's threads bring with one load each, the most blocks of a row, and how many blocks bring more with as many
/// loads as a thread keeps in flight.
const PIECE: usize = 256 * 16;
const BLOCKS: usize = 64;
const MANY: usize = 1024;
const IN_FLIGHT: usize = 4;

pub(in crate::backend) fn plan(mut op: Checked<GatherRows<'_>>, room: Room) -> Plan {
    let [rows, n] = op.out.shape();
    let rows = room.rows(rows);
    // Without rows there is no memory that bounds `n`.
    let bytes = n.saturating_mul(op.out.dtype().size());
    let mut plan = Plan::default();
    let head = Head { out: op.out.as_mut_ptr() as u64, bytes: bytes as u64, rows: rows as i32, pad: 0 };
    let table = plan.push(&head, (op.rows.iter().map(|row| row.source.as_ptr() as u64), 0, rows));
    let pieces = bytes.div_ceil(PIECE);
    let each = if pieces.saturating_mul(rows) > MANY { IN_FLIGHT } else { 1 };
    let grid = [pieces.div_ceil(each).min(BLOCKS) as u32, rows as u32];
    plan.launch(Launch {
        kernel: ("gather_rows", "gather_rows"),
        grid,
        threads: 256,
        table,
        overlaps: true,
        ..Launch::PLAIN
    });
    plan
}
