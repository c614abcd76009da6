//! Requests decoded abreast: DeepSeek-V4's decode cores for any number of independent rows in one dispatch.
//!
//! **The law of rows: the bits that a row gets jointly are the bits that it gets alone.**
//!
//! ```text
//!   request 0: q, cache, indices ─┐                ┌─ out 0   the bits of its own call
//!   request 1: q, cache, indices ─┼─ one dispatch ─┼─ out 1   the bits of its own call
//!   request 2: q, cache, indices ─┘                └─ out 2   the bits of its own call
//! ```
//!
//! They depend on that row's own inputs and shape alone: not on how many rows there are, their order, lengths or
//! contents, not on threads, and not on what ran before.
//!
//! | operation | what | CPU | CUDA | Metal |
//! | --- | --- | --- | --- | --- |
//! | [`SparseAttention`] | attention over selected cache slots with learned sinks | yes | feature `cuda` | feature `metal` |
//! | [`IndexScores`] | the lightning indexer's scores | yes | feature `cuda` | feature `metal` |
//! | [`TopK`] | exact selection with a total order | yes | feature `cuda` | feature `metal` |
//! | [`SelectKeys`] | the two in one call | yes | feature `cuda` | feature `metal` |
//! | [`Compress`] | the learned recurrent KV compressor | yes | feature `cuda` | feature `metal` |
//! | [`ConvertState`] | a compressor's state in the other layout | yes | feature `cuda` | feature `metal` |
//! | [`GatherRows`] | rows from many places, side by side | yes | feature `cuda` | feature `metal` |

mod any_view;
mod backend;
#[cfg(feature = "conformance")]
pub mod conformance;
mod device;
pub mod dims;
mod dtype;
mod error;
mod ops;
mod step;
mod view;

pub use any_view::{AnyView, AnyViewMut};
pub use backend::cpu::{CpuOptions, Isa};
#[cfg(feature = "metal-harness")]
pub use backend::metal::Schedule;
pub use device::{Buffer, Device, Gpu};
pub use dtype::{DType, Element};
pub use error::{Arg, Error, Result};
pub use half::{bf16, f16};
pub use ops::{
    AttentionRow, Checked, Compress, CompressRow, ConvertState, ConvertStateRow, Cost, Emit, GatherRow,
    GatherRows, IndexScores, IndexScoresRow, Method, Op, SelectKeys, SelectKeysRow, SparseAttention,
    StateLayout, TopK, TopKRow, Touches,
};
pub use step::{Calls, Limits, Step};
pub use view::{DeviceId, Kind, View, ViewMut};

/// The README's code, compiled and run as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
