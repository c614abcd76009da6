//! A small decoder: requests that come and go, all five cores a step, with selections and entries written in place. Run call by
//! call or as a recorded step, it must give the same bits.

use super::Case;
use super::bits::{Finding, Verdict};
use super::case::Rng;
use super::lab::Lab;
use super::suite::Depth;
use crate::{
    AttentionRow, Buffer, Compress, CompressRow, Device, Emit, GatherRow, GatherRows, Limits, Method, Result,
    SelectKeys, SelectKeysRow, SparseAttention, StateLayout, Step, ViewMut, bf16,
};

/// Requests at one time.
const SLOTS: usize = 8;
const RATIO: usize = 4;
const WINDOW: usize = 16;
const K: usize = 8;
/// Entries that a cache has room for; a request ends before it is full.
const ENTRIES: usize = 40;
const CACHE: usize = WINDOW + ENTRIES;
const WIDTH: usize = WINDOW + K;
const STATE_ROWS: usize = 8;

pub(super) fn cases(depth: Depth) -> Vec<Case> {
    let case = |(name, steps, seed): (&str, usize, u64)| {
        Case::new(format!("steps/replay/{name}"), move |lab| same_both_ways(lab, (steps, seed)))
    };
    let lives = match depth {
        Depth::Brief => vec![("s20", 20, 1), ("rings", 20, 2)],
        Depth::Quick | Depth::Full => vec![("s30", 30, 1), ("s200", 200, 1), ("rings", 60, 2)],
    };
    let mut cases: Vec<Case> = lives.into_iter().map(case).collect();
    cases.push(Case::new("steps/replay/limits".into(), limits));
    cases.push(Case::new("steps/replay/timed".into(), timed));
    cases.push(Case::new("steps/replay/dropped".into(), dropped));
    cases
}

fn same_both_ways(lab: &Lab<'_>, (steps, seed): (usize, u64)) -> Verdict {
    let run =
        |recorded| Decoder::new(lab.device, lab.method, (seed, recorded)).and_then(|mut d| d.run(steps));
    let (called, replayed) = (run(false), run(true));
    let (called, replayed) = (called?, replayed?);
    match called.iter().zip(&replayed).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(step) => {
            Err(Finding::text("a replayed step", format!("the bits of the calls at step {step}"), "others"))
        }
    }
}

/// A step refuses what exceeds its limits, and works afterwards.
fn limits(lab: &mut Lab<'_>) -> Verdict {
    let data = lab.device.upload(&[1.0f32; 9])?;
    let mut out = lab.device.zeros::<f32>(18)?;
    let mut step = lab.device.step(Limits { rows: 1, width: 1, keys: 1 })?;
    let source = data.view().into();
    let mut gather = |n: usize| {
        let rows = vec![GatherRow { source }; n];
        let out = out.view_mut().slice(0..9 * n).reshape([n, 9])?.into();
        step.run(|calls| calls.gather_rows(GatherRows { rows: &rows, out }))
    };
    let refused = gather(2).err().map(|e| e.to_string());
    let want = "gather_rows: rows must be within the step's limit of 1, got 2";
    if refused.as_deref() != Some(want) {
        return Err(Finding::text("a step beyond its limit", want, format!("{refused:?}")));
    }
    gather(1)?;
    Ok(())
}

/// A buffer that is dropped within a step is there until the step has run, whoever asks for memory meanwhile.
fn dropped(lab: &mut Lab<'_>) -> Verdict {
    const N: usize = 1 << 16;
    let mut out = lab.device.zeros::<f32>(N)?;
    let mut step = lab.device.step(Limits { rows: 1, width: 0, keys: 0 })?;
    for run in 1..4 {
        step.run(|calls| {
            let source = lab.device.upload(&vec![run as f32; N])?;
            let rows = [GatherRow { source: source.view().into() }];
            calls.gather_rows(GatherRows { rows: &rows, out: out.shaped_mut([1, N])?.into() })?;
            drop(source);
            lab.device.upload(&vec![-1.0f32; N]).map(drop)
        })?;
        if let Some(at) = out.read()?.iter().position(|&x| x != run as f32) {
            return Err(Finding::text("a dropped source", run, format!("another value at {at}")));
        }
    }
    Ok(())
}

