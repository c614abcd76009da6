//! The ways to feed tokens to a compressor: one by one, in one call, on a ring.

use super::Case;
use super::state::State;
use crate::replay::shared::Shared;
use abreast::{
    Buffer, Compress, CompressRow, ConvertState, ConvertStateRow, Device, Emit, Error, StateLayout, bf16,
};
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
    /// As it was recorded: values, then scores.
    shifted: [Buffer<f32>; 2],
    ring: Option<[Buffer<f32>; 2]>,
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

/// Brings the states of all requests from the recorded layout into their rings, or back.
fn convert(device: &Device, requests: &mut [Request<'_, '_>], to: (StateLayout, Way)) -> Result<(), Error> {
    let (to, way) = to;
    let ratio = requests[0].case.ratio;
    let mut rows = Vec::new();
    for Request { case, shifted, ring, .. } in requests {
        let Some(ring) = ring else { return Ok(()) };
        let position = case.first(way);
        let (position, from, into) = match to {
            StateLayout::Ring => (position, shifted, ring),
            StateLayout::Shifted => (position + case.tokens() as u32, ring, shifted),
        };
        let n = case.layout().features();
        let (from_rows, to_rows) = (from[0].len() / n, into[0].len() / n);
        let [kv_to, score_to] = into;
        rows.push(ConvertStateRow {
            position,
            kv_from: from[0].shaped([from_rows, n])?,
            score_from: from[1].shaped([from_rows, n])?,
            kv_to: kv_to.shaped_mut([to_rows, n])?,
            score_to: score_to.shaped_mut([to_rows, n])?,
        });
    }
    let from = if to == StateLayout::Ring { StateLayout::Shifted } else { StateLayout::Ring };
    device.convert_state(ConvertState { ratio, from, to, rows: &mut rows })
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
        let State { kv, score } = case.state();
        let shifted = [device.upload(&kv)?, device.upload(&score)?];
        let ring = match way {
            Way::Ring(more) => {
                let len = kv.len() + more * features;
                Some([device.zeros(len)?, device.zeros(len)?])
            }
            _ => None,
        };
        requests.push(Request { case, shifted, ring, out: outputs, status: Vec::new() });
        outputs += case.outputs(way);
    }
    let mut out = device.zeros::<bf16>(outputs * d)?;
    let mut time = Duration::ZERO;

    convert(device, &mut requests, (StateLayout::Ring, way))?;
    let longest = cases.iter().map(|case| case.tokens()).max().unwrap_or(0);
    for call in way.calls(longest) {
        let (mut rows, mut words) = (Vec::new(), Vec::new());
        for (r, request) in requests.iter_mut().enumerate() {
            let (case, tokens) = (request.case, call.start..call.end.min(request.case.tokens()));
            if call.start >= case.tokens().max(1) {
                continue;
            }
            let [kv_state, score_state] = request.ring.as_mut().unwrap_or(&mut request.shifted);
            let state = [kv_state.len() / features, features];
            rows.push(CompressRow {
                start_pos: case.first(way) + tokens.start as u32,
                kv: kv.view(r).reshape(case.kv.shape())?.slice(tokens.clone()),
                score: score.view(r).reshape(case.score.shape())?.slice(tokens.clone()),
                kv_state: kv_state.shaped_mut(state)?,
                score_state: score_state.shaped_mut(state)?,
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
    convert(device, &mut requests, (StateLayout::Shifted, way))?;

    let out = out.read()?;
    let mut all = Vec::new();
    for Request { case, shifted: [kv, score], out: at, status, .. } in requests {
        let out = case.spread(way, &out[at * d..(at + case.outputs(way)) * d]);
        all.push(Fed { out, status, state: State { kv: kv.read()?, score: score.read()? } });
    }
    Ok((all, time))
}
