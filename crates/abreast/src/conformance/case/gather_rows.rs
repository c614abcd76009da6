//! Row gather: sources of any element type.

use super::{Loaded, Problem, Rng};
use crate::conformance::arena::{Arena, repeat};
use crate::conformance::bits::{Fault, Part, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::{Device, Element, GatherRow, GatherRows, Method, Op, Result};
use std::ops::Range;

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Elements of a row.
    pub n: usize,
    /// Rows.
    pub rows: usize,
}

/// The data of a call. Row `r` of a call goes to row `r` of its output, so that the places are not the data's.
#[derive(Debug, Clone)]
pub struct Data<T> {
    /// Elements of a row.
    pub n: usize,
    /// The rows.
    pub rows: Vec<Vec<T>>,
}

impl Shape {
    /// Random bits.
    pub fn generate<T: Element>(&self, seed: u64) -> Data<T> {
        let mut data = Data { n: self.n, rows: vec![vec![T::zeroed(); self.n]; self.rows] };
        let rng = &mut Rng::new(seed);
        data.rows.iter_mut().for_each(|row| random_bits(row, rng));
        data
    }
}

fn random_bits<T: Element>(data: &mut [T], rng: &mut Rng) {
    bytemuck::cast_slice_mut::<T, u8>(data).iter_mut().for_each(|byte| *byte = rng.bits() as u8);
}

impl<T: Element> Problem for Data<T> {
    fn op(&self) -> &'static str {
        GatherRows::NAME
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn load(&self, device: &Device, _method: Method) -> Result<Box<dyn Loaded>> {
        let out = vec![T::zeroed(); self.n * self.rows.len()];
        Ok(Box::new(OnDevice {
            device: device.clone(),
            sources: Arena::upload(device, "source", 0x3c, self.rows.iter().map(|row| &row[..]))?,
            out: Arena::upload(device, "out", 0xa5, [&out[..]])?,
            n: self.n,
            fill: 0,
        }))
    }

    fn expect(&self, row: usize, _method: Method) -> Vec<Expected> {
        oracle::gather_rows(&self.rows[row])
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        for r in (0..self.rows.len()).filter(|r| !keep.contains(r)) {
            random_bits(&mut self.rows[r], rng);
        }
    }

    /// The rows' places are those of the call's entries.
    /// Any bits are legal.
    fn corrupt(&mut self, _one_in: usize, _rng: &mut Rng) {}

    fn scatter(&mut self, _rng: &mut Rng) {}
}

struct OnDevice<T> {
    device: Device,
    sources: Arena<T>,
    out: Arena<T>,
    n: usize,
    fill: u8,
}

impl<T: Element> OnDevice<T> {
    fn with<R>(
        &mut self,
        entries: &[usize],
        first: usize,
        f: impl FnOnce(&Device, GatherRows<'_>) -> Result<R>,
    ) -> Result<R> {
        let rows: Vec<GatherRow<'_>> =
            entries.iter().map(|&r| GatherRow { source: self.sources.view(r).into() }).collect();
        let places: Range<usize> = first * self.n..(first + entries.len()) * self.n;
        let out = self.out.view_mut().slice(places).reshape([entries.len(), self.n])?;
        f(&self.device, GatherRows { rows: &rows, out: out.into() })
    }
}

impl<T: Element> Loaded for OnDevice<T> {
    fn reset(&mut self, fill: u8) -> Result<()> {
        self.fill = fill;
        self.out.fill(repeat(fill))
    }

    super::calls!(gather_rows);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let named = (0..order.len()).map(|at| at * self.n..(at + 1) * self.n);
        let out = self.out.read_named(named, repeat(self.fill))?;
        Ok(out.iter().map(|row| vec![Part::of("out", row)]).collect())
    }
}
