//! What an operation is planned for.

use crate::backend::plan::Room;

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
}
