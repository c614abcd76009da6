//! Launches `gather_rows.cu`.

use super::target::Target;
use crate::backend::gpu::{gather_rows, plan::Plan};
use crate::ops::{Checked, GatherRows};

pub(super) fn plan(op: Checked<GatherRows<'_>>, target: Target) -> Plan {
    gather_rows::plan(op, target.room)
}
