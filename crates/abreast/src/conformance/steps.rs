//! Decode steps with requests coming and going: every one lives a second life alone, and both have the same bits.

use super::Case;
use super::bits::{self, Part, Verdict};
use super::case::Rng;
use super::decode::Model;
use super::lab::Lab;
use super::suite::Depth;
use crate::{
    AttentionRow, Buffer, Compress, CompressRow, Emit, Result, SelectKeys, SelectKeysRow, SparseAttention,
    StateLayout, bf16,
};

/// Window slots and selected slots of an index list.
const WINDOW: usize = 8;
const K: usize = 16;
const WIDTH: usize = WINDOW + K;
const RATIO: u32 = 4;
/// Rows of a ring state: two tokens may be taken back.
const RING: usize = 9;
/// Tokens of the longest request.
const LONGEST: usize = 300;
/// Most requests at a time.
const CROWD: usize = 11;

pub(super) fn cases(depth: Depth) -> Vec<Case> {
    // 2,000 steps.
    let (lives, steps) = match depth {
        Depth::Brief => (1, 8),
        Depth::Quick => (4, 500),
        Depth::Full => (100, 500),
    };
    let soak = |seed| Case::new(format!("steps/soak/s{seed}"), move |lab| soak(lab, (seed, steps)));
    (0..lives).map(soak).collect()
}

/// A request: its caches, and its recurrent state twice, for the joint life and for the one alone.
struct Request {
    position: u32,
    length: u32,
    kv: Buffer<bf16>,
    keys: Buffer<bf16>,
    joint: [Buffer<f32>; 2],
    alone: [Buffer<f32>; 2],
    rng: Rng,
}

impl Request {
    fn new(lab: &Lab<'_>, rng: &mut Rng) -> Result<Request> {
        let (device, Model { dim, index_dim, .. }) = (lab.device, Model::of(lab.method));
        let state = || -> Result<[Buffer<f32>; 2]> {
            let fresh = vec![f32::NEG_INFINITY; RING * 2 * dim];
            Ok([device.zeros(fresh.len())?, device.upload(&fresh)?])
        };
        let mut own = Rng::new(rng.bits());
        Ok(Request {
            position: 0,
            length: 1 + own.below(LONGEST) as u32,
            kv: device.upload(&own.bf16s((WINDOW + LONGEST) * dim, 1.0))?,
            keys: device.upload(&own.bf16s(LONGEST * index_dim, 1.0))?,
            joint: state()?,
            alone: state()?,
            rng: own,
        })
    }
}

/// The projections of one request's step.
struct Inputs {
    q: Vec<bf16>,
    index_q: Vec<bf16>,
    weights: Vec<f32>,
    kv: Vec<f32>,
    score: Vec<f32>,
    list: Vec<i32>,
}

impl Inputs {
    fn new(request: &mut Request, model: Model) -> Inputs {
        let Model { heads, dim, index_heads, index_dim } = model;
        let (rng, position) = (&mut request.rng, request.position as i32);
        let window = |slot: i32| if slot <= position { slot } else { -1 };
        let mut own = Inputs {
            q: rng.bf16s(heads * dim, 2.0),
            index_q: rng.bf16s(index_heads * index_dim, 2.0),
            weights: rng.f32s(index_heads, 0.2),
            kv: rng.f32s(2 * dim, 1.0),
            score: rng.f32s(2 * dim, 1.0),
            list: (0..WINDOW as i32).map(window).chain([-7; K]).collect(),
        };
        // A bad value now and then is its own request's business only.
        if rng.one_in(40) {
            let at = rng.below(heads * dim);
            own.q[at] = rng.hostile_bf16();
        }
        if rng.one_in(40) {
            let at = rng.below(index_heads * index_dim);
            own.index_q[at] = rng.hostile_bf16();
        }
        if rng.one_in(40) {
            own.score[2 * dim - 1] = rng.hostile_f32();
        }
        own
    }
}

/// What all have of something, one after the other.
fn all<T: Copy>(inputs: &[Inputs], of: impl Fn(&Inputs) -> &[T]) -> Vec<T> {
    inputs.iter().flat_map(|own| of(own).iter().copied()).collect()
}

/// Which of a request's two lives.
#[derive(Clone, Copy, PartialEq)]
enum Life {
    Joint,
    Alone,
}

/// A request's selection goes behind its window slots.
fn selection((r, request): (usize, &Request), index_dim: usize) -> Result<SelectKeysRow<'_>> {
    Ok(SelectKeysRow {
        query: r,
        start_pos: request.position,
        keys: request.keys.shaped([LONGEST, index_dim])?,
        offset: WINDOW as i32,
        out: r * WIDTH + WINDOW,
    })
}

