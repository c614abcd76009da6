//! Attention: one query over the selected slots of its own cache.

use super::{Core, On};
use crate::replay::format;
use crate::replay::judge::{ATTENTION, FAST_ATTENTION, FAST_ATTENTION_RMS, HALF_ULP, Verdict, difference};
use crate::replay::shared::Shared;
use crate::replay::tensors::{Data, Dim, Lookup};
use abreast::{AttentionRow, Error, Method, SparseAttention, bf16, dims::status};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(in crate::replay) struct Case<'a> {
    q: Data<'a, bf16, 2>,
    kv: Data<'a, bf16, 2>,
    kv_len: usize,
    indices: Data<'a, i32, 1>,
    sinks: Option<Data<'a, f32, 1>>,
    scale: f32,
    want: Want<'a>,
    zero_heads: &'a [usize],
}

#[derive(Debug)]
enum Want<'a> {
    F32(Data<'a, f32, 2>),
    Bf16(Data<'a, bf16, 2>),
}

pub(in crate::replay) struct Answer {
    out: Vec<bf16>,
    status: u32,
}

impl<'a> Case<'a> {
    pub(in crate::replay) fn resolve(
        look: Lookup<'a, '_>,
        numbers: &'a format::SparseAttention,
    ) -> Result<Self, String> {
        let &format::SparseAttention { kv_len, width, scale, ref zero_heads } = numbers;
        let q = look.input("q", [Dim::AtLeast(1), Dim::AtLeast(1)])?;
        let [heads, dim] = q.shape();
        if let Some(head) = zero_heads.iter().find(|&&head| head >= heads) {
            return Err(look.error("zero_heads", format_args!("heads below {heads}"), head));
        }
        let want = match look.optional_output("out_f32", [heads, dim])? {
            Some(data) => Want::F32(data),
            None => Want::Bf16(look.output("out_bf16", [heads, dim])?),
        };
        Ok(Case {
            kv: look.input("kv", [Dim::AtLeast(kv_len), Dim::Is(dim)])?,
            indices: look.input("indices", [Dim::Is(width)])?,
            sinks: look.optional_input("sinks", [Dim::Is(heads)])?,
            q,
            kv_len,
            scale,
            want,
            zero_heads,
        })
    }

    /// The status that follows from the data alone; only an overflow cannot be seen before it happens.
    fn status(&self) -> u32 {
        let (indices, kv) = (self.indices.load(), self.kv.load());
        let dim = self.q.shape()[1];
        if indices.iter().any(|&i| i < -1 || i >= 0 && i as usize >= self.kv_len) {
            return status::INVALID_INDEX;
        }
        let mut attended = indices.iter().filter(|&&i| i >= 0).map(|&i| i as usize * dim).peekable();
        if attended.peek().is_none() {
            return 0;
        }
        let finite = |values: &[bf16]| values.iter().all(|v| v.is_finite());
        let sinks = self.sinks.as_ref().is_none_or(|sinks| sinks.load().iter().all(|s| s.is_finite()));
        let bits = [
            (attended.all(|at| finite(&kv[at..at + dim])), status::NONFINITE_KV),
            (finite(&self.q.load()), status::NONFINITE_QUERY),
            (sinks, status::NONFINITE_SINK),
        ];
        bits.iter().filter(|(fine, _)| !fine).map(|(_, bit)| bit).sum()
    }

    /// What was recorded, as f64, and the error that each value allows.
    fn want(&self, method: Method) -> (Vec<f64>, impl Fn(f64) -> f64) {
        let (values, rounded): (Vec<f64>, f64) = match &self.want {
            Want::F32(data) => (data.load().iter().map(|&v| f64::from(v)).collect(), 1.0),
            // The recorded value was rounded to bf16 as well.
            Want::Bf16(data) => (data.load().iter().map(|&v| f64::from(v)).collect(), 2.0),
        };
        let largest = values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        let arithmetic = match method {
            Method::Reference => ATTENTION,
            Method::Fast => FAST_ATTENTION * largest.max(12.0),
        };
        (values, move |want: f64| rounded * HALF_ULP * want.abs() + arithmetic)
    }

    /// The root mean square error of the heads that are not zero by force.
    fn judge_rms(&self, got: &[bf16], want: &[f64], verdict: &mut Verdict) {
        let dim = self.q.shape()[1];
        let kept = |i: &usize| !self.zero_heads.contains(&(i / dim));
        let square = |x: f64| x * x;
        let places = || (0..want.len()).filter(kept);
        let error: f64 = places().map(|i| square(f64::from(got[i]) - want[i])).sum();
        let size: f64 = places().map(|i| square(want[i])).sum();
        let relative = (error / size).sqrt();
        let within = size == 0.0 || relative <= FAST_ATTENTION_RMS;
        if !within {
            verdict.fail(|| format!("relative RMS error {relative:.2e} above {FAST_ATTENTION_RMS:.1e}"));
        }
    }

    fn all_zero(&self) -> bool {
        match &self.want {
            Want::F32(data) => data.is_zeros(),
            Want::Bf16(data) => data.is_zeros(),
        }
    }
}

impl Core for Case<'_> {
    type Answer = Answer;

    fn joins(&self, other: &Self) -> bool {
        let sinks = |case: &Self| case.sinks.as_ref().map(|sinks| sinks.load().into_owned());
        let bits = |case: &Self| sinks(case).map(|s| s.into_iter().map(f32::to_bits).collect::<Vec<u32>>());
        self.q.shape() == other.q.shape()
            && self.scale.to_bits() == other.scale.to_bits()
            && bits(self) == bits(other)
    }

    fn size(&self) -> u64 {
        2 * self.q.size() + self.kv.size() + self.indices.size()
    }

    fn run(on: On<'_>, cases: &[&Self]) -> Result<(Vec<Answer>, Duration), Error> {
        let On { device, method } = on;
        let first = cases[0];
        let [heads, dim] = first.q.shape();
        let queries: Vec<bf16> = cases.iter().flat_map(|case| case.q.load().into_owned()).collect();
        let q = device.upload(&queries)?;
        let sinks = first.sinks.as_ref().map(|sinks| device.upload(&sinks.load())).transpose()?;
        let caches = Shared::upload(device, cases.iter().map(|case| &case.kv))?;
        let indices = Shared::upload(device, cases.iter().map(|case| &case.indices))?;
        let mut out = device.zeros::<bf16>(queries.len())?;
        let mut status = device.zeros::<u32>(cases.len())?;

        let mut rows = Vec::new();
        for (r, case) in cases.iter().enumerate() {
            let kv = caches.view(r).reshape([case.kv.shape()[0], dim])?.slice(0..case.kv_len);
            rows.push(AttentionRow { query: r, out: r, kv, indices: indices.view(r) });
        }
        let shape = [cases.len(), heads, dim];
        let start = Instant::now();
        device.sparse_attention(SparseAttention {
            q: q.shaped(shape)?,
            sinks: sinks.as_ref().map(|sinks| sinks.view()),
            scale: first.scale,
            method,
            rows: &rows,
            out: out.shaped_mut(shape)?,
            status: Some(status.view_mut()),
        })?;
        let (out, status) = (out.read()?, status.read()?);
        let time = start.elapsed();
        let answer = |(r, &status): (usize, &u32)| {
            let n = heads * dim;
            Answer { out: out[r * n..(r + 1) * n].to_vec(), status }
        };
        Ok((status.iter().enumerate().map(answer).collect(), time))
    }

    fn judge(&self, answer: &Answer, method: Method) -> Verdict {
        let mut verdict = Verdict::new();
        let dim = self.q.shape()[1];
        let (want, bound) = self.want(method);
        for (i, (&got, &want)) in answer.out.iter().zip(&want).enumerate() {
            let (head, feature) = (i / dim, i % dim);
            let place = || format!("head {head}, feature {feature}: got {got:e}, recorded {want:e}");
            if self.all_zero() || self.zero_heads.contains(&head) {
                verdict.count(got.to_bits() == 0);
                verdict.error(f64::from(got).abs(), 0.0, || format!("{}, must be zero", place()));
            } else {
                verdict.count(got == bf16::from_f64(want));
                verdict.error((f64::from(got) - want).abs(), bound(want), place);
            }
        }
        if method == Method::Fast && !self.all_zero() {
            self.judge_rms(&answer.out, &want, &mut verdict);
        }
        let zeros = self.all_zero() || !self.zero_heads.is_empty();
        let ignored = if zeros { status::OVERFLOW } else { 0 };
        let (want, got) = (self.status(), answer.status);
        if got & !ignored != want {
            verdict.fail(|| format!("status: got {}, must be {}", status::names(got), status::names(want)));
        }
        verdict
    }

    fn difference(joint: &Answer, alone: &Answer) -> Option<String> {
        let names = ["joint", "alone"];
        difference("out", names, [&joint.out, &alone.out])
            .or_else(|| difference("status", names, [&[joint.status], &[alone.status]]))
    }
}
