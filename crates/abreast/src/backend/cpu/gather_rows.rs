//! A task is a row.

use super::{Cpu, Shared, Work};
use crate::error::Result;
use crate::ops::{Checked, GatherRows, Op};

pub(super) fn launch(cpu: &Cpu, mut op: Checked<GatherRows<'_>>) -> Result<()> {
    if op.rows.is_empty() {
        return Ok(());
    }
    let [_, n] = op.out.shape();
    let bytes = n * op.out.dtype().size();
    let out = Shared(op.out.as_mut_ptr());
    let prepared =
        cpu.prepare(Work { parts: op.rows.len(), scratch: 0, nanoseconds: op.cost().bytes / 150 })?;
    prepared.run(|task| {
        // SAFETY: the contract gave every source and every output row `bytes` bytes, and keeps them apart.
        unsafe {
            let source = op.rows[task.part].source.as_ptr();
            source.copy_to_nonoverlapping(out.at(task.part * bytes), bytes);
        }
    });
    Ok(())
}
