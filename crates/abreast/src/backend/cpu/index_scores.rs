//! Tasks are stretches of keys of one row. A task packs the row's queries, then tiles of keys; the dot products of one tile
//! stay in the first-level cache until all heads are there to be weighted.

use super::dots::{Dots, Emit, Packed, Stacked, TILE, stack_len};
use super::isa::Kernel;
use super::lanes::{Lanes, WIDEST};
use super::memory::Starts;
use super::{Cpu, Isa, Prepared, Shared, StatusWords, Task, Work};
use crate::dims::{causal_count, status};
use crate::error::Result;
use crate::ops::{Checked, IndexScores, Op};
use half::bf16;

/// Keys of one task: few enough for every thread to have some, enough that packing the queries once more does not show.
fn stretch(keys: usize, threads: usize) -> usize {
    keys.div_ceil(threads).clamp(256, 1024).next_multiple_of(TILE * WIDEST)
}

pub(super) fn launch(cpu: &Cpu, mut op: Checked<IndexScores<'_>>) -> Result<()> {
    let words = StatusWords::of(op.status.as_mut());
    let out = Shared(op.out.as_mut_ptr());
    let scorer = Scorer { q: op.q.as_ptr(), weights: op.weights.as_ptr(), shape: op.q.shape() };
    let row = |e: usize| {
        let row = &op.rows[e];
        let count = causal_count(row.start_pos, op.ratio);
        // SAFETY: the contract put every row's scores within `out`.
        let out = Shared(unsafe { out.at(row.out) });
        ScoredRow { query: row.query, keys: row.keys.as_ptr(), count, out }
    };
    let scoring =
        scorer.prepare(cpu, Rows { len: op.rows.len(), row, nanoseconds: op.cost().flops / 130 })?;
    words.clear();
    scoring.run(&words);
    Ok(())
}

/// The queries and weights of a call.
pub(super) struct Scorer {
    pub(super) q: *const bf16,
    pub(super) weights: *const f32,
    pub(super) shape: [usize; 3],
}

// SAFETY: points to the call's inputs, which nobody writes meanwhile.
unsafe impl Sync for Scorer {}

/// Rows that are made when they are asked for, so that no list is.
pub(super) struct Rows<F> {
    pub(super) len: usize,
    pub(super) row: F,
    /// About how long one thread takes for all of them.
    pub(super) nanoseconds: u64,
}

/// One row, with `count` keys to score.
#[derive(Clone, Copy)]
pub(super) struct ScoredRow {
    pub(super) query: usize,
    pub(super) keys: *const bf16,
    pub(super) count: usize,
    pub(super) out: Shared<f32>,
}

// SAFETY: points to the row's inputs, which nobody writes meanwhile, and to its own place in the output.
unsafe impl Send for ScoredRow {}
// SAFETY: as above.
unsafe impl Sync for ScoredRow {}

impl Scorer {
    /// Takes what the scores of these rows need.
    pub(super) fn prepare<'a, F>(&'a self, cpu: &'a Cpu, rows: Rows<F>) -> Result<Scoring<'a, F>>
    where
        F: Fn(usize) -> ScoredRow + Sync,
    {
        let counts = || (0..rows.len).map(|e| (rows.row)(e).count);
        let stretch = stretch(counts().sum(), cpu.threads());
        let starts = cpu.starts(counts().map(|count| count.div_ceil(stretch)))?;
        let parts = starts.total();
        let scratch = if parts == 0 { 0 } else { Scratch::floats(self.shape) * size_of::<f32>() };
        let prepared = cpu.prepare(Work { parts, scratch, nanoseconds: rows.nanoseconds })?;
        Ok(Scoring { scorer: self, isa: cpu.isa, rows, stretch, starts, prepared })
    }
}

/// Scores that have what they need.
pub(super) struct Scoring<'a, F> {
    scorer: &'a Scorer,
    isa: Isa,
    rows: Rows<F>,
    stretch: usize,
    /// Where each row's stretches start: rows without keys have none.
    starts: Starts<'a>,
    prepared: Prepared<'a>,
}

impl<F: Fn(usize) -> ScoredRow + Sync> Scoring<'_, F> {
    pub(super) fn run(self, words: &StatusWords) {
        let Scoring { scorer, isa, rows, stretch, starts, prepared } = self;
        prepared.run(|task: Task| {
            let (e, n) = starts.find(task.part);
            let row = (rows.row)(e);
            let keys = n * stretch..row.count.min((n + 1) * stretch);
            isa.run(Stretch { scorer, row, keys, scratch: task.scratch.cast(), entry: (e, words) });
        });
    }
}

/// The scratch of a task: queries, keys, the stack of the dot products, the dot products.
struct Scratch {
    queries: Packed,
    keys: Packed,
    stack: *mut f32,
    dots: *mut f32,
}

