//! The compressor: consecutive tokens through a recurrent state, fed in every way that must give the same bits.

use super::Core;
use super::compressor_state::{Layout, State};
use crate::replay::format;
use crate::replay::judge::{ENTRY, ENTRY_FLIPS, ENTRY_RMS, Verdict, difference};
use crate::replay::shared::Shared;
use crate::replay::tensors::{Data, Dim, Lookup};
use abreast::{Buffer, Compress, CompressRow, Device, Emit, Error, StateLayout, bf16, dims};
use std::ops::Range;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(in crate::replay) struct Case<'a> {
    kv: Data<'a, f32, 2>,
    score: Data<'a, f32, 2>,
    ape: Data<'a, f32, 2>,
    norm: Data<'a, f32, 1>,
    kv_state: Data<'a, f32, 2>,
    score_state: Data<'a, f32, 2>,
    start_pos: u32,
    ratio: u32,
    eps: f32,
    /// Tokens that close a block.
    emitted: Vec<usize>,
    fail_closed: &'a [usize],
    out: Data<'a, bf16, 2>,
    /// The emitted rows before they were rounded to bf16.
    exact: Option<Data<'a, f32, 2>>,
    kv_after: Option<Data<'a, f32, 2>>,
    score_after: Option<Data<'a, f32, 2>>,
    /// The recorded rows are no target for bits.
    loose: bool,
}

/// How the tokens are fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    OneByOne,
    OneCall,
    /// One call on a ring of this many rows more than its window, with a row for closed blocks only.
    Ring(usize),
}

const WAYS: [Way; 4] = [Way::OneByOne, Way::OneCall, Way::Ring(0), Way::Ring(3)];

/// What one way gives, brought into one form: an output row for every token, a shifted state.
struct Fed {
    out: Vec<bf16>,
    /// A word for every token where they are fed one by one, else one.
    status: Vec<u32>,
    state: State,
}

pub(in crate::replay) struct Answer(Vec<Fed>);

impl<'a> Case<'a> {
    pub(in crate::replay) fn resolve(
        look: Lookup<'a, '_>,
        numbers: &'a format::Compressor,
    ) -> Result<Self, String> {
        let &format::Compressor { start_pos, tokens, ratio, coff, head_dim: d, eps, .. } = numbers;
        if ratio == 0 {
            return Err(look.error("ratio", "at least 1", ratio));
        }
        let state_rows = dims::window(ratio as usize);
        if coff != dims::coff(ratio as usize) {
            let must = format_args!("{} for ratio {ratio}", dims::coff(ratio as usize));
            return Err(look.error("coff", must, coff));
        }
        let features = Dim::Is(coff.saturating_mul(d));
        let input = |name, rows| look.input(name, [Dim::Is(rows), features]);
        let kv = input("kv", tokens)?;
        // From here on `tokens` and `d` are those of memory that exists.
        let closes = |t: &usize| (u64::from(start_pos) + *t as u64 + 1) % u64::from(ratio) == 0;
        let emitted: Vec<usize> = (0..tokens).filter(closes).collect();
        if let Some(listed) = numbers.emitted_at.as_ref().filter(|listed| **listed != emitted) {
            return Err(look.error("emitted_at", format_args!("{emitted:?}"), format_args!("{listed:?}")));
        }
        if let Some(t) = numbers.fail_closed_at.iter().find(|t| !emitted.contains(t)) {
            return Err(look.error("fail_closed_at", format_args!("among {emitted:?}"), t));
        }
        let after = |name| look.optional_output(name, [state_rows, coff * d]);
        Ok(Case {
            score: input("score", tokens)?,
            ape: input("ape", ratio as usize)?,
            norm: look.input("norm", [Dim::Is(d)])?,
            kv_state: input("kv_state", state_rows)?,
            score_state: input("score_state", state_rows)?,
            out: look.output("out_bf16", [tokens, d])?,
            exact: look.optional_output("emitted_out_f32", [emitted.len(), d])?,
            kv_after: after("kv_state")?,
            score_after: after("score_state")?,
            fail_closed: &numbers.fail_closed_at,
            loose: look.case.mode == "hfbf16",
            kv,
            start_pos,
            ratio,
            eps,
            emitted,
        })
    }

    fn tokens(&self) -> usize {
        self.kv.shape()[0]
    }

    fn d(&self) -> usize {
        self.norm.len()
    }

    fn layout(&self) -> Layout {
        Layout { ratio: self.ratio as usize, d: self.d() }
    }

    fn state(&self) -> State {
        State { kv: self.kv_state.load().into_owned(), score: self.score_state.load().into_owned() }
    }

    /// The position that a way starts at. Before its first block a ring has nothing, while a recorded state may
    /// hold something there: then the ring starts one block later, which changes no other arithmetic.
    fn first(&self, way: Way) -> u32 {
        let absent = self.start_pos < self.ratio && !self.layout().previous_is_fresh(&self.state());
        if matches!(way, Way::Ring(_)) && absent { self.start_pos + self.ratio } else { self.start_pos }
    }

