//! Index scores: the table and the launches of `index_scores.metal`.

use crate::backend::gpu::plan::{Launch, Plan, Room, status};
use crate::dims::causal_count;
use crate::ops::{Checked, IndexScores, Method};
use crate::view::View;
use bytemuck::{Pod, Zeroable};
use half::bf16;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    q: u64,
    weights: u64,
    out: u64,
    status: u64,
    heads: u32,
    dim: u32,
    rows: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Row {
    pub(super) keys: u64,
    pub(super) query: u64,
    pub(super) out: u64,
    pub(super) count: i64,
}

/// What the scores of a call share.
pub(super) struct Scores<'a> {
    pub(super) q: &'a View<'a, bf16, 3>,
    pub(super) weights: &'a View<'a, f32, 2>,
    pub(super) method: Method,
    /// `None`: the scratch memory.
    pub(super) out: Option<u64>,
    pub(super) status: u64,
}

/// Keys of one threadgroup, as in the kernels.
const KEYS: usize = 16;
const TILE: usize = 32;

pub(super) fn plan(mut op: Checked<IndexScores<'_>>, room: Room) -> Plan {
    let mut plan = Plan::default();
    let scores = Scores {
        q: &op.q.clone(),
        weights: &op.weights.clone(),
        method: op.method,
        out: Some(op.out.as_mut_ptr() as u64),
        status: status(&op.status),
    };
    let rows = op.rows.iter().map(|row| Row {
        keys: row.keys.as_ptr() as u64,
        query: row.query as u64,
        out: row.out as u64,
        count: causal_count(row.start_pos, op.ratio) as i64,
    });
    scores.push(&mut plan, rows, room);
    plan
}

impl Scores<'_> {
    pub(super) fn push(&self, plan: &mut Plan, rows: impl ExactSizeIterator<Item = Row> + Clone, room: Room) {
        let (n, [_, heads, dim]) = (room.rows(rows.len()), self.q.shape());
        let longest = room.keys(rows.clone().map(|row| row.count as usize));
        let head = Head {
            q: self.q.as_ptr() as u64,
            weights: self.weights.as_ptr() as u64,
            out: self.out.unwrap_or(0),
            status: self.status,
            heads: heads as u32,
            dim: dim as u32,
            rows: n as u32,
            pad: 0,
        };
        let table = plan.push(&head, (rows, Row { count: -1, ..Row::zeroed() }, n));
        let mut launch = |name, (x, y): (usize, usize), threads| {
            let kernel = ("index_scores", name);
            let grid = [x as u32, y as u32];
            plan.launch(Launch { kernel, grid, threads, table, ..Launch::PLAIN });
        };
        launch("index_scores_start", (n.div_ceil(128), 1), 128);
        match self.method {
            Method::Reference => launch("index_scores", (longest.div_ceil(KEYS), n), 128),
            Method::Fast => launch("index_scores_fast", (longest.div_ceil(TILE), n), 256),
        }
    }
}