impl Scratch {
    fn floats([_, heads, dim]: [usize; 3]) -> usize {
        let (padded, tile) = (heads.next_multiple_of(WIDEST), TILE * WIDEST);
        Packed::len(dim, padded) + Packed::len(dim, tile) + stack_len(heads, tile) + heads * tile
    }

    #[inline(always)]
    fn new<L: Lanes>([_, heads, dim]: [usize; 3], scratch: *mut f32) -> Scratch {
        let (padded, tile) = (heads.next_multiple_of(L::N), TILE * L::N);
        // SAFETY: the four parts lie within `floats`, whose lanes are the widest.
        unsafe {
            let keys = scratch.add(Packed::len(dim, padded));
            let stack = keys.add(Packed::len(dim, tile));
            let dots = stack.add(stack_len(heads, tile));
            Scratch {
                queries: Packed { data: scratch, dim, stride: padded },
                keys: Packed { data: keys, dim, stride: tile },
                stack,
                dots,
            }
        }
    }
}

struct Stretch<'a> {
    scorer: &'a Scorer,
    row: ScoredRow,
    keys: std::ops::Range<usize>,
    scratch: *mut f32,
    entry: (usize, &'a StatusWords),
}

impl Kernel for Stretch<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let [_, heads, dim] = self.scorer.shape;
        let Scratch { queries, keys, stack, dots } = Scratch::new::<L>(self.scorer.shape, self.scratch);
        // SAFETY: the contract checked `query`; the weights and queries of it lie within their views.
        let (q, weights) = unsafe {
            let weights = self.scorer.weights.add(self.row.query * heads);
            (self.scorer.q.add(self.row.query * heads * dim), std::slice::from_raw_parts(weights, heads))
        };
        let weights_finite = weights.iter().all(|w| w.is_finite());
        let mut all_finite = true;
        // SAFETY: `Scratch` has room for the queries' rows, a tile of keys and its dot products.
        unsafe { queries.fill::<L>(&Stacked { first: q, rows: heads, dim }) };
        let mut tile = self.keys.start;
        while tile < self.keys.end {
            let left = self.keys.end - tile;
            let stride = if left <= L::N { L::N } else { keys.stride };
            let keys = Packed { stride, ..keys };
            // SAFETY: keys before `count` lie within the row's cache; the scores within its place.
            unsafe {
                keys.fill::<L>(&Stacked { first: self.row.keys.add(tile * dim), rows: left, dim });
                let ahead = left.saturating_sub(stride);
                let next =
                    &Stacked { first: self.row.keys.add((self.keys.end - ahead) * dim), rows: ahead, dim };
                let all = Dots { a: queries, a_rows: heads, b: keys, stack, next };
                all.run::<L>(&Tile { to: dots, stride });
                for v in (0..stride.min(left)).step_by(L::N) {
                    let mut scores = [0.0f32; WIDEST];
                    weigh::<L>(dots.add(v), stride, weights).store(scores.as_mut_ptr());
                    let n = L::N.min(left - v);
                    let out = std::slice::from_raw_parts_mut(self.row.out.at(tile + v), n);
                    for (out, score) in out.iter_mut().zip(scores) {
                        let selectable = score.is_finite() && weights_finite;
                        *out = if selectable { score } else { f32::NEG_INFINITY };
                        all_finite &= selectable;
                    }
                }
            }
            tile += stride;
        }
        if !all_finite {
            self.entry.1.add(self.entry.0, status::NONFINITE_SCORE);
        }
    }
}

/// `sum_h relu(dot[h]) * w[h]` for the keys of one vector; NaN where a dot product is not finite.
///
/// # Safety
/// `dots` has a vector at every `stride`, for as many heads as weights.
#[inline(always)]
unsafe fn weigh<L: Lanes>(dots: *const f32, stride: usize, weights: &[f32]) -> L {
    let zero = L::splat(0.0);
    let (mut score, mut poison) = (zero, zero);
    for (h, w) in weights.iter().enumerate() {
        // SAFETY: the caller's promise.
        let dot = unsafe { L::load(dots.add(h * stride)) };
        poison = dot.poison(poison);
        // `zero >= dot` rather than `dot >= zero`: both zeros become +0.
        score = zero.select_ge(dot, zero, dot).mul_add(L::splat(*w), score);
    }
    poison.select_ge(zero, score, L::splat(f32::NAN))
}

/// Dot products of a tile, `[heads, stride]`.
struct Tile {
    to: *mut f32,
    stride: usize,
}

impl Emit for Tile {
    #[inline(always)]
    fn emit<L: Lanes>(&self, head: usize, key: usize, dots: L) {
        // SAFETY: the scratch has a place for every head and key of the tile.
        unsafe { dots.store(self.to.add(head * self.stride + key)) };
    }
}
