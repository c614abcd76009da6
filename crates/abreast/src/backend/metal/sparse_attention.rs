//! Launches `sparse_attention.metal`.

use crate::backend::gpu::plan::{Launch, Plan, Room};
use crate::backend::gpu::sparse_attention::{Extent, table};
use crate::ops::{Checked, Method, SparseAttention};

/// Slots and heads of one threadgroup, as in the kernels.
const SLOTS: usize = 16;
const HEADS: usize = 4;
/// Of the matrices.
const TILE: usize = 32;
const TILE_HEADS: usize = 64;

pub(super) fn plan(mut op: Checked<SparseAttention<'_>>, room: Room) -> Plan {
    let extent = Extent::of(&op, room);
    let mut plan = Plan { scratch: extent.scratch(), ..Plan::default() };
    let table = table(&mut plan, &mut op, (extent, 0));
    let Extent { rows, heads, dim, width } = extent;
    let mut launch = |name, (x, y): (usize, usize), threads| {
        let kernel = ("sparse_attention", name);
        let grid = [x as u32, y as u32];
        plan.launch(Launch { kernel, grid, threads, table, ..Launch::PLAIN });
    };
    let (slots, parts) = (width, heads.div_ceil(TILE_HEADS));
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
