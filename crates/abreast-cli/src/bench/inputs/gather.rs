//! Rows that are gathered.

use super::{Maker, Requests, Taker};
use abreast::{Buffer, GatherRow, GatherRows, Result, ViewMut};
use std::ops::Range;

pub(super) struct Gather {
    n: usize,
    sources: Buffer<f32>,
    out: Buffer<f32>,
}

impl Gather {
    pub(super) fn load(maker: &mut Maker<'_>, n: usize) -> Result<Gather> {
        let sources = maker.f32s((maker.requests, n), 1.0)?;
        Ok(Gather { n, sources, out: maker.device.zeros(maker.requests * n)? })
    }
}

impl Requests for Gather {
    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, _): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        let (rows, n) = (requests.len(), self.n);
        let sources = self.sources.view();
        let row = |r: usize| GatherRow { source: sources.slice(r * n..(r + 1) * n).into() };
        let listed: Vec<_> = requests.map(row).collect();
        // Where the rows of the last call went.
        let out = self.out.view_mut().slice(0..rows * n).reshape([rows, n])?.into();
        to.gather_rows(GatherRows { rows: &listed, out })
    }
}
