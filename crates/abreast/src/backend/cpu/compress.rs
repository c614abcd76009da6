//! A task is a row; its tokens go one by one, features in the lanes.

use super::isa::Kernel;
use super::lanes::Lanes;
use super::math::{exp, tree};
use super::values::is_finite;
use super::{Cpu, Shared, StatusWords, Work};
use crate::dims::{OVERLAP_RATIO, PARTIALS, status};
use crate::error::Result;
use crate::ops::{Checked, Compress, Emit, Op, StateLayout};
use half::bf16;

pub(super) fn launch(cpu: &Cpu, mut op: Checked<Compress<'_, '_>>) -> Result<()> {
    let words = StatusWords::of(op.status.as_mut());
    if op.rows.is_empty() {
        return Ok(());
    }
    let out = Shared(op.out.as_mut_ptr());
    let [_, d] = op.out.shape();
    let (n, rows) = (op.rows.len(), Shared(op.rows.as_mut_ptr()));
    let op = &*op;
    let pool = Pool {
        ratio: op.ratio as usize,
        layout: op.layout,
        emit: op.emit,
        d,
        ape: op.ape.as_ptr(),
        norm: op.norm.as_slice().expect("a CPU view"),
        epsilon: op.epsilon,
    };
    let pool = &pool;
    let prepared =
        cpu.prepare(Work { parts: n, scratch: d * size_of::<f32>(), nanoseconds: op.cost().bytes / 28 })?;
    words.clear();
    prepared.run(|task| {
        // SAFETY: every task has an entry of its own.
        let row = unsafe { &mut *rows.at(task.part) };
        let state = State {
            kv: row.kv_state.as_mut_ptr(),
            score: row.score_state.as_mut_ptr(),
            rows: row.kv_state.shape()[0],
        };
        let mut found = 0;
        // SAFETY: the contract put the row's outputs within `out`, apart from every other row's.
        let out = unsafe { out.at(row.out * d) };
        let tokens = Tokens {
            pool,
            first: row.start_pos as usize,
            n: row.tokens(),
            kv: row.kv.as_ptr(),
            score: row.score.as_ptr(),
            state,
            pooled: task.scratch.cast(),
            out,
            found: &mut found,
        };
        cpu.isa.run(tokens);
        words.add(task.part, found);
    });
    Ok(())
}

/// What all rows of a call share.
struct Pool<'a> {
    ratio: usize,
    layout: StateLayout,
    emit: Emit,
    d: usize,
    ape: *const f32,
    norm: &'a [f32],
    epsilon: f32,
}

// SAFETY: points to the call's inputs, which nobody writes meanwhile.
unsafe impl Sync for Pool<'_> {}

/// A request's state, `[rows, features]` each.
#[derive(Clone, Copy)]
struct State {
    kv: *mut f32,
    score: *mut f32,
    rows: usize,
}

/// The tokens of one row.
struct Tokens<'a> {
    pool: &'a Pool<'a>,
    first: usize,
    n: usize,
    kv: *const f32,
    score: *const f32,
    state: State,
    /// `[d]`.
    pooled: *mut f32,
    out: *mut bf16,
    /// Status bits.
    found: &'a mut u32,
}

impl Pool<'_> {
    fn overlaps(&self) -> bool {
        self.ratio == OVERLAP_RATIO
    }

    /// Elements of an input or state row.
    fn features(&self) -> usize {
        if self.overlaps() { 2 * self.d } else { self.d }
    }
}

/// Consecutive positions of a window and the features that it takes of them.
#[derive(Clone, Copy)]
struct Half {
    first: usize,
    n: usize,
    feature: usize,
}

impl Kernel for Tokens<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Pool { ratio, d, emit, .. } = *self.pool;
        let mut out = self.out;
        for token in 0..self.n {
            let position = self.first + token;
            // SAFETY: the contract gave the inputs `n` rows, the state at least a window, and the output a row per emission.
            unsafe {
                self.store::<L>(token, position);
                let ends_block = (position + 1).is_multiple_of(ratio);
                if !ends_block && emit == Emit::Blocks {
                    continue;
                }
                let row = std::slice::from_raw_parts_mut(out, d);
                if ends_block {
                    if !self.pool_window::<L>(position, row) {
                        row.fill(bf16::ZERO);
                        *self.found |= status::NONFINITE_STATE;
                    }
                    self.shift();
                } else {
                    row.fill(bf16::ZERO);
                }
                out = out.add(d);
            }
        }
    }
}

