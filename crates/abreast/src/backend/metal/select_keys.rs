//! Scores to scratch, then the selections.

use super::{index_scores, top_k};
use crate::backend::gpu::plan::{Plan, Room};
use crate::backend::gpu::select_keys::Places;
use crate::ops::{Checked, SelectKeys};

pub(super) fn plan(mut op: Checked<SelectKeys<'_>>, room: Room) -> Plan {
    let places = Places::of(&op, room);
    let mut plan = Plan { scratch: places.scratch, ..Plan::default() };
    let (scores, rows) = places.scores(&op);
    index_scores::push(&scores, &mut plan, (rows, room));
    let (selections, rows) = places.selections(&mut op);
    top_k::push(&selections, &mut plan, (rows.into_iter(), room));
    plan
}
