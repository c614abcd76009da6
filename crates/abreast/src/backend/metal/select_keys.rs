//! Scores to scratch, then the selections.

use super::{index_scores, top_k};
use crate::backend::plan::{Plan, Room};
use crate::dims::causal_count;
use crate::ops::{Checked, SelectKeys};

pub(super) fn plan(mut op: Checked<SelectKeys<'_>>, room: Room) -> Plan {
    let count = |e: usize| causal_count(op.rows[e].start_pos, op.ratio);
    let n = op.rows.len();
    // The rows' scores, one behind the other; a step has the place for its limits.
    let starts: Vec<usize> = (0..n)
        .scan(0, |end, e| {
            *end += count(e);
            Some(*end - count(e))
        })
        .collect();
    let places = match room {
        Room::Own => (0..n).map(count).sum(),
        Room::Limits(limits) => limits.rows * limits.keys,
    };
    let mut plan = Plan { scratch: places * size_of::<f32>(), ..Plan::default() };
    let status = index_scores::status(&op.status);
    let (q, weights, method) = (&op.q, &op.weights, op.method);
    let scores = index_scores::Scores { q, weights, method, out: None, status };
    let scored = (0..n).map(|e| index_scores::Row {
        keys: op.rows[e].keys.as_ptr() as u64,
        query: op.rows[e].query as u64,
        out: starts[e] as u64,
        count: count(e) as i64,
    });
    scores.push(&mut plan, scored, room);
    let selected: Vec<top_k::Row> = (0..n)
        .map(|e| top_k::Row {
            scores: (starts[e] * size_of::<f32>()) as u64,
            out: op.rows[e].out as u64,
            n: count(e) as i64,
            offset: op.rows[e].offset,
            pad: 0,
        })
        .collect();
    let selections = top_k::Selections { k: op.k, out: op.out.as_mut_ptr() as u64, status, in_scratch: true };
    selections.push(&mut plan, selected.into_iter(), room);
    plan
}