/// One step of these requests in joint calls: per request, the attention's and the compressor's results.
fn step(
    lab: &Lab<'_>,
    requests: &mut [Request],
    (inputs, life): (&[Inputs], Life),
) -> Result<Vec<Vec<Part>>> {
    let (device, n) = (lab.device, requests.len());
    let Model { heads, dim, index_heads, index_dim } = Model::of(lab.method);
    let [q, index_q] = [all(inputs, |own| &own.q), all(inputs, |own| &own.index_q)];
    let (q, index_q) = (device.upload(&q)?, device.upload(&index_q)?);
    let weights = device.upload(&all(inputs, |own| &own.weights))?;
    let mut lists = device.upload(&all(inputs, |own| &own.list))?;
    let mut status = device.zeros::<u32>(3 * n)?;

    let rows =
        requests.iter().enumerate().map(|row| selection(row, index_dim)).collect::<Result<Vec<_>>>()?;
    device.select_keys(SelectKeys {
        q: index_q.shaped([n, index_heads, index_dim])?,
        weights: weights.shaped([n, index_heads])?,
        ratio: RATIO,
        method: lab.method,
        k: K,
        rows: &rows,
        out: lists.view_mut(),
        status: Some(status.view_mut().slice(0..n)),
    })?;

    let mut rows = Vec::new();
    for (r, request) in requests.iter().enumerate() {
        let len = WINDOW + (request.position as usize + 1) / RATIO as usize;
        let kv = request.kv.view().slice(0..len * dim).reshape([len, dim])?;
        let indices = lists.view().slice(r * WIDTH..(r + 1) * WIDTH);
        rows.push(AttentionRow { query: r, out: r, kv, indices });
    }
    let mut out = device.zeros::<bf16>(n * heads * dim)?;
    device.sparse_attention(SparseAttention {
        q: q.shaped([n, heads, dim])?,
        sinks: None,
        scale: 0.2,
        method: lab.method,
        rows: &rows,
        out: out.shaped_mut([n, heads, dim])?,
        status: Some(status.view_mut().slice(n..2 * n)),
    })?;

    let [kv, score] = [all(inputs, |own| &own.kv), all(inputs, |own| &own.score)];
    let (kv, score) = (device.upload(&kv)?, device.upload(&score)?);
    let (ape, norm) = (device.upload(&vec![0.5; 4 * 2 * dim])?, device.upload(&vec![1.5; dim])?);
    let mut rows = Vec::new();
    for (r, request) in requests.iter_mut().enumerate() {
        let [kv_state, score_state] =
            if life == Life::Joint { &mut request.joint } else { &mut request.alone };
        rows.push(CompressRow {
            start_pos: request.position,
            kv: kv.shaped([n, 2 * dim])?.slice(r..r + 1),
            score: score.shaped([n, 2 * dim])?.slice(r..r + 1),
            kv_state: kv_state.shaped_mut([RING, 2 * dim])?,
            score_state: score_state.shaped_mut([RING, 2 * dim])?,
            out: r,
        });
    }
    let mut entries = device.zeros::<bf16>(n * dim)?;
    device.compress(Compress {
        ratio: RATIO,
        layout: StateLayout::Ring,
        emit: Emit::EveryToken,
        ape: ape.shaped([4, 2 * dim])?,
        norm: norm.view(),
        epsilon: 1e-6,
        rows: &mut rows,
        out: entries.shaped_mut([n, dim])?,
        status: Some(status.view_mut().slice(2 * n..3 * n)),
    })?;

    let (lists, out, entries, status) = (lists.read()?, out.read()?, entries.read()?, status.read()?);
    let row = |r: usize| {
        vec![
            Part::of("index list", &lists[r * WIDTH..(r + 1) * WIDTH]),
            Part::of("attention", &out[r * heads * dim..(r + 1) * heads * dim]),
            Part::of("entry", &entries[r * dim..(r + 1) * dim]),
            Part::of("status", &[status[r], status[n + r], status[2 * n + r]]),
        ]
    };
    Ok((0..n).map(row).collect())
}

fn soak(lab: &mut Lab<'_>, (seed, steps): (u64, usize)) -> Verdict {
    let rng = &mut Rng::new(seed);
    let model = Model::of(lab.method);
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..steps {
        while requests.is_empty() || (requests.len() < CROWD && rng.one_in(3)) {
            requests.insert(rng.below(requests.len() + 1), Request::new(lab, rng)?);
        }
        let inputs: Vec<Inputs> = requests.iter_mut().map(|request| Inputs::new(request, model)).collect();
        let joint = step(lab, &mut requests, (&inputs, Life::Joint))?;
        for (r, joint) in joint.iter().enumerate() {
            let alone = step(lab, &mut requests[r..r + 1], (&inputs[r..r + 1], Life::Alone))?;
            bits::same(r, "alone", joint, &alone[0])?;
        }
        lab.counts.rows += requests.len() as u64;
        lab.counts.calls += 3 * (1 + requests.len() as u64);
        for request in &mut requests {
            // Now and then two tokens are taken back.
            request.position += 1;
            if request.position > 2 && rng.one_in(20) {
                request.position -= 2;
            }
        }
        requests.retain(|request| request.position < request.length);
        if requests.len() > 1 && rng.one_in(4) {
            let last = requests.len() - 1;
            requests.swap(0, last);
        }
    }
    Ok(())
}
