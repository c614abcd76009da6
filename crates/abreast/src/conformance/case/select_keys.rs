//! Index scores and selection in one call: the data of the one with the slots of the other.

use super::index_scores::{self, Inputs};
use super::outputs::Outputs;
use super::{Loaded, Problem, Rng, packed, places};
use crate::conformance::bits::{Fault, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::{Device, Method, Op, Result, SelectKeys, SelectKeysRow};

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The scores.
    pub scores: index_scores::Shape,
    /// Indices a row.
    pub k: usize,
}

/// The data of a call.
#[derive(Debug, Clone)]
pub struct Data {
    /// What the scores are made from; its places in the output are not used.
    pub scores: index_scores::Data,
    /// Indices a row.
    pub k: usize,
    /// Offset and place of every row.
    pub slots: Vec<(i32, usize)>,
    /// Length of the output.
    pub outputs: usize,
}

impl Shape {
    /// As the scores' shape, with slots one row after the other.
    pub fn generate(&self, seed: u64) -> Data {
        let rng = &mut Rng::new(!seed);
        let (starts, outputs) = packed(self.scores.rows.iter().map(|_| self.k));
        let slots = starts.into_iter().map(|start| (rng.pick(&[0, 128, 70_000]), start)).collect();
        Data { scores: self.scores.generate(seed), k: self.k, slots, outputs }
    }
}

impl Problem for Data {
    fn op(&self) -> &'static str {
        SelectKeys::NAME
    }

    fn rows(&self) -> usize {
        self.scores.rows()
    }

    fn load(&self, device: &Device, method: Method) -> Result<Box<dyn Loaded>> {
        Ok(Box::new(OnDevice {
            device: device.clone(),
            inputs: Inputs::load(&self.scores, device)?,
            outputs: Outputs::load(device, self.outputs, self.rows())?,
            slots: self.slots.clone(),
            k: self.k,
            method,
        }))
    }

    fn expect(&self, row: usize, method: Method) -> Vec<Expected> {
        oracle::select_keys(self, row, method)
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        self.scores.poison(keep, rng);
    }

    fn corrupt(&mut self, one_in: usize, rng: &mut Rng) {
        self.scores.corrupt(one_in, rng);
    }

    fn scatter(&mut self, rng: &mut Rng) {
        let (starts, outputs) = places(rng, &vec![self.k; self.rows()]);
        self.slots.iter_mut().zip(starts).for_each(|(slot, out)| slot.1 = out);
        self.outputs = outputs;
    }
}

struct OnDevice {
    device: Device,
    inputs: Inputs,
    outputs: Outputs<i32>,
    slots: Vec<(i32, usize)>,
    k: usize,
    method: Method,
}

impl OnDevice {
    fn with<R>(
        &mut self,
        entries: &[usize],
        status: usize,
        f: impl FnOnce(&Device, SelectKeys<'_>) -> Result<R>,
    ) -> Result<R> {
        let shape = &self.inputs.shape;
        let row = |&r: &usize| {
            let index_scores::Row { query, start_pos, .. } = shape.rows[r];
            let (offset, out) = self.slots[r];
            Ok(SelectKeysRow { query, start_pos, keys: self.inputs.keys(r)?, offset, out })
        };
        let rows: Vec<SelectKeysRow<'_>> = entries.iter().map(row).collect::<Result<_>>()?;
        let (out, status) = self.outputs.views(status..status + entries.len());
        let args = SelectKeys {
            q: self.inputs.q()?,
            weights: self.inputs.weights()?,
            ratio: shape.ratio,
            method: self.method,
            k: self.k,
            rows: &rows,
            out,
            status,
        };
        f(&self.device, args)
    }
}

impl Loaded for OnDevice {
    fn reset(&mut self, fill: u8) -> Result<()> {
        self.outputs.reset(fill)
    }

    super::calls!(select_keys);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let named = |&r: &usize| self.slots[r].1..self.slots[r].1 + self.k;
        self.outputs.results(order.iter().map(named).collect())
    }
}
