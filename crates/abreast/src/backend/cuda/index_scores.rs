//! Reference index scores: the table and the launches of `index_scores.cu`.

use super::target::Target;
use crate::backend::plan::{Launch, Plan, address};
use crate::dims::causal_count;
use crate::ops::{Checked, IndexScores};
use crate::view::{View, ViewMut};
use bytemuck::{Pod, Zeroable};
use half::bf16;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    q: u64,
    weights: u64,
    out: u64,
    status: u64,
    heads: i32,
    dim: i32,
    rows: i32,
    pad: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Row {
    pub(super) keys: u64,
    pub(super) query: u64,
    pub(super) out: u64,
    pub(super) count: i64,
}

/// The most dynamic shared memory of a block, bytes; every supported architecture has it.
const MOST_SHARED: usize = 96 << 10;

/// What the scores of a call share.
pub(super) struct Scores<'a> {
    pub(super) q: &'a View<'a, bf16, 3>,
    pub(super) weights: &'a View<'a, f32, 2>,
    /// `None`: the scratch memory.
    pub(super) out: Option<u64>,
    pub(super) status: u64,
}

pub(super) fn plan(mut op: Checked<IndexScores<'_>>, target: Target) -> Plan {
    let mut plan = Plan::default();
    let scores = Scores {
        q: &op.q.clone(),
        weights: &op.weights.clone(),
        out: Some(op.out.as_mut_ptr() as u64),
        status: status(&op.status),
    };
    let rows = op.rows.iter().map(|row| Row {
        keys: row.keys.as_ptr() as u64,
        query: row.query as u64,
        out: row.out as u64,
        count: causal_count(row.start_pos, op.ratio) as i64,
    });
    scores.push(&mut plan, rows, target);
    plan
}

pub(super) fn status(status: &Option<ViewMut<'_, u32, 1>>) -> u64 {
    address(status.as_ref().map(|s| s.as_ptr()))
}

impl Scores<'_> {
    pub(super) fn push(
        &self,
        plan: &mut Plan,
        rows: impl ExactSizeIterator<Item = Row> + Clone,
        target: Target,
    ) {
        let (n, [_, heads, dim]) = (target.room.rows(rows.len()), self.q.shape());
        let longest = target.room.keys(rows.clone().map(|row| row.count as usize));
        let head = Head {
            q: self.q.as_ptr() as u64,
            weights: self.weights.as_ptr() as u64,
            out: self.out.unwrap_or(0),
            status: self.status,
            heads: heads as i32,
            dim: dim as i32,
            rows: n as i32,
            pad: 0,
        };
        let padding = Row { count: -1, ..Row::zeroed() };
        let table = plan.push(&head, (rows, padding, n));
        let shared = |keys: usize| dim * (keys + 2) * size_of::<f32>();
        // As many keys a block as its shared memory holds.
        let keys = [128, 64, 32, 16, 8, 4, 2, 1]
            .into_iter()
            .find(|&keys| shared(keys) <= target.chip.shared.min(MOST_SHARED))
            .unwrap_or(1);
        let kernel = |name| ("index_scores", name);
        let start = [n.div_ceil(128) as u32, 1];
        plan.launch(Launch {
            kernel: kernel("index_scores_start"),
            grid: start,
            threads: 128,
            table,
            ..Launch::PLAIN
        });
        let grid = [longest.div_ceil(keys) as u32, n as u32];
        let shared = shared(keys) as u32;
        plan.launch(Launch {
            kernel: kernel("index_scores"),
            grid,
            threads: keys as u32,
            shared,
            table,
            ..Launch::PLAIN
        });
    }
}
