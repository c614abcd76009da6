use super::Cpu;
use crate::error::Result;
use crate::ops::{Checked, Compress};

pub(super) fn launch(_cpu: &Cpu, _op: Checked<Compress<'_, '_>>) -> Result<()> {
    todo!()
}
