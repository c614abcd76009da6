use super::Cpu;
use crate::error::Result;
use crate::ops::{Checked, SparseAttention};

pub(super) fn launch(_cpu: &Cpu, _op: Checked<SparseAttention<'_>>) -> Result<()> {
    todo!()
}
