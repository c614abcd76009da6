//! The indexer: scores of all visible keys, and the best of them.

use super::{Core, On};
use crate::replay::format;
use crate::replay::judge::{SCORE, SCORE_ORDER, Verdict, difference};
use crate::replay::shared::Shared;
use crate::replay::tensors::{Data, Dim, Lookup};
use abreast::{
    Error, IndexScores, IndexScoresRow, Method, SelectKeys, SelectKeysRow, TopK, TopKRow, bf16, dims,
};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(in crate::replay) struct Case<'a> {
    q: Data<'a, bf16, 2>,
    weights: Data<'a, f32, 1>,
    keys: Data<'a, bf16, 2>,
    pos: u32,
    ratio: u32,
    k: usize,
    offset: i32,
    /// Keys that the query sees, as far as the cache has them.
    valid: usize,
    want: Data<'a, i32, 1>,
    /// Recorded scores; -inf is a key that must not be selected.
    scores: Option<Data<'a, f64, 1>>,
    /// The order of the slots is part of the recording, ties included.
    exact: bool,
}

pub(in crate::replay) struct Answer {
    scores: Vec<f32>,
    /// The selection from the scores.
    indices: Vec<i32>,
    /// The selection by the one call that does both.
    combined: Vec<i32>,
    /// Of the scores, of the selection, of the one call.
    status: [u32; 3],
}

impl<'a> Case<'a> {
    pub(in crate::replay) fn resolve(
        look: Lookup<'a, '_>,
        numbers: &format::Indexer,
    ) -> Result<Self, String> {
        let &format::Indexer { pos, ratio, n_keys, valid_count, top_k, offset } = numbers;
        if ratio == 0 {
            return Err(look.error("ratio", "at least 1", ratio));
        }
        if !(1..=dims::MAX_K).contains(&top_k) {
            return Err(look.error("top_k", format_args!("1 to {}", dims::MAX_K), top_k));
        }
        let valid = n_keys.min(dims::causal_count(pos, ratio));
        if valid_count != valid {
            let must = format_args!("min(n_keys, (pos + 1) / ratio) = {valid}");
            return Err(look.error("valid_count", must, valid_count));
        }
        let q = look.input("q", [Dim::AtLeast(1), Dim::AtLeast(1)])?;
        let [heads, dim] = q.shape();
        let scores = look.optional_output("scores_f64", [valid])?;
        Ok(Case {
            weights: look.input("weights", [Dim::Is(heads)])?,
            keys: look.input("keys", [Dim::Is(n_keys), Dim::Is(dim)])?,
            want: look.output("indices", [top_k])?,
            exact: look.case.source == "oracle" || scores.is_none(),
            k: top_k,
            q,
            pos,
            ratio,
            offset,
            valid,
            scores,
        })
    }

    /// For every visible key, the sum of the magnitudes of all products in its score.
    fn magnitudes(&self) -> Vec<f64> {
        let (q, weights, keys) = (self.q.load(), self.weights.load(), self.keys.load());
        let [_, dim] = self.q.shape();
        // Heads weigh in first: one vector serves all keys.
        let mut scale = vec![0.0; dim];
        for (q, w) in q.chunks(dim).zip(weights.iter()) {
            scale.iter_mut().zip(q).for_each(|(s, q)| *s += f64::from(*q).abs() * f64::from(*w).abs());
        }
        let sum = |key: &[bf16]| key.iter().zip(&scale).map(|(k, s)| f64::from(*k).abs() * s).sum();
        keys.chunks(dim).take(self.valid).map(sum).collect()
    }

    fn judge_scores(&self, got: &[f32], want: &[f64], verdict: &mut Verdict) {
        for (t, ((&got, &want), size)) in got.iter().zip(want).zip(self.magnitudes()).enumerate() {
            let bound = SCORE * size + f64::from(f32::MIN_POSITIVE);
            // A key that must not be selected is -inf on both sides.
            let same = f64::from(got) == want || (f64::from(got) - want).abs() <= bound;
            if !same {
                verdict
                    .fail(|| format!("score of key {t}: got {got:e}, recorded {want:e}, bound {bound:.3e}"));
            }
        }
    }

