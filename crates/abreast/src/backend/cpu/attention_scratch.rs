//! Where a task of sparse attention keeps what.

use super::dots::{Packed, TILE, stack_len};
use super::lanes::WIDEST;
use super::values::WeightedSum;
use crate::dims::PARTIALS;

/// The scratch of a task.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) width: usize,
}

/// Where the parts of a task's scratch are.
pub(super) struct Scratch {
    /// Cache rows of the attended slots, and where each stood in the index list.
    pub(super) rows: *mut u32,
    pub(super) slots: *mut u32,
    /// Logits, then weights, `[heads, padded]`.
    pub(super) logits: *mut f32,
    pub(super) padded: usize,
    pub(super) queries: *mut f32,
    /// Cache rows, packed for the logits or widened for the sums.
    pub(super) tile: *mut f32,
    pub(super) stack: *mut f32,
    /// Weighted sums, `[heads, dim]`.
    pub(super) sums: *mut f32,
}

impl Layout {
    /// Whole tiles of any lanes, and whole turns of the softmax's partial sums.
    fn padded(self) -> usize {
        self.width.next_multiple_of(PARTIALS)
    }

    /// Lengths in elements of 4 bytes, in the order of [`Scratch`]'s fields. What is not needed at the same time
    /// shares its place: the sums are where the queries were.
    fn lengths(self) -> [usize; 4] {
        let tile = TILE * WIDEST;
        let queries = Packed::len(self.dim, self.heads.next_multiple_of(WIDEST));
        let tiles = Packed::len(self.dim, tile) + stack_len(self.heads, tile);
        [2 * self.padded(), self.heads * self.padded(), queries, tiles.max(WeightedSum::tile_len(self.dim))]
    }

    pub(super) fn bytes(self) -> usize {
        self.lengths().iter().sum::<usize>() * size_of::<f32>()
    }

    pub(super) fn place(self, scratch: *mut u8) -> Scratch {
        let [lists, logits, queries, _] = self.lengths();
        let padded = self.padded();
        let scratch: *mut f32 = scratch.cast();
        // SAFETY: the parts lie within `bytes`, one behind the other.
        unsafe {
            let at = |offset: usize| scratch.add(offset);
            let (queries, tile) = (at(lists + logits), at(lists + logits + queries));
            Scratch {
                rows: scratch.cast(),
                slots: at(padded).cast(),
                logits: at(lists),
                padded,
                queries,
                tile,
                stack: tile.add(Packed::len(self.dim, TILE * WIDEST)),
                sums: queries,
            }
        }
    }
}
