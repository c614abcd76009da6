//! Compressor runs: projections, recurrent states, position bias and norm.

use super::outputs::Outputs;
use super::{Loaded, Problem, Rng, packed, places};
use crate::conformance::arena::Arena;
use crate::conformance::bits::{Fault, Part, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::dims::{coff, window};
use crate::{Compress, CompressRow, Device, Emit, Method, Op, Result, StateLayout, bf16};

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Tokens per entry.
    pub ratio: u32,
    /// Features of an entry.
    pub dim: usize,
    /// Rows of a ring; `None` for the shifted layout.
    pub ring: Option<usize>,
    /// Which tokens get an output row.
    pub emit: Emit,
    /// One entry per row.
    pub rows: Vec<RowShape>,
}

/// How large one row is.
#[derive(Debug, Clone, Copy)]
pub struct RowShape {
    /// Position of its first token.
    pub start_pos: u32,
    /// Its tokens.
    pub tokens: usize,
}

/// The data of a call.
#[derive(Debug, Clone)]
pub struct Data {
    /// Tokens per entry.
    pub ratio: u32,
    /// Features of an entry.
    pub dim: usize,
    /// Where a token lives in the state.
    pub layout: StateLayout,
    /// Rows of a state.
    pub state_rows: usize,
    /// Which tokens get an output row.
    pub emit: Emit,
    /// Position bias, `[ratio, coff * dim]`.
    pub ape: Vec<f32>,
    /// Norm weights, `[dim]`.
    pub norm: Vec<f32>,
    /// Added to the mean square.
    pub epsilon: f32,
    /// The rows.
    pub rows: Vec<Row>,
    /// Rows of the output.
    pub outputs: usize,
    /// Elements that red zones are longer by, of values and of scores: where these start in memory, [`scatter`](Problem::scatter) decides.
    pub skew: [usize; 2],
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Position of its first token.
    pub start_pos: u32,
    /// Its values, `[tokens, coff * dim]`.
    pub kv: Vec<f32>,
    /// Its scores, `[tokens, coff * dim]`.
    pub score: Vec<f32>,
    /// Its state's values, `[state_rows, coff * dim]`.
    pub kv_state: Vec<f32>,
    /// Its state's scores, `[state_rows, coff * dim]`.
    pub score_state: Vec<f32>,
    /// Its first output row.
    pub out: usize,
}

impl Shape {
    /// Every row with a state of its own: fresh for a row that starts at 0, else as full as at any time.
    pub fn generate(&self, seed: u64) -> Data {
        let rng = &mut Rng::new(seed);
        let (ratio, dim) = (self.ratio as usize, self.dim);
        let features = coff(ratio) * dim;
        let state_rows = self.ring.unwrap_or(window(ratio));
        let mut data = Data {
            ratio: self.ratio,
            dim,
            layout: if self.ring.is_some() { StateLayout::Ring } else { StateLayout::Shifted },
            state_rows,
            emit: self.emit,
            ape: rng.f32s(ratio * features, 0.7),
            norm: rng.f32s(dim, 0.3).into_iter().map(|x| 1.0 + x).collect(),
            epsilon: 1e-6,
            rows: vec![],
            outputs: 0,
            skew: [0; 2],
        };
        for &RowShape { start_pos, tokens } in &self.rows {
            let (n, state) = (tokens * features, state_rows * features);
            let (kv, score) = (rng.f32s(n, 1.0), rng.f32s(n, 1.5));
            let (kv_state, score_state) = match start_pos {
                0 => (vec![0.0; state], vec![f32::NEG_INFINITY; state]),
                _ => (rng.f32s(state, 1.0), rng.f32s(state, 1.5)),
            };
            data.rows.push(Row { start_pos, kv, score, kv_state, score_state, out: 0 });
        }
        let (starts, outputs) = packed((0..data.rows.len()).map(|r| data.output_rows(r)));
        data.rows.iter_mut().zip(starts).for_each(|(row, out)| row.out = out);
        data.outputs = outputs;
        data
    }
}

