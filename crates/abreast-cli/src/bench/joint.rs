//! A joint decode step: scores and selection, two compressors beside them, attention over what was selected.

use super::cases::{HEADS, K, KEY_RATIO};
use super::inputs::Requests;
use abreast::conformance::case::Rng;
use abreast::dims::{HEAD_DIM, INDEX_DIM, window};
use abreast::{
    AttentionRow, Buffer, Calls, Compress, CompressRow, Cost, Device, Emit, GatherRow, GatherRows, Method,
    Op, Result, SelectKeys, SelectKeysRow, SparseAttention, StateLayout, ViewMut, bf16,
};
use std::ops::Range;

/// Window slots before the selected ones, in the index lists and in the caches.
const WINDOW: usize = 128;
pub(super) const WIDTH: usize = WINDOW + K;
/// The most memory for caches. Where it holds fewer than there are requests, these share them: a selection is a small part of one.
const MOST_CACHES: usize = 6 << 30;
/// Elements that caches are made of, each piece drawn once; the most pieces. A request's keys have no piece twice.
const PIECE: usize = WINDOW * HEAD_DIM;
const MOST_PIECES: usize = 521;
/// Steps of a replay at most: each has status words of its own.
const STEPS: usize = 512;
const RATIO: usize = KEY_RATIO as usize;
const STATE_ROWS: usize = window(RATIO);
const SEED: u64 = 1;

/// The requests' memory on a device.
pub(super) struct JointStep {
    device: Device,
    method: Method,
    requests: usize,
    /// Keys that every query sees.
    keys: usize,
    caches: usize,
    q: Buffer<bf16>,
    index_q: Buffer<bf16>,
    weights: Buffer<f32>,
    index_keys: Buffer<bf16>,
    kv: Buffer<bf16>,
    lists: Buffer<i32>,
    out: Buffer<bf16>,
    selected: Buffer<u32>,
    status: Buffer<u32>,
    steps: usize,
    compressors: [Compressor; 2],
}

/// One compressor: its weights, and the inputs and states of all requests.
struct Compressor {
    d: usize,
    ape: Buffer<f32>,
    norm: Buffer<f32>,
    kv: Buffer<f32>,
    score: Buffer<f32>,
    kv_state: Buffer<f32>,
    score_state: Buffer<f32>,
    out: Buffer<bf16>,
}

