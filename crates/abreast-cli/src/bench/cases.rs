//! What is measured: operations and shapes.

use super::ceiling::Traffic;
use super::inputs::WIDTH;
use abreast::{
    Compress, GatherRows, IndexScores, Limits, Op, SelectKeys, SparseAttention, StateLayout, TopK, dims,
};

/// One operation at one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Case {
    SparseAttention {
        width: usize,
        heads: usize,
    },
    IndexScores {
        keys: usize,
        heads: usize,
    },
    SelectKeys {
        keys: usize,
    },
    TopK {
        n: usize,
        scores: Spread,
    },
    Compress {
        ratio: usize,
        d: usize,
        layout: StateLayout,
        block: bool,
    },
    /// The compressors of a layer: a token of each, the last of a block.
    CompressPair {
        layout: StateLayout,
    },
    GatherRows {
        n: usize,
    },
    /// A joint decode step at so many tokens of context.
    Step {
        tokens: usize,
    },
}

/// How the scores of a selection lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Spread {
    Random,
    Equal,
    Ascending,
    /// One of five values each.
    Five,
    /// Fewer than are sought differ; all others are equal and lower.
    Border,
}

const CPU_ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const GPU_ROWS: [usize; 4] = [1, 8, 32, 128];
/// Of the width that every layer with an indexer has.
const MORE_GPU_ROWS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

pub(super) const HEADS: usize = 64;
/// Tokens per index key.
pub(super) const KEY_RATIO: u32 = 4;
pub(super) const K: usize = 512;
/// A cache has this many times the rows that a query selects.
pub(super) const CACHE: usize = 4;
/// Tokens of a block and features of the compressors that a joint step has.
pub(super) const PAIR: [(usize, usize); 2] = [(RATIO, dims::HEAD_DIM), (RATIO, dims::INDEX_DIM)];
const RATIO: usize = KEY_RATIO as usize;
const COMPRESSORS: [(usize, usize); 3] = [(4, 128), (4, 512), (128, 512)];
const KEYS: [usize; 4] = [2048, 16_384, 65_536, 262_144];

impl Case {
    /// The cases of a run, in the order of the table.
    pub(super) fn all() -> Vec<Case> {
        let mut all = vec![];
        all.extend([128, 640, 2176].map(|width| Case::SparseAttention { width, heads: HEADS }));
        all.extend([8, 32, 128].map(|heads| Case::SparseAttention { width: WIDTH, heads }));
        all.extend(
            [HEADS, 32].into_iter().flat_map(|heads| KEYS.map(|keys| Case::IndexScores { keys, heads })),
        );
        all.push(Case::SelectKeys { keys: 16_384 });
        all.extend(KEYS.map(|n| Case::TopK { n, scores: Spread::Random }));
        let hard = [Spread::Equal, Spread::Ascending, Spread::Five, Spread::Border];
        all.extend(hard.map(|scores| Case::TopK { n: 65_536, scores }));
        let layouts = [StateLayout::Shifted, StateLayout::Ring];
        for (ratio, d) in COMPRESSORS {
            for layout in layouts {
                all.extend([false, true].map(|block| Case::Compress { ratio, d, layout, block }));
            }
        }
        all.extend(layouts.map(|layout| Case::CompressPair { layout }));
        all.extend([512, 65_536].map(|n| Case::GatherRows { n }));
        all.extend([4096, 65_536, 1 << 20].map(|tokens| Case::Step { tokens }));
        all
    }

