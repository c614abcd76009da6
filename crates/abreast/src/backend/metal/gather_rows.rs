//! Launches `gather_rows.metal`.

pub(super) use crate::backend::gpu::gather_rows::plan;
