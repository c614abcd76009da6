//! Sparse attention: the table of both methods, and the launches of `sparse_attention.cu`.

use super::sparse_attention_hopper::{Extent, Placement};
use super::target::Target;
use crate::backend::plan::{Launch, Plan, address};
use crate::dims::HEAD_DIM;
use crate::ops::{Checked, Method, SparseAttention};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    q: u64,
    sinks: u64,
    out: u64,
    status: u64,
    scale: f32,
    heads: i32,
    dim: i32,
    width: i32,
    rows: i32,
    /// Heads of a block, where the kernel asks.
    group: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Row {
    kv: u64,
    indices: u64,
    query: u64,
    out: u64,
    kv_len: i64,
    width: i32,
    active: i32,
}

/// What a row's first look finds takes this many bytes of scratch.
const FOUND: usize = 8;
/// Slots and heads of one block, as in the kernels.
const SLOTS: usize = 16;
const SOFTMAX_HEADS: usize = 4;
const SUM_HEADS: usize = 4;

pub(super) fn plan(mut op: Checked<SparseAttention<'_>>, target: Target) -> Plan {
    let (rows, [_, heads, dim]) = (target.room.rows(op.rows.len()), op.q.shape());
    // One place more than the widest row: there a head's sum goes.
    let width = target.room.width(op.rows.iter().map(|row| row.indices.len())) + 1;
    let hopper = op.method == Method::Fast && target.chip.hopper && dim == HEAD_DIM;
    let extent = Extent { rows, heads, width: width - 1 };
    let fast = hopper.then(|| Placement::of(extent, target.chip));
    let head = Head {
        q: op.q.as_ptr() as u64,
        sinks: address(op.sinks.as_ref().map(|s| s.as_ptr())),
        out: op.out.as_mut_ptr() as u64,
        status: address(op.status.as_ref().map(|s| s.as_ptr())),
        scale: op.scale,
        heads: heads as i32,
        dim: dim as i32,
        width: width as i32,
        rows: rows as i32,
        group: fast.map_or(0, Placement::group),
    };
    let mut plan = Plan::default();
    let listed = op.rows.iter().map(|row| Row {
        kv: row.kv.as_ptr() as u64,
        indices: row.indices.as_ptr() as u64,
        query: row.query as u64,
        out: row.out as u64,
        kv_len: row.kv.shape()[0] as i64,
        width: row.indices.len() as i32,
        active: 1,
    });
    let table = plan.push(&head, (listed, Row::zeroed(), rows));
    if let Some(placement) = fast {
        plan.launch(placement.launch(table, extent));
        return plan;
    }
    plan.scratch = scratch(rows, heads * width);
    let mut launch = |name, x: usize, y: usize, threads| {
        let kernel = ("sparse_attention", name);
        plan.launch(Launch { kernel, grid: [x as u32, y as u32], threads, table, ..Launch::PLAIN });
    };
    launch("attention_check", rows, 1, 256);
    launch("attention_logits", (width - 1).div_ceil(SLOTS), rows, 128);
    launch("attention_softmax", heads.div_ceil(SOFTMAX_HEADS), rows, 128);
    launch("attention_values", heads.div_ceil(SUM_HEADS), rows, 256);
    plan
}

/// Bytes; more than there are where a step's limits ask for that.
fn scratch(rows: usize, logits: usize) -> usize {
    let found = (rows * FOUND).next_multiple_of(256);
    rows.saturating_mul(logits * size_of::<f32>()).saturating_add(found)
}
