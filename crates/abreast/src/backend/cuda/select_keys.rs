//! Scores to scratch, then the selections.

use super::target::Target;
use super::{index_scores, top_k};
use crate::backend::gpu::plan::{Plan, status};
use crate::backend::gpu::select_keys::Places;
use crate::ops::{Checked, SelectKeys};

pub(super) fn plan(mut op: Checked<SelectKeys<'_>>, target: Target) -> Plan {
    let places = Places::of(&op, target.room);
    let mut plan = Plan { scratch: places.scratch, ..Plan::default() };
    let (q, weights, method, status) = (&op.q, &op.weights, op.method, status(&op.status));
    let scores = index_scores::Scores { q, weights, method, out: None, status };
    let scored = op.rows.iter().enumerate().map(|(e, row)| {
        let (query, count, out) = (row.query, places.counts[e], places.starts[e]);
        index_scores::Seen { keys: &row.keys, query, count, out }
    });
    scores.push(&mut plan, scored, target);
    let (selections, rows) = places.selections(&mut op);
    top_k::push(&selections, &mut plan, (rows.into_iter(), target));
    plan
}
