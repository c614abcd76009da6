//! Compressor states on their way from one layout to another.

use super::{Loaded, Problem, Rng};
use crate::conformance::arena::{Arena, repeat};
use crate::conformance::bits::{Fault, Part, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::dims::{coff, window};
use crate::{ConvertState, ConvertStateRow, Device, Method, Op, Result, StateLayout};

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Tokens per entry.
    pub ratio: u32,
    /// Features of an entry.
    pub dim: usize,
    /// Rows of the ring that is read; `None` for the shifted layout.
    pub from: Option<usize>,
    /// Rows of the ring that is written; `None` for the shifted layout.
    pub to: Option<usize>,
    /// One next position per request.
    pub rows: Vec<u32>,
}

/// The data of a call.
#[derive(Debug, Clone)]
pub struct Data {
    /// How large it is.
    pub shape: Shape,
    /// Values and scores of every request, `[from rows, coff * dim]`.
    pub states: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Shape {
    /// Random states.
    pub fn generate(&self, seed: u64) -> Data {
        let rng = &mut Rng::new(seed);
        let n = self.from_rows() * self.features();
        let states = self.rows.iter().map(|_| (rng.f32s(n, 1.0), rng.f32s(n, 1.5))).collect();
        Data { shape: self.clone(), states }
    }

    /// Elements of a state row.
    pub fn features(&self) -> usize {
        coff(self.ratio as usize) * self.dim
    }

    /// State rows that are read.
    pub fn from_rows(&self) -> usize {
        self.from.unwrap_or(window(self.ratio as usize))
    }

    /// State rows that are written.
    pub fn to_rows(&self) -> usize {
        self.to.unwrap_or(window(self.ratio as usize))
    }
}

fn layout(ring: Option<usize>) -> StateLayout {
    if ring.is_some() { StateLayout::Ring } else { StateLayout::Shifted }
}

impl Problem for Data {
    fn op(&self) -> &'static str {
        ConvertState::NAME
    }

    fn rows(&self) -> usize {
        self.states.len()
    }

    fn load(&self, device: &Device, _method: Method) -> Result<Box<dyn Loaded>> {
        let new = vec![0f32; self.shape.to_rows() * self.shape.features()];
        let new = || self.states.iter().map(|_| &new[..]);
        Ok(Box::new(OnDevice {
            device: device.clone(),
            kv_from: Arena::upload(device, "kv_from", 0xff, self.states.iter().map(|state| &state.0[..]))?,
            score_from: Arena::upload(
                device,
                "score_from",
                0xff,
                self.states.iter().map(|state| &state.1[..]),
            )?,
            kv_to: Arena::upload(device, "kv_to", 0xa5, new())?,
            score_to: Arena::upload(device, "score_to", 0xa5, new())?,
            shape: self.shape.clone(),
            fill: 0,
        }))
    }

    fn expect(&self, row: usize, _method: Method) -> Vec<Expected> {
        oracle::convert_state(self, row)
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        for r in (0..self.rows()).filter(|r| !keep.contains(r)) {
            let (kv, score) = &mut self.states[r];
            kv.iter_mut().chain(score).for_each(|x| *x = rng.hostile_f32());
        }
    }

    fn corrupt(&mut self, one_in: usize, rng: &mut Rng) {
        for (kv, score) in &mut self.states {
            rng.spoil_f32(kv, one_in);
            rng.spoil_f32(score, one_in);
        }
    }

    /// Every request has new states of its own.
    fn scatter(&mut self, _rng: &mut Rng) {}
}

struct OnDevice {
    device: Device,
    kv_from: Arena<f32>,
    score_from: Arena<f32>,
    kv_to: Arena<f32>,
    score_to: Arena<f32>,
    shape: Shape,
    fill: u8,
}

impl OnDevice {
    fn with<R>(
        &mut self,
        entries: &[usize],
        _status: usize,
        f: impl FnOnce(&Device, ConvertState<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let (shape, features) = (&self.shape, self.shape.features());
        let (from, to) = ([shape.from_rows(), features], [shape.to_rows(), features]);
        let states = self.kv_to.views_mut(entries).into_iter().zip(self.score_to.views_mut(entries));
        let mut rows = Vec::with_capacity(entries.len());
        for (&r, (kv_to, score_to)) in entries.iter().zip(states) {
            rows.push(ConvertStateRow {
                position: shape.rows[r],
                kv_from: self.kv_from.view(r).reshape(from)?,
                score_from: self.score_from.view(r).reshape(from)?,
                kv_to: kv_to.reshape(to)?,
                score_to: score_to.reshape(to)?,
            });
        }
        let (from, to) = (layout(shape.from), layout(shape.to));
        f(&self.device, ConvertState { ratio: shape.ratio, from, to, rows: &mut rows })
    }
}

impl Loaded for OnDevice {
    fn reset(&mut self, fill: u8) -> Result<()> {
        self.fill = fill;
        self.kv_to.fill(repeat(fill))?;
        self.score_to.fill(repeat(fill))
    }

    super::calls!(convert_state);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let (kv, score) = (self.kv_to.read()?, self.score_to.read()?);
        let fill = repeat::<f32>(self.fill).to_bits();
        for r in (0..self.shape.rows.len()).filter(|r| !order.contains(r)) {
            if let Some(at) = kv[r].iter().chain(&score[r]).position(|x| x.to_bits() != fill) {
                return Err(Fault::Touched { buffer: "a new state", at });
            }
        }
        let row = |&r: &usize| vec![Part::of("kv_to", &kv[r]), Part::of("score_to", &score[r])];
        Ok(order.iter().map(row).collect())
    }
}
