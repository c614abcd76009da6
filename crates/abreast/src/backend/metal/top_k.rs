//! Launches `top_k.metal`.

use crate::backend::gpu::plan::{Plan, Room};
use crate::backend::gpu::top_k::{Row, Selections, selections};
use crate::ops::{Checked, TopK};

pub(super) fn plan(mut op: Checked<TopK<'_>>, room: Room) -> Plan {
    let mut plan = Plan::default();
    let (selections, rows) = selections(&mut op);
    push(&selections, &mut plan, (rows, room));
    plan
}

pub(super) fn push(
    selections: &Selections,
    plan: &mut Plan,
    (rows, room): (impl ExactSizeIterator<Item = Row>, Room),
) {
    let n = room.rows(rows.len());
    let table = selections.table(plan, (rows, room));
    selections.launch(plan, (n, table));
}
