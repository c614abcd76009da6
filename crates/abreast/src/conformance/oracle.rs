//! Every operation in naive f64, written from the definitions alone, with what fails closed and how.
//!
//! f64 does not overflow where f32 does. Where f32 may or may not, depending on the order of a sum, the oracle
//! takes both answers; the hostile cases live there.

use super::case::{compress, convert_state, index_scores, select_keys, sparse_attention, top_k};
use crate::dims::status::*;
use crate::dims::{NO_INDEX, coff, window};
use crate::{Element, Emit, StateLayout, bf16};

/// What one output of a row must be.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The output's name.
    pub name: &'static str,
    /// Element by element.
    pub wants: Vec<Want>,
    /// In every run of so many elements, at most so many may differ from the correctly rounded value.
    pub inexact: Option<(usize, usize)>,
}

/// What one element must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Want {
    /// Anything.
    Any,
    /// These bits.
    Bits(u64),
    /// Within `bound` of `value`, or +0 where that is fine too.
    Near {
        /// The value.
        value: f64,
        /// How far from it.
        bound: f64,
        /// Whether +0 will do: the f32 arithmetic may or may not overflow.
        or_zero: bool,
    },
    /// A status word: bits that must be set, and bits that may be.
    Flags {
        /// Set.
        must: u32,
        /// Perhaps set.
        may: u32,
    },
}

const ZERO: Want = Want::Bits(0);
const MAX: f64 = f32::MAX as f64;

fn expected(name: &'static str, wants: Vec<Want>) -> Expected {
    Expected { name, wants, inexact: None }
}

fn flags(must: u32, may: u32) -> Expected {
    expected("status", vec![Want::Flags { must, may: may & !must }])
}

/// A sum whose terms' sizes add up to `mass`: whether f32 overflows on it, where that is certain.
fn overflows(value: f64, mass: f64) -> Option<bool> {
    match () {
        _ if !value.is_finite() || value.abs() > 1.001 * MAX => Some(true),
        _ if mass < 0.999 * MAX => Some(false),
        _ => None,
    }
}

/// The dot product and the sum of its terms' sizes.
fn dot(a: &[bf16], b: &[bf16]) -> (f64, f64) {
    let terms = || a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64());
    (terms().sum(), terms().map(f64::abs).sum())
}

fn finite(values: &[bf16]) -> bool {
    values.iter().all(|x| x.is_finite())
}

pub(super) fn sparse_attention(data: &sparse_attention::Data, row: usize) -> Vec<Expected> {
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
        // What else a head finds beside its bad values is a matter of taste.
        return vec![zeros(), flags(NONFINITE_KV | must & !OVERFLOW, OVERFLOW)];
    }
    vec![expected("out", wants), flags(must, may)]
}

struct Head {
    out: Vec<Want>,
    must: u32,
    may: u32,
}

fn attention_head(q: &[bf16], sink: Option<f32>, (kv, scale): (&[&[bf16]], f64)) -> Head {
    let zeros = |must, may| Head { out: vec![ZERO; q.len()], must, may };
    let bad_sink = if sink.is_some_and(|sink| !sink.is_finite()) { NONFINITE_SINK } else { 0 };
    if !finite(q) {
        return zeros(NONFINITE_QUERY | bad_sink, 0);
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
    if bad_sink != 0 || overflow == Some(true) {
        let overflow = match overflow {
            Some(true) => (OVERFLOW, 0),
            Some(false) => (0, 0),
            None => (0, OVERFLOW),
        };
        return zeros(bad_sink | overflow.0, overflow.1);
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

/// A score in f64, how far f32 may be from it, and whether it is selectable, where that is certain.
struct Score {
    value: f64,
    bound: f64,
    selectable: Option<bool>,
}

fn score(data: &index_scores::Data, row: usize, key: usize) -> Score {
    let (mut value, mut bound, mut mass, mut selectable) = (0.0, 0.0, 0.0, Some(true));
    for head in 0..data.heads {
        let (dot, dot_mass) = dot(data.query(row, head), data.key(row, key));
        let weight = data.weight(row, head) as f64;
        let term = dot.max(0.0) * weight;
        value += term;
        mass += term.abs();
        bound += weight.abs() * (1e-6 * dot.max(0.0) + dot_mass / (1u32 << 22) as f64);
        let certain = if weight.is_finite() { overflows(dot, dot_mass) } else { Some(true) };
        selectable = match certain {
            Some(true) => Some(false),
            Some(false) => selectable,
            None => selectable.and_then(|s| (!s).then_some(false)),
        };
        if selectable == Some(false) {
            break;
        }
    }
    selectable = match (selectable, overflows(value, mass)) {
        (Some(false), _) | (_, Some(true)) => Some(false),
        (Some(true), Some(false)) => Some(true),
        _ => None,
    };
    // The smallest subnormal: products may underflow.
    Score { value, bound: bound + 1.5e-45 * data.heads as f64, selectable }
}

fn scores(data: &index_scores::Data, row: usize) -> (Vec<Score>, Expected) {
    let scores: Vec<Score> = (0..data.count(row)).map(|key| score(data, row, key)).collect();
    let any = |s: Option<bool>| scores.iter().any(|score| score.selectable == s);
    let flag = |set: bool| if set { NONFINITE_SCORE } else { 0 };
    let status = flags(flag(any(Some(false))), flag(any(None)));
    (scores, status)
}

pub(super) fn index_scores(data: &index_scores::Data, row: usize) -> Vec<Expected> {
    let (scores, status) = scores(data, row);
    let want = |score: &Score| match score.selectable {
        Some(true) => Want::Near { value: score.value, bound: score.bound, or_zero: false },
        Some(false) => Want::Bits(f32::NEG_INFINITY.to_bits() as u64),
        None => Want::Any,
    };
    vec![expected("out", scores.iter().map(want).collect()), status]
}

/// The indices of the `k` best, exactly, given f32 scores.
fn select(scores: &[f32], k: usize, offset: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_finite()).collect();
    // Both zeros are equal under partial_cmp, and the sort is stable.
    order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).expect("finite"));
    order.iter().map(|&i| i as i32 + offset).chain(std::iter::repeat(NO_INDEX)).take(k).collect()
}

