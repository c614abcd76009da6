//! Launches `convert_state.cu`.

use super::target::Target;
use crate::backend::gpu::{convert_state, plan::Plan};
use crate::ops::{Checked, ConvertState};

pub(super) fn plan(op: Checked<ConvertState<'_, '_>>, target: Target) -> Plan {
    convert_state::plan(op, target.room)
}
