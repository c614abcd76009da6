//! Sparse attention: the table and the launches of `sparse_attention.metal`.

use crate::backend::plan::{Launch, Plan, Room, address};
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
    heads: u32,
    dim: u32,
    width: u32,
    rows: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Row {
    kv: u64,
    indices: u64,
    query: u64,
    out: u64,
    kv_len: i64,
    width: u32,
    active: u32,
}

/// What a row's first look finds takes this many bytes of scratch.
const FOUND: usize = 8;
/// Slots and heads of one threadgroup, as in the kernels.
const SLOTS: usize = 16;
const HEADS: usize = 4;
/// Of the matrices.
const TILE: usize = 32;
const TILE_HEADS: usize = 64;

pub(super) fn plan(mut op: Checked<SparseAttention<'_>>, room: Room) -> Plan {
    let (rows, [_, heads, dim]) = (room.rows(op.rows.len()), op.q.shape());
    // One place more than the widest row: there a head's sum goes.
    let width = room.width(op.rows.iter().map(|row| row.indices.len())) + 1;
    let head = Head {
        q: op.q.as_ptr() as u64,
        sinks: address(op.sinks.as_ref().map(|s| s.as_ptr())),
        out: op.out.as_mut_ptr() as u64,
        status: address(op.status.as_ref().map(|s| s.as_ptr())),
        scale: op.scale,
        heads: heads as u32,
        dim: dim as u32,
        width: width as u32,
        rows: rows as u32,
        pad: 0,
    };
    let mut plan = Plan { scratch: scratch(rows, heads * width), ..Plan::default() };
    let listed = op.rows.iter().map(|row| Row {
        kv: row.kv.as_ptr() as u64,
        indices: row.indices.as_ptr() as u64,
        query: row.query as u64,
        out: row.out as u64,
        kv_len: row.kv.shape()[0] as i64,
        width: row.indices.len() as u32,
        active: 1,
    });
    let table = plan.push(&head, (listed, Row::zeroed(), rows));
    let mut launch = |name, (x, y): (usize, usize), threads| {
        let kernel = ("sparse_attention", name);
        let grid = [x as u32, y as u32];
        plan.launch(Launch { kernel, grid, threads, table, ..Launch::PLAIN });
    };
    let (slots, parts) = (width - 1, heads.div_ceil(TILE_HEADS));
    launch("attention_check", (rows, 1), 256);
    match op.method {
        Method::Reference => launch("attention_logits", (slots.div_ceil(SLOTS), rows), 128),
        Method::Fast => launch("attention_logits_fast", (slots.div_ceil(TILE) * parts, rows), 256),
    }
    launch("attention_softmax", (heads.div_ceil(HEADS), rows), 128);
    match op.method {
        Method::Reference => launch("attention_values", (heads.div_ceil(HEADS), rows), 256),
        Method::Fast => launch("attention_values_fast", (dim / TILE * parts, rows), 256),
    }
    launch("attention_finish", (heads.div_ceil(HEADS), rows), 128);
    plan
}

/// Bytes; more than there are where a step's limits ask for that.
fn scratch(rows: usize, logits: usize) -> usize {
    let found = (rows * FOUND).next_multiple_of(256);
    rows.saturating_mul(logits * size_of::<f32>()).saturating_add(found)
}
