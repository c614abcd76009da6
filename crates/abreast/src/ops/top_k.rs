//! Exact top-k with a total order.

use super::check::Check;
use super::{Cost, Op, Touches};
use crate::dims::MAX_K;
use crate::error::Result;
use crate::view::{DeviceId, View, ViewMut};

/// For every row, the `k` best of its scores by (score descending, index ascending), written in that order as
/// `index + offset`; every slot that cannot be filled gets -1.
///
/// The order is total, so the result is unique given the scores. Both zeros are equal. A score that is not finite
/// is never selected; the status word says `NONFINITE_SCORE`.
///
/// # Errors
/// An argument of another shape or device; `k` outside 1 to 2048; a negative offset, or one whose largest index
/// does not fit an i32; slots beyond `out` or overlapping another row's.
#[derive(Debug)]
pub struct TopK<'a> {
    /// How many indices a row gets, 1 to 2048.
    pub k: usize,
    /// One entry per row of the dispatch, any number.
    pub rows: &'a [TopKRow<'a>],
    /// Where the rows' indices go, `[anything]`; places that no row names are left untouched.
    pub out: ViewMut<'a, i32, 1>,
    /// One status word per entry, `[rows]`.
    pub status: Option<ViewMut<'a, u32, 1>>,
}

/// One selection.
#[derive(Debug, Clone, Copy)]
pub struct TopKRow<'a> {
    /// The scores to select from, `[n]`, any n.
    pub scores: View<'a, f32, 1>,
    /// Added to every selected index, not negative.
    pub offset: i32,
    /// Where the row's `k` slots start in `out`.
    pub out: usize,
}

/// What a selection checks of `k`, the offsets and the output, also within the combined call.
pub(super) struct Slots<'a> {
    pub(super) k: usize,
    pub(super) out: &'a ViewMut<'a, i32, 1>,
}

impl Slots<'_> {
    pub(super) fn contract(&self, c: Check) -> Result<()> {
        c.that((1..=MAX_K).contains(&self.k), |c| c.error("k", format_args!("1 to {MAX_K}"), self.k))?;
        c.view("out", self.out, [None])
    }

    /// Checks one entry with `n` scores; `c` names it.
    pub(super) fn row(&self, c: Check, row: (usize, i32, usize)) -> Result<()> {
        let (n, offset, out) = row;
        c.that(offset >= 0, |c| c.error("offset", "at least 0", offset))?;
        let most = i32::MAX as i128 - (n as i128 - 1).max(0);
        let fits = offset as i128 <= most;
        c.that(fits, |c| {
            c.error("offset", format_args!("at most {most}, so that the last index fits an i32"), offset)
        })?;
        c.range("out", (out, self.k), self.out.len())
    }
}

impl TopK<'_> {
    fn slots(&self) -> Slots<'_> {
        Slots { k: self.k, out: &self.out }
    }
}

impl Op for TopK<'_> {
    const NAME: &'static str = "top_k";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        self.slots().contract(c)?;
        if let Some(status) = &self.status {
            c.view("status", status, [Some(self.rows.len())])?;
        }
        for (e, row) in self.rows.iter().enumerate() {
            c.row(e).view("scores", &row.scores, [None])?;
            self.slots().row(c.row(e), (row.scores.len(), row.offset, row.out))?;
        }
        c.disjoint(self.rows.iter().enumerate().map(|(e, row)| (e, "out", row.out..row.out + self.k)))
    }

    fn cost(&self) -> Cost {
        let k = self.k as u64;
        self.rows.iter().map(|row| Cost { flops: 0, bytes: 4 * (row.scores.len() as u64 + k) }).sum()
    }

    fn touches(&self) -> Touches {
        Touches::default()
            .read(self.rows.iter().map(|row| row.scores.span()))
            .write([self.out.span()])
            .write(self.status.iter().map(ViewMut::span))
    }
}
