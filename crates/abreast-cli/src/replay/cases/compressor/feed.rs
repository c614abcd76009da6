//! The ways to feed tokens to a compressor: one by one, in one call, on a ring.

use super::Case;
use super::state::State;
use crate::replay::shared::Shared;
use abreast::{Buffer, Compress, CompressRow, Device, Emit, Error, StateLayout, bf16};
use std::ops::Range;
use std::time::{Duration, Instant};

/// How the tokens are fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    OneByOne,
    OneCall,
    /// One call on a ring of this many rows more than its window, with output rows for closed blocks only.
    Ring(usize),
}

pub(super) const WAYS: [Way; 4] = [Way::OneByOne, Way::OneCall, Way::Ring(0), Way::Ring(3)];

impl Way {
    fn is_ring(self) -> bool {
        matches!(self, Way::Ring(_))
    }

    /// Which of `tokens` each call takes.
    fn calls(self, tokens: usize) -> impl Iterator<Item = Range<usize>> {
        // Even a request without tokens is fed once.
        let tokens = tokens.max(1);
        let step = if self == Way::OneByOne { 1 } else { tokens };
        (0..tokens).step_by(step).map(move |t| t..t + step)
    }
}

/// What one way gives, brought into one form: an output row for every token, a shifted state.
pub(super) struct Fed {
    pub(super) out: Vec<bf16>,
    /// A word for every token where they are fed one by one, else one.
    pub(super) status: Vec<u32>,
    pub(super) state: State,
}

/// A request while it is fed.
struct Request<'c, 'a> {
    case: &'c Case<'a>,
    kv_state: Buffer<f32>,
    score_state: Buffer<f32>,
    /// Its first row in the output.
    out: usize,
    status: Vec<u32>,
}

impl Case<'_> {
    /// The position that a way starts at. Before the first block a ring has nothing, while a recorded state may hold
    /// something there: then the ring starts one block later, which changes no other arithmetic.
    fn first(&self, way: Way) -> u32 {
        let before = self.start_pos < self.ratio && !self.layout().previous_is_fresh(&self.state());
        if way.is_ring() && before { self.start_pos + self.ratio } else { self.start_pos }
    }

    fn outputs(&self, way: Way) -> usize {
        if way.is_ring() { self.emitted.len() } else { self.tokens() }
    }

    fn start_state(&self, way: Way) -> State {
        match way {
            Way::Ring(more) => self.layout().ring(&self.state(), (self.first(way), more)),
            _ => self.state(),
        }
    }

    /// What `way` left behind, as a shifted state.
    fn end_state(&self, way: Way, state: State) -> State {
        match way {
            Way::Ring(_) => self.layout().shifted(&state, self.first(way) as usize + self.tokens()),
            _ => state,
        }
    }

    /// A row for every token, from the rows that `way` wrote.
    fn spread(&self, way: Way, out: &[bf16]) -> Vec<bf16> {
        if !way.is_ring() {
            return out.to_vec();
        }
        let d = self.d();
        let mut all = vec![bf16::ZERO; self.tokens() * d];
        for (row, &t) in out.chunks(d).zip(&self.emitted) {
            all[t * d..(t + 1) * d].copy_from_slice(row);
        }
        all
    }
}

/// Feeds all cases side by side in one way, and the time that the device took.
pub(super) fn feed(device: &Device, cases: &[&Case<'_>], way: Way) -> Result<(Vec<Fed>, Duration), Error> {
    let (first, d) = (cases[0], cases[0].d());
    let [_, features] = first.ape.shape();
    let (ape, norm) = (device.upload(&first.ape.load())?, device.upload(&first.norm.load())?);
    let kv = Shared::upload(device, cases.iter().map(|case| &case.kv))?;
    let score = Shared::upload(device, cases.iter().map(|case| &case.score))?;
    let mut requests = Vec::new();
    let mut outputs = 0;
    for &case in cases {
        let State { kv, score } = case.start_state(way);
        let (kv_state, score_state) = (device.upload(&kv)?, device.upload(&score)?);
        requests.push(Request { case, kv_state, score_state, out: outputs, status: Vec::new() });
        outputs += case.outputs(way);
    }
    let mut out = device.zeros::<bf16>(outputs * d)?;
    let mut time = Duration::ZERO;

    let longest = cases.iter().map(|case| case.tokens()).max().unwrap_or(0);
    for call in way.calls(longest) {
        let (mut rows, mut words) = (Vec::new(), Vec::new());
        for (r, request) in requests.iter_mut().enumerate() {
            let (case, tokens) = (request.case, call.start..call.end.min(request.case.tokens()));
            if call.start > 0 && tokens.is_empty() {
                continue;
            }
            let state = [request.kv_state.len() / features, features];
            rows.push(CompressRow {
                start_pos: case.first(way) + tokens.start as u32,
                kv: kv.view(r).reshape(case.kv.shape())?.slice(tokens.clone()),
                score: score.view(r).reshape(case.score.shape())?.slice(tokens.clone()),
                kv_state: request.kv_state.shaped_mut(state)?,
                score_state: request.score_state.shaped_mut(state)?,
                out: request.out + tokens.start,
            });
            words.push(&mut request.status);
        }
        let mut status = device.zeros::<u32>(rows.len())?;
        let start = Instant::now();
        device.compress(Compress {
            ratio: first.ratio,
            layout: if way.is_ring() { StateLayout::Ring } else { StateLayout::Shifted },
            emit: if way.is_ring() { Emit::Blocks } else { Emit::EveryToken },
            ape: ape.shaped(first.ape.shape())?,
            norm: norm.view(),
            epsilon: first.eps,
            rows: &mut rows,
            out: out.shaped_mut([outputs, d])?,
            status: Some(status.view_mut()),
        })?;
        let status = status.read()?;
        time += start.elapsed();
        words.into_iter().zip(status).for_each(|(words, word)| words.push(word));
    }

    let out = out.read()?;
    let mut all = Vec::new();
    for Request { case, kv_state, score_state, out: at, status } in requests {
        let out = case.spread(way, &out[at * d..(at + case.outputs(way)) * d]);
        let state = case.end_state(way, State { kv: kv_state.read()?, score: score_state.read()? });
        all.push(Fed { out, status, state });
    }
    Ok((all, time))
}
