//! The compressor and the conversion of its states.

use super::{Expected, Head, Want, ZERO, expected, flags, overflows};
use crate::conformance::case::{compress, convert_state};
use crate::dims::status::NONFINITE_STATE;
use crate::dims::{coff, window};
use crate::{Emit, StateLayout, bf16};

pub(in super::super) fn compress(data: &compress::Data, row: usize) -> Vec<Expected> {
    let (ratio, dim, features) = (data.ratio as usize, data.dim, data.features());
    let row_data = &data.rows[row];
    let (mut kv, mut score) = (row_data.kv_state.clone(), row_data.score_state.clone());
    let (mut wants, mut exact, mut must, mut may) = (Vec::new(), Vec::new(), 0, 0);
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
        if t + 1 < ratio {
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
        let (entry, certain) = entry(data, (0..dim).map(feature).collect());
        must |= entry.must;
        may |= entry.may;
        if certain {
            exact.push(wants.len()..wants.len() + dim);
        }
        wants.extend(entry.out);
        if overlap && data.layout == StateLayout::Shifted {
            let half = ratio * features;
            kv.copy_within(half..2 * half, 0);
            score.copy_within(half..2 * half, 0);
        }
    }
    let bits = |state: Vec<f32>| state.into_iter().map(|x| Want::Bits(x.to_bits() as u64)).collect();
    vec![
        Expected { exact, ..expected("out", wants) },
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
                if p % ratio + 1 == ratio {
                    state.copy_within(ratio.., 0);
                }
            }
            None => state[p % ratio] = Some(p),
        }
    }
    state
}

pub(in super::super) fn convert_state(data: &convert_state::Data, row: usize) -> Vec<Expected> {
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

/// One entry from its window: per feature, values and scores. Also whether every pooled value is so far from a
/// rounding boundary of bf16 that f32 rounds it alike: one that is not moves the mean, and with it all of the row.
fn entry(data: &compress::Data, window: Vec<Vec<(f32, f32)>>) -> (Head, bool) {
    let dim = data.dim;
    let zeros = || (Head { out: vec![ZERO; dim], must: NONFINITE_STATE, may: 0 }, false);
    let bad = |&(kv, score): &(f32, f32)| !kv.is_finite() || score.is_nan() || score == f32::INFINITY;
    if window.iter().flatten().any(bad) || data.norm.iter().any(|x| !x.is_finite()) {
        return zeros();
    }
    let (mut certain, mut rounds_alike) = (true, true);
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
        let weights: f64 = terms().map(|(w, _)| w).sum();
        let (value, error) = (sum / weights, 2e-6 * mass / weights);
        rounds_alike &= bf16::from_f64(value - error) == bf16::from_f64(value + error);
        pooled.push(bf16::from_f64(value).to_f64());
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
        return (Head { out, must: 0, may: 0 }, rounds_alike);
    }
    (Head { out: vec![Want::Any; dim], must: 0, may: NONFINITE_STATE }, false)
}
