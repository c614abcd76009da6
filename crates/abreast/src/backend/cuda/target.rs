//! What an operation is planned for.

use crate::backend::gpu::plan::Room;

/// The most dynamic shared memory of a block on Hopper, bytes.
pub(super) const HOPPER_SHARED: usize = 227 << 10;

/// The room that launches must have, and the chip that they run on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) room: Room,
    pub(super) chip: Chip,
}

/// What planning asks of a chip. It may choose where work runs, and among kernels of the same bits; never bits by the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chip {
    /// Compute capability 9.0: clusters, the matrix unit's own instructions, overlapping launches.
    pub(super) hopper: bool,
    /// The most dynamic shared memory of a block, bytes.
    pub(super) shared: usize,
    pub(super) multiprocessors: usize,
    /// Where attention runs, if not where it would.
    #[cfg(test)]
    pub(super) attention: Option<super::sparse_attention_hopper::Placement>,
}

impl Chip {
    /// About how many clusters of so many blocks run at once, where a block takes a multiprocessor: those of larger ones
    /// lie in one part of the chip, and a few multiprocessors are left over.
    pub(super) fn clusters(self, blocks: usize) -> usize {
        if blocks < 4 { self.multiprocessors / blocks } else { self.multiprocessors * 10 / 11 / blocks }
    }
}