    fn outputs(&self, way: Way) -> usize {
        if matches!(way, Way::Ring(_)) { self.emitted.len() } else { self.tokens() }
    }

    /// A row for every token, from what `way` wrote.
    fn spread(&self, way: Way, out: &[bf16]) -> Vec<bf16> {
        if !matches!(way, Way::Ring(_)) {
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

/// Feeds all cases in one way: one call for every token number, or one for all tokens.
fn feed(device: &Device, cases: &[&Case<'_>], way: Way) -> Result<(Vec<Fed>, Duration), Error> {
    let first = cases[0];
    let (d, features) = (first.d(), first.ape.shape()[1]);
    let (ape, norm) = (device.upload(&first.ape.load())?, device.upload(&first.norm.load())?);
    let kv = Shared::upload(device, cases.iter().map(|case| &case.kv))?;
    let score = Shared::upload(device, cases.iter().map(|case| &case.score))?;
    let mut states = Vec::new();
    let mut starts = Vec::new();
    let mut end = 0;
    for case in cases {
        let state = match way {
            Way::Ring(more) => case.layout().to_ring(&case.state(), (case.first(way), more)),
            _ => case.state(),
        };
        states.push((device.upload(&state.kv)?, device.upload(&state.score)?));
        starts.push(end);
        end += case.outputs(way);
    }
    let mut out = device.zeros::<bf16>(end * d)?;
    let mut words = vec![Vec::new(); cases.len()];
    let mut time = Duration::ZERO;

    let longest = cases.iter().map(|case| case.tokens()).max().unwrap_or(0);
    let steps: Vec<Range<usize>> = match way {
        Way::OneByOne => (0..longest).map(|t| t..t + 1).collect(),
        _ => vec![0..longest],
    };
    for step in steps {
        let mut rows = Vec::new();
        let mut fed = Vec::new();
        for (r, (kv_state, score_state)) in states.iter_mut().enumerate() {
            let (case, step) = (cases[r], step.start..step.end.min(cases[r].tokens()));
            if step.start > step.end || way == Way::OneByOne && step.is_empty() {
                continue;
            }
            let state_rows = kv_state.len() / features;
            fed.push(r);
            rows.push(CompressRow {
                start_pos: case.first(way) + step.start as u32,
                kv: kv.view(r).reshape(case.kv.shape())?.slice(step.clone()),
                score: score.view(r).reshape(case.score.shape())?.slice(step.clone()),
                kv_state: kv_state.shaped_mut([state_rows, features])?,
                score_state: score_state.shaped_mut([state_rows, features])?,
                out: starts[r] + step.start,
            });
        }
        let mut status = device.zeros::<u32>(rows.len())?;
        let ring = matches!(way, Way::Ring(_));
        let start = Instant::now();
        device.compress(Compress {
            ratio: first.ratio,
            layout: if ring { StateLayout::Ring } else { StateLayout::Shifted },
            emit: if ring { Emit::Blocks } else { Emit::EveryToken },
            ape: ape.shaped(first.ape.shape())?,
            norm: norm.view(),
            epsilon: first.eps,
            rows: &mut rows,
            out: out.shaped_mut([end, d])?,
            status: Some(status.view_mut()),
        })?;
        let status = status.read()?;
        time += start.elapsed();
        fed.iter().zip(status).for_each(|(&r, word)| words[r].push(word));
    }

    let out = out.read()?;
    let mut all = Vec::new();
    for (r, (case, status)) in cases.iter().zip(words).enumerate() {
        let rows = &out[starts[r] * d..(starts[r] + case.outputs(way)) * d];
        let (kv, score): &(Buffer<f32>, Buffer<f32>) = &states[r];
        let state = State { kv: kv.read()?, score: score.read()? };
        let state = match way {
            Way::Ring(_) => case.layout().from_ring(&state, case.first(way) as usize + case.tokens()),
            _ => state,
        };
        all.push(Fed { out: case.spread(way, rows), status, state });
    }
    Ok((all, time))
}

impl Case<'_> {
    fn judge_rows(&self, out: &[bf16], verdict: &mut Verdict) {
        let (d, want) = (self.d(), self.out.load());
        let exact = self.exact.as_ref().map(Data::load);
        // Squares of the errors and of what was recorded.
        let mut squares = (0.0, 0.0);
        for (t, (got, want)) in out.chunks(d).zip(want.chunks(d)).enumerate() {
            let Some(e) =
                self.emitted.iter().position(|&at| at == t).filter(|_| !self.fail_closed.contains(&t))
            else {
                if let Some(f) = got.iter().position(|v| v.to_bits() != 0) {
                    verdict.fail(|| format!("token {t}, feature {f}: got {:e}, must be zero", got[f]));
                }
                continue;
            };
            let mut flips = 0;
            for (f, (&got, &want)) in got.iter().zip(want).enumerate() {
                let target = exact.as_ref().map_or(f64::from(want), |exact| f64::from(exact[e * d + f]));
                let (error, equal) = ((f64::from(got) - target).abs(), got.to_bits() == want.to_bits());
                verdict.count(equal);
                flips += usize::from(!equal);
                squares = (squares.0 + error * error, squares.1 + target * target);
                if !self.loose {
                    let place = || format!("token {t}, feature {f}: got {got:e}, recorded {target:e}");
                    verdict.error(error, ENTRY.0 * target.abs() + ENTRY.1, place);
                }
            }
            if flips > ENTRY_FLIPS && !self.loose {
                verdict.fail(|| {
                    format!("token {t}: {flips} of {d} outputs differ from the recorded bits, at most {ENTRY_FLIPS} may")
                });
            }
        }
        if self.loose {
            let rms = if squares.0 == 0.0 { 0.0 } else { (squares.0 / squares.1).sqrt() };
            verdict.error(rms, ENTRY_RMS, || "relative root mean square of all emitted rows".into());
            verdict.note = Some("recorded by a bf16 compressor: root mean square error, not bits");
        }
    }

    /// States hold one f32 addition an element: bits, but any NaN is a NaN.
    fn judge_states(&self, state: &State, verdict: &mut Verdict) {
        let recorded =
            [("kv_state", &self.kv_after, &state.kv), ("score_state", &self.score_after, &state.score)];
        for (name, want, got) in recorded {
            let Some(want) = want.as_ref().map(Data::load) else { continue };
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            if let Some(i) = got.iter().zip(want.iter()).position(|pair| !same(pair)) {
                verdict.fail(|| {
                    format!("{name}[{i}]: got {:e}, recorded {:e}, must be the same bits", got[i], want[i])
                });
            }
        }
    }

    fn judge_status(&self, one_by_one: &[u32], verdict: &mut Verdict) {
        for (t, &got) in one_by_one.iter().enumerate() {
            let fails = self.fail_closed.contains(&t);
            let want = if fails { dims::status::NONFINITE_STATE } else { 0 };
            if got != want {
                let names = dims::status::names;
                verdict.fail(|| format!("status of token {t}: got {}, must be {}", names(got), names(want)));
            }
        }
    }

    /// The first bit in which another way of feeding the tokens differs from one by one.
    fn ways_differ(&self, one_by_one: &Fed, other: &Fed, way: Way) -> Option<String> {
        let name = format!("{way:?}");
        let names = ["one by one", &name];
        let union = |words: &[u32]| words.iter().fold(0, |a, b| a | b);
        let end = self.start_pos as usize + self.tokens();
        let live = |state: &[f32]| match way {
            Way::Ring(_) => self.layout().live(state, end),
            _ => state.to_vec(),
        };
        let states = [(&one_by_one.state, &other.state)];
        difference("out", names, [&one_by_one.out, &other.out])
            .or_else(|| difference("status", names, [&[union(&one_by_one.status)], &[union(&other.status)]]))
            .or_else(|| {
                states.iter().find_map(|(a, b)| difference("kv_state", names, [&live(&a.kv), &live(&b.kv)]))
            })
            .or_else(|| {
                difference("score_state", names, [&live(&one_by_one.state.score), &live(&other.state.score)])
            })
    }
}

impl Core for Case<'_> {
    type Answer = Answer;

    fn joins(&self, other: &Self) -> bool {
        let bits = |data: &[f32]| data.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
        (self.ratio, self.d(), self.eps.to_bits()) == (other.ratio, other.d(), other.eps.to_bits())
            && bits(&self.ape.load()) == bits(&other.ape.load())
            && bits(&self.norm.load()) == bits(&other.norm.load())
    }

    fn size(&self) -> u64 {
        2 * (self.kv.size() + self.kv_state.size()) + self.out.size()
    }

    fn run(device: &Device, cases: &[&Self]) -> Result<(Vec<Answer>, Duration), Error> {
        let mut answers: Vec<Answer> = cases.iter().map(|_| Answer(Vec::new())).collect();
        let mut time = Duration::ZERO;
        for way in WAYS {
            let (fed, took) = feed(device, cases, way)?;
            time += took;
            answers.iter_mut().zip(fed).for_each(|(answer, fed)| answer.0.push(fed));
        }
        Ok((answers, time))
    }

    fn judge(&self, Answer(fed): &Answer) -> Verdict {
        let mut verdict = Verdict::new();
        self.judge_rows(&fed[0].out, &mut verdict);
        self.judge_states(&fed[0].state, &mut verdict);
        self.judge_status(&fed[0].status, &mut verdict);
        for (other, way) in fed.iter().zip(WAYS).skip(1) {
            if let Some(why) = self.ways_differ(&fed[0], other, way) {
                verdict.fail(|| why);
            }
        }
        verdict
    }

    fn difference(Answer(joint): &Answer, Answer(alone): &Answer) -> Option<String> {
        joint.iter().zip(alone).zip(WAYS).find_map(|((joint, alone), way)| {
            let names = ["joint", "alone"];
            let found = difference("out", names, [&joint.out, &alone.out])
                .or_else(|| difference("status", names, [&joint.status, &alone.status]))
                .or_else(|| difference("kv_state", names, [&joint.state.kv, &alone.state.kv]))
                .or_else(|| difference("score_state", names, [&joint.state.score, &alone.state.score]));
            found.map(|why| format!("{way:?}: {why}"))
        })
    }
}
