//! The learned recurrent compressor of the key-value cache.

use super::check::{Check, Shown};
use super::{Cost, Op, Touches};
use crate::dims::{coff, window};
use crate::error::Result;
use crate::view::{DeviceId, View, ViewMut};
use half::bf16;

/// Pools every `ratio` tokens into one cache entry. Blocks of ratio 4 overlap (`coff` 2): an entry pools its own
/// block, from the second half of the features, and the block before, from the first half; other ratios pool
/// their own block alone (`coff` 1).
///
/// For the token at position `p`, with `t = p mod ratio` and its state row `s`:
///
/// ```text
/// kv_state[s] = kv (non-finite elements stored as 0);  score_state[s] = score + ape[t] (NaN where score or kv is not finite)
/// if (p + 1) mod ratio == 0:
///     c   = bf16(sum over the window of softmax(score_state) * kv_state), feature by feature
///     out = bf16(c * (1 / sqrt(mean(c^2) + epsilon)) * norm)
/// ```
///
/// A row feeds any number of consecutive tokens; the bits are those of feeding them one by one. A fresh state is
/// kv 0, score -inf. The output is before rotary embedding. Formula: DeepSeek-V4's `Compressor`.
///
/// A window that holds a NaN or +inf score or a non-finite value, a non-finite norm, mean or result gives a zero
/// row and `NONFINITE_STATE`.
///
/// # Errors
/// An argument of another shape or device; a ratio of 0; `d` not a multiple of 32 from 32 to 2^20; an epsilon that is not
/// finite and positive; a ring of fewer rows than the window; a position beyond `u32::MAX - 1`; states of two rows,
/// or the two states of one, that overlap; output rows beyond `out` or overlapping another row's.
#[derive(Debug)]
pub struct Compress<'a, 'r> {
    /// Tokens per entry, at least 1.
    pub ratio: u32,
    /// Where a token lives in the state.
    pub layout: StateLayout,
    /// Which tokens get an output row.
    pub emit: Emit,
    /// Position bias of the scores, `[ratio, coff * d]`.
    pub ape: View<'r, f32, 2>,
    /// RMS norm weights, `[d]`.
    pub norm: View<'r, f32, 1>,
    /// Added to the mean square.
    pub epsilon: f32,
    /// One entry per row of the dispatch, any number.
    pub rows: &'r mut [CompressRow<'a>],
    /// Entries, `[outputs, d]`; rows that no entry names are left untouched.
    pub out: ViewMut<'r, bf16, 2>,
    /// One status word per entry of `rows`, `[rows]`.
    pub status: Option<ViewMut<'r, u32, 1>>,
}

/// Where the token at position `p` lives in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateLayout {
    /// `coff * ratio` rows. Ratio 4: rows 4 to 7 are the current block, and move to rows 0 to 3 at its end.
    Shifted,
    /// Row `p mod rows`, with any number of rows from the window (8 for ratio 4, else ratio) on. Nothing moves,
    /// and with `window + n - 1` rows, n tokens can be taken back: rollback is a smaller position.
    Ring,
}

/// Which tokens get an output row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Emit {
    /// Every token; one that completes no block gets a zero row.
    EveryToken,
    /// Tokens that complete a block.
    Blocks,
}

/// Consecutive tokens of one request.
#[derive(Debug)]
pub struct CompressRow<'a> {
    /// Absolute position of the first token.
    pub start_pos: u32,
    /// Projected values, `[tokens, coff * d]`.
    pub kv: View<'a, f32, 2>,
    /// Projected scores, `[tokens, coff * d]`.
    pub score: View<'a, f32, 2>,
    /// The request's values, `[state rows, coff * d]`, read and written.
    pub kv_state: ViewMut<'a, f32, 2>,
    /// The request's scores, `[state rows, coff * d]`, read and written.
    pub score_state: ViewMut<'a, f32, 2>,
    /// First output row in `out`.
    pub out: usize,
}

impl CompressRow<'_> {
    /// Tokens of this row.
    pub fn tokens(&self) -> usize {
        self.kv.shape()[0]
    }

    /// Blocks that this row's tokens complete.
    pub fn blocks(&self, ratio: u32) -> usize {
        let (first, ratio) = (self.start_pos as usize, ratio as usize);
        (first + self.tokens()) / ratio - first / ratio
    }
}

