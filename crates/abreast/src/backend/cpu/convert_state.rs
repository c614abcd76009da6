//! A task is a request: every row of the new state is a copy of an old one, or fresh.

use super::{Cpu, Shared, Work};
use crate::error::Result;
use crate::ops::{Checked, ConvertState, Op};

pub(super) fn launch(cpu: &Cpu, mut op: Checked<ConvertState<'_, '_>>) -> Result<()> {
    let targets: Vec<_> = op
        .rows
        .iter_mut()
        .map(|row| (Shared(row.kv_to.as_mut_ptr()), Shared(row.score_to.as_mut_ptr())))
        .collect();
    let op = &*op;
    let prepared = cpu.prepare(Work { parts: targets.len(), scratch: 0, cost: op.cost() })?;
    prepared.run(|task| {
        let (e, row) = (task.part, &op.rows[task.part]);
        let [_, features] = row.kv_from.shape();
        for (from, to, fresh) in
            [(&row.kv_from, targets[e].0, 0.0), (&row.score_from, targets[e].1, f32::NEG_INFINITY)]
        {
            let from = from.as_slice().expect("a CPU view");
            for (r, old) in op.sources(e).enumerate() {
                // SAFETY: the contract gave the new state this many rows, apart from every other request's.
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
