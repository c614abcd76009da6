//! Index scores, top-k and the two in one call.

use super::{Expected, Want, dot, expected, flags, overflows};
use crate::Method;
use crate::conformance::case::{index_scores, select_keys, top_k};
use crate::dims::NO_INDEX;
use crate::dims::status::NONFINITE_SCORE;

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

fn scores(data: &index_scores::Data, row: usize, method: Method) -> (Vec<Score>, Expected) {
    // A matrix unit keeps fewer bits than f32 where it adds terms of different sizes.
    let loose = if method == Method::Fast { 16.0 } else { 1.0 };
    let score = |key| {
        let score = score(data, row, key);
        Score { bound: loose * score.bound, ..score }
    };
    let scores: Vec<Score> = (0..data.count(row)).map(score).collect();
    let any = |s: Option<bool>| scores.iter().any(|score| score.selectable == s);
    let flag = |set: bool| if set { NONFINITE_SCORE } else { 0 };
    let status = flags(flag(any(Some(false))), flag(any(None)));
    (scores, status)
}

pub(in super::super) fn index_scores(data: &index_scores::Data, row: usize, method: Method) -> Vec<Expected> {
    let (scores, status) = scores(data, row, method);
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

pub(in super::super) fn top_k(data: &top_k::Data, row: usize) -> Vec<Expected> {
    let row = &data.rows[row];
    let status = if row.scores.iter().all(|s| s.is_finite()) { 0 } else { NONFINITE_SCORE };
    let indices = select(&row.scores, data.k, row.offset);
    vec![expected("out", index_bits(indices)), flags(status, 0)]
}

/// Slots are certain only where the scores are further apart than f32's errors: elsewhere anything goes, and the
/// comparison with the two separate operations decides.
pub(in super::super) fn select_keys(data: &select_keys::Data, row: usize, method: Method) -> Vec<Expected> {
    let (scores, status) = scores(&data.scores, row, method);
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