    /// The same set, and in every slot a score as good as the recorded one's.
    fn judge_order(&self, got: &[i32], want: &[i32], verdict: &mut Verdict) {
        let scores = self.scores.as_ref().map(Data::load).unwrap_or_default();
        let largest = scores.iter().filter(|s| s.is_finite()).fold(0.0, |m: f64, s| m.max(s.abs()));
        let bound = SCORE_ORDER * largest;
        let sorted = |slots: &[i32]| {
            let mut slots = slots.to_vec();
            slots.sort_unstable();
            slots
        };
        let set = difference("set of indices", ["got", "recorded"], [&sorted(got), &sorted(want)]);
        if let Some(why) = set {
            verdict.max_error = None;
            return verdict.fail(|| why);
        }
        let score =
            |slot: i32| usize::try_from(i64::from(slot) - i64::from(self.offset)).ok().map(|t| scores.get(t));
        for (s, (&got, &want)) in got.iter().zip(want).enumerate() {
            verdict.count(got == want);
            let error = match (score(got), score(want)) {
                _ if got == want => 0.0,
                (Some(Some(got)), Some(Some(want))) => (got - want).abs(),
                _ => f64::NAN,
            };
            verdict.error(error, bound, || format!("slot {s}: got index {got}, recorded {want}"));
        }
    }

    fn judge_exact(&self, got: &[i32], want: &[i32], verdict: &mut Verdict) {
        let differ =
            got.iter().zip(want).inspect(|(a, b)| verdict.count(a == b)).filter(|(a, b)| a != b).count();
        verdict.max_error = Some(differ as f64);
        verdict.worst = (differ as f64, 0.0);
        if let Some(why) = difference("indices", ["got", "recorded"], [got, want]) {
            verdict.fail(|| why);
        }
    }

    /// Nothing wrong where every visible key has a score, something where a key was dropped.
    fn judge_status(&self, answer: &Answer, verdict: &mut Verdict) {
        let dropped = answer.scores.iter().any(|s| !s.is_finite());
        let allowed = if answer.scores.is_empty() { dims::status::NONFINITE_QUERY } else { 0 };
        for (status, of) in answer.status.into_iter().zip(["index_scores", "top_k", "select_keys"]) {
            if (status & !allowed != 0) != dropped {
                let must = if dropped { "set" } else { "OK" };
                verdict
                    .fail(|| format!("status of {of}: got {}, must be {must}", dims::status::names(status)));
            }
        }
    }
}

