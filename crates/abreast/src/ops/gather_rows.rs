//! Rows from many places, side by side.

use super::check::Check;
use super::{Cost, Op, Touches};
use crate::any_view::{AnyView, AnyViewMut};
use crate::error::Result;
use crate::view::DeviceId;

/// Copies `rows[r].source` to row `r` of `out`, bit for bit, in one dispatch; any element type.
///
/// # Errors
/// A source of another length, element type or device; `out` with another number of rows; memory of `out` that is
/// a source too.
#[derive(Debug)]
pub struct GatherRows<'a> {
    /// One entry per row of the dispatch, any number.
    pub rows: &'a [GatherRow<'a>],
    /// The rows side by side, `[rows, n]`.
    pub out: AnyViewMut<'a, 2>,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct GatherRow<'a> {
    /// Where the row is, `[n]`.
    pub source: AnyView<'a, 1>,
}

impl Op for GatherRows<'_> {
    const NAME: &'static str = "gather_rows";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        let [rows, n] = self.out.shape();
        let on = |d: DeviceId| d == device;
        c.that(on(self.out.device()), |c| c.error("out", format_args!("on {device}"), self.out.device()))?;
        c.that(rows == self.rows.len(), |c| {
            c.error("out", format_args!("[{}, {n}]", self.rows.len()), format_args!("[{rows}, {n}]"))
        })?;
        let written = self.out.span();
        for (e, row) in self.rows.iter().enumerate() {
            let (c, s) = (c.row(e), &row.source);
            c.that(on(s.device()), |c| c.error("source", format_args!("on {device}"), s.device()))?;
            c.that(s.dtype() == self.out.dtype(), |c| c.error("source", self.out.dtype(), s.dtype()))?;
            c.that(s.shape() == [n], |c| {
                c.error("source", format_args!("[{n}]"), format_args!("{:?}", s.shape()))
            })?;
            let apart = s.span().is_empty() || s.span().end <= written.start || written.end <= s.span().start;
            c.that(apart, |c| c.error("source", "apart from out", "a part of it"))?;
        }
        Ok(())
    }

    fn cost(&self) -> Cost {
        let [rows, n] = self.out.shape();
        Cost { flops: 0, bytes: (2 * rows * n * self.out.dtype().size()) as u64 }
    }

    fn touches(&self) -> Touches {
        Touches::default().read(self.rows.iter().map(|row| row.source.span())).write([self.out.span()])
    }
}
