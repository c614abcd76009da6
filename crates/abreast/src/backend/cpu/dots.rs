//! Dot products of bf16 rows in the reference order, a tile at a time.
//!
//! `dot(a, b)` has 32 partial sums, `p[l] = fma(a[32i+l], b[32i+l], p[l])`, added up by a tree (`p[l] += p[l+16]`, then 8,
//! 4, 2, 1). Here a lane is a row: rows are packed feature-major, so that every sum of the tree is a plain vector
//! addition. Taken in bit-reversed order of `l`, the tree is pairwise summation: 4 partial sums meet in registers,
//! and 8 such groups on a stack of three levels.

use super::isa::prefetch;
use super::lanes::Lanes;
use super::memory::LINE;
use crate::dims::PARTIALS;
use half::bf16;

/// Vectors of rows that one tile holds.
pub(super) const TILE: usize = 2;
/// Partial sums that meet in registers.
const GROUP: usize = 4;
/// Levels of the stack that the other sums meet on.
const LEVELS: usize = (PARTIALS / GROUP).ilog2() as usize;

/// Rows to pack, by their place.
pub(super) trait Source {
    /// Where row `r` starts; `None` where there are fewer rows.
    fn get(&self, r: usize) -> Option<*const bf16>;
}

/// Rows that lie one behind the other.
pub(super) struct Stacked {
    pub(super) first: *const bf16,
    pub(super) rows: usize,
    pub(super) dim: usize,
}

impl Source for Stacked {
    #[inline(always)]
    fn get(&self, r: usize) -> Option<*const bf16> {
        // SAFETY: the maker counts rows that lie within their view.
        (r < self.rows).then(|| unsafe { self.first.add(r * self.dim) })
    }
}

/// bf16 rows, widened and packed: the value of feature `32i + l` of row `r` is at `[(place(l), i, r)]`.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    pub(super) data: *mut f32,
    /// Features of a row, a multiple of 32.
    pub(super) dim: usize,
    /// Rows that there is place for, a multiple of the lanes.
    pub(super) stride: usize,
}

impl Packed {
    pub(super) const fn len(dim: usize, stride: usize) -> usize {
        dim * stride
    }

    /// Packs a row for every place; where there is none, zeros.
    ///
    /// # Safety
    /// `data` has `len` places; a row has `dim` elements.
    #[inline(always)]
    pub(super) unsafe fn fill<L: Lanes>(self, rows: &impl Source) {
        let steps = self.dim / PARTIALS;
        for first in (0..self.stride).step_by(L::N) {
            for pair in (0..self.dim / 2).step_by(L::N) {
                let mut lanes = [L::splat(0.0); 16];
                for (r, lane) in lanes.iter_mut().enumerate().take(L::N) {
                    if let Some(row) = rows.get(first + r) {
                        // SAFETY: 2N of the row's `dim` elements, as `pair` ends N pairs before the row's end.
                        *lane = unsafe { L::load(row.add(2 * pair).cast()) };
                    }
                }
                transpose(&mut lanes);
                for (n, pairs) in lanes.iter().enumerate().take(L::N) {
                    for (odd, value) in [pairs.low_half(), pairs.high_half()].into_iter().enumerate() {
                        let feature = 2 * (pair + n) + odd;
                        let place = place(feature % PARTIALS) * steps + feature / PARTIALS;
                        // SAFETY: place < dim and first + N <= stride.
                        unsafe { value.store(self.data.add(place * self.stride + first)) };
                    }
                }
            }
        }
    }
}

/// Where partial sum `l` comes: its five bits reversed.
#[inline(always)]
const fn place(l: usize) -> usize {
    ((l as u32).reverse_bits() >> (u32::BITS - PARTIALS.ilog2())) as usize
}

/// Transposes the first N x N of `rows`: each zip of the upper with the lower half rotates one bit of the row's number
/// into the lane's.
#[inline(always)]
fn transpose<L: Lanes>(rows: &mut [L; 16]) {
    let mut done = 1;
    while done < L::N {
        let before = *rows;
        for i in 0..L::N / 2 {
            (rows[2 * i], rows[2 * i + 1]) = before[i].zip(before[i + L::N / 2]);
        }
        done *= 2;
    }
}

/// Where finished dot products go. (A closure could not be `#[inline(always)]`.)
pub(super) trait Emit {
    /// The dot products of one `a` row with the `N` rows of `b` from `b_row` on.
    fn emit<L: Lanes>(&self, a_row: usize, b_row: usize, dots: L);
}

/// Every dot product of packed `a` rows (broadcast) with packed `b` rows (lanes).
pub(super) struct Dots<'a, S> {
    pub(super) a: Packed,
    pub(super) a_rows: usize,
    /// At most [`TILE`] vectors of rows.
    pub(super) b: Packed,
    /// [`stack_len`] places.
    pub(super) stack: *mut f32,
    /// The rows that are packed next: they are fetched meanwhile.
    pub(super) next: &'a S,
}

