use super::Cpu;
use crate::error::Result;
use crate::ops::{Checked, IndexScores};

pub(super) fn launch(_cpu: &Cpu, _op: Checked<IndexScores<'_>>) -> Result<()> {
    todo!()
}
