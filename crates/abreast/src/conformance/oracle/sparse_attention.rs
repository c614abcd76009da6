use super::{Expected, Head, MAX, Want, ZERO, dot, expected, finite, flags, overflows};
use crate::conformance::case::sparse_attention::Data;
use crate::dims::NO_INDEX;
use crate::dims::status::{INVALID_INDEX, NONFINITE_KV, NONFINITE_QUERY, NONFINITE_SINK, OVERFLOW};
use crate::{Method, bf16};

pub(in super::super) fn sparse_attention(data: &Data, row: usize, method: Method) -> Vec<Expected> {
    let (heads, dim) = (data.heads, data.dim);
    let (kv_len, indices) = (data.kv_len(row) as i64, &data.rows[row].indices);
    let zeros = || expected("out", vec![ZERO; heads * dim]);
    if indices.iter().any(|&i| i < NO_INDEX || i as i64 >= kv_len) {
        return vec![zeros(), flags(INVALID_INDEX, 0)];
    }
    let kv: Vec<&[bf16]> =
        (0..indices.len()).filter(|&j| indices[j] != NO_INDEX).map(|j| data.kv(row, j)).collect();
    if kv.is_empty() {
        return vec![zeros(), flags(0, 0)];
    }
    let (mut must, mut may) = (0, 0);
    let mut wants = Vec::new();
    for head in 0..heads {
        let at = (data.rows[row].query * heads + head) * dim;
        let sink = data.sinks.as_ref().map(|sinks| sinks[head]);
        let head = Attention { sink, kv: &kv, scale: data.scale as f64, method }.head(&data.q[at..at + dim]);
        must |= head.must;
        may |= head.may;
        wants.extend(head.out);
    }
    if kv.iter().any(|kv| !finite(kv)) {
        return vec![zeros(), flags(NONFINITE_KV | must & !OVERFLOW, 0)];
    }
    vec![expected("out", wants), flags(must, may)]
}

/// One head over the attended cache rows.
struct Attention<'a> {
    sink: Option<f32>,
    kv: &'a [&'a [bf16]],
    scale: f64,
    method: Method,
}

impl Attention<'_> {
    fn head(&self, q: &[bf16]) -> Head {
        let zeros = |must, may| Head { out: vec![ZERO; q.len()], must, may };
        let bad_sink = if self.sink.is_some_and(|sink| !sink.is_finite()) { NONFINITE_SINK } else { 0 };
        // Only finite inputs overflow.
        if !finite(q) || bad_sink != 0 {
            return zeros(bad_sink | if finite(q) { 0 } else { NONFINITE_QUERY }, 0);
        }
        let dots: Vec<(f64, f64)> = self.kv.iter().map(|kv| dot(q, kv)).collect();
        let logits: Vec<f64> = dots.iter().map(|(dot, _)| dot * self.scale).collect();
        let mut overflow = Some(false);
        for (&(dot, mass), &logit) in dots.iter().zip(&logits) {
            overflow = either(overflow, overflows(dot, mass));
            overflow = either(overflow, overflows(logit, logit.abs()));
        }
        if overflow == Some(true) {
            return zeros(OVERFLOW, 0);
        }
        let mass = dots.iter().map(|(_, mass)| mass * self.scale.abs()).fold(0.0, f64::max);
        let (out, sums) = self.values(&logits, mass);
        match either(overflow, sums) {
            Some(true) => zeros(OVERFLOW, 0),
            Some(false) => Head { out, must: 0, may: 0 },
            None => {
                let either = |want| match want {
                    Want::Near { value, bound, .. } => Want::Near { value, bound, or_zero: true },
                    want => want,
                };
                Head { out: out.into_iter().map(either).collect(), must: 0, may: OVERFLOW }
            }
        }
    }

    /// The weighted values, and whether their sums overflow. `mass` is the largest that a logit's terms add up to.
    fn values(&self, logits: &[f64], mass: f64) -> (Vec<Want>, Option<bool>) {
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sink = self.sink.map_or(f64::NEG_INFINITY, f64::from);
        let exp = |most: f64| -> Vec<f64> { logits.iter().map(|logit| (logit - most).exp()).collect() };
        let (weights, of_largest) = (exp(most.max(sink)), exp(most));
        let denominator = weights.iter().sum::<f64>() + (sink - most.max(sink)).exp();
        let largest = self.kv.iter().flat_map(|kv| kv.iter()).map(|v| v.to_f64().abs()).fold(0.0, f64::max);
        // An error of a logit is a relative error of a weight; huge logits leave only the values' own range.
        let bits = if self.method == Method::Fast { 20 } else { 22 };
        let slack = (2e-5 + mass / (1u32 << bits) as f64).min(2.0) * largest;
        let mut overflow = Some(false);
        let mut out = Vec::with_capacity(self.kv[0].len());
        for feature in 0..self.kv[0].len() {
            let terms = |weights: &[f64]| -> Vec<f64> {
                self.kv.iter().zip(weights).map(|(kv, w)| w * kv[feature].to_f64()).collect()
            };
            let size = |terms: &[f64]| terms.iter().map(|term| term.abs()).sum::<f64>();
            let all = terms(&weights);
            let (sum, mass) = (all.iter().sum::<f64>(), size(&all));
            let (rounded, one) = match self.method {
                // Errors of the weights move the sum, too: a margin as wide as they are.
                Method::Reference => {
                    (0.0, overflows(sum, mass * (1.0 + slack / largest.max(f64::MIN_POSITIVE))))
                }
                // Weights are rounded to bf16, and may be relative to another logit than the largest: then a sum overflows sooner or later,
                // but not where it is small with the largest weight taken as 1.
                Method::Fast => {
                    let small = size(&terms(&of_largest)) < 0.99 * MAX;
                    (mass / denominator / 256.0, small.then_some(false))
                }
            };
            overflow = either(overflow, one);
            let value = sum / denominator;
            out.push(Want::Near { value, bound: value.abs() / 256.0 + rounded + slack, or_zero: false });
        }
        (out, overflow)
    }
}

/// Whether one of two is so, where that is certain.
fn either(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    if a == Some(true) || b == Some(true) { Some(true) } else { a.and(b) }
}
