//! The compressor: consecutive tokens through a recurrent state, fed in every way that must give the same bits.

mod feed;
mod judge;
mod state;

use super::{Core, On};
use crate::replay::format;
use crate::replay::judge::{Verdict, difference};
use crate::replay::tensors::{Data, Dim, Lookup};
use abreast::{Error, Method, bf16, dims};
use feed::{Fed, WAYS};
use state::{Layout, State};
use std::time::Duration;

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

/// What every way of [`WAYS`] gives, in that order.
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
        if d == 0 {
            return Err(look.error("head_dim", "at least 1", d));
        }
        let features = Dim::Is(coff.saturating_mul(d));
        let input = |name, rows| look.input(name, [Dim::Is(rows), features]);
        // Once these two are there, `tokens` and `d` count memory that exists.
        let (kv, norm) = (input("kv", tokens)?, look.input("norm", [Dim::Is(d)])?);
        let place = |t: usize| (u64::from(start_pos) + t as u64) % u64::from(ratio);
        let closes = |t: &usize| place(*t) + 1 == u64::from(ratio);
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
            kv_state: input("kv_state", state_rows)?,
            score_state: input("score_state", state_rows)?,
            out: look.output("out_bf16", [tokens, d])?,
            exact: look.optional_output("emitted_out_f32", [emitted.len(), d])?,
            kv_after: after("kv_state")?,
            score_after: after("score_state")?,
            fail_closed: &numbers.fail_closed_at,
            loose: look.case.mode == "hfbf16",
            kv,
            norm,
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

    fn run(On { device, .. }: On<'_>, cases: &[&Self]) -> Result<(Vec<Answer>, Duration), Error> {
        let mut answers: Vec<Answer> = cases.iter().map(|_| Answer(Vec::new())).collect();
        let mut time = Duration::ZERO;
        for way in WAYS {
            let (fed, took) = feed::feed(device, cases, way)?;
            time += took;
            answers.iter_mut().zip(fed).for_each(|(answer, fed)| answer.0.push(fed));
        }
        Ok((answers, time))
    }

    fn judge(&self, Answer(fed): &Answer, _method: Method) -> Verdict {
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
