//! Scores to scratch, then the selections.

use super::target::Target;
use super::{index_scores, top_k};
use crate::backend::gpu::plan::Plan;
use crate::backend::gpu::select_keys::Places;
use crate::ops::{Checked, SelectKeys};

pub(super) fn plan(mut op: Checked<SelectKeys<'_>>, target: Target) -> Plan {
    let places = Places::of(&op, target.room);
    let mut plan = Plan { scratch: places.scratch, ..Plan::default() };
    let (scores, rows) = places.scores(&op);
    index_scores::push(&scores, &mut plan, (rows, target));
    let (selections, rows) = places.selections(&mut op);
    top_k::push(&selections, &mut plan, (rows.into_iter(), target));
    plan
}