impl Data {
    /// Features of an input row and of a state row.
    pub fn features(&self) -> usize {
        coff(self.ratio as usize) * self.dim
    }

    /// Tokens of a row.
    pub fn tokens(&self, row: usize) -> usize {
        self.rows[row].kv.len() / self.features()
    }

    /// Output rows of a row.
    pub fn output_rows(&self, row: usize) -> usize {
        let (first, tokens, ratio) =
            (self.rows[row].start_pos as usize, self.tokens(row), self.ratio as usize);
        match self.emit {
            Emit::EveryToken => tokens,
            Emit::Blocks => (first + tokens) / ratio - first / ratio,
        }
    }

    /// Lets about one token of a window outweigh all others: e to their distance is no f32, so that nobody may overlook it.
    pub fn outweigh(&mut self, rng: &mut Rng) {
        let (ratio, features) = (self.ratio as usize, self.features());
        for row in &mut self.rows {
            let tokens =
                [&mut row.score, &mut row.score_state].into_iter().flat_map(|s| s.chunks_mut(features));
            tokens.filter(|_| rng.one_in(ratio)).flatten().for_each(|score| *score += 110.0);
        }
    }

    /// Tokens `from..to` of row `row` alone, with the state that is handed in.
    pub fn part(&self, row: usize, tokens: std::ops::Range<usize>, state: (Vec<f32>, Vec<f32>)) -> Data {
        let (whole, features) = (&self.rows[row], self.features());
        let (from, to) = (tokens.start * features, tokens.end * features);
        let mut data = Data { rows: vec![], ..self.clone() };
        data.rows.push(Row {
            start_pos: whole.start_pos + tokens.start as u32,
            kv: whole.kv[from..to].to_vec(),
            score: whole.score[from..to].to_vec(),
            kv_state: state.0,
            score_state: state.1,
            out: 0,
        });
        data.outputs = data.output_rows(0);
        data
    }
}

impl Problem for Data {
    fn op(&self) -> &'static str {
        Compress::NAME
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn load(&self, device: &Device, _method: Method) -> Result<Box<dyn Loaded>> {
        let [values, scores] = self.skew;
        let (rows, outputs) = (self.rows.iter(), self.outputs * self.dim);
        let kv_state = rows.clone().map(|row| &row.kv_state[..]);
        let score_state = rows.clone().map(|row| &row.score_state[..]);
        Ok(Box::new(OnDevice {
            device: device.clone(),
            ape: Arena::upload_askew(device, ("ape", 0xff), scores, [&self.ape[..]])?,
            norm: Arena::upload_askew(device, ("norm", 0xff), values, [&self.norm[..]])?,
            kv: Arena::upload_askew(device, ("kv", 0xff), values, rows.clone().map(|row| &row.kv[..]))?,
            score: Arena::upload_askew(device, ("score", 0xff), scores, rows.map(|row| &row.score[..]))?,
            kv_state: Arena::upload_askew(device, ("kv_state", 0xa5), values, kv_state)?,
            score_state: Arena::upload_askew(device, ("score_state", 0xa5), scores, score_state)?,
            outputs: Outputs::load_askew(device, outputs, self.rows.len(), values)?,
            data: self.clone(),
        }))
    }

    fn expect(&self, row: usize, _method: Method) -> Vec<Expected> {
        oracle::compress(self, row)
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        for r in (0..self.rows.len()).filter(|r| !keep.contains(r)) {
            let row = &mut self.rows[r];
            for data in [&mut row.kv, &mut row.score, &mut row.kv_state, &mut row.score_state] {
                data.iter_mut().for_each(|x| *x = rng.hostile_f32());
            }
        }
    }

    fn corrupt(&mut self, one_in: usize, rng: &mut Rng) {
        for row in &mut self.rows {
            for data in [&mut row.kv, &mut row.score, &mut row.kv_state, &mut row.score_state] {
                rng.spoil_f32(data, one_in);
            }
        }
        // All rows share these: seldom, or there would be nothing left to see.
        if rng.one_in(8) {
            rng.spoil_f32(&mut self.ape, one_in);
            rng.spoil_f32(&mut self.norm, one_in);
        }
    }

