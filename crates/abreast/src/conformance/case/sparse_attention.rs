//! Sparse attention: queries, caches of their own, index lists, sinks.

use super::outputs::Outputs;
use super::{Loaded, Problem, Rng, places};
use crate::conformance::arena::Arena;
use crate::conformance::bits::{Fault, RowBits};
use crate::conformance::oracle::{self, Expected};
use crate::{AttentionRow, Device, Method, Op, Result, SparseAttention, bf16};

/// How large a call is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Heads of a query.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// One entry per row.
    pub rows: Vec<RowShape>,
}

/// How large one row is.
#[derive(Debug, Clone, Copy)]
pub struct RowShape {
    /// Rows of its cache.
    pub kv_len: usize,
    /// Slots that it attends to.
    pub width: usize,
}

/// The data of a call.
#[derive(Debug, Clone)]
pub struct Data {
    /// Heads of a query.
    pub heads: usize,
    /// Features of a head.
    pub dim: usize,
    /// Factor of the dot products.
    pub scale: f32,
    /// Queries, `[queries, heads, dim]`.
    pub q: Vec<bf16>,
    /// Sink logits, `[heads]`.
    pub sinks: Option<Vec<f32>>,
    /// Caches, each `[kv_len, dim]`.
    pub caches: Vec<Vec<bf16>>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Rows of the output.
    pub outputs: usize,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its query.
    pub query: usize,
    /// Its output.
    pub out: usize,
    /// Its cache.
    pub cache: usize,
    /// Its slots.
    pub indices: Vec<i32>,
}

impl Shape {
    /// Every row with a query, an output and a cache of its own, and distinct slots as long as there are any.
    /// Logits spread over about -9 to 9.
    pub fn generate(&self, seed: u64) -> Data {
        let rng = &mut Rng::new(seed);
        let (n, heads, dim) = (self.rows.len(), self.heads, self.dim);
        let mut sinks = rng.f32s(heads, 1.5);
        sinks.iter_mut().zip([6.0, -6.0, 12.0]).for_each(|(sink, far)| *sink += far);
        let row = |(r, shape): (usize, &RowShape)| {
            let order = rng.permutation(shape.kv_len);
            let slot = |j: usize| if order.is_empty() { -1 } else { order[j % order.len()] as i32 };
            Row { query: r, out: r, cache: r, indices: (0..shape.width).map(slot).collect() }
        };
        let rows = self.rows.iter().enumerate().map(row).collect();
        Data {
            heads,
            dim,
            scale: (dim as f32).powf(-0.5),
            q: rng.bf16s(n * heads * dim, 3.0),
            sinks: Some(sinks),
            caches: self.rows.iter().map(|shape| rng.bf16s(shape.kv_len * dim, 1.0)).collect(),
            rows,
            outputs: n,
        }
    }
}

impl Data {
    /// Rows of the cache of a row.
    pub fn kv_len(&self, row: usize) -> usize {
        self.caches[self.rows[row].cache].len() / self.dim
    }

    /// The cache row behind a slot of a row.
    pub fn kv(&self, row: usize, slot: usize) -> &[bf16] {
        let at = self.rows[row].indices[slot] as usize * self.dim;
        &self.caches[self.rows[row].cache][at..at + self.dim]
    }

    /// Skips some slots and repeats others.
    pub fn skip_and_repeat(&mut self, rng: &mut Rng) {
        for row in &mut self.rows {
            for j in 0..row.indices.len() {
                match rng.below(8) {
                    0 => row.indices[j] = -1,
                    1 => row.indices[j] = row.indices[rng.below(j + 1)],
                    _ => {}
                }
            }
        }
    }

    /// Lets some rows use the cache of another row, or its query.
    pub fn share(&mut self, rng: &mut Rng) {
        for r in 1..self.rows.len() {
            let other = rng.below(r);
            if rng.one_in(4) {
                self.rows[r].query = self.rows[other].query;
            }
            if rng.one_in(3) {
                self.rows[r].cache = self.rows[other].cache;
                let len = self.kv_len(r) as i32;
                for index in &mut self.rows[r].indices {
                    *index = if len == 0 { -1 } else { (*index).max(0) % len };
                }
            }
        }
    }
}

impl Problem for Data {
    fn op(&self) -> &'static str {
        SparseAttention::NAME
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn load(&self, device: &Device, method: Method) -> Result<Box<dyn Loaded>> {
        let lists = self.rows.iter().map(|row| &row.indices[..]);
        let sinks = self.sinks.as_deref().map(|sinks| Arena::upload(device, "sinks", 0xff, [sinks]));
        Ok(Box::new(OnDevice {
            device: device.clone(),
            q: Arena::upload(device, "q", 0xff, [&self.q[..]])?,
            sinks: sinks.transpose()?,
            caches: Arena::upload(device, "kv", 0xff, self.caches.iter().map(|c| &c[..]))?,
            lists: Arena::upload(device, "indices", 0x7f, lists)?,
            outputs: Outputs::load(device, self.outputs * self.heads * self.dim, self.rows.len())?,
            shape: Data { q: vec![], caches: vec![], ..self.clone() },
            method,
        }))
    }