impl Tokens<'_> {
    /// Which state row the token at a position has, or had before the last block's end.
    #[inline(always)]
    fn state_row(&self, position: usize) -> usize {
        let ratio = self.pool.ratio;
        match self.pool.layout {
            StateLayout::Ring => position % self.state.rows,
            StateLayout::Shifted if self.pool.overlaps() => ratio + position % ratio,
            StateLayout::Shifted => position % ratio,
        }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(&self, token: usize, position: usize) {
        let features = self.pool.features();
        let (most, zero, nan) = (L::splat(f32::MAX), L::splat(0.0), L::splat(f32::NAN));
        // SAFETY: the contract gave inputs, bias and state rows of `features`, a multiple of 32.
        unsafe {
            let state = self.state_row(position) * features;
            let ape = self.pool.ape.add(position % self.pool.ratio * features);
            for f in (0..features).step_by(L::N) {
                let kv = L::load(self.kv.add(token * features + f));
                let score = L::load(self.score.add(token * features + f));
                let biased = score.add(L::load(ape.add(f)));
                // One NaN for all: whatever is not finite or not a number, its payload does not live on.
                let legal = biased.select_ge(biased, biased, nan);
                let legal = most.select_ge(score.abs(), legal, nan);
                let legal = most.select_ge(kv.abs(), legal, nan);
                most.select_ge(kv.abs(), kv, zero).store(self.state.kv.add(state + f));
                legal.store(self.state.score.add(state + f));
            }
        }
    }

    /// The halves of the window that ends at `position`, the earlier first; one that is absent has no rows.
    #[inline(always)]
    fn window(&self, position: usize) -> [Half; 2] {
        let Pool { ratio, d, .. } = *self.pool;
        let block = position + 1 - ratio;
        if !self.pool.overlaps() {
            return [Half { first: block, n: 0, feature: 0 }, Half { first: block, n: ratio, feature: 0 }];
        }
        let own = Half { first: block, n: ratio, feature: d };
        let before = match self.pool.layout {
            // The rows of a fresh state stand for the block before the first.
            StateLayout::Shifted => Half { first: 0, n: ratio, feature: 0 },
            StateLayout::Ring if block == 0 => Half { first: 0, n: 0, feature: 0 },
            StateLayout::Ring => Half { first: block - ratio, n: ratio, feature: 0 },
        };
        [before, own]
    }

    /// Where row `i` of a half lies in the state, feature 0 of the half.
    #[inline(always)]
    fn place(&self, half: Half, i: usize) -> usize {
        let shifted_before =
            self.pool.layout == StateLayout::Shifted && self.pool.overlaps() && half.feature == 0;
        let row = if shifted_before { i } else { self.state_row(half.first + i) };
        row * self.pool.features() + half.feature
    }

    /// Pools the window that ends at `position` to `out`; whether all went well.
    #[inline(always)]
    unsafe fn pool_window<L: Lanes>(&self, position: usize, out: &mut [bf16]) -> bool {
        let Pool { d, norm, epsilon, .. } = *self.pool;
        let window = self.window(position);
        let mut poison = L::splat(0.0);
        // SAFETY: `place` is a state row of the contract's size; `pooled`, `norm` and `out` have `d` places.
        unsafe {
            for f in (0..d).step_by(L::N) {
                let pooled = self.softmax::<L>(&window, f, &mut poison);
                // Rounded to bf16, and from there on as that.
                pooled.narrow(out.as_mut_ptr().add(f));
                poison = pooled.poison(poison);
                L::widen(out.as_ptr().add(f)).store(self.pooled.add(f));
            }
            let c = std::slice::from_raw_parts(self.pooled, d);
            let mean = square_sum(c) / d as f32;
            if !is_finite(poison) || !mean.is_finite() {
                return false;
            }
            let r = L::splat(1.0 / (mean + epsilon).sqrt());
            let mut large = L::splat(0.0);
            for f in (0..d).step_by(L::N) {
                let result = L::load(c.as_ptr().add(f)).mul(r).mul(L::load(norm.as_ptr().add(f)));
                poison = result.poison(poison);
                result.narrow(out.as_mut_ptr().add(f));
                large = L::widen(out.as_ptr().add(f)).poison(large);
            }
            is_finite(poison) && is_finite(large)
        }
    }

    /// Softmax over the window of the scores, weighted sum of the values, for one vector of features.
    #[inline(always)]
    unsafe fn softmax<L: Lanes>(&self, window: &[Half; 2], f: usize, poison: &mut L) -> L {
        let (zero, nan) = (L::splat(0.0), L::splat(f32::NAN));
        let mut most = L::splat(f32::NEG_INFINITY);
        let (mut numerator, mut denominator) = (zero, zero);
        // SAFETY: the caller's promise.
        unsafe {
            for half in window {
                for i in 0..half.n {
                    let score = L::load(self.state.score.add(self.place(*half, i) + f));
                    most = most.max(score);
                    // -inf is legal, +inf and NaN are not.
                    *poison = poison.add(L::splat(f32::MAX).select_ge(score, zero, nan));
                }
            }
            for half in window {
                for i in 0..half.n {
                    let place = self.place(*half, i) + f;
                    let weight = exp(L::load(self.state.score.add(place)).sub(most));
                    let value = L::load(self.state.kv.add(place));
                    *poison = value.poison(*poison);
                    denominator = denominator.add(weight);
                    numerator = weight.mul_add(value, numerator);
                }
            }
        }
        numerator.div(denominator)
    }

    /// At a block's end the overlapping shifted state moves on: the current block becomes the one before.
    #[inline(always)]
    unsafe fn shift(&self) {
        if self.pool.layout == StateLayout::Shifted && self.pool.overlaps() {
            let half = self.pool.ratio * self.pool.features();
            for state in [self.state.kv, self.state.score] {
                // SAFETY: the state has 2 * ratio rows.
                unsafe { state.add(half).copy_to_nonoverlapping(state, half) };
            }
        }
    }
}

/// `dot(c, c)` in the reference order.
#[inline(always)]
fn square_sum(c: &[f32]) -> f32 {
    let mut partials = [0.0f32; PARTIALS];
    for step in c.chunks_exact(PARTIALS) {
        for (partial, c) in partials.iter_mut().zip(step) {
            *partial = c.mul_add(*c, *partial);
        }
    }
    tree(partials)
}
