//! Index scores: queries, head weights, key caches of their own.

use super::outputs::Outputs;
use super::{Loaded, Problem, Rng, packed, places};
use crate::conformance::arena::Arena;
use crate::conformance::bits::{Fault, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::dims::causal_count;
use crate::{Device, IndexScores, IndexScoresRow, Method, Op, Result, View, bf16};

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Heads of a query.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// Tokens per key.
    pub ratio: u32,
    /// One entry per row.
    pub rows: Vec<RowShape>,
}

/// How large one row is.
#[derive(Debug, Clone, Copy)]
pub struct RowShape {
    /// Position of its token; it sees `(start_pos + 1) / ratio` keys.
    pub start_pos: u32,
    /// Keys of its cache that it must not see.
    pub spare: usize,
}

/// The data of a call.
#[derive(Debug, Clone)]
pub struct Data {
    /// Heads of a query.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// Tokens per key.
    pub ratio: u32,
    /// Queries, `[queries, heads, dim]`.
    pub q: Vec<bf16>,
    /// Head weights, `[queries, heads]`.
    pub weights: Vec<f32>,
    /// Key caches, each `[kv_len, dim]`.
    pub caches: Vec<Vec<bf16>>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Length of the output.
    pub outputs: usize,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its query.
    pub query: usize,
    /// Position of its token.
    pub start_pos: u32,
    /// Its cache.
    pub cache: usize,
    /// Where its scores start.
    pub out: usize,
}

impl Shape {
    /// Every row with a query and a cache of its own; scores of a size of about 1, of both signs.
    pub fn generate(&self, seed: u64) -> Data {
        let rng = &mut Rng::new(seed);
        let (n, heads, dim, ratio) = (self.rows.len(), self.heads, self.dim, self.ratio);
        let count = |row: &RowShape| causal_count(row.start_pos, ratio);
        let (starts, outputs) = packed(self.rows.iter().map(count));
        let row = |(r, (shape, out)): (usize, (&RowShape, usize))| Row {
            query: r,
            start_pos: shape.start_pos,
            cache: r,
            out,
        };
        Data {
            heads,
            dim,
            ratio,
            q: rng.bf16s(n * heads * dim, 1.0),
            weights: rng.f32s(n * heads, ((heads * dim) as f32).powf(-0.5)),
            caches: self.rows.iter().map(|row| rng.bf16s((count(row) + row.spare) * dim, 1.0)).collect(),
            rows: self.rows.iter().zip(starts).enumerate().map(row).collect(),
            outputs,
        }
    }
}

impl Data {
    /// Keys that a row sees.
    pub fn count(&self, row: usize) -> usize {
        causal_count(self.rows[row].start_pos, self.ratio)
    }

    /// One query of a row.
    pub fn query(&self, row: usize, head: usize) -> &[bf16] {
        let at = (self.rows[row].query * self.heads + head) * self.dim;
        &self.q[at..at + self.dim]
    }

    /// One weight of a row.
    pub fn weight(&self, row: usize, head: usize) -> f32 {
        self.weights[self.rows[row].query * self.heads + head]
    }

    /// One key of a row.
    pub fn key(&self, row: usize, key: usize) -> &[bf16] {
        &self.caches[self.rows[row].cache][key * self.dim..(key + 1) * self.dim]
    }

    /// Lets some rows use the cache of another row where that is long enough, or its query.
    pub fn share(&mut self, rng: &mut Rng) {
        for r in 1..self.rows.len() {
            let other = rng.below(r);
            if rng.one_in(4) {
                self.rows[r].query = self.rows[other].query;
            }
            let cache = self.rows[other].cache;
            if rng.one_in(3) && self.caches[cache].len() >= self.count(r) * self.dim {
                self.rows[r].cache = cache;
            }
        }
    }
}

impl Problem for Data {
    fn op(&self) -> &'static str {
        IndexScores::NAME
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn load(&self, device: &Device, method: Method) -> Result<Box<dyn Loaded>> {
        Ok(Box::new(OnDevice {
            device: device.clone(),
            inputs: Inputs::load(self, device)?,
            method,
            outputs: Outputs::load(device, self.outputs, self.rows.len())?,
        }))
    }