/// Places that the sums of a tile need until they are complete.
pub(super) const fn stack_len(a_rows: usize, b_stride: usize) -> usize {
    LEVELS * a_rows * b_stride
}

impl<S: Source> Dots<'_, S> {
    /// Hands every dot product to `to`.
    ///
    /// # Safety
    /// The packed rows are filled and the stack has its places.
    #[inline(always)]
    pub(super) unsafe fn run<L: Lanes>(&self, to: &impl Emit) {
        for group in 0..PARTIALS / GROUP {
            self.fetch(group);
            // SAFETY: passed on.
            unsafe {
                if self.b.stride == L::N {
                    self.sweep::<L, 1>(group, to);
                } else {
                    debug_assert_eq!(self.b.stride, TILE * L::N);
                    self.sweep::<L, TILE>(group, to);
                }
            }
        }
    }

    /// Fetches this group's share of the next rows' cache lines.
    #[inline(always)]
    fn fetch(&self, group: usize) {
        let share = |group: usize| self.b.stride * group / (PARTIALS / GROUP);
        for row in (share(group)..share(group + 1)).map_while(|r| self.next.get(r)) {
            for line in 0..(self.b.dim * size_of::<bf16>()).div_ceil(LINE) {
                prefetch(row.wrapping_byte_add(line * LINE));
            }
        }
    }

    /// One group of partial sums for all rows: the `b` values that it needs stay in the first-level cache.
    #[inline(always)]
    unsafe fn sweep<L: Lanes, const V: usize>(&self, group: usize, to: &impl Emit) {
        let mut row = 0;
        // SAFETY: `row` and the rows after it that a block takes are below `a_rows`.
        unsafe {
            while row + 4 <= self.a_rows && L::N != 8 {
                self.block::<L, 4, V>((group, row), to);
                row += 4;
            }
            while row + 2 <= self.a_rows {
                self.block::<L, 2, V>((group, row), to);
                row += 2;
            }
            while row < self.a_rows {
                self.block::<L, 1, V>((group, row), to);
                row += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn block<L: Lanes, const R: usize, const V: usize>(
        &self,
        (group, row): (usize, usize),
        to: &impl Emit,
    ) {
        // SAFETY: four places of the 32; rows below `a_rows`.
        let mut sum = unsafe {
            let upper =
                sums(self.partial::<L, R, V>(GROUP * group, row), self.partial(GROUP * group + 1, row));
            let lower =
                sums(self.partial::<L, R, V>(GROUP * group + 2, row), self.partial(GROUP * group + 3, row));
            sums(upper, lower)
        };
        // Groups pair up like the digits of a counter: a carry at level n adds what waits there.
        let carries = (group as u32).trailing_ones() as usize;
        let at = |level: usize, r: usize, v: usize| ((level * self.a_rows + row + r) * V + v) * L::N;
        for level in 0..carries {
            for r in 0..R {
                for v in 0..V {
                    // SAFETY: level < LEVELS, as carries is; within the stack.
                    sum[r][v] = unsafe { L::load(self.stack.add(at(level, r, v))) }.add(sum[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                if carries == LEVELS {
                    to.emit(row + r, v * L::N, sum[r][v]);
                } else {
                    // SAFETY: carries < LEVELS; within the stack.
                    unsafe { sum[r][v].store(self.stack.add(at(carries, r, v))) };
                }
            }
        }
    }

    /// One partial sum of R x V pairs of rows.
    #[inline(always)]
    unsafe fn partial<L: Lanes, const R: usize, const V: usize>(
        &self,
        place: usize,
        row: usize,
    ) -> [[L; V]; R] {
        let steps = self.a.dim / PARTIALS;
        let mut sum = [[L::splat(0.0); V]; R];
        // SAFETY: place < 32 and the steps of a place lie side by side, within `data`.
        let (mut a, mut b) = unsafe {
            (
                self.a.data.add(place * steps * self.a.stride + row),
                self.b.data.add(place * steps * self.b.stride),
            )
        };
        for _ in 0..steps {
            // SAFETY: as above.
            unsafe {
                let mut lanes = [L::splat(0.0); V];
                for (v, lanes) in lanes.iter_mut().enumerate() {
                    *lanes = L::load(b.add(v * L::N));
                }
                for (r, sum) in sum.iter_mut().enumerate() {
                    let value = L::splat(*a.add(r));
                    for v in 0..V {
                        sum[v] = value.mul_add(lanes[v], sum[v]);
                    }
                }
                (a, b) = (a.add(self.a.stride), b.add(self.b.stride));
            }
        }
        sum
    }
}

#[inline(always)]
fn sums<L: Lanes, const R: usize, const V: usize>(mut a: [[L; V]; R], b: [[L; V]; R]) -> [[L; V]; R] {
    for r in 0..R {
        for v in 0..V {
            a[r][v] = a[r][v].add(b[r][v]);
        }
    }
    a
}