/// A call of the step.
enum Part<'a, 'r> {
    Select(SelectKeys<'r>),
    Compress(Compress<'a, 'r>),
    Attend(SparseAttention<'r>),
}

impl JointStep {
    pub(super) fn load(
        (device, method): (&Device, Method),
        (tokens, requests): (usize, usize),
    ) -> Result<JointStep> {
        let keys = tokens / RATIO;
        let cache = (WINDOW + keys) * HEAD_DIM;
        let caches = (MOST_CACHES / (cache * size_of::<bf16>())).clamp(1, requests);
        let rng = &mut Rng::new(SEED);
        let pieces = (keys * INDEX_DIM).div_ceil(PIECE).clamp(4, MOST_PIECES);
        let pool = device.upload(&rng.bf16s(pieces * PIECE, 1.0))?;
        let window = |_| (0..WIDTH as i32).map(|slot| if slot < WINDOW as i32 { slot } else { -1 });
        let lists: Vec<i32> = (0..requests).flat_map(window).collect();
        let [main, index] = [HEAD_DIM, INDEX_DIM].map(|d| Compressor::load(d, (device, requests), rng));
        Ok(JointStep {
            device: device.clone(),
            method,
            requests,
            keys,
            caches,
            q: device.upload(&rng.bf16s(requests * HEADS * HEAD_DIM, 1.0))?,
            index_q: device.upload(&rng.bf16s(requests * HEADS * INDEX_DIM, 1.0))?,
            weights: device.upload(&rng.f32s(requests * HEADS, 0.2))?,
            index_keys: spread(device, &pool, requests * keys * INDEX_DIM)?,
            kv: spread(device, &pool, caches * cache)?,
            lists: device.upload(&lists)?,
            out: device.zeros(requests * HEADS * HEAD_DIM)?,
            selected: device.zeros(requests)?,
            status: device.zeros((STEPS + 1) * 2 * requests)?,
            steps: 0,
            compressors: [main?, index?],
        })
    }

    /// Bytes that a request holds alone.
    pub(super) fn request_bytes(tokens: usize) -> usize {
        let compressors = (HEAD_DIM + INDEX_DIM) * 2 * (STATE_ROWS + 1) * 2 * size_of::<f32>();
        (tokens / RATIO * INDEX_DIM + 2 * HEADS * (HEAD_DIM + INDEX_DIM)) * size_of::<bf16>() + compressors
    }

    /// Makes the calls of one step of these requests.
    ///
    /// The compressors have nothing to do with the step's other calls, but come after the attention of the step before: their status
    /// words go where its went, half of them in each.
    fn each(
        &mut self,
        range: Range<usize>,
        mut make: impl FnMut(&Device, Part<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let (n, keys) = (range.len(), self.keys);
        let start_pos = (keys * RATIO - 1) as u32;
        self.steps = self.steps % STEPS + 1;
        let words = 2 * self.requests;
        let (before, own) = self.status.view_mut().split_at(self.steps * words);
        let (main, index) =
            before.slice((self.steps - 1) * words..self.steps * words).slice(0..2 * n).split_at(n);
        let shape = [self.requests, HEADS, HEAD_DIM];

        let all = self.index_keys.view();
        let selection = |r: usize| {
            let keys_of = all.slice(r * keys * INDEX_DIM..(r + 1) * keys * INDEX_DIM);
            let keys = keys_of.reshape([keys, INDEX_DIM])?;
            let out = r * WIDTH + WINDOW;
            Ok(SelectKeysRow { query: r, start_pos, keys, offset: WINDOW as i32, out })
        };
        let rows = range.clone().map(selection).collect::<Result<Vec<_>>>()?;
        let select = SelectKeys {
            q: self.index_q.shaped([self.requests, HEADS, INDEX_DIM])?,
            weights: self.weights.shaped([self.requests, HEADS])?,
            ratio: KEY_RATIO,
            method: self.method,
            k: K,
            rows: &rows,
            out: self.lists.view_mut(),
            status: Some(self.selected.view_mut().slice(0..n)),
        };
        make(&self.device, Part::Select(select))?;

        for (compressor, status) in self.compressors.iter_mut().zip([main, index]) {
            let call = |call: Compress<'_, '_>| make(&self.device, Part::Compress(call));
            compressor.make((start_pos, range.clone(), status), call)?;
        }

        let cache = (WINDOW + keys) * HEAD_DIM;
        let (kv, lists) = (self.kv.view(), self.lists.view());
        let attended = |r: usize| {
            let c = r % self.caches;
            let kv = kv.slice(c * cache..(c + 1) * cache).reshape([WINDOW + keys, HEAD_DIM])?;
            Ok(AttentionRow { query: r, out: r, kv, indices: lists.slice(r * WIDTH..(r + 1) * WIDTH) })
        };
        let rows = range.map(attended).collect::<Result<Vec<_>>>()?;
        let attend = SparseAttention {
            q: self.q.shaped(shape)?,
            sinks: None,
            scale: (HEAD_DIM as f32).sqrt().recip(),
            method: self.method,
            rows: &rows,
            out: self.out.shaped_mut(shape)?,
            status: Some(own.slice(n / 2..n / 2 + n)),
        };
        make(&self.device, Part::Attend(attend))
    }
}

impl Compressor {
    fn load(d: usize, (device, requests): (&Device, usize), rng: &mut Rng) -> Result<Compressor> {
        let features = 2 * d;
        let mut random = |n: usize| device.upload(&rng.f32s(n, 1.0));
        Ok(Compressor {
            d,
            ape: random(RATIO * features)?,
            norm: random(d)?,
            kv: random(requests * features)?,
            score: random(requests * features)?,
            kv_state: random(requests * STATE_ROWS * features)?,
            score_state: random(requests * STATE_ROWS * features)?,
            out: device.zeros(requests * d)?,
        })
    }

    /// Makes the call of one token of each request; the token ends a block.
    fn make(
        &mut self,
        (start_pos, range, status): (u32, Range<usize>, ViewMut<'_, u32, 1>),
        make: impl FnOnce(Compress<'_, '_>) -> Result<()>,
    ) -> Result<()> {
        let (d, features, size) = (self.d, 2 * self.d, STATE_ROWS * 2 * self.d);
        let inputs = [self.kv.view(), self.score.view()];
        let states = [&mut self.kv_state, &mut self.score_state];
        let mut states = states.map(|all| all.view_mut().slice(range.start * size..range.end * size));
        let mut rows = Vec::with_capacity(range.len());
        for r in range {
            let [kv, score] = inputs.each_ref().map(|all| all.slice(r * features..(r + 1) * features));
            let [mut kv_states, mut score_states] = states;
            let (kv_state, score_state);
            (kv_state, kv_states) = kv_states.split_at(size);
            (score_state, score_states) = score_states.split_at(size);
            states = [kv_states, score_states];
            rows.push(CompressRow {
                start_pos,
                kv: kv.reshape([1, features])?,
                score: score.reshape([1, features])?,
                kv_state: kv_state.reshape([STATE_ROWS, features])?,
                score_state: score_state.reshape([STATE_ROWS, features])?,
                out: r,
            });
        }
        let outputs = self.out.len() / d;
        make(Compress {
            ratio: KEY_RATIO,
            layout: StateLayout::Ring,
            emit: Emit::EveryToken,
            ape: self.ape.shaped([RATIO, features])?,
            norm: self.norm.view(),
            epsilon: 1e-6,
            rows: &mut rows,
            out: self.out.shaped_mut([outputs, d])?,
            status: Some(status),
        })
    }
}

impl Requests for JointStep {
    fn run(&mut self, range: Range<usize>) -> Result<()> {
        self.each(range, |device, part| match part {
            Part::Select(call) => device.select_keys(call),
            Part::Compress(call) => device.compress(call),
            Part::Attend(call) => device.sparse_attention(call),
        })
    }

    fn run_in(&mut self, calls: &mut Calls<'_>, range: Range<usize>) -> Result<()> {
        self.each(range, |_, part| match part {
            Part::Select(call) => calls.select_keys(call),
            Part::Compress(call) => calls.compress(call),
            Part::Attend(call) => calls.sparse_attention(call),
        })
    }

    fn cost(&mut self, range: Range<usize>) -> Cost {
        let mut cost = Cost::default();
        let made = self.each(range, |_, part| {
            cost = cost
                + match part {
                    Part::Select(call) => call.cost(),
                    Part::Compress(call) => call.cost(),
                    Part::Attend(call) => call.cost(),
                };
            Ok(())
        });
        made.map_or(Cost::default(), |()| cost)
    }

    #[cfg(test)]
    fn is_good(&self) -> bool {
        [&self.status, &self.selected]
            .iter()
            .all(|words| words.read().is_ok_and(|w| w.iter().all(|w| *w == 0)))
    }
}

/// So many elements, pieces of the pool one after the other.
fn spread(device: &Device, pool: &Buffer<bf16>, len: usize) -> Result<Buffer<bf16>> {
    let mut all = device.zeros(len)?;
    let (pieces, whole, rest) = (pool.len() / PIECE, len / PIECE, len % PIECE);
    let piece = |i: usize, len: usize| {
        let start = i % pieces * PIECE;
        GatherRow { source: pool.view().slice(start..start + len).into() }
    };
    let (filled, tail) = all.view_mut().split_at(whole * PIECE);
    let rows: Vec<_> = (0..whole).map(|i| piece(i, PIECE)).collect();
    device.gather_rows(GatherRows { rows: &rows, out: filled.reshape([whole, PIECE])?.into() })?;
    device.gather_rows(GatherRows { rows: &[piece(whole, rest)], out: tail.reshape([1, rest])?.into() })?;
    Ok(all)
}
