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
    /// Blocks that share them, a cluster.
    blocks: usize,
}

/// Slots of a row up to which it has so few tiles that groups of heads share them better than blocks.
const NARROW: usize = 128;
/// Slots of a row from which on it has enough tiles for the largest clusters.
const WIDE: usize = 896;
/// Heads of a block, blocks that share them, and the part of the chip that these take at most: beyond it, fewer blocks that each do more wait less for
/// one another's memory. From the fewest rows to the most; a last block alone takes any number.
const NARROW_ROWS: &[(usize, usize, usize)] =
    &[(16, 8, 2), (32, 8, 2), (32, 4, 2), (64, 4, 1), (64, 2, 1), (64, 1, 1)];
const ROWS: &[(usize, usize, usize)] =
    &[(16, 16, 3), (16, 8, 2), (32, 8, 1), (64, 8, 1), (64, 4, 1), (64, 3, 1), (64, 2, 1), (64, 1, 1)];
const WIDE_ROWS: &[(usize, usize, usize)] =
    &[(16, 16, 2), (16, 8, 2), (32, 8, 1), (64, 8, 1), (64, 4, 1), (64, 3, 1), (64, 2, 1), (64, 1, 1)];

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
        let list = match width {
            ..=NARROW => NARROW_ROWS,
            WIDE.. => WIDE_ROWS,
            _ => ROWS,
        };
        // No group larger than the heads.
        let most = heads.next_power_of_two().max(8);
        let fits = |p: &Placement, part: usize| {
            p.blocks == 1 || rows * p.groups(heads) <= chip.clusters(p.blocks).div_ceil(part)
        };
        list.iter()
            .map(|&(group, blocks, part)| (Placement { group: group.min(most), blocks }, part))
            .find(|(placement, part)| fits(placement, *part))
            .map(|(placement, _)| placement)
            .expect("a block alone always fits")
    }

    /// Heads of a block, as the kernel reads it.
    pub(super) fn group(self) -> i32 {
        self.group as i32
    }

    /// Groups of a row's heads.
    fn groups(self, heads: usize) -> usize {
        heads.div_ceil(self.group)
    }

    /// The launch for a table of this extent.
    pub(super) fn launch(self, table: usize, Extent { rows, heads, .. }: Extent) -> Launch {
        let (stem, name, threads) = match self.blocks {
            1 => ("sparse_attention_alone_hopper", "attention_alone", THREADS_ALONE),
            2 => ("sparse_attention_hopper", "attention_2", THREADS),
            3 => ("sparse_attention_hopper", "attention_3", THREADS),
            4 => ("sparse_attention_hopper", "attention_4", THREADS),
            8 => ("sparse_attention_hopper", "attention_8", THREADS),
            _ => ("sparse_attention_hopper", "attention_16", THREADS),
        };
        // Blocks alone need no cluster, but in one those of a row start together.
        let cluster = if self.blocks == 1 { self.groups(heads) } else { self.blocks } as u32;
        Launch {
            kernel: (stem, name),
            grid: [(self.blocks * self.groups(heads)) as u32, rows as u32],
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
        let placements = [64, 32, 16, 8].into_iter().flat_map(|g| [1, 2, 3, 4, 8, 16].map(|b| (g, b)));
        for (group, blocks) in placements.filter(|&placement| placement != (64, 16)) {
            let mut cuda = match Cuda::open(0, None) {
                Ok(cuda) if cuda.kernels.chip.hopper => cuda,
                Ok(_) => return println!("SKIPPED: for compute capability 9.0"),
                Err(why) => return println!("SKIPPED: {why}"),
            };
            let placement = Placement { group, blocks };
            Arc::get_mut(&mut cuda.kernels).expect("of this handle alone").chip.attention = Some(placement);
            let device = Device::from_backend(Arc::new(cuda));
            for (data, first) in problems.iter().zip(&mut first) {
                let mut loaded = data.load(&device, Method::Fast).expect("loads");
                loaded.call(&all, 0).expect("runs");
                let rows = loaded.results(&all).expect("no fault");
                let first = first.get_or_insert_with(|| rows.clone());
                assert!(rows == *first, "{} heads, {placement:?}", data.heads);
            }
        }
    }

    /// Few rows take many blocks.
    #[test]
    fn fewer_rows_take_more_blocks() {
        let chip = Chip { hopper: true, shared: HOPPER_SHARED, multiprocessors: 132, attention: None };
        for (heads, width) in [(1, 640), (8, 2176), (64, 128), (64, 640), (100, 640), (128, 4096)] {
            let blocks = |rows| {
                let placement = Placement::of(Extent { rows, heads, dim: HEAD_DIM, width }, chip);
                placement.blocks * placement.groups(heads)
            };
            assert!((1..200).all(|rows| blocks(rows) >= blocks(rows + 1)), "{heads} heads");
            assert!(blocks(1) >= 8 && blocks(200) == heads.div_ceil(64));
        }
    }
}
