//! Sparse attention over selected slots of a shared key-value cache, with learned sinks.

use super::check::Check;
use super::{Cost, Method, Op, Touches};
use crate::dims::MAX_HEADS;
use crate::error::Result;
use crate::view::{DeviceId, View, ViewMut};
use half::bf16;

/// What `Fast` reads and writes at once.
const FAST_ALIGN: usize = 16;

/// Devices count slots in 31 bits, and look ahead.
const MOST_SLOTS: usize = 1 << 30;

/// Attention over selected slots of a cache, with learned sinks.
///
/// For every row, head `h` and selected slot `j`, with `kv` both keys and values:
///
/// ```text
/// logit[h][j] = scale * dot(q[h], kv[index[j]])          index[j] == -1: slot skipped
/// m[h]        = max(sink[h], max_j logit[h][j])
/// w[h][j]     = exp(logit[h][j] - m[h])
/// out[h]      = sum_j w[h][j] * kv[index[j]] / (exp(sink[h] - m[h]) + sum_j w[h][j])
/// ```
///
/// A sink takes weight and gives no value. Duplicated indices count as often as they stand there; their order
/// is the order of summation. A row that attends to nothing (width 0, or all slots skipped) gives zeros and
/// status 0. Formula: DeepSeek-V4's sparse attention (`sparse_attn` of its inference code).
///
/// Bad data fails closed: an index below -1 or not below the cache's length (`INVALID_INDEX`, nothing else of the
/// row is looked at) or a non-finite attended cache row (`NONFINITE_KV`) make the row zero; a non-finite query
/// or sink, an overflowing logit or result make their head zero (`NONFINITE_QUERY`, `NONFINITE_SINK`,
/// `OVERFLOW`). A value that nobody attends to has no effect.
///
/// # Errors
/// An argument of another shape or device; heads outside 1 to 128; `dim` not a multiple of 32 from 32 to 2^20; a
/// non-finite scale; a row index beyond its buffer; two rows with one output; with `Fast`, on any device, a `q`, `kv` or
/// `out` whose memory does not start at a multiple of 16 bytes.
#[derive(Debug)]
pub struct SparseAttention<'a> {
    /// Queries, `[queries, heads, dim]`.
    pub q: View<'a, bf16, 3>,
    /// Sink logits, `[heads]`, shared by all rows. `f32::MIN` for a head without one.
    pub sinks: Option<View<'a, f32, 1>>,
    /// Factor of every dot product, usually `dim` to the power of -1/2.
    pub scale: f32,
    /// Arithmetic.
    pub method: Method,
    /// One entry per row of the dispatch, any number.
    pub rows: &'a [AttentionRow<'a>],
    /// Results, `[outputs, heads, dim]`; rows that no entry names are left untouched.
    pub out: ViewMut<'a, bf16, 3>,
    /// One status word per entry, `[rows]`; see [`dims::status`](crate::dims::status).
    pub status: Option<ViewMut<'a, u32, 1>>,
}

/// One query of one request.
#[derive(Debug, Clone, Copy)]
pub struct AttentionRow<'a> {
    /// Which query of `q`.
    pub query: usize,
    /// Which output of `out`.
    pub out: usize,
    /// The request's cache, `[kv_len, dim]`; rows may share one.
    pub kv: View<'a, bf16, 2>,
    /// Selected cache slots in the order of summation, `[width]`; -1 is skipped.
    pub indices: View<'a, i32, 1>,
}

impl Op for SparseAttention<'_> {
    const NAME: &'static str = "sparse_attention";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        let [queries, heads, dim] = self.q.shape();
        c.view("q", &self.q, [None, None, None])?;
        let heads_fit = (1..=MAX_HEADS).contains(&heads);
        c.that(heads_fit, |c| {
            c.error("q", format_args!("of 1 to {MAX_HEADS} heads"), format_args!("{heads} heads"))
        })?;
        c.features("q", "head size", (dim, 1))?;
        c.that(self.scale.is_finite(), |c| c.error("scale", "finite", self.scale))?;
        if let Some(sinks) = &self.sinks {
            c.view("sinks", sinks, [Some(heads)])?;
        }
        c.view("out", &self.out, [None, Some(heads), Some(dim)])?;
        if let Some(status) = &self.status {
            c.view("status", status, [Some(self.rows.len())])?;
        }
        let unit = if self.method == Method::Fast { FAST_ALIGN } else { 1 };
        c.aligned("q", self.q.span(), unit)?;
        c.aligned("out", self.out.span(), unit)?;
        for (e, row) in self.rows.iter().enumerate() {
            let c = c.row(e);
            c.index("query", row.query, queries)?;
            c.index("out", row.out, self.out.shape()[0])?;
            c.view("kv", &row.kv, [None, Some(dim)])?;
            c.aligned("kv", row.kv.span(), unit)?;
            c.view("indices", &row.indices, [None])?;
            let slots = row.indices.len();
            c.that(slots <= MOST_SLOTS, |c| c.error("indices", format_args!("at most {MOST_SLOTS}"), slots))?;
        }
        c.disjoint(self.rows.iter().enumerate().map(|(e, row)| (e, "out", row.out..row.out + 1)))
    }

    fn cost(&self) -> Cost {
        let [_, heads, dim] = self.q.shape().map(|n| n as u64);
        let row = |row: &AttentionRow<'_>| {
            let width = row.indices.len() as u64;
            Cost { flops: 4 * heads * width * dim, bytes: 2 * dim * (width + 2 * heads) + 4 * width }
        };
        self.rows.iter().map(row).sum()
    }

    fn touches(&self) -> Touches {
        Touches::default()
            .read([self.q.span()])
            .read(self.sinks.iter().map(View::span))
            .read(self.rows.iter().map(|row| row.kv.span()))
            .read(self.rows.iter().map(|row| row.indices.span()))
            .write([self.out.span()])
            .write(self.status.iter().map(ViewMut::span))
    }
}
