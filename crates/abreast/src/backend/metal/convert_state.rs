//! Launches `convert_state.metal`.

pub(super) use crate::backend::gpu::convert_state::plan;
