//! Scores to scratch, then the selections.

use super::{index_scores, top_k};
use crate::backend::gpu::plan::{Plan, Room, status};
use crate::backend::gpu::select_keys::Places;
use crate::ops::{Checked, SelectKeys};

pub(super) fn plan(mut op: Checked<SelectKeys<'_>>, room: Room) -> Plan {
    let places = Places::of(&op, room);
    let mut plan = Plan { scratch: places.scratch, ..Plan::default() };
    let (q, weights, method, status) = (&op.q, &op.weights, op.method, status(&op.status));
    let scores = index_scores::Scores { q, weights, method, out: None, status };
    let scored = op.rows.iter().enumerate().map(|(e, row)| index_scores::Row {
        keys: row.keys.as_ptr() as u64,
        query: row.query as u64,
        out: places.starts[e] as u64,
        count: places.counts[e] as i64,
    });
    scores.push(&mut plan, scored, room);
    let (selections, rows) = places.selections(&mut op);
    top_k::push(&selections, &mut plan, (rows.into_iter(), room));
    plan
}
