//! Top-k: scores of any number a row.

use super::outputs::Outputs;
use super::{Loaded, Problem, Rng, packed, places};
use crate::conformance::arena::Arena;
use crate::conformance::bits::{Fault, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::{Device, Method, Op, Result, TopK, TopKRow};

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Indices a row.
    pub k: usize,
    /// Scores of every row.
    pub rows: Vec<usize>,
}

/// The data of a call.
#[derive(Debug, Clone)]
pub struct Data {
    /// Indices a row.
    pub k: usize,
    /// The rows.
    pub rows: Vec<Row>,
    /// Length of the output.
    pub outputs: usize,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its scores.
    pub scores: Vec<f32>,
    /// Added to its indices.
    pub offset: i32,
    /// Where its indices go.
    pub out: usize,
}

impl Shape {
    /// Scores of mean 0 and variance 1, seldom equal.
    pub fn generate(&self, seed: u64) -> Data {
        let rng = &mut Rng::new(seed);
        let (starts, outputs) = packed(self.rows.iter().map(|_| self.k));
        let row = |(&n, out): (&usize, usize)| Row {
            scores: rng.f32s(n, 1.0),
            offset: rng.pick(&[0, 128, 4096, i32::MAX - n as i32]),
            out,
        };
        Data { k: self.k, rows: self.rows.iter().zip(starts).map(row).collect(), outputs }
    }
}

impl Data {
    /// Replaces some scores by one of a few values, so that there are ties.
    pub fn tie(&mut self, rng: &mut Rng) {
        for row in &mut self.rows {
            for score in &mut row.scores {
                if rng.one_in(2) {
                    *score = rng.pick(&[0.0, -0.0, 1.0, -1.5]);
                }
            }
        }
    }
}

impl Problem for Data {
    fn op(&self) -> &'static str {
        TopK::NAME
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn load(&self, device: &Device, _method: Method) -> Result<Box<dyn Loaded>> {
        let scores = self.rows.iter().map(|row| &row.scores[..]);
        Ok(Box::new(OnDevice {
            device: device.clone(),
            scores: Arena::upload(device, "scores", 0x7f, scores)?,
            outputs: Outputs::load(device, self.outputs, self.rows.len())?,
            slots: self.rows.iter().map(|row| (row.offset, row.out)).collect(),
            k: self.k,
        }))
    }

    fn expect(&self, row: usize, _method: Method) -> Vec<Expected> {
        oracle::top_k(self, row)
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        for r in (0..self.rows.len()).filter(|r| !keep.contains(r)) {
            self.rows[r].scores.iter_mut().for_each(|x| *x = rng.hostile_f32());
        }
    }

    fn corrupt(&mut self, one_in: usize, rng: &mut Rng) {
        self.rows.iter_mut().for_each(|row| rng.spoil_f32(&mut row.scores, one_in));
    }

    fn scatter(&mut self, rng: &mut Rng) {
        let (starts, outputs) = places(rng, &vec![self.k; self.rows.len()]);
        self.rows.iter_mut().zip(starts).for_each(|(row, out)| row.out = out);
        self.outputs = outputs;
    }
}

struct OnDevice {
    device: Device,
    scores: Arena<f32>,
    outputs: Outputs<i32>,
    /// Offset and place of every row.
    slots: Vec<(i32, usize)>,
    k: usize,
}

impl OnDevice {
    fn with<R>(
        &mut self,
        entries: &[usize],
        status: usize,
        f: impl FnOnce(&Device, TopK<'_>) -> Result<R>,
    ) -> Result<R> {
        let row = |&r: &usize| {
            let (offset, out) = self.slots[r];
            TopKRow { scores: self.scores.view(r), offset, out }
        };
        let rows: Vec<TopKRow<'_>> = entries.iter().map(row).collect();
        let (out, status) = self.outputs.views(status..status + entries.len());
        f(&self.device, TopK { k: self.k, rows: &rows, out, status })
    }
}

impl Loaded for OnDevice {
    fn reset(&mut self, fill: u8) -> Result<()> {
        self.outputs.reset(fill)
    }

    super::calls!(top_k);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let named = |&r: &usize| self.slots[r].1..self.slots[r].1 + self.k;
        self.outputs.results(order.iter().map(named).collect())
    }
}
