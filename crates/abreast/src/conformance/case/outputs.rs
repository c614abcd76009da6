//! What every operation writes: one output and one status word per row, in red zones.

use crate::conformance::arena::{Arena, repeat};
use crate::conformance::bits::{Fault, Part, RowBits};
use crate::{Device, Element, Result, ViewMut};
use std::ops::Range;

/// An output and the status words on a device.
pub(super) struct Outputs<T> {
    out: Arena<T>,
    status: Arena<u32>,
    fill: u8,
}

impl<T: Element> Outputs<T> {
    /// An output of `len` elements, for at most `rows` rows.
    pub(super) fn load(device: &Device, len: usize, rows: usize) -> Result<Self> {
        Self::load_askew(device, len, rows, 0)
    }

    /// The same, the output `skew` elements beyond where allocations start.
    pub(super) fn load_askew(device: &Device, len: usize, rows: usize, skew: usize) -> Result<Self> {
        Ok(Outputs {
            out: Arena::upload_askew(device, ("out", 0xa5), skew, [&vec![T::zeroed(); len][..]])?,
            status: Arena::upload(device, "status", 0xa5, [&vec![0; rows][..]])?,
            fill: 0,
        })
    }

    /// Fills both with `fill` bytes.
    pub(super) fn reset(&mut self, fill: u8) -> Result<()> {
        self.fill = fill;
        self.out.fill(repeat(fill))?;
        self.status.fill(repeat(fill))
    }

    /// The output, and the status words of a range of entries.
    pub(super) fn views(&mut self, status: Range<usize>) -> (ViewMut<'_, T, 1>, Option<ViewMut<'_, u32, 1>>) {
        (self.out.view_mut(), Some(self.status.view_mut().slice(status)))
    }

    /// What stands in the places of `named`, one per row, with the status words in that order; all else must be
    /// as it was filled.
    pub(super) fn results(&self, named: Vec<Range<usize>>) -> std::result::Result<Vec<RowBits>, Fault> {
        let rows = named.len();
        let status = self.status.read_named(std::iter::once(0..rows), repeat(self.fill))?.remove(0);
        let out = self.out.read_named(named, repeat(self.fill))?;
        let row = |(out, status): (Vec<T>, &u32)| {
            vec![Part::of("out", &out), Part::of("status", std::slice::from_ref(status))]
        };
        Ok(out.into_iter().zip(&status).map(row).collect())
    }
}
