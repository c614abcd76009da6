//! Index scores and selection in one call.

use super::check::Check;
use super::index_scores::Queries;
use super::top_k::Slots;
use super::{Cost, Method, Op, Touches};
use crate::dims::causal_count;
use crate::error::Result;
use crate::view::{DeviceId, View, ViewMut};
use half::bf16;

/// [`IndexScores`](super::IndexScores) and [`TopK`](super::TopK) in one call, with the bits of the two; the scores
/// stay in the device's scratch memory.
///
/// # Errors
/// Those of the two operations.
#[derive(Debug)]
pub struct SelectKeys<'a> {
    /// Indexer queries, `[queries, heads, dim]`.
    pub q: View<'a, bf16, 3>,
    /// Head weights with all scales folded in, `[queries, heads]`.
    pub weights: View<'a, f32, 2>,
    /// Tokens per key, at least 1.
    pub ratio: u32,
    /// Arithmetic of the scores.
    pub method: Method,
    /// How many indices a row gets, 1 to 2048.
    pub k: usize,
    /// One entry per row of the dispatch, any number.
    pub rows: &'a [SelectKeysRow<'a>],
    /// Where the rows' indices go, `[anything]`; places that no row names are left untouched.
    pub out: ViewMut<'a, i32, 1>,
    /// One status word per entry, `[rows]`.
    pub status: Option<ViewMut<'a, u32, 1>>,
}

/// One query of one request.
#[derive(Debug, Clone, Copy)]
pub struct SelectKeysRow<'a> {
    /// Which query of `q` and `weights`.
    pub query: usize,
    /// Absolute position of the query's token.
    pub start_pos: u32,
    /// The request's key cache, `[kv_len, dim]`; keys beyond the visible ones are never read.
    pub keys: View<'a, bf16, 2>,
    /// Added to every selected index, not negative.
    pub offset: i32,
    /// Where the row's `k` slots start in `out`.
    pub out: usize,
}

impl SelectKeys<'_> {
    fn queries(&self) -> Queries<'_> {
        Queries { q: &self.q, weights: &self.weights, ratio: self.ratio }
    }
}

impl Op for SelectKeys<'_> {
    const NAME: &'static str = "select_keys";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        let slots = Slots { k: self.k, out: &self.out };
        self.queries().contract(c)?;
        slots.contract(c)?;
        if let Some(status) = &self.status {
            c.view("status", status, [Some(self.rows.len())])?;
        }
        for (e, row) in self.rows.iter().enumerate() {
            self.queries().row(c.row(e), (row.query, row.start_pos, &row.keys))?;
            slots.row(c.row(e), (causal_count(row.start_pos, self.ratio), row.offset, row.out))?;
        }
        c.disjoint(self.rows.iter().enumerate().map(|(e, row)| (e, "out", row.out..row.out + self.k)))
    }

    fn cost(&self) -> Cost {
        let k = self.k as u64;
        let row = |row: &SelectKeysRow<'_>| {
            let count = causal_count(row.start_pos, self.ratio);
            // The scores are written and read once more by the selection.
            self.queries().cost(count) + Cost { flops: 0, bytes: 4 * (count as u64 + k) }
        };
        self.rows.iter().map(row).sum()
    }

    fn touches(&self) -> Touches {
        Touches::default()
            .read([self.q.span(), self.weights.span()])
            .read(self.rows.iter().map(|row| row.keys.span()))
            .write([self.out.span()])
            .write(self.status.iter().map(ViewMut::span))
    }
}