/// A step that is timed gives what it gives, and a time for each run.
fn timed(lab: &mut Lab<'_>) -> Verdict {
    let data = lab.device.upload(&[1.0f32, 2.0, 3.0])?;
    let mut out = lab.device.zeros::<f32>(3)?;
    let mut step = lab.device.step(Limits { rows: 1, width: 0, keys: 0 })?;
    let rows = [GatherRow { source: data.view().into() }];
    let times = step.time(4, |calls| {
        let out = out.view_mut().reshape([1, 3])?.into();
        calls.gather_rows(GatherRows { rows: &rows, out })
    })?;
    // A run of nothing after it has nothing to replay.
    let nothing = step.time(2, |_| Ok(()))?;
    let got = (out.read()?, times.len(), nothing.len());
    let want = (vec![1.0, 2.0, 3.0], 4, 2);
    if got == want {
        Ok(())
    } else {
        Err(Finding::text("a timed step", format!("{want:?}"), format!("{got:?}")))
    }
}

/// The sizes that kernels may be made for.
#[derive(Clone, Copy)]
pub(super) struct Model {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) index_heads: usize,
    pub(super) index_dim: usize,
}

impl Model {
    /// Small, so that hundreds of steps are cheap everywhere; for `Fast`, sizes that it has kernels for.
    pub(super) fn of(method: Method) -> Model {
        match method {
            Method::Reference => Model { heads: 5, dim: 64, index_heads: 3, index_dim: 32 },
            Method::Fast => Model { heads: 8, dim: 512, index_heads: 32, index_dim: 128 },
        }
    }
}

/// One decode step after another; what each gives is a digest.
pub struct Decoder {
    device: Device,
    method: Method,
    model: Model,
    step: Option<Step>,
    /// Of the index keys' compressor. Two of one layout may be one launch.
    index_layout: StateLayout,
    rng: Rng,
    /// Position of each request; `None` where there is none.
    positions: [Option<u32>; SLOTS],
    states: Vec<[Buffer<f32>; 4]>,
    cache: Buffer<bf16>,
    keys: Buffer<bf16>,
    shared: [Buffer<f32>; 5],
    inputs: Inputs,
    indices: Buffer<i32>,
    out: Buffer<bf16>,
    status: Buffer<u32>,
}

/// What a step brings for every request.
struct Inputs {
    q: Buffer<bf16>,
    index_q: Buffer<bf16>,
    weights: Buffer<f32>,
    /// Projections of both compressors.
    kv: [Buffer<f32>; 2],
    score: [Buffer<f32>; 2],
}

