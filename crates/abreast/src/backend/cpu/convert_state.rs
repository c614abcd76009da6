//! A task is a request: every row of the new state is a copy of an old one, or fresh.

use super::{Cpu, Shared};
use crate::error::Result;
use crate::ops::{Checked, ConvertState};

pub(super) fn launch(cpu: &Cpu, mut op: Checked<ConvertState<'_, '_>>) -> Result<()> {
    let (ratio, from, to) = (op.ratio as usize, op.from, op.to);
    let (n, rows) = (op.rows.len(), Shared(op.rows.as_mut_ptr()));
    cpu.for_each(n, 0, |task| {
        // SAFETY: every task has an entry of its own.
        let row = unsafe { &mut *rows.at(task.part) };
        let [from_rows, features] = row.kv_from.shape();
        let [to_rows, _] = row.kv_to.shape();
        let next = row.position as usize;
        let to_position = |r| to.position_of(r, (ratio, to_rows, next));
        let old = |position| {
            (0..from_rows).find(|&r| from.position_of(r, (ratio, from_rows, next)) == Some(position))
        };
        for (from, to, fresh) in
            [(&row.kv_from, &mut row.kv_to, 0.0), (&row.score_from, &mut row.score_to, f32::NEG_INFINITY)]
        {
            let from = from.as_slice().expect("a CPU view");
            let new = to.as_slice_mut().expect("a CPU view").chunks_exact_mut(features);
            for (r, new) in new.enumerate() {
                match to_position(r).and_then(old) {
                    Some(old) => new.copy_from_slice(&from[old * features..][..features]),
                    None => new.fill(fresh),
                }
            }
        }
    })
}