    fn expect(&self, row: usize, method: Method) -> Vec<Expected> {
        oracle::sparse_attention(self, row, method)
    }

    fn poison(&mut self, keep: &[usize], rng: &mut Rng) {
        let kept = |r: &usize| keep.contains(r);
        let queries: Vec<usize> = keep.iter().map(|&r| self.rows[r].query).collect();
        for (query, q) in self.q.chunks_mut(self.heads * self.dim).enumerate() {
            if !queries.contains(&query) {
                q.iter_mut().for_each(|x| *x = rng.hostile_bf16());
            }
        }
        let mut seen: Vec<Vec<bool>> = self.caches.iter().map(|c| vec![false; c.len() / self.dim]).collect();
        for &r in keep {
            let row = &self.rows[r];
            row.indices.iter().filter(|&&i| i >= 0).for_each(|&i| seen[row.cache][i as usize] = true);
        }
        for (cache, seen) in self.caches.iter_mut().zip(seen) {
            for (kv, seen) in cache.chunks_mut(self.dim).zip(seen) {
                if !seen {
                    kv.iter_mut().for_each(|x| *x = rng.hostile_bf16());
                }
            }
        }
        for r in (0..self.rows.len()).filter(|r| !kept(r)) {
            let len = self.kv_len(r);
            for index in &mut self.rows[r].indices {
                if rng.one_in(3) {
                    *index = rng.hostile_index(len);
                }
            }
        }
    }

    fn corrupt(&mut self, one_in: usize, rng: &mut Rng) {
        rng.spoil_bf16(&mut self.q, one_in);
        self.caches.iter_mut().for_each(|cache| rng.spoil_bf16(cache, one_in));
        if let Some(sinks) = &mut self.sinks {
            rng.spoil_f32(sinks, one_in);
        }
        for row in 0..self.rows.len() {
            let len = self.kv_len(row);
            let indices = self.rows[row].indices.iter_mut();
            indices
                .for_each(|index| *index = if rng.one_in(one_in) { rng.hostile_index(len) } else { *index });
        }
    }

    fn scatter(&mut self, rng: &mut Rng) {
        let (starts, outputs) = places(rng, &vec![1; self.rows.len()]);
        self.rows.iter_mut().zip(starts).for_each(|(row, out)| row.out = out);
        self.outputs = outputs;
    }
}

struct OnDevice {
    device: Device,
    q: Arena<bf16>,
    sinks: Option<Arena<f32>>,
    caches: Arena<bf16>,
    lists: Arena<i32>,
    outputs: Outputs<bf16>,
    /// The data without its bulk.
    shape: Data,
    method: Method,
}

impl OnDevice {
    fn with<R>(
        &mut self,
        entries: &[usize],
        status: usize,
        f: impl FnOnce(&Device, SparseAttention<'_>) -> Result<R>,
    ) -> Result<R> {
        let Data { heads, dim, scale, outputs, .. } = self.shape;
        let row = |&r: &usize| {
            let row = &self.shape.rows[r];
            let kv = self.caches.view(row.cache);
            let kv = kv.reshape([kv.len() / dim, dim])?;
            Ok(AttentionRow { query: row.query, out: row.out, kv, indices: self.lists.view(r) })
        };
        let rows: Vec<AttentionRow<'_>> = entries.iter().map(row).collect::<Result<_>>()?;
        let q = self.q.view(0);
        let (out, status) = self.outputs.views(status..status + entries.len());
        let args = SparseAttention {
            q: q.reshape([q.len() / (heads * dim), heads, dim])?,
            sinks: self.sinks.as_ref().map(|sinks| sinks.view(0)),
            scale,
            method: self.method,
            rows: &rows,
            out: out.reshape([outputs, heads, dim])?,
            status,
        };
        f(&self.device, args)
    }
}

impl Loaded for OnDevice {
    fn reset(&mut self, fill: u8) -> Result<()> {
        self.outputs.reset(fill)
    }

    super::calls!(sparse_attention);

    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault> {
        let size = self.shape.heads * self.shape.dim;
        let out = |&r: &usize| self.shape.rows[r].out;
        self.outputs.results(order.iter().map(|r| out(r) * size..(out(r) + 1) * size).collect())
    }
}
