//! Scores to scratch, then the selections.

use super::target::Target;
use super::{index_scores, top_k};
use crate::backend::plan::{Plan, Room};
use crate::dims::causal_count;
use crate::ops::{Checked, SelectKeys};

/// Places of a row of so many scores: rows start at whole lines of memory.
fn places(scores: usize) -> usize {
    scores.next_multiple_of(128 / size_of::<f32>())
}

pub(super) fn plan(mut op: Checked<SelectKeys<'_>>, target: Target) -> Plan {
    let count = |e: usize| causal_count(op.rows[e].start_pos, op.ratio);
    let n = op.rows.len();
    // The rows' scores, one behind the other; a step has the place for its limits.
    let starts: Vec<usize> = (0..n)
        .scan(0, |end, e| {
            *end += places(count(e));
            Some(*end - places(count(e)))
        })
        .collect();
    let places = match target.room {
        Room::Own => (0..n).map(|e| places(count(e))).sum(),
        Room::Limits(limits) => limits.rows * places(limits.keys),
    };
    let mut plan = Plan { scratch: places * size_of::<f32>(), ..Plan::default() };
    let status = index_scores::status(&op.status);
    let (method, out) = (op.method, None);
    let scores = index_scores::Scores { q: &op.q, weights: &op.weights, method, out, status };
    let scored = op.rows.iter().enumerate().map(|(e, row)| {
        let (query, count, out) = (row.query, count(e), starts[e]);
        index_scores::Seen { keys: &row.keys, query, count, out }
    });
    scores.push(&mut plan, scored, target);
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
    selections.push(&mut plan, selected.into_iter(), target);
    plan
}