impl Decoder {
    /// A decoder whose requests and data the seed decides; its steps are `recorded`, or made of single calls.
    pub fn new(device: &Device, method: Method, (seed, recorded): (u64, bool)) -> Result<Decoder> {
        let model = Model::of(method);
        let Model { heads, dim, index_heads, index_dim } = model;
        let mut rng = Rng::new(seed);
        let limits = Limits { rows: SLOTS, width: WIDTH, keys: ENTRIES };
        let mut random = |n: usize| device.upload(&rng.f32s(n, 1.0));
        let features = [2 * dim, 2 * index_dim];
        let shared = [
            random(RATIO * features[0])?,
            random(dim)?,
            random(RATIO * features[1])?,
            random(index_dim)?,
            random(heads)?,
        ];
        let states = (0..SLOTS).map(|_| {
            let [a, b] = features.map(|f| STATE_ROWS * f);
            Ok([device.zeros(a)?, device.zeros(a)?, device.zeros(b)?, device.zeros(b)?])
        });
        let projections = || Ok([device.zeros(SLOTS * features[0])?, device.zeros(SLOTS * features[1])?]);
        Ok(Decoder {
            states: states.collect::<Result<_>>()?,
            cache: device.upload(&rng.bf16s(SLOTS * CACHE * dim, 1.0))?,
            keys: device.zeros(SLOTS * ENTRIES * index_dim)?,
            inputs: Inputs {
                q: device.zeros(SLOTS * heads * dim)?,
                index_q: device.zeros(SLOTS * index_heads * index_dim)?,
                weights: device.zeros(SLOTS * index_heads)?,
                kv: projections()?,
                score: projections()?,
            },
            indices: device.zeros(SLOTS * WIDTH)?,
            out: device.zeros(SLOTS * heads * dim)?,
            status: device.zeros(SLOTS)?,
            step: recorded.then(|| device.step(limits)).transpose()?,
            index_layout: if seed % 2 == 1 { StateLayout::Shifted } else { StateLayout::Ring },
            device: device.clone(),
            method,
            model,
            positions: [None; SLOTS],
            shared,
            rng,
        })
    }

