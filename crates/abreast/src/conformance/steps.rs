//! Decode steps with requests coming and going: every one lives a second life alone, and both have the same bits.

use super::Case;
use super::bits::{self, Part, Verdict};
use super::case::Rng;
use super::lab::Lab;
use super::suite::Depth;
use crate::{
    AttentionRow, Buffer, Compress, CompressRow, Device, Emit, Method, Result, SelectKeys, SelectKeysRow,
    SparseAttention, StateLayout, bf16,
};

const HEADS: usize = 3;
const DIM: usize = 32;
/// Window slots and selected slots of an index list.
const WINDOW: usize = 8;
const K: usize = 16;
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
        Depth::Brief => (1, 60),
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
    fn new(device: &Device, rng: &mut Rng) -> Result<Request> {
        let state = || -> Result<[Buffer<f32>; 2]> {
            let fresh = [f32::NEG_INFINITY; RING * 2 * DIM];
            Ok([device.zeros(RING * 2 * DIM)?, device.upload(&fresh)?])
        };
        let mut own = Rng::new(rng.bits());
        Ok(Request {
            position: 0,
            length: 1 + own.below(LONGEST) as u32,
            kv: device.upload(&own.bf16s((WINDOW + LONGEST) * DIM, 1.0))?,
            keys: device.upload(&own.bf16s(LONGEST * DIM, 1.0))?,
            joint: state()?,
            alone: state()?,
            rng: own,
        })
    }
}

/// The projections of one step, a row per request.
struct Inputs {
    q: Vec<bf16>,
    weights: Vec<f32>,
    compress: [Vec<f32>; 2],
    windows: Vec<i32>,
}

fn inputs(requests: &mut [Request]) -> Inputs {
    let mut all = Inputs { q: vec![], weights: vec![], compress: [vec![], vec![]], windows: vec![] };
    for request in requests {
        let (rng, position) = (&mut request.rng, request.position as i32);
        all.q.extend(rng.bf16s(HEADS * DIM, 2.0));
        all.weights.extend(rng.f32s(HEADS, 0.2));
        all.compress[0].extend(rng.f32s(2 * DIM, 1.0));
        all.compress[1].extend(rng.f32s(2 * DIM, 1.0));
        // A bad value now and then is its own request's business only.
        if rng.one_in(40) {
            let at = all.q.len() - 1;
            all.q[at] = rng.hostile_bf16();
        }
        if rng.one_in(40) {
            *all.compress[1].last_mut().expect("extended above") = rng.hostile_f32();
        }
        let window = |slot: i32| if slot <= position { slot } else { -1 };
        all.windows.extend((0..WINDOW as i32).map(window));
        all.windows.extend([-7; K]);
    }
    all
}

/// Which of a request's two lives.
#[derive(Clone, Copy, PartialEq)]
enum Life {
    Joint,
    Alone,
}

/// A request's selection goes behind its window slots.
fn selection((r, request): (usize, &Request)) -> Result<SelectKeysRow<'_>> {
    Ok(SelectKeysRow {
        query: r,
        start_pos: request.position,
        keys: request.keys.shaped([LONGEST, DIM])?,
        offset: WINDOW as i32,
        out: r * (WINDOW + K) + WINDOW,
    })
}

