//! Launches `sparse_attention.cu`, or `sparse_attention_hopper.cu` for `Fast` where the chip has what that needs.

use super::sparse_attention_hopper::Placement;
use super::target::Target;
use crate::backend::gpu::plan::{Launch, Plan};
use crate::backend::gpu::sparse_attention::{Extent, table};
use crate::dims::HEAD_DIM;
use crate::ops::{Checked, Method, SparseAttention};

/// Slots and heads of one block, as in the kernels.
const SLOTS: usize = 16;
const SOFTMAX_HEADS: usize = 4;
const SUM_HEADS: usize = 4;

pub(super) fn plan(mut op: Checked<SparseAttention<'_>>, target: Target) -> Plan {
    let extent = Extent::of(&op, target.room);
    let mut plan = Plan::default();
    if op.method == Method::Fast && target.chip.hopper && extent.dim == HEAD_DIM {
        let placement = Placement::of(extent, target.chip);
        let table = table(&mut plan, &mut op, (extent, placement.group()));
        plan.launch(placement.launch(table, extent));
        return plan;
    }
    plan.scratch = extent.scratch();
    let table = table(&mut plan, &mut op, (extent, 0));
    let Extent { rows, heads, width, .. } = extent;
    let mut launch = |name, x: usize, y: usize, threads| {
        let kernel = ("sparse_attention", name);
        plan.launch(Launch { kernel, grid: [x as u32, y as u32], threads, table, ..Launch::PLAIN });
    };
    launch("attention_check", rows, 1, 256);
    launch("attention_logits", width.div_ceil(SLOTS), rows, 128);
    launch("attention_softmax", heads.div_ceil(SOFTMAX_HEADS), rows, 128);
    launch("attention_values", heads.div_ceil(SUM_HEADS), rows, 256);
    plan
}
