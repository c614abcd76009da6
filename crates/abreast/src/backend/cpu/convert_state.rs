//! A task is a request: every row of the new state is a copy of an old one, or fresh.

use super::{Cpu, Shared, Work};
use crate::error::Result;
use crate::ops::{Checked, ConvertState, Op};

pub(super) fn launch(cpu: &Cpu, op: Checked<ConvertState<'_, '_>>) -> Result<()> {
    let op = &*op;
    let prepared =
        cpu.prepare(Work { parts: op.rows.len(), scratch: 0, nanoseconds: op.cost().bytes / 30 })?;
    prepared.run(|task| {
        let (e, row) = (task.part, &op.rows[task.part]);
        let [_, features] = row.kv_from.shape();
        for (from, to, fresh) in
            [(&row.kv_from, &row.kv_to, 0.0), (&row.score_from, &row.score_to, f32::NEG_INFINITY)]
        {
            let from = from.as_slice().expect("a CPU view");
            let to = Shared(to.as_ptr().cast_mut());
            for (r, old) in op.sources(e).enumerate() {
                // SAFETY: the call holds the new states exclusively; the contract gave this one as many rows, apart from
                // every other request's, and every task has an entry of its own.
                let new = unsafe { std::slice::from_raw_parts_mut(to.at(r * features), features) };
                match old {
                    Some(old) => new.copy_from_slice(&from[old * features..][..features]),
                    None => new.fill(fresh),
                }
            }
        }
    });
    Ok(())
}
