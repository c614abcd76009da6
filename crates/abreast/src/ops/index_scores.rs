//! The lightning indexer's scores.

use super::check::Check;
use super::{Cost, Method, Op, Touches};
use crate::dims::causal_count;
use crate::error::Result;
use crate::view::{DeviceId, View, ViewMut};
use half::bf16;

/// The lightning indexer's scores.
///
/// For every row and every key `t` that it may see, `t < (start_pos + 1) / ratio`:
///
/// ```text
/// score[t] = sum_h max(dot(q[h], keys[t]), 0) * w[h]
/// ```
///
/// A score that is not finite, or that has a non-finite term (a dot product or a weight, also one that the relu or
/// a zero would hide), is written as -inf, which no selection takes; the status word says `NONFINITE_SCORE`.
/// Source of the formula: DeepSeek's lightning indexer.
///
/// # Errors
/// An argument of another shape or device; no heads, or 2^31 / `dim` and more; `dim` not a multiple of 32 from 32 to 2^20; a ratio of 0; a cache
/// shorter than the keys that its row may see; scores beyond `out` or overlapping another row's.
#[derive(Debug)]
pub struct IndexScores<'a> {
    /// Indexer queries, `[queries, heads, dim]`.
    pub q: View<'a, bf16, 3>,
    /// Head weights with all scales folded in, `[queries, heads]`.
    pub weights: View<'a, f32, 2>,
    /// Tokens per key, at least 1.
    pub ratio: u32,
    /// Arithmetic.
    pub method: Method,
    /// One entry per row of the dispatch, any number.
    pub rows: &'a [IndexScoresRow<'a>],
    /// Where the rows' scores go, `[anything]`; places that no row names are left untouched.
    pub out: ViewMut<'a, f32, 1>,
    /// One status word per entry, `[rows]`.
    pub status: Option<ViewMut<'a, u32, 1>>,
}

/// One query of one request.
#[derive(Debug, Clone, Copy)]
pub struct IndexScoresRow<'a> {
    /// Which query of `q` and `weights`.
    pub query: usize,
    /// Absolute position of the query's token.
    pub start_pos: u32,
    /// The request's key cache, `[kv_len, dim]`; keys beyond the visible ones are never read.
    pub keys: View<'a, bf16, 2>,
    /// Where the row's `(start_pos + 1) / ratio` scores start in `out`.
    pub out: usize,
}

/// What index scores and the combined selection check alike.
pub(super) struct Queries<'a> {
    pub(super) q: &'a View<'a, bf16, 3>,
    pub(super) weights: &'a View<'a, f32, 2>,
    pub(super) ratio: u32,
}

impl Queries<'_> {
    pub(super) fn contract(&self, c: Check) -> Result<()> {
        let [queries, heads, dim] = self.q.shape();
        c.view("q", self.q, [None, None, None])?;
        c.that(heads > 0, |c| c.error("q", "of at least 1 head", "0 heads"))?;
        c.features("q", "head size", (dim, 1))?;
        let most = i32::MAX as usize / dim;
        c.that(heads <= most, |c| c.error("q", format_args!("of at most {most} heads of {dim}"), heads))?;
        c.view("weights", self.weights, [Some(queries), Some(heads)])?;
        c.that(self.ratio > 0, |c| c.error("ratio", "at least 1", self.ratio))
    }

    /// Checks one entry; `c` names it.
    pub(super) fn row(&self, c: Check, row: (usize, u32, &View<'_, bf16, 2>)) -> Result<()> {
        let (query, start_pos, keys) = row;
        let [queries, _, dim] = self.q.shape();
        c.index("query", query, queries)?;
        c.view("keys", keys, [None, Some(dim)])?;
        let (have, need) = (keys.shape()[0], causal_count(start_pos, self.ratio));
        let must = "of at least (start_pos + 1) / ratio";
        c.that(have >= need, |c| {
            c.error("keys", format_args!("{must} = {need} rows"), format_args!("{have} rows"))
        })
    }

    pub(super) fn cost(&self, count: usize) -> Cost {
        let [_, heads, dim] = self.q.shape().map(|n| n as u64);
        let count = count as u64;
        Cost { flops: count * heads * (2 * dim + 3), bytes: 2 * dim * (count + heads) + 4 * (heads + count) }
    }
}

impl IndexScores<'_> {
    fn queries(&self) -> Queries<'_> {
        Queries { q: &self.q, weights: &self.weights, ratio: self.ratio }
    }
}

impl Op for IndexScores<'_> {
    const NAME: &'static str = "index_scores";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        self.queries().contract(c)?;
        c.view("out", &self.out, [None])?;
        if let Some(status) = &self.status {
            c.view("status", status, [Some(self.rows.len())])?;
        }
        let count = |row: &IndexScoresRow<'_>| causal_count(row.start_pos, self.ratio);
        for (e, row) in self.rows.iter().enumerate() {
            self.queries().row(c.row(e), (row.query, row.start_pos, &row.keys))?;
            c.row(e).range("out", (row.out, count(row)), self.out.len())?;
        }
        c.disjoint(self.rows.iter().enumerate().map(|(e, row)| (e, "out", row.out..row.out + count(row))))
    }

    fn cost(&self) -> Cost {
        self.rows.iter().map(|row| self.queries().cost(causal_count(row.start_pos, self.ratio))).sum()
    }

    fn touches(&self) -> Touches {
        Touches::default()
            .read([self.q.span(), self.weights.span()])
            .read(self.rows.iter().map(|row| row.keys.span()))
            .write([self.out.span()])
            .write(self.status.iter().map(ViewMut::span))
    }
}