    /// Digests of the next `steps` steps.
    pub fn run(&mut self, steps: usize) -> Result<Vec<u64>> {
        (0..steps).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> Result<u64> {
        self.come_and_go()?;
        self.inputs.refill(&mut self.rng)?;
        let mut indices = vec![-1; SLOTS * WIDTH];
        for (slot, position) in self.positions.iter().enumerate() {
            let seen = position.map_or(0, |p| (p as usize + 1).min(WINDOW));
            (0..seen).for_each(|j| indices[slot * WIDTH + j] = j as i32);
        }
        self.indices.write(&indices)?;
        self.decode()?;
        for position in self.positions.iter_mut().flatten() {
            *position += 1;
        }
        let (out, indices) = (self.out.read()?, self.indices.read()?);
        let bytes = bytemuck::cast_slice::<_, u8>(&out).iter().chain(bytemuck::cast_slice(&indices));
        Ok(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3)
        }))
    }

    /// Requests end and others begin, with a fresh state in the same place.
    fn come_and_go(&mut self) -> Result<()> {
        for slot in 0..SLOTS {
            let full = self.positions[slot].is_some_and(|p| p as usize + 1 >= RATIO * ENTRIES);
            if full || self.rng.one_in(12) {
                self.positions[slot] = if self.rng.one_in(3) { None } else { Some(0) };
                for (n, state) in self.states[slot].iter_mut().enumerate() {
                    let fresh = if n % 2 == 0 { 0.0 } else { f32::NEG_INFINITY };
                    state.write(&vec![fresh; state.len()])?;
                }
            }
        }
        Ok(())
    }

    fn decode(&mut self) -> Result<()> {
        match self.step.take() {
            Some(mut step) => {
                let done = step.run(|calls| self.calls(On::Step(calls)));
                self.step = Some(step);
                done
            }
            None => {
                let device = self.device.clone();
                self.calls(On::Device(&device))
            }
        }
    }

    /// The calls of one step: both compressors, the selection behind the window's indices, attention over both.
    fn calls(&mut self, mut on: On<'_, '_>) -> Result<()> {
        let Model { heads, dim: features, index_heads, index_dim } = self.model;
        let active: Vec<(usize, u32)> =
            self.positions.iter().enumerate().filter_map(|(slot, p)| p.map(|p| (slot, p))).collect();
        let block = |position: u32| position as usize / RATIO;
        let dims = [(features, CACHE, WINDOW), (index_dim, ENTRIES, 0)];
        for (n, (dim, stride, first)) in dims.into_iter().enumerate() {
            let mut rows = Vec::new();
            for (slot, state) in self.states.iter_mut().enumerate() {
                let Some(position) = self.positions[slot] else { continue };
                let [a, b, c, d] = state;
                let (kv, score) = if n == 0 { (a, b) } else { (c, d) };
                rows.push(CompressRow {
                    start_pos: position,
                    kv: self.inputs.kv[n].shaped([SLOTS, 2 * dim])?.slice(slot..slot + 1),
                    score: self.inputs.score[n].shaped([SLOTS, 2 * dim])?.slice(slot..slot + 1),
                    kv_state: kv.shaped_mut([STATE_ROWS, 2 * dim])?,
                    score_state: score.shaped_mut([STATE_ROWS, 2 * dim])?,
                    out: slot * stride + first + block(position),
                });
            }
            let out = if n == 0 { &mut self.cache } else { &mut self.keys };
            let layout = if n == 0 { StateLayout::Ring } else { self.index_layout };
            on.compress(Compress {
                ratio: RATIO as u32,
                layout,
                emit: Emit::Blocks,
                ape: self.shared[2 * n].shaped([RATIO, 2 * dim])?,
                norm: self.shared[2 * n + 1].view(),
                epsilon: 1e-6,
                rows: &mut rows,
                out: out.shaped_mut([SLOTS * stride, dim])?,
                status: None,
            })?;
        }
        let keys = self.keys.shaped([SLOTS * ENTRIES, index_dim])?;
        let select = active.iter().map(|&(slot, start_pos)| SelectKeysRow {
            query: slot,
            start_pos,
            keys: keys.slice(slot * ENTRIES..(slot + 1) * ENTRIES),
            offset: WINDOW as i32,
            out: slot * WIDTH + WINDOW,
        });
        on.select_keys(SelectKeys {
            q: self.inputs.index_q.shaped([SLOTS, index_heads, index_dim])?,
            weights: self.inputs.weights.shaped([SLOTS, index_heads])?,
            ratio: RATIO as u32,
            method: self.method,
            k: K,
            rows: &select.collect::<Vec<_>>(),
            out: self.indices.view_mut(),
            status: None,
        })?;
        let (cache, indices) = (self.cache.shaped([SLOTS * CACHE, features])?, self.indices.view());
        let attend = active.iter().map(|&(slot, _)| AttentionRow {
            query: slot,
            out: slot,
            kv: cache.slice(slot * CACHE..(slot + 1) * CACHE),
            indices: indices.slice(slot * WIDTH..(slot + 1) * WIDTH),
        });
        let status: ViewMut<'_, u32, 1> = self.status.view_mut().slice(0..active.len());
        on.sparse_attention(SparseAttention {
            q: self.inputs.q.shaped([SLOTS, heads, features])?,
            sinks: Some(self.shared[4].view()),
            scale: 0.125,
            method: self.method,
            rows: &attend.collect::<Vec<_>>(),
            out: self.out.shaped_mut([SLOTS, heads, features])?,
            status: Some(status),
        })
    }
}

impl Inputs {
    fn refill(&mut self, rng: &mut Rng) -> Result<()> {
        for buffer in [&mut self.q, &mut self.index_q] {
            buffer.write(&rng.bf16s(buffer.len(), 1.0))?;
        }
        let [kv, score] = [&mut self.kv, &mut self.score];
        for buffer in kv.iter_mut().chain(score).chain([&mut self.weights]) {
            buffer.write(&rng.f32s(buffer.len(), 1.0))?;
        }
        Ok(())
    }
}

/// Where a step's calls go.
enum On<'a, 'b> {
    Device(&'a Device),
    Step(&'a mut crate::Calls<'b>),
}

macro_rules! on {
    ($($name:ident($op:ty))*) => {
        impl On<'_, '_> {
            $(fn $name(&mut self, args: $op) -> Result<()> {
                match self {
                    On::Device(device) => device.$name(args),
                    On::Step(calls) => calls.$name(args),
                }
            })*
        }
    };
}
on! {
    compress(Compress<'_, '_>)
    select_keys(SelectKeys<'_>)
    sparse_attention(SparseAttention<'_>)
}