    fn scatter(&mut self, rng: &mut Rng) {
        let sizes: Vec<usize> = (0..self.rows.len()).map(|r| self.output_rows(r)).collect();
        let (starts, outputs) = places(rng, &sizes);
        self.rows.iter_mut().zip(starts).for_each(|(row, out)| row.out = out);
        self.outputs = outputs;
        // Beyond 4, 16 and 128 bytes.
        self.skew = [0; 2].map(|_| rng.pick(&[0, 1, 4, 32]));
    }
}

struct OnDevice {
    device: Device,
    ape: Arena<f32>,
    norm: Arena<f32>,
    kv: Arena<f32>,
    score: Arena<f32>,
    kv_state: Arena<f32>,
    score_state: Arena<f32>,
    outputs: Outputs<bf16>,
    data: Data,
}

impl OnDevice {
    fn with<R>(
        &mut self,
        entries: &[usize],
        status: usize,
        f: impl FnOnce(&Device, Compress<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let (data, features) = (&self.data, self.data.features());
        let state = [data.state_rows, features];
        let states = self.kv_state.views_mut(entries).into_iter().zip(self.score_state.views_mut(entries));
        let mut rows = Vec::with_capacity(entries.len());
        for (&r, (kv_state, score_state)) in entries.iter().zip(states) {
            let tokens = [data.tokens(r), features];
            rows.push(CompressRow {
                start_pos: data.rows[r].start_pos,
                kv: self.kv.view(r).reshape(tokens)?,
                score: self.score.view(r).reshape(tokens)?,
                kv_state: kv_state.reshape(state)?,
                score_state: score_state.reshape(state)?,
                out: data.rows[r].out,
            });
        }
        let ratio = data.ratio as usize;
        let (out, status) = self.outputs.views(status..status + entries.len());
        let args = Compress {
            ratio: data.ratio,
            layout: data.layout,
            emit: data.emit,
            ape: self.ape.view(0).reshape([ratio, features])?,
            norm: self.norm.view(0),
            epsilon: data.epsilon,
            rows: &mut rows,
            out: out.reshape([data.outputs, data.dim])?,
            status,
        };
        f(&self.device, args)
    }

    /// The states of the rows of `order`; those of all others must be what they were.
    fn states(
        &self,
        arena: &Arena<f32>,
        before: impl Fn(&Row) -> &Vec<f32>,
        (order, name): (&[usize], &'static str),
    ) -> std::result::Result<Vec<Part>, Fault> {
        let after = arena.read()?;
        for r in (0..after.len()).filter(|r| !order.contains(r)) {
            let before = before(&self.data.rows[r]);
            let changed = |&i: &usize| after[r][i].to_bits() != before[i].to_bits();
            if let Some(at) = (0..before.len()).find(changed) {
                return Err(Fault::Touched { buffer: name, at });
            }
        }
        Ok(order.iter().map(|&r| Part::of(name, &after[r])).collect())
    }
}

impl Loaded for OnDevice {
    fn reset(&mut self, fill: u8) -> Result<()> {
        self.outputs.reset(fill)?;
        self.kv_state.write(self.data.rows.iter().map(|row| &row.kv_state[..]))?;
        self.score_state.write(self.data.rows.iter().map(|row| &row.score_state[..]))
    }

    super::calls!(compress);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let (data, dim) = (&self.data, self.data.dim);
        let named = |&r: &usize| data.rows[r].out * dim..(data.rows[r].out + data.output_rows(r)) * dim;
        let mut rows = self.outputs.results(order.iter().map(named).collect())?;
        let kv = self.states(&self.kv_state, |row| &row.kv_state, (order, "kv_state"))?;
        let score = self.states(&self.score_state, |row| &row.score_state, (order, "score_state"))?;
        for (row, (kv, score)) in rows.iter_mut().zip(kv.into_iter().zip(score)) {
            row.extend([kv, score]);
        }
        Ok(rows)
    }
}