/// One step of these requests in joint calls: per request, the attention's and the compressor's results.
fn step(
    device: &Device,
    requests: &mut [Request],
    (inputs, life): (&Inputs, Life),
) -> Result<Vec<Vec<Part>>> {
    let n = requests.len();
    let (q, weights) = (device.upload(&inputs.q)?, device.upload(&inputs.weights)?);
    let mut lists = device.upload(&inputs.windows)?;
    let mut status = device.zeros::<u32>(3 * n)?;
    let shape = [n, HEADS, DIM];

    let rows = requests.iter().enumerate().map(selection).collect::<Result<Vec<_>>>()?;
    device.select_keys(SelectKeys {
        q: q.shaped(shape)?,
        weights: weights.shaped([n, HEADS])?,
        ratio: RATIO,
        method: Method::Reference,
        k: K,
        rows: &rows,
        out: lists.view_mut(),
        status: Some(status.view_mut().slice(0..n)),
    })?;

    let mut rows = Vec::new();
    for (r, request) in requests.iter().enumerate() {
        let len = WINDOW + (request.position as usize + 1) / RATIO as usize;
        let kv = request.kv.view().slice(0..len * DIM).reshape([len, DIM])?;
        let indices = lists.view().slice(r * (WINDOW + K)..(r + 1) * (WINDOW + K));
        rows.push(AttentionRow { query: r, out: r, kv, indices });
    }
    let mut out = device.zeros::<bf16>(n * HEADS * DIM)?;
    device.sparse_attention(SparseAttention {
        q: q.shaped(shape)?,
        sinks: None,
        scale: 0.2,
        method: Method::Reference,
        rows: &rows,
        out: out.shaped_mut(shape)?,
        status: Some(status.view_mut().slice(n..2 * n)),
    })?;

    let [kv, score] = [device.upload(&inputs.compress[0])?, device.upload(&inputs.compress[1])?];
    let (ape, norm) = (device.upload(&[0.5; 4 * 2 * DIM])?, device.upload(&[1.5; DIM])?);
    let mut rows = Vec::new();
    for (r, request) in requests.iter_mut().enumerate() {
        let [kv_state, score_state] =
            if life == Life::Joint { &mut request.joint } else { &mut request.alone };
        rows.push(CompressRow {
            start_pos: request.position,
            kv: kv.shaped([n, 2 * DIM])?.slice(r..r + 1),
            score: score.shaped([n, 2 * DIM])?.slice(r..r + 1),
            kv_state: kv_state.shaped_mut([RING, 2 * DIM])?,
            score_state: score_state.shaped_mut([RING, 2 * DIM])?,
            out: r,
        });
    }
    let mut entries = device.zeros::<bf16>(n * DIM)?;
    device.compress(Compress {
        ratio: RATIO,
        layout: StateLayout::Ring,
        emit: Emit::EveryToken,
        ape: ape.shaped([4, 2 * DIM])?,
        norm: norm.view(),
        epsilon: 1e-6,
        rows: &mut rows,
        out: entries.shaped_mut([n, DIM])?,
        status: Some(status.view_mut().slice(2 * n..3 * n)),
    })?;

    let (lists, out, entries, status) = (lists.read()?, out.read()?, entries.read()?, status.read()?);
    let row = |r: usize| {
        vec![
            Part::of("index list", &lists[r * (WINDOW + K)..(r + 1) * (WINDOW + K)]),
            Part::of("attention", &out[r * HEADS * DIM..(r + 1) * HEADS * DIM]),
            Part::of("entry", &entries[r * DIM..(r + 1) * DIM]),
            Part::of("status", &[status[r], status[n + r], status[2 * n + r]]),
        ]
    };
    Ok((0..n).map(row).collect())
}

fn soak(lab: &mut Lab<'_>, (seed, steps): (u64, usize)) -> Verdict {
    let rng = &mut Rng::new(seed);
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..steps {
        while requests.is_empty() || (requests.len() < CROWD && rng.one_in(3)) {
            requests.insert(rng.below(requests.len() + 1), Request::new(lab.device, rng)?);
        }
        let all = inputs(&mut requests);
        let joint = step(lab.device, &mut requests, (&all, Life::Joint))?;
        for (r, joint) in joint.iter().enumerate() {
            let own = |data: &[f32], size: usize| data[r * size..(r + 1) * size].to_vec();
            let inputs = Inputs {
                q: all.q[r * HEADS * DIM..(r + 1) * HEADS * DIM].to_vec(),
                weights: own(&all.weights, HEADS),
                compress: [own(&all.compress[0], 2 * DIM), own(&all.compress[1], 2 * DIM)],
                windows: all.windows[r * (WINDOW + K)..(r + 1) * (WINDOW + K)].to_vec(),
            };
            let alone = step(lab.device, &mut requests[r..r + 1], (&inputs, Life::Alone))?;
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
