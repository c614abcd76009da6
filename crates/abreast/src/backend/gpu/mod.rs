//! What the GPU backends share: calls as plain data, and the plans of operations whose kernels read one table and take one grid
//! everywhere.

pub(super) mod constants;
pub(super) mod convert_state;
#[cfg(all(test, any(feature = "cuda", feature = "metal-harness")))]
pub(super) mod defects;
pub(super) mod gather_rows;
pub(super) mod index_scores;
pub(super) mod plan;
#[cfg(feature = "cuda")]
pub(super) mod schedule;
pub(super) mod select_keys;
pub(super) mod sparse_attention;
pub(super) mod top_k;