impl Core for Case<'_> {
    type Answer = Answer;

    fn joins(&self, other: &Self) -> bool {
        (self.q.shape(), self.ratio, self.k) == (other.q.shape(), other.ratio, other.k)
    }

    fn size(&self) -> u64 {
        self.q.size() + self.weights.size() + self.keys.size() + 4 * (self.valid + 2 * self.k) as u64
    }

    fn refused(&self) -> Option<&'static str> {
        (self.keys.shape()[0] < dims::causal_count(self.pos, self.ratio)).then_some("keys")
    }

    fn run(on: On<'_>, cases: &[&Self]) -> Result<(Vec<Answer>, Duration), Error> {
        let On { device, method } = on;
        let (first, n) = (cases[0], cases.len());
        let [heads, dim] = first.q.shape();
        let (k, ratio) = (first.k, first.ratio);
        let queries: Vec<bf16> = cases.iter().flat_map(|case| case.q.load().into_owned()).collect();
        let weights: Vec<f32> = cases.iter().flat_map(|case| case.weights.load().into_owned()).collect();
        let (q, weights) = (device.upload(&queries)?, device.upload(&weights)?);
        let (q, weights) = (q.shaped([n, heads, dim])?, weights.shaped([n, heads])?);
        let caches = Shared::upload(device, cases.iter().map(|case| &case.keys))?;
        let keys = |r: usize| caches.view(r).reshape(cases[r].keys.shape());
        // Where each row's scores start; one more for the end.
        let starts = |case: &&Self, at: &mut usize| Some(std::mem::replace(at, *at + case.valid));
        let mut end = 0;
        let starts: Vec<usize> = cases.iter().filter_map(|case| starts(case, &mut end)).collect();
        let mut scores = device.zeros::<f32>(end)?;
        let (mut indices, mut combined) = (device.zeros::<i32>(n * k)?, device.zeros::<i32>(n * k)?);
        let mut status = [device.zeros::<u32>(n)?, device.zeros::<u32>(n)?, device.zeros::<u32>(n)?];

        let (mut both, mut scored) = (Vec::new(), Vec::new());
        for (r, case) in cases.iter().enumerate() {
            let (query, start_pos, keys) = (r, case.pos, keys(r)?);
            both.push(SelectKeysRow { query, start_pos, keys, offset: case.offset, out: r * k });
            scored.push(IndexScoresRow { query, start_pos, keys, out: starts[r] });
        }
        let start = Instant::now();
        let (out, word) = (combined.view_mut(), Some(status[2].view_mut()));
        device.select_keys(SelectKeys { q, weights, ratio, method, k, rows: &both, out, status: word })?;
        let (out, word) = (scores.view_mut(), Some(status[0].view_mut()));
        device.index_scores(IndexScores { q, weights, ratio, method, rows: &scored, out, status: word })?;
        let row = |(r, case): (usize, &&Self)| TopKRow {
            scores: scores.view().slice(starts[r]..starts[r] + case.valid),
            offset: case.offset,
            out: r * k,
        };
        let rows: Vec<TopKRow<'_>> = cases.iter().enumerate().map(row).collect();
        let (out, word) = (indices.view_mut(), Some(status[1].view_mut()));
        device.top_k(TopK { k, rows: &rows, out, status: word })?;
        let (indices, combined) = (indices.read()?, combined.read()?);
        let time = start.elapsed();

        let scores = scores.read()?;
        let [a, b, c] = [status[0].read()?, status[1].read()?, status[2].read()?];
        let answer = |(r, case): (usize, &&Self)| Answer {
            scores: scores[starts[r]..starts[r] + case.valid].to_vec(),
            indices: indices[r * k..(r + 1) * k].to_vec(),
            combined: combined[r * k..(r + 1) * k].to_vec(),
            status: [a[r], b[r], c[r]],
        };
        Ok((cases.iter().enumerate().map(answer).collect(), time))
    }

    fn judge(&self, answer: &Answer, _method: Method) -> Verdict {
        let mut verdict = Verdict::new();
        let (got, want) = (&answer.indices, self.want.load());
        match self.exact {
            true => self.judge_exact(got, &want, &mut verdict),
            false => self.judge_order(got, &want, &mut verdict),
        }
        if let Some(scores) = &self.scores {
            self.judge_scores(&answer.scores, &scores.load(), &mut verdict);
        }
        let names = ["top_k of index_scores", "select_keys"];
        if let Some(why) = difference("indices", names, [got, &answer.combined]) {
            verdict.fail(|| why);
        }
        self.judge_status(answer, &mut verdict);
        verdict
    }

    fn difference(joint: &Answer, alone: &Answer) -> Option<String> {
        let names = ["joint", "alone"];
        difference("scores", names, [&joint.scores, &alone.scores])
            .or_else(|| difference("indices", names, [&joint.indices, &alone.indices]))
            .or_else(|| difference("indices", names, [&joint.combined, &alone.combined]))
            .or_else(|| difference("status", names, [&joint.status, &alone.status]))
    }
}
