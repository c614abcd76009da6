use super::{Expected, Head, Want, ZERO, dot, expected, finite, flags, overflows};
use crate::bf16;
use crate::conformance::case::sparse_attention::Data;
use crate::dims::NO_INDEX;
use crate::dims::status::{INVALID_INDEX, NONFINITE_KV, NONFINITE_QUERY, NONFINITE_SINK, OVERFLOW};

pub(in super::super) fn sparse_attention(data: &Data, row: usize) -> Vec<Expected> {
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
        let head = attention_head(&data.q[at..at + dim], sink, (&kv, data.scale as f64));
        must |= head.must;
        may |= head.may;
        wants.extend(head.out);
    }
    if kv.iter().any(|kv| !finite(kv)) {
        return vec![zeros(), flags(NONFINITE_KV | must & !OVERFLOW, 0)];
    }
    vec![expected("out", wants), flags(must, may)]
}

fn attention_head(q: &[bf16], sink: Option<f32>, (kv, scale): (&[&[bf16]], f64)) -> Head {
    let zeros = |must, may| Head { out: vec![ZERO; q.len()], must, may };
    let bad_sink = if sink.is_some_and(|sink| !sink.is_finite()) { NONFINITE_SINK } else { 0 };
    // Only finite inputs overflow.
    if !finite(q) || bad_sink != 0 {
        return zeros(bad_sink | if finite(q) { 0 } else { NONFINITE_QUERY }, 0);
    }
    let dots: Vec<(f64, f64)> = kv.iter().map(|kv| dot(q, kv)).collect();
    let logits: Vec<f64> = dots.iter().map(|(dot, _)| dot * scale).collect();
    let mass = dots.iter().map(|(_, mass)| mass * scale.abs()).fold(0.0, f64::max);
    let mut overflow = Some(false);
    for (&(dot, dot_mass), &logit) in dots.iter().zip(&logits) {
        for one in [overflows(dot, dot_mass), overflows(logit, logit.abs())] {
            overflow =
                if overflow == Some(true) || one == Some(true) { Some(true) } else { overflow.and(one) };
        }
    }
    if overflow == Some(true) {
        return zeros(OVERFLOW, 0);
    }
    let most = logits.iter().copied().chain(sink.map(f64::from)).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let denominator = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink as f64 - most).exp());
    let largest = kv.iter().flat_map(|kv| kv.iter()).map(|v| v.to_f64().abs()).fold(0.0, f64::max);
    // An error of a logit is a relative error of a weight; huge logits leave only the values' own range.
    let slack = (2e-5 + mass / (1u32 << 22) as f64).min(2.0) * largest;
    let mut out = Vec::with_capacity(q.len());
    for feature in 0..q.len() {
        let terms = || kv.iter().zip(&weights).map(|(kv, w)| w * kv[feature].to_f64());
        let (sum, mass) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
        // Errors of the weights move the sum, too: a margin as wide as they are.
        let certain = overflows(sum, mass * (1.0 + slack / largest.max(f64::MIN_POSITIVE)));
        overflow =
            if overflow == Some(true) || certain == Some(true) { Some(true) } else { overflow.and(certain) };
        let value = sum / denominator;
        out.push(Want::Near { value, bound: value.abs() / 256.0 + slack, or_zero: false });
    }
    match overflow {
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