impl Compress<'_, '_> {
    /// Output rows that `row` writes.
    pub fn outputs(&self, row: &CompressRow<'_>) -> usize {
        match self.emit {
            Emit::EveryToken => row.tokens(),
            Emit::Blocks => row.blocks(self.ratio),
        }
    }

    fn row_contract(&self, c: Check, row: &CompressRow<'_>) -> Result<()> {
        let (ratio, [_, d]) = (self.ratio as usize, self.out.shape());
        let features = Some(coff(ratio).saturating_mul(d));
        c.view("kv", &row.kv, [None, features])?;
        c.view("score", &row.score, [Some(row.tokens()), features])?;
        state_contract(c, ("kv_state", &row.kv_state), (self.layout, ratio, coff(ratio).saturating_mul(d)))?;
        let state_rows = row.kv_state.shape()[0];
        c.view("score_state", &row.score_state, [Some(state_rows), features])?;
        let most = u32::MAX as u64 - row.tokens().max(1) as u64;
        let fits = row.tokens() < u32::MAX as usize && row.start_pos as u64 <= most;
        c.that(fits, |c| {
            c.error(
                "start_pos",
                format_args!("at most {most}, so that every position is below u32::MAX"),
                row.start_pos,
            )
        })?;
        c.range("out", (row.out, self.outputs(row)), self.out.shape()[0])
    }
}

/// The shape of a state: the rows that its layout needs, of this many features.
pub(super) fn state_contract(
    c: Check,
    (name, view): (&'static str, impl Shown<2>),
    (layout, ratio, features): (StateLayout, usize, usize),
) -> Result<()> {
    let (need, rows) = (window(ratio), view.shape()[0]);
    let fixed = (layout == StateLayout::Shifted).then_some(need);
    c.view(name, view, [fixed, Some(features)])?;
    c.that(rows >= need, |c| {
        c.error(name, format_args!("of at least {need} rows"), format_args!("{rows} rows"))
    })
}

impl Op for Compress<'_, '_> {
    const NAME: &'static str = "compress";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        c.that(self.ratio > 0, |c| c.error("ratio", "at least 1", self.ratio))?;
        let (ratio, [_, d]) = (self.ratio as usize, self.out.shape());
        c.view("out", &self.out, [None, None])?;
        c.features("out", "row size", (d, 1))?;
        c.view("ape", &self.ape, [Some(ratio), Some(coff(ratio).saturating_mul(d))])?;
        c.view("norm", &self.norm, [Some(d)])?;
        let epsilon_fits = self.epsilon.is_finite() && self.epsilon > 0.0;
        c.that(epsilon_fits, |c| c.error("epsilon", "finite and positive", self.epsilon))?;
        if let Some(status) = &self.status {
            c.view("status", status, [Some(self.rows.len())])?;
        }
        for (e, row) in self.rows.iter().enumerate() {
            self.row_contract(c.row(e), row)?;
        }
        let rows = || self.rows.iter().enumerate();
        c.disjoint(rows().map(|(e, row)| (e, "out", row.out..row.out + self.outputs(row))))?;
        c.disjoint(rows().flat_map(|(e, row)| {
            [(e, "kv_state", row.kv_state.span()), (e, "score_state", row.score_state.span())]
        }))
    }

    fn cost(&self) -> Cost {
        let (ratio, [_, d]) = (self.ratio as usize, self.out.shape());
        let row = |row: &CompressRow<'_>| {
            let (tokens, blocks) = (row.tokens() as u64, row.blocks(self.ratio) as u64);
            let (features, window, d) =
                ((coff(ratio).saturating_mul(d)) as u64, window(ratio) as u64, d as u64);
            Cost {
                flops: tokens * features + blocks * d * (5 * window + 5),
                // Per token: two inputs in, two state rows out. Per block: the window in, an entry out.
                bytes: 16 * tokens * features + blocks * d * (8 * window + 2),
            }
        };
        self.rows.iter().map(row).sum()
    }

    fn touches(&self) -> Touches {
        Touches::default()
            .read([self.ape.span(), self.norm.span()])
            .read(self.rows.iter().map(|row| row.kv.span()))
            .read(self.rows.iter().map(|row| row.score.span()))
            .write(self.rows.iter().map(|row| row.kv_state.span()))
            .write(self.rows.iter().map(|row| row.score_state.span()))
            .write([self.out.span()])
            .write(self.status.iter().map(ViewMut::span))
    }
}