fn index_bits(indices: Vec<i32>) -> Vec<Want> {
    indices.into_iter().map(|i| Want::Bits(i as u32 as u64)).collect()
}

pub(super) fn top_k(data: &top_k::Data, row: usize) -> Vec<Expected> {
    let row = &data.rows[row];
    let status = if row.scores.iter().all(|s| s.is_finite()) { 0 } else { NONFINITE_SCORE };
    let indices = select(&row.scores, data.k, row.offset);
    vec![expected("out", index_bits(indices)), flags(status, 0)]
}

/// Slots are certain only where the scores are further apart than f32's errors: elsewhere anything goes, and the
/// comparison with the two separate operations decides.
pub(super) fn select_keys(data: &select_keys::Data, row: usize) -> Vec<Expected> {
    let (scores, status) = scores(&data.scores, row);
    if scores.iter().any(|score| score.selectable.is_none()) {
        return vec![expected("out", vec![Want::Any; data.k]), status];
    }
    let mut order: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].selectable == Some(true)).collect();
    order.sort_by(|&a, &b| scores[b].value.total_cmp(&scores[a].value));
    let apart = |a: usize, b: usize| {
        let (a, b) = (&scores[order[a]], &scores[order[b]]);
        a.value - b.value > a.bound + b.bound
    };
    let slot = |at: usize| match order.get(at) {
        None => Want::Bits(NO_INDEX as u32 as u64),
        Some(_) if at > 0 && !apart(at - 1, at) => Want::Any,
        Some(_) if at + 1 < order.len() && !apart(at, at + 1) => Want::Any,
        Some(&i) => Want::Bits((i as i32 + data.slots[row].0) as u32 as u64),
    };
    vec![expected("out", (0..data.k).map(slot).collect()), status]
}

pub(super) fn gather_rows<T: Element>(row: &[T]) -> Vec<Expected> {
    let part = super::bits::Part::of("out", row);
    vec![expected("out", (0..part.len()).map(|i| Want::Bits(part.bits(i))).collect())]
}

pub(super) fn compress(data: &compress::Data, row: usize) -> Vec<Expected> {
    let (ratio, dim, features) = (data.ratio as usize, data.dim, data.features());
    let row_data = &data.rows[row];
    let (mut kv, mut score) = (row_data.kv_state.clone(), row_data.score_state.clone());
    let (mut wants, mut must, mut may) = (Vec::new(), 0, 0);
    let overlap = coff(ratio) == 2;
    for token in 0..data.tokens(row) {
        let p = row_data.start_pos as usize + token;
        let (t, input) = (p % ratio, token * features);
        let state_row = match data.layout {
            StateLayout::Shifted => t + if overlap { ratio } else { 0 },
            StateLayout::Ring => p % data.state_rows,
        };
        for f in 0..features {
            let (k, s) = (row_data.kv[input + f], row_data.score[input + f]);
            let sum = s + data.ape[t * features + f];
            let good = k.is_finite() && s.is_finite() && !sum.is_nan();
            kv[state_row * features + f] = if k.is_finite() { k } else { 0.0 };
            score[state_row * features + f] = if good { sum } else { f32::from_bits(0x7fc0_0000) };
        }
        if (p + 1) % ratio != 0 {
            if data.emit == Emit::EveryToken {
                wants.extend(vec![ZERO; dim]);
            }
            continue;
        }
        // Where the window's tokens live, oldest first, and which half of the features they give.
        let rows: Vec<(usize, usize)> = (0..window(ratio))
            .filter_map(|i| {
                let half = if overlap && i >= ratio { dim } else { 0 };
                match data.layout {
                    StateLayout::Shifted => Some((i, half)),
                    StateLayout::Ring => {
                        (p + 1 + i).checked_sub(window(ratio)).map(|token| (token % data.state_rows, half))
                    }
                }
            })
            .collect();
        let at = |f: usize| rows.iter().map(move |(row, half)| row * features + half + f);
        let feature = |f: usize| at(f).map(|i| (kv[i], score[i])).collect::<Vec<_>>();
        let entry = entry(data, (0..dim).map(feature).collect());
        must |= entry.must;
        may |= entry.may;
        wants.extend(entry.out);
        if overlap && data.layout == StateLayout::Shifted {
            let half = ratio * features;
            kv.copy_within(half..2 * half, 0);
            score.copy_within(half..2 * half, 0);
        }
    }
    let bits = |state: Vec<f32>| state.into_iter().map(|x| Want::Bits(x.to_bits() as u64)).collect();
    vec![
        Expected { inexact: Some((dim, 2)), ..expected("out", wants) },
        flags(must, may),
        expected("kv_state", bits(kv)),
        expected("score_state", bits(score)),
    ]
}