    pub(super) fn op(&self) -> &'static str {
        match self {
            Case::SparseAttention { .. } => SparseAttention::NAME,
            Case::IndexScores { .. } => IndexScores::NAME,
            Case::SelectKeys { .. } => SelectKeys::NAME,
            Case::TopK { .. } => TopK::NAME,
            Case::Compress { .. } | Case::CompressPair { .. } => Compress::NAME,
            Case::GatherRows { .. } => GatherRows::NAME,
            Case::Step { .. } => "step",
        }
    }

    /// Names the shape, in reports for good.
    pub(super) fn shape(&self) -> String {
        let other = |heads| if heads == HEADS { String::new() } else { format!(" heads {heads}") };
        match self {
            Case::SparseAttention { width, heads } => format!("width {width}{}", other(*heads)),
            Case::IndexScores { keys, heads } => format!("keys {keys}{}", other(*heads)),
            Case::SelectKeys { keys } => format!("keys {keys}"),
            Case::TopK { n, scores } => format!("n {n} {scores:?}").to_lowercase(),
            Case::Compress { ratio, d, layout, block } => {
                let token = if *block { "block" } else { "token" };
                format!("ratio {ratio} d {d} {layout:?} {token}").to_lowercase()
            }
            Case::CompressPair { layout } => format!("ratio 4 d 512 and 128 {layout:?} block").to_lowercase(),
            Case::GatherRows { n } => format!("n {n}"),
            Case::Step { tokens } => format!("tokens {tokens}"),
        }
    }

    /// The numbers of rows of a run that nobody asked for others, fewer for the largest shapes, so that it ends soon.
    pub(super) fn rows(&self, gpu: bool) -> Vec<usize> {
        let (all, most): (&[usize], usize) = match (gpu, self) {
            (true, Case::SparseAttention { width: WIDTH, heads: HEADS }) => (&MORE_GPU_ROWS, usize::MAX),
            (true, Case::IndexScores { .. } | Case::SelectKeys { .. } | Case::TopK { .. }) => (&GPU_ROWS, 32),
            (true, _) => (&GPU_ROWS, usize::MAX),
            (_, Case::SparseAttention { width: 2176.., .. } | Case::IndexScores { keys: 65_536.., .. }) => {
                (&CPU_ROWS, 8)
            }
            (_, Case::IndexScores { keys: 16_384.., .. } | Case::SelectKeys { keys: 16_384.. }) => {
                (&CPU_ROWS, 16)
            }
            (_, Case::Step { tokens }) => (&CPU_ROWS, if *tokens > 4096 { 2 } else { 8 }),
            _ => (&CPU_ROWS, usize::MAX),
        };
        all.iter().copied().filter(|rows| *rows <= most).collect()
    }

    /// What a step needs for calls of so many rows.
    pub(super) fn limits(&self, rows: usize) -> Limits {
        let (width, keys) = match *self {
            Case::SparseAttention { width, .. } => (width, 0),
            Case::IndexScores { keys, .. } | Case::SelectKeys { keys } | Case::TopK { n: keys, .. } => {
                (0, keys)
            }
            Case::Compress { .. } | Case::CompressPair { .. } | Case::GatherRows { .. } => (0, 0),
            Case::Step { tokens } => (WIDTH, tokens / RATIO),
        };
        Limits { rows, width, keys }
    }

    /// About the bytes that one request holds alone.
    pub(super) fn request_bytes(&self) -> usize {
        let attention = |slots: usize, heads: usize| 2 * dims::HEAD_DIM * (slots + 2 * heads);
        let indexer = |keys: usize, heads: usize| 2 * dims::INDEX_DIM * (keys + heads);
        let compressor = |(ratio, d): (usize, usize)| 8 * dims::coff(ratio) * d * (dims::window(ratio) + 1);
        let pair = PAIR.into_iter().map(compressor).sum::<usize>();
        match *self {
            Case::SparseAttention { width, heads } => attention(CACHE * width, heads),
            Case::IndexScores { keys, heads } => indexer(keys, heads) + 4 * keys,
            Case::SelectKeys { keys } => indexer(keys, HEADS),
            Case::TopK { n, .. } => 4 * n,
            Case::Compress { ratio, d, .. } => compressor((ratio, d)),
            Case::CompressPair { .. } => pair,
            Case::GatherRows { n } => 8 * n,
            // Caches of so many tokens are shared.
            Case::Step { tokens } => attention(0, HEADS) + indexer(tokens / RATIO, HEADS) + pair,
        }
    }

    /// The most memory for the requests of a measurement.
    pub(super) fn most_bytes(&self) -> usize {
        match self {
            Case::Step { .. } | Case::IndexScores { keys: 262_144.., .. } => 20 << 30,
            _ => 3 << 30,
        }
    }

    /// Whether the method may be the device's matrix unit's.
    pub(super) fn is_product(&self) -> bool {
        use Case::*;
        matches!(self, SparseAttention { .. } | IndexScores { .. } | SelectKeys { .. } | Step { .. })
    }

    pub(super) fn traffic(&self) -> Traffic {
        match self {
            Case::GatherRows { .. } | Case::Compress { .. } | Case::CompressPair { .. } => Traffic::Copy,
            _ => Traffic::Read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Reports find figures by operation and shape.
    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = Case::all().iter().map(|case| (case.op(), case.shape())).collect();
        assert_eq!(names.len(), Case::all().len());
    }
}
