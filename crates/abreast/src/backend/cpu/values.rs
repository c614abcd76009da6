//! Weighted sums of cache rows, some heads by some features in registers, a tile of widened rows at a time.
//!
//! One element is `acc = fma(w[j], v[j], acc)` with j ascending: its chain goes on from tile to tile in `sums`.

use super::isa::prefetch;
use super::lanes::Lanes;
use super::memory::LINE;
use half::bf16;

/// Cache rows of one tile.
const ROWS: usize = 64;
/// How many rows ahead cache lines are fetched.
const AHEAD: usize = 4;
/// Vectors of features of one block.
const BLOCK: usize = 4;

/// `sums[h][f] = sum_a weights[h][a] * row(a)[f]`, a ascending.
pub(super) struct WeightedSum {
    /// `[heads, stride]`.
    pub(super) weights: *const f32,
    pub(super) stride: usize,
    pub(super) heads: usize,
    pub(super) dim: usize,
    /// Widened rows, [`WeightedSum::tile_len`] places: block by block of features, row by row.
    pub(super) tile: *mut f32,
    /// `[heads, dim]`.
    pub(super) sums: *mut f32,
}

/// Rows `first..first + n` of the attended ones, which lie in the tile.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    n: usize,
}

impl WeightedSum {
    pub(super) const fn tile_len(dim: usize) -> usize {
        ROWS * dim
    }

    /// # Safety
    /// `row(a)` has `dim` elements for a < n; the pointers have their places.
    #[inline(always)]
    pub(super) unsafe fn run<L: Lanes>(&self, n: usize, row: impl Fn(usize) -> *const bf16) {
        for first in (0..n).step_by(ROWS) {
            let tile = Tile { first, n: ROWS.min(n - first) };
            let mut feature = 0;
            // SAFETY: `dim` is a multiple of 32, and so of two vectors.
            unsafe {
                for a in 0..tile.n {
                    if first + a + AHEAD < n {
                        let next = row(first + a + AHEAD);
                        for line in 0..(self.dim * size_of::<bf16>()).div_ceil(LINE) {
                            prefetch(next.wrapping_byte_add(line * LINE));
                        }
                    }
                    self.widen::<L>(a, row(first + a));
                }
                while feature + BLOCK * L::N <= self.dim {
                    self.block::<L, BLOCK>(feature, tile);
                    feature += BLOCK * L::N;
                }
                while feature < self.dim {
                    self.block::<L, 2>(feature, tile);
                    feature += 2 * L::N;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn widen<L: Lanes>(&self, a: usize, row: *const bf16) {
        for feature in (0..self.dim).step_by(L::N) {
            let block = feature / (BLOCK * L::N) * (BLOCK * L::N);
            let features = (BLOCK * L::N).min(self.dim - block);
            // SAFETY: a < ROWS, so within the block's ROWS rows of `features`.
            unsafe {
                let place = self.tile.add(block * ROWS + a * features + (feature - block));
                L::widen(row.add(feature)).store(place);
            }
        }
    }

    #[inline(always)]
    unsafe fn block<L: Lanes, const V: usize>(&self, feature: usize, tile: Tile) {
        let mut head = 0;
        // SAFETY: `head` and the heads after it that a call takes are below `heads`.
        unsafe {
            // Eight-lane vectors come with sixteen registers, too few for four heads.
            while head + 4 <= self.heads && L::N != 8 {
                self.accumulate::<L, 4, V>((head, feature), tile);
                head += 4;
            }
            while head + 2 <= self.heads {
                self.accumulate::<L, 2, V>((head, feature), tile);
                head += 2;
            }
            while head < self.heads {
                self.accumulate::<L, 1, V>((head, feature), tile);
                head += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn accumulate<L: Lanes, const H: usize, const V: usize>(
        &self,
        (head, feature): (usize, usize),
        tile: Tile,
    ) {
        let mut sum = [[L::splat(0.0); V]; H];
        // SAFETY: heads and features lie within `weights` and `sums`, the tile's rows within the tile.
        unsafe {
            let sums = self.sums.add(head * self.dim + feature);
            if tile.first > 0 {
                for h in 0..H {
                    for v in 0..V {
                        sum[h][v] = L::load(sums.add(h * self.dim + v * L::N));
                    }
                }
            }
            let mut weight = self.weights.add(head * self.stride + tile.first);
            let mut value = self.tile.add(feature * ROWS).cast_const();
            for _ in 0..tile.n {
                let mut values = [L::splat(0.0); V];
                for (v, values) in values.iter_mut().enumerate() {
                    *values = L::load(value.add(v * L::N));
                }
                for h in 0..H {
                    let weight = L::splat(*weight.add(h * self.stride));
                    for v in 0..V {
                        sum[h][v] = weight.mul_add(values[v], sum[h][v]);
                    }
                }
                weight = weight.add(1);
                value = value.add(V * L::N);
            }
            for h in 0..H {
                for v in 0..V {
                    sum[h][v].store(sums.add(h * self.dim + v * L::N));
                }
            }
        }
    }
}

/// `out = sums / denominator`, rounded; whether all of it is finite, after rounding too.
///
/// # Safety
/// `sums` has as many places as `out`, a multiple of the lanes.
#[inline(always)]
pub(super) unsafe fn divide<L: Lanes>(sums: *const f32, denominator: f32, out: &mut [bf16]) -> bool {
    let mut poison = L::splat(0.0);
    for feature in (0..out.len()).step_by(L::N) {
        // SAFETY: the caller's promise.
        unsafe {
            let value = L::load(sums.add(feature)).div(L::splat(denominator));
            poison = value.poison(poison);
            value.narrow(out.as_mut_ptr().add(feature));
            poison = L::widen(out.as_ptr().add(feature)).poison(poison);
        }
    }
    is_finite(poison)
}

/// Whether everything that went into a sum of [`Lanes::poison`] was finite.
#[inline(always)]
pub(super) fn is_finite<L: Lanes>(poison: L) -> bool {
    // The sum of zeros is not above -1 only where it is NaN.
    let all = u32::MAX >> (u32::BITS - L::N as u32);
    poison.gt_mask(L::splat(-1.0)) == all
}
