//! What can be computed: one file per operation, with its arguments, their contract and their cost.
//!
//! Arguments are checked here and nowhere else; a backend gets [`Checked`] and trusts it.

mod check;
mod compress;
mod convert_state;
mod gather_rows;
mod index_scores;
mod select_keys;
mod sparse_attention;
mod top_k;
mod touches;

pub use compress::{Compress, CompressRow, Emit, StateLayout};
pub use convert_state::{ConvertState, ConvertStateRow};
pub use gather_rows::{GatherRow, GatherRows};
pub use index_scores::{IndexScores, IndexScoresRow};
pub use select_keys::{SelectKeys, SelectKeysRow};
pub use sparse_attention::{AttentionRow, SparseAttention};
pub use top_k::{TopK, TopKRow};
pub use touches::Touches;

use crate::error::Result;
use crate::view::DeviceId;
use std::ops::{Deref, DerefMut};

/// Which arithmetic an operation uses. Nothing but the caller chooses between them. Each may have bits of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// f32 with fused multiply-add in one normative order: the same bits on every CPU and on CUDA.
    #[default]
    Reference,
    /// The fastest that the device has: on a Hopper GPU the matrix unit, where it has a kernel for the shape, with bits of that
    /// model's own; else the bits of `Reference`.
    Fast,
}

/// The least work that a call can do: a floor for its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts two.
    pub flops: u64,
    /// Bytes read and written, each once.
    pub bytes: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;
    fn add(self, other: Cost) -> Cost {
        Cost { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), |a, b| a + b)
    }
}

/// An operation: its name, its contract and its cost.
pub trait Op: Sized {
    /// Its name, the same in every folder and message.
    const NAME: &'static str;

    /// Whether the arguments make a legal call on `device`; the error names the first that does not.
    fn contract(&self, device: DeviceId) -> Result<()>;

    /// The least work of the call, if the arguments are legal.
    fn cost(&self) -> Cost;

    /// The memory that the call reads and writes.
    fn touches(&self) -> Touches;

    /// The arguments with the proof that they were checked.
    fn check(self, device: DeviceId) -> Result<Checked<Self>> {
        self.contract(device).map(|()| Checked(self))
    }
}

/// Arguments that passed their contract.
pub struct Checked<T>(T);

impl<T> Deref for Checked<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> DerefMut for Checked<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