/// Which positions the rows of a state hold when `next` comes: fed one by one, from far enough back.
fn held(ring: Option<usize>, ratio: usize, next: usize) -> Vec<Option<usize>> {
    let rows = ring.unwrap_or(window(ratio));
    let mut state = vec![None; rows];
    let first = next.saturating_sub(rows + 3 * ratio) / ratio * ratio;
    for p in first..next {
        match ring {
            Some(_) => state[p % rows] = Some(p),
            None if coff(ratio) == 2 => {
                state[ratio + p % ratio] = Some(p);
                if (p + 1) % ratio == 0 {
                    state.copy_within(ratio.., 0);
                }
            }
            None => state[p % ratio] = Some(p),
        }
    }
    state
}

pub(super) fn convert_state(data: &convert_state::Data, row: usize) -> Vec<Expected> {
    let (shape, features) = (&data.shape, data.shape.features());
    let (ratio, next) = (shape.ratio as usize, shape.rows[row] as usize);
    let from = held(shape.from, ratio, next);
    let part = |name, old: &[f32], fresh: f32| {
        let mut wants = Vec::new();
        for position in held(shape.to, ratio, next) {
            let old_row = position.and_then(|p| from.iter().position(|&held| held == Some(p)));
            let value = |f| old_row.map_or(fresh, |row| old[row * features + f]);
            wants.extend((0..features).map(|f| Want::Bits(value(f).to_bits() as u64)));
        }
        expected(name, wants)
    };
    let (kv, score) = &data.states[row];
    vec![part("kv_to", kv, 0.0), part("score_to", score, f32::NEG_INFINITY)]
}

/// One entry from its window: per feature, values and scores.
fn entry(data: &compress::Data, window: Vec<Vec<(f32, f32)>>) -> Head {
    let dim = data.dim;
    let zeros = || Head { out: vec![ZERO; dim], must: NONFINITE_STATE, may: 0 };
    let bad = |&(kv, score): &(f32, f32)| !kv.is_finite() || score.is_nan() || score == f32::INFINITY;
    if window.iter().flatten().any(bad) || data.norm.iter().any(|x| !x.is_finite()) {
        return zeros();
    }
    let mut certain = true;
    let mut pooled = Vec::with_capacity(dim);
    for feature in &window {
        let most = feature.iter().map(|(_, score)| *score).fold(f32::NEG_INFINITY, f32::max) as f64;
        if most == f64::NEG_INFINITY {
            return zeros();
        }
        let terms = || feature.iter().map(|&(kv, score)| ((score as f64 - most).exp(), kv as f64));
        let sum: f64 = terms().map(|(w, kv)| w * kv).sum();
        let mass: f64 = terms().map(|(w, kv)| (w * kv).abs()).sum();
        match overflows(sum, mass * (1.0 + 1e-6)) {
            Some(true) => return zeros(),
            Some(false) => {}
            None => certain = false,
        }
        pooled.push(bf16::from_f64(sum / terms().map(|(w, _)| w).sum::<f64>()).to_f64());
    }
    let squares: f64 = pooled.iter().map(|c| c * c).sum();
    match overflows(squares, squares * 1.01) {
        Some(true) => return zeros(),
        Some(false) => {}
        None => certain = false,
    }
    let r = 1.0 / (squares / dim as f64 + data.epsilon as f64).sqrt();
    let mut out = Vec::with_capacity(dim);
    for (c, &norm) in pooled.iter().zip(&data.norm) {
        let value = c * r * norm as f64;
        let limit = bf16::MAX.to_f64();
        if value.abs() > 1.01 * limit {
            return zeros();
        }
        certain &= value.abs() < 0.99 * limit;
        out.push(Want::Near { value, bound: value.abs() / 64.0 + 1e-5, or_zero: false });
    }
    if certain {
        return Head { out, must: 0, may: 0 };
    }
    Head { out: vec![Want::Any; dim], must: 0, may: NONFINITE_STATE }
}
