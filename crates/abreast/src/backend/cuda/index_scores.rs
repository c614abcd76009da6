//! Index scores: the work list and the launch of `index_scores.cu`, or of `index_scores_hopper.cu`.

use super::target::{Chip, Target};
use crate::backend::gpu::index_scores::{Scores, Seen, scores};
use crate::backend::gpu::plan::{Launch, Plan, Room};
use crate::dims::INDEX_DIM;
use crate::ops::{Checked, IndexScores, Method};
use bytemuck::{Pod, Zeroable};
use half::bf16;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Head {
    q: u64,
    weights: u64,
    out: u64,
    status: u64,
    tiles: u64,
    per: u64,
    tile: i32,
    heads: i32,
    dim: i32,
    rows: i32,
    busy: u32,
    longer: u32,
    ahead: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Row {
    keys: u64,
    query: u64,
    out: u64,
    count: i64,
    first: i64,
    said: u64,
    parts: u32,
    pad: u32,
}

impl Row {
    const PADDING: Row = Row { count: -1, first: i64::MAX, ..Row::ZERO };
    const ZERO: Row = Row { keys: 0, query: 0, out: 0, count: 0, first: 0, said: 0, parts: 0, pad: 0 };
}

pub(super) fn plan(mut op: Checked<IndexScores<'_>>, target: Target) -> Plan {
    let mut plan = Plan::default();
    let (scores, rows) = scores(&mut op);
    push(&scores, &mut plan, (rows, target));
    plan
}

pub(super) fn push<'a>(
    scores: &Scores<'_>,
    plan: &mut Plan,
    (rows, target): (impl ExactSizeIterator<Item = Seen<'a>> + Clone, Target),
) {
    let (n, [_, heads, dim]) = (target.room.rows(rows.len()), scores.q.shape());
    let form = Form::of(scores.method, [heads, dim], target.chip);
    let tiles: usize = rows.clone().map(|row| row.count.div_ceil(form.tile)).sum();
    let most = match target.room {
        Room::Own => tiles,
        Room::Limits(limits) => limits.rows * limits.keys.div_ceil(form.tile),
    };
    // A block at least: it clears the status words of rows without a key.
    let Start { blocks: worth, shared, ahead } = form.start(most);
    let blocks = most.clamp(n.min(1), worth);
    // All of them, if there are tiles for all: one that leaves at once makes room for a second one of the next launch beside another.
    let sharing = blocks.min(tiles).max(1);
    let (per, longer) = (tiles / sharing, tiles % sharing);
    let head = Head {
        q: scores.q.as_ptr() as u64,
        weights: scores.weights.as_ptr() as u64,
        out: scores.out.unwrap_or(0),
        status: scores.status,
        tiles: tiles as u64,
        per: per as u64,
        tile: form.tile as i32,
        heads: heads as i32,
        dim: dim as i32,
        rows: n as i32,
        // A warp of a block looks for empty rows among 32.
        busy: blocks.min(sharing.max(n.div_ceil(32))) as u32,
        longer: longer as u32,
        ahead,
        pad: 0,
    };
    // Which block has a tile.
    let block = |tile: usize| match tile.checked_sub(longer * (per + 1)) {
        None => tile / (per + 1),
        Some(beyond) => longer + beyond / per,
    };
    let mut next = 0;
    let listed = rows.map(|row| {
        let first = next;
        next += row.count.div_ceil(form.tile);
        Row {
            keys: row.keys.as_ptr() as u64,
            query: row.query as u64,
            out: row.out as u64,
            count: row.count as i64,
            first: first as i64,
            parts: if first < next { (block(next - 1) - block(first) + 1) as u32 } else { 0 },
            ..Row::ZERO
        }
    });
    let table = plan.push(&head, (listed, Row::PADDING, n));
    plan.launch(Launch {
        kernel: form.kernel,
        grid: [blocks as u32, 1],
        threads: form.threads,
        shared: shared as u32,
        table,
        overlaps: form.overlaps,
        ..Launch::PLAIN
    });
}

/// A kernel and how it cuts rows.
struct Form {
    kernel: (&'static str, &'static str),
    threads: u32,
    /// Keys of a tile.
    tile: usize,
    /// Bytes of shared memory of a block.
    shared: usize,
    /// The same of a block that is to have a multiprocessor to itself.
    alone: usize,
    /// The most blocks that are worth their start, where there are few tiles and where there are many.
    few: usize,
    most: usize,
    multiprocessors: usize,
    overlaps: bool,
}

/// How a launch for so many tiles starts: the most blocks that are worth it, the bytes of shared memory of each, and the tiles that
/// one asks the cache for before its turn.
struct Start {
    blocks: usize,
    shared: usize,
    ahead: u32,
}

impl Form {
    fn start(&self, tiles: usize) -> Start {
        /// Of tiles for each multiprocessor: from so many on, two blocks share them.
        const MANY: usize = 128;
        /// From so many on, a block has a multiprocessor to itself: beside a kernel before, which still holds some, two would pair up on each
        /// of the others, and all tiles would come by half of the chip. With fewer, the second place is the next launch's, which gets
        /// ready meanwhile.
        const SOME: usize = 8;
        /// More come in the way of the launch before; where a block has few tiles they win nothing.
        const AHEAD: u32 = 2;
        const ENOUGH: usize = 4;
        let each = tiles / self.multiprocessors;
        Start {
            blocks: if each < MANY { self.few } else { self.most },
            shared: if (SOME..MANY).contains(&each) { self.alone } else { self.shared },
            ahead: if each >= ENOUGH { AHEAD } else { 0 },
        }
    }

    fn of(method: Method, [heads, dim]: [usize; 2], chip: Chip) -> Form {
        match (method, heads) {
            (Method::Fast, 32) if chip.hopper && dim == INDEX_DIM => {
                Form::hopper("index_scores_32", 32, chip)
            }
            (Method::Fast, 64) if chip.hopper && dim == INDEX_DIM => {
                Form::hopper("index_scores_64", 64, chip)
            }
            _ => Form::reference(dim, chip),
        }
    }

    fn hopper(kernel: &'static str, heads: usize, chip: Chip) -> Form {
        // As the kernel's.
        const TILE: usize = 64;
        const STAGES: usize = 4;
        const RING: usize = size_of::<Head>() + size_of::<Row>() + (2 * STAGES + 6) * 8 + 2 * 64 * 4 + 8;
        let key = INDEX_DIM * size_of::<bf16>();
        let shared = (2 * heads + STAGES * TILE) * key + RING;
        Form {
            kernel: ("index_scores_hopper", kernel),
            threads: 2 * 128 + 128 + 32,
            tile: TILE,
            shared,
            // More than half of what there is.
            alone: shared.max((chip.shared / 2).next_multiple_of(1024)),
            few: chip.multiprocessors,
            // As many as multiprocessors hold.
            most: 2 * chip.multiprocessors,
            multiprocessors: chip.multiprocessors,
            overlaps: true,
        }
    }

    fn reference(dim: usize, chip: Chip) -> Form {
        /// The most dynamic shared memory of a block, bytes; every supported architecture has it.
        const MOST_SHARED: usize = 96 << 10;
        /// Many for each multiprocessor, so that those that start late even out.
        const BLOCKS: usize = 16;
        let shared = |keys: usize| dim * (keys + 2) * size_of::<f32>();
        // As many keys a block as its shared memory holds.
        let fits = |&keys: &usize| shared(keys) <= chip.shared.min(MOST_SHARED);
        let tile = [128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(fits).unwrap_or(1);
        Form {
            kernel: ("index_scores", "index_scores"),
            threads: 128,
            tile,
            shared: shared(tile),
            alone: shared(tile),
            few: BLOCKS * chip.multiprocessors,
            most: BLOCKS * chip.multiprocessors,
            multiprocessors: chip.multiprocessors,
            overlaps: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Chip, Form, Head, Plan, Room, Row, Scores, Seen, Target, push};
    use crate::backend::cuda::Cuda;
    use crate::conformance::case::index_scores::{RowShape, Shape};
    use crate::conformance::case::{Problem, Rng};
    use crate::step::Limits;
    use crate::{Device, Method};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    const CHIP: Chip = Chip { hopper: true, multiprocessors: 3, shared: 227 << 10, attention: None };

    /// The blocks of a call of rows with so many keys, and its table.
    fn plan(counts: &[usize], (method, room): (Method, Room)) -> (usize, Head, Vec<Row>) {
        let cpu = Device::cpu().expect("a CPU");
        let longest = counts.iter().max().copied().unwrap_or(0);
        let (q, weights) = (cpu.zeros(64 * 128).expect("memory"), cpu.zeros(64).expect("memory"));
        let keys = cpu.zeros(longest * 128).expect("memory");
        let scores = Scores {
            q: q.view().reshape([1, 64, 128]).expect("a shape"),
            weights: weights.view().reshape([1, 64]).expect("a shape"),
            method,
            out: None,
            status: 0,
        };
        let keys = keys.view().reshape([longest, 128]).expect("a shape");
        let seen = counts.iter().map(|&count| Seen { keys, query: 0, count, out: 0 });
        let mut plan = Plan::default();
        push(&scores, &mut plan, (seen, Target { room, chip: CHIP }));
        let (head, rows) = plan.table.split_at(size_of::<Head>());
        let blocks = plan.launches.first().map_or(0, |launch| launch.grid[0] as usize);
        (
            blocks,
            bytemuck::pod_read_unaligned(head),
            rows.chunks(size_of::<Row>()).map(bytemuck::pod_read_unaligned).collect(),
        )
    }

    /// Which block has a tile, as the kernels count.
    fn block(head: &Head, tile: i64) -> i64 {
        let start = |block: i64| block * head.per as i64 + block.min(head.longer.into());
        (0..).find(|&block| start(block + 1) > tile).expect("blocks go on")
    }

    /// Every tile has one block, and a row knows how many it has.
    #[test]
    fn the_work_list_is_whole() {
        let long: Vec<usize> = (0..40).map(|r| r * r * 7 % 999).collect();
        let wide: Vec<usize> = [vec![0; 300], vec![100_000], vec![0; 300], vec![1, 0]].concat();
        let limits = Room::Limits(Limits { rows: 700, width: 0, keys: 100_000 });
        for counts in [&[0, 0][..], &[1], &[64, 0, 65, 129], &long, &wide] {
            for method in [Method::Reference, Method::Fast] {
                let form = Form::of(method, [64, 128], CHIP);
                for room in [Room::Own, limits] {
                    let (blocks, head, rows) = plan(counts, (method, room));
                    assert!((1..=form.most).contains(&blocks));
                    assert_eq!(head.rows as usize, rows.len());
                    let mut next = 0;
                    for (row, count) in rows.iter().zip(counts) {
                        assert_eq!((row.first, row.count), (next, *count as i64));
                        next += count.div_ceil(form.tile) as i64;
                        let parts: BTreeSet<i64> = (row.first..next).map(|tile| block(&head, tile)).collect();
                        assert!(parts.is_empty() || parts.len() == row.parts as usize, "{row:?}");
                        let busy = parts.iter().all(|&block| block < head.busy as i64);
                        assert!(busy && (row.count > 0 || head.busy > 0), "{head:?} {row:?}");
                    }
                    assert_eq!(next as u64, head.tiles);
                    assert!(rows[counts.len()..].iter().all(|row| row.count == -1 && row.first == i64::MAX));
                }
            }
        }
        assert_eq!(plan(&[], (Method::Fast, Room::Own)).0, 0);
    }

    /// A GPU that places work as one of so many multiprocessors would; `None`, printed, where this machine has none.
    fn device(multiprocessors: usize) -> Option<Device> {
        let mut cuda = Cuda::open(0, None).map_err(|why| println!("SKIPPED: {why}")).ok()?;
        let kernels = std::sync::Arc::get_mut(&mut cuda.kernels).expect("of this handle alone");
        kernels.chip.multiprocessors = multiprocessors;
        Some(Device::from_backend(Arc::new(cuda)))
    }

    /// Blocks that have many rows, rows that have many blocks; damage in some, for the status words.
    #[test]
    fn every_placement_gives_the_same_bits() {
        let keys = [0, 1, 63, 64, 65, 0, 700, 129, 128, 0, 5000, 31, 2048, 0];
        let rows = keys.map(|keys| RowShape { start_pos: 4 * keys + 2, spare: 1 }).to_vec();
        let order: Vec<usize> = (0..rows.len()).collect();
        let mut data = Shape { heads: 64, dim: 128, ratio: 4, rows }.generate(11);
        data.corrupt(100_000, &mut Rng::new(12));
        for method in [Method::Reference, Method::Fast] {
            let place = |multiprocessors| {
                let mut loaded = data.load(&device(multiprocessors)?, method).expect("memory");
                loaded.reset(0xa5).expect("reset");
                loaded.call(&order, 0).expect("a call");
                Some(loaded.results(&order).expect("nothing else is written"))
            };
            let Some(one) = place(1) else { return };
            for multiprocessors in [2, 3, 132] {
                assert_eq!(place(multiprocessors).as_ref(), Some(&one), "{method:?}, {multiprocessors}");
            }
        }
    }
}