    fn expect(&self, row: usize, method: Method) -> Vec<Expected> {
        oracle::index_scores(self, row, method)
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        let queries: Vec<usize> = keep.iter().map(|&r| self.rows[r].query).collect();
        let free = |query: &usize| !queries.contains(query);
        for query in (0..self.weights.len() / self.heads).filter(free) {
            let (from, to) = (query * self.heads, (query + 1) * self.heads);
            self.weights[from..to].iter_mut().for_each(|w| *w = rng.hostile_f32());
            self.q[from * self.dim..to * self.dim].iter_mut().for_each(|x| *x = rng.hostile_bf16());
        }
        let mut seen = vec![0; self.caches.len()];
        for &r in keep {
            let cache = self.rows[r].cache;
            seen[cache] = self.count(r).max(seen[cache]);
        }
        for (cache, seen) in self.caches.iter_mut().zip(seen) {
            cache[seen * self.dim..].iter_mut().for_each(|x| *x = rng.hostile_bf16());
        }
    }

    fn corrupt(&mut self, one_in: usize, rng: &mut Rng) {
        rng.spoil_bf16(&mut self.q, one_in);
        rng.spoil_f32(&mut self.weights, one_in);
        self.caches.iter_mut().for_each(|cache| rng.spoil_bf16(cache, one_in));
    }

    fn scatter(&mut self, rng: &mut Rng) {
        let counts: Vec<usize> = (0..self.rows.len()).map(|r| self.count(r)).collect();
        let (starts, outputs) = places(rng, &counts);
        self.rows.iter_mut().zip(starts).for_each(|(row, out)| row.out = out);
        self.outputs = outputs;
    }
}

/// What this operation and the combined one read.
pub(super) struct Inputs {
    q: Arena<bf16>,
    weights: Arena<f32>,
    caches: Arena<bf16>,
    /// The data without its bulk.
    pub(super) shape: Data,
}

impl Inputs {
    pub(super) fn load(data: &Data, device: &Device) -> Result<Inputs> {
        Ok(Inputs {
            q: Arena::upload(device, "q", 0xff, [&data.q[..]])?,
            weights: Arena::upload(device, "weights", 0xff, [&data.weights[..]])?,
            caches: Arena::upload(device, "keys", 0xff, data.caches.iter().map(|c| &c[..]))?,
            shape: Data { q: vec![], weights: vec![], caches: vec![], ..data.clone() },
        })
    }

    pub(super) fn q(&self) -> Result<View<'_, bf16, 3>> {
        let (q, heads, dim) = (self.q.view(0), self.shape.heads, self.shape.dim);
        q.reshape([q.len() / (heads * dim), heads, dim])
    }

    pub(super) fn weights(&self) -> Result<View<'_, f32, 2>> {
        let weights = self.weights.view(0);
        weights.reshape([weights.len() / self.shape.heads, self.shape.heads])
    }

    pub(super) fn keys(&self, row: usize) -> Result<View<'_, bf16, 2>> {
        let keys = self.caches.view(self.shape.rows[row].cache);
        keys.reshape([keys.len() / self.shape.dim, self.shape.dim])
    }
}

struct OnDevice {
    device: Device,
    inputs: Inputs,
    method: Method,
    outputs: Outputs<f32>,
}

impl OnDevice {
    fn with<R>(
        &mut self,
        entries: &[usize],
        status: usize,
        f: impl FnOnce(&Device, IndexScores<'_>) -> Result<R>,
    ) -> Result<R> {
        let shape = &self.inputs.shape;
        let row = |&r: &usize| {
            let Row { query, start_pos, out, .. } = shape.rows[r];
            Ok(IndexScoresRow { query, start_pos, out, keys: self.inputs.keys(r)? })
        };
        let rows: Vec<IndexScoresRow<'_>> = entries.iter().map(row).collect::<Result<_>>()?;
        let (out, status) = self.outputs.views(status..status + entries.len());
        let args = IndexScores {
            q: self.inputs.q()?,
            weights: self.inputs.weights()?,
            ratio: shape.ratio,
            method: self.method,
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

    super::calls!(index_scores);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let shape = &self.inputs.shape;
        let named = |&r: &usize| shape.rows[r].out..shape.rows[r].out + shape.count(r);
        self.outputs.results(order.iter().map(named).collect())
    }
}
