//! Compressors: their weights, and the inputs and states of all requests.

use super::{Maker, Requests, Taker};
use abreast::dims::{coff, window};
use abreast::{Buffer, Compress, CompressRow, Emit, Result, StateLayout, ViewMut, bf16};
use std::ops::Range;

/// The compressors of a layer, which may be one launch.
pub(super) struct Compressors(Vec<Compressor>);

struct Compressor {
    ratio: usize,
    d: usize,
    layout: StateLayout,
    /// Of the token that every request brings.
    start_pos: u32,
    ape: Buffer<f32>,
    norm: Buffer<f32>,
    kv: Buffer<f32>,
    score: Buffer<f32>,
    kv_state: Buffer<f32>,
    score_state: Buffer<f32>,
    out: Buffer<bf16>,
}

impl Compressors {
    /// Of these ratios and sizes. The token is the last of the ninth block, or the one before it.
    pub(super) fn load(
        maker: &mut Maker<'_>,
        shapes: &[(usize, usize)],
        (layout, block): (StateLayout, bool),
    ) -> Result<Compressors> {
        let load = |&(ratio, d): &(usize, usize)| {
            let start_pos = (9 * ratio - if block { 1 } else { 2 }) as u32;
            Compressor::load(maker, (ratio, d), (layout, start_pos))
        };
        shapes.iter().map(load).collect::<Result<_>>().map(Compressors)
    }
}

impl Compressor {
    fn load(
        maker: &mut Maker<'_>,
        (ratio, d): (usize, usize),
        (layout, start_pos): (StateLayout, u32),
    ) -> Result<Compressor> {
        let (requests, features) = (maker.requests, coff(ratio) * d);
        let state = (requests, window(ratio) * features);
        Ok(Compressor {
            ratio,
            d,
            layout,
            start_pos,
            ape: maker.f32s((ratio, features), 0.7)?,
            norm: maker.f32s((1, d), 1.0)?,
            kv: maker.f32s((requests, features), 1.0)?,
            score: maker.f32s((requests, features), 1.5)?,
            kv_state: maker.f32s(state, 1.0)?,
            score_state: maker.f32s(state, 1.5)?,
            out: maker.device.zeros(requests * d)?,
        })
    }

    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, status): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        let (ratio, features, state_rows) = (self.ratio, coff(self.ratio) * self.d, window(self.ratio));
        let size = state_rows * features;
        let inputs = [self.kv.view(), self.score.view()];
        let states = [&mut self.kv_state, &mut self.score_state];
        let mut states = states.map(|all| all.view_mut().slice(requests.start * size..requests.end * size));
        let mut rows = Vec::with_capacity(requests.len());
        for r in requests {
            let [kv, score] = inputs.each_ref().map(|all| all.slice(r * features..(r + 1) * features));
            let [mut kv_states, mut score_states] = states;
            let (kv_state, score_state);
            (kv_state, kv_states) = kv_states.split_at(size);
            (score_state, score_states) = score_states.split_at(size);
            states = [kv_states, score_states];
            rows.push(CompressRow {
                start_pos: self.start_pos,
                kv: kv.reshape([1, features])?,
                score: score.reshape([1, features])?,
                kv_state: kv_state.reshape([state_rows, features])?,
                score_state: score_state.reshape([state_rows, features])?,
                out: r,
            });
        }
        let outputs = self.out.len() / self.d;
        to.compress(Compress {
            ratio: ratio as u32,
            layout: self.layout,
            emit: Emit::EveryToken,
            ape: self.ape.shaped([ratio, features])?,
            norm: self.norm.view(),
            epsilon: 1e-6,
            rows: &mut rows,
            out: self.out.shaped_mut([outputs, self.d])?,
            status: Some(status),
        })
    }
}

impl Requests for Compressors {
    fn words(&self, requests: usize) -> usize {
        self.0.len() * requests
    }

    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, mut status): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        for compressor in &mut self.0 {
            let own;
            (own, status) = status.split_at(requests.len());
            compressor.make(to, (requests.clone(), own))?;
        }
        Ok(())
    }
}
