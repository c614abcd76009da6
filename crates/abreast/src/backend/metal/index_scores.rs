//! Index scores: the table and the launches of `index_scores.metal`.

use crate::backend::gpu::index_scores::{Scores, Seen, scores};
use crate::backend::gpu::plan::{Launch, Plan, Room};
use crate::ops::{Checked, IndexScores, Method};
use bytemuck::{Pod, Zeroable};

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
struct Row {
    keys: u64,
    query: u64,
    out: u64,
    count: i64,
}

/// Keys of one threadgroup, as in the kernels.
const KEYS: usize = 16;
const TILE: usize = 32;

pub(super) fn plan(mut op: Checked<IndexScores<'_>>, room: Room) -> Plan {
    let mut plan = Plan::default();
    let (scores, rows) = scores(&mut op);
    push(&scores, &mut plan, (rows, room));
    plan
}

pub(super) fn push<'a>(
    scores: &Scores<'_>,
    plan: &mut Plan,
    (rows, room): (impl ExactSizeIterator<Item = Seen<'a>> + Clone, Room),
) {
    let (n, [_, heads, dim]) = (room.rows(rows.len()), scores.q.shape());
    let longest = room.keys(rows.clone().map(|row| row.count));
    let head = Head {
        q: scores.q.as_ptr() as u64,
        weights: scores.weights.as_ptr() as u64,
        out: scores.out.unwrap_or(0),
        status: scores.status,
        heads: heads as u32,
        dim: dim as u32,
        rows: n as u32,
        pad: 0,
    };
    let rows = rows.map(|row| Row {
        keys: row.keys.as_ptr() as u64,
        query: row.query as u64,
        out: row.out as u64,
        count: row.count as i64,
    });
    let table = plan.push(&head, (rows, Row { count: -1, ..Row::zeroed() }, n));
    let mut launch = |name, (x, y): (usize, usize), threads| {
        let kernel = ("index_scores", name);
        let grid = [x as u32, y as u32];
        plan.launch(Launch { kernel, grid, threads, table, ..Launch::PLAIN });
    };
    launch("index_scores_start", (n.div_ceil(128), 1), 128);
    match scores.method {
        Method::Reference => launch("index_scores", (longest.div_ceil(KEYS), n), 128),
        Method::Fast => launch("index_scores_fast", (longest.div_ceil(TILE), n), 256),
    }
}
