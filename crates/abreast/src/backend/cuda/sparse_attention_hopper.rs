//! Fast sparse attention on Hopper: one launch of `sparse_attention_hopper.cu`, or of `sparse_attention_alone_hopper.cu` for many rows.

use super::target::{Chip, HOPPER_SHARED};
use crate::backend::gpu::plan::Launch;
use crate::backend::gpu::sparse_attention::Extent;

/// Threads of a block of a cluster: a warpgroup that scores, and those that sum and load.
const THREADS: u32 = 512;
/// Of a block alone: one more that scores.
const THREADS_ALONE: u32 = 640;

/// How the work of a row is spread; its bits are the same in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement {
    /// Heads of a block: 8, 16, 32 or 64.
    group: usize,
    /// Blocks that share them.
    blocks: usize,
}

/// Slots of a row up to which it has so few tiles that groups of heads share them better than blocks.
const NARROW: usize = 128;
/// Heads of a block and blocks that share them, from the fewest rows to the most; a last block alone takes any number.
const WIDE_ROWS: &[(usize, usize)] = &[(32, 8), (64, 8), (64, 4), (64, 3), (64, 2), (64, 1)];
const NARROW_ROWS: &[(usize, usize)] = &[(32, 4), (64, 4), (64, 2), (64, 1)];
/// Blocks of the largest cluster there is.
const MOST_BLOCKS: usize = 16;

impl Placement {
    /// A block for all heads.
    #[cfg(test)]
    pub(super) const ALONE: Placement = Placement { group: 64, blocks: 1 };

    /// The first whose clusters all run at once, else the last.
    pub(super) fn of(extent: Extent, chip: Chip) -> Placement {
        #[cfg(test)]
        if let Some(forced) = chip.attention {
            return forced;
        }
        let Extent { rows, heads, width, .. } = extent;
        let list = if width <= NARROW { NARROW_ROWS } else { WIDE_ROWS };
        // No group larger than the heads.
        let most = heads.next_power_of_two().max(8);
        let mut placements = list.iter().map(|&(group, blocks)| Placement { group: group.min(most), blocks });
        let fits = |p: &Placement| {
            let cluster = p.cluster(heads);
            p.blocks == 1 || (cluster <= MOST_BLOCKS && rows <= chip.clusters(cluster))
        };
        placements.find(fits).expect("a block alone always fits")
    }

    /// Heads of a block, as the kernel reads it.
    pub(super) fn group(self) -> i32 {
        self.group as i32
    }

    /// All blocks of a row.
    fn cluster(self, heads: usize) -> usize {
        self.blocks * heads.div_ceil(self.group)
    }

    /// The launch for a table of this extent.
    pub(super) fn launch(self, table: usize, Extent { rows, heads, .. }: Extent) -> Launch {
        let (stem, name, threads) = match self.blocks {
            1 => ("sparse_attention_alone_hopper", "attention_alone", THREADS_ALONE),
            2 => ("sparse_attention_hopper", "attention_2", THREADS),
            3 => ("sparse_attention_hopper", "attention_3", THREADS),
            4 => ("sparse_attention_hopper", "attention_4", THREADS),
            _ => ("sparse_attention_hopper", "attention_8", THREADS),
        };
        let cluster = self.cluster(heads) as u32;
        Launch {
            kernel: (stem, name),
            grid: [cluster, rows as u32],
            threads,
            shared: HOPPER_SHARED as u32,
            table,
            cluster,
            overlaps: true,
            ..Launch::PLAIN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cuda;
    use super::*;
    use crate::conformance::case::sparse_attention::{RowShape, Shape};
    use crate::conformance::case::{Problem, Rng};
    use crate::dims::HEAD_DIM;
    use crate::{Device, Method};
    use std::sync::Arc;

    /// Rows of every width, and bad data in some of them.
    #[test]
    fn every_placement_gives_the_same_bits() {
        let widths = [0, 1, 31, 32, 33, 47, 48, 49, 97, 128, 129, 400, 640, 1000, 2176];
        let all: Vec<usize> = (0..widths.len()).collect();
        let problems = [1, 8, 16, 40, 64, 128].map(|heads| {
            let row = |width| RowShape { kv_len: 300, width };
            let shape = Shape { heads, dim: HEAD_DIM, rows: widths.map(row).to_vec() };
            let mut data = shape.generate(heads as u64);
            let rng = &mut Rng::new(7);
            data.skip_and_repeat(rng);
            data.corrupt(1 << 18, rng);
            data
        });
        let mut first: Vec<Option<Vec<_>>> = problems.iter().map(|_| None).collect();
        for (group, blocks) in [64, 32, 16, 8].into_iter().flat_map(|g| [1, 2, 3, 4, 8].map(|b| (g, b))) {
            let mut cuda = match Cuda::open(0, None) {
                Ok(cuda) if cuda.kernels.chip.hopper => cuda,
                Ok(_) => return println!("SKIPPED: for compute capability 9.0"),
                Err(why) => return println!("SKIPPED: {why}"),
            };
            let placement = Placement { group, blocks };
            Arc::get_mut(&mut cuda.kernels).expect("of this handle alone").chip.attention = Some(placement);
            let device = Device::from_backend(Arc::new(cuda));
            for (data, first) in problems.iter().zip(&mut first) {
                if placement.cluster(data.heads) > MOST_BLOCKS {
                    continue;
                }
                let mut loaded = data.load(&device, Method::Fast).expect("loads");
                loaded.call(&all, 0).expect("runs");
                let rows = loaded.results(&all).expect("no fault");
                let first = first.get_or_insert_with(|| rows.clone());
                assert!(rows == *first, "{} heads, {placement:?}", data.heads);
            }
        }
    }

    /// Few rows take many blocks, and no cluster is larger than there are.
    #[test]
    fn fewer_rows_take_more_blocks() {
        let chip = Chip { hopper: true, shared: HOPPER_SHARED, multiprocessors: 132, attention: None };
        for (heads, width) in [(1, 640), (8, 2176), (64, 128), (64, 640), (100, 640), (128, 4096)] {
            let cluster =
                |rows| Placement::of(Extent { rows, heads, dim: HEAD_DIM, width }, chip).cluster(heads);
            assert!((1..200).all(|rows| cluster(rows) >= cluster(rows + 1)), "{heads} heads");
            assert!(cluster(1) <= MOST_BLOCKS && cluster(1) >= 8 && cluster(200) == heads.div_ceil(64));
        }
    }
}
