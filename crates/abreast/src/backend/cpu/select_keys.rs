use super::Cpu;
use crate::error::Result;
use crate::ops::{Checked, SelectKeys};

pub(super) fn launch(_cpu: &Cpu, _op: Checked<SelectKeys<'_>>) -> Result<()> {
    todo!()
}
