use super::Cpu;
use crate::error::Result;
use crate::ops::{Checked, GatherRows};

pub(super) fn launch(_cpu: &Cpu, _op: Checked<GatherRows<'_>>) -> Result<()> {
    todo!()
}
