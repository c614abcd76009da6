//! Makes the inputs of a case and its call.

use super::cases::{CACHE, Case, HEADS, K, KEY_RATIO, Scores};
use super::data::Random;
use abreast::{
    AttentionRow, Buffer, Compress, CompressRow, Cost, Device, Element, Emit, GatherRow, GatherRows,
    IndexScores, IndexScoresRow, Method, Op, Result, SelectKeys, SelectKeysRow, SparseAttention, StateLayout,
    TopK, TopKRow, ViewMut, bf16,
    dims::{HEAD_DIM, INDEX_DIM, coff, status::names, window},
};
use std::ops::Range;

/// Runs the requests of a range in one call, and says what the call costs.
pub(super) type Call<'a> = dyn FnMut(Range<usize>) -> Result<Cost> + 'a;
/// What is done with the call of a case.
pub(super) type Use<'a> = dyn FnMut(&mut Call<'_>) -> Result<()> + 'a;

/// Makes the inputs of a number of requests, each with a cache of its own, and hands over their call.
pub(super) fn open(case: Case, on: (&Device, usize), then: &mut Use<'_>) -> Result<()> {
    let make = Maker { device: on.0, requests: on.1, random: Random::new(1) };
    match case {
        Case::SparseAttention { width } => sparse_attention(make, width, then),
        Case::IndexScores { keys } => index_scores(make, keys, then),
        Case::SelectKeys { keys } => select_keys(make, keys, then),
        Case::TopK { n, scores } => top_k(make, (n, scores), then),
        Case::Compress { ratio, d, layout, block } => compress(make, (ratio, d, layout, block), then),
        Case::GatherRows { n } => gather_rows(make, n, then),
    }
}

struct Maker<'d> {
    device: &'d Device,
    requests: usize,
    random: Random,
}

impl Maker<'_> {
    fn bf16s(&mut self, n: usize) -> Result<Buffer<bf16>> {
        self.device.upload(&self.random.bf16s(n))
    }

    fn f32s(&mut self, n: usize) -> Result<Buffer<f32>> {
        self.device.upload(&self.random.f32s(n))
    }

    fn zeros<T: Element>(&self, n: usize) -> Result<Buffer<T>> {
        self.device.zeros(n)
    }

    /// One buffer per request.
    fn each<T>(&mut self, mut make: impl FnMut(&mut Self) -> Result<Buffer<T>>) -> Result<Vec<Buffer<T>>> {
        (0..self.requests).map(|_| make(self)).collect()
    }
}

/// The status words of a call over `range`.
fn status(words: &mut Buffer<u32>, range: Range<usize>) -> Option<ViewMut<'_, u32, 1>> {
    Some(words.view_mut().slice(range))
}

/// Data that fails closed would be fast, and no measure of anything.
fn assert_good(words: &Buffer<u32>) -> Result<()> {
    let bad = words.read()?.into_iter().find(|word| *word != 0);
    assert!(bad.is_none(), "an input of the benchmark fails closed: {}", bad.map_or("".into(), names));
    Ok(())
}

fn sparse_attention(mut make: Maker<'_>, width: usize, then: &mut Use<'_>) -> Result<()> {
    let (device, requests) = (make.device, make.requests);
    let shape = [requests, HEADS, HEAD_DIM];
    let q = make.bf16s(shape.iter().product())?;
    let sinks = make.f32s(HEADS)?;
    let caches = make.each(|m| m.bf16s(CACHE * width * HEAD_DIM))?;
    let indices = make.each(|m| m.device.upload(&m.random.distinct(width, CACHE * width)))?;
    let mut out = make.zeros::<bf16>(q.len())?;
    let mut words = make.zeros(requests)?;
    let row = |r: usize| {
        let kv = caches[r].shaped([CACHE * width, HEAD_DIM])?;
        Ok(AttentionRow { query: r, out: r, kv, indices: indices[r].view() })
    };
    let rows = (0..requests).map(row).collect::<Result<Vec<_>>>()?;
    then(&mut |range| {
        let args = SparseAttention {
            q: q.shaped(shape)?,
            sinks: Some(sinks.view()),
            scale: (HEAD_DIM as f32).powf(-0.5),
            method: Method::Reference,
            rows: &rows[range.clone()],
            out: out.shaped_mut(shape)?,
            status: status(&mut words, range),
        };
        let cost = args.cost();
        device.sparse_attention(args).map(|()| cost)
    })?;
    assert_good(&words)
}

/// Queries and head weights of the indexer.
fn queries(make: &mut Maker<'_>) -> Result<(Buffer<bf16>, Buffer<f32>)> {
    Ok((make.bf16s(make.requests * HEADS * INDEX_DIM)?, make.f32s(make.requests * HEADS)?))
}

/// The position from which exactly `keys` keys are visible.
fn position(keys: usize) -> u32 {
    keys as u32 * KEY_RATIO - 1
}

fn index_scores(mut make: Maker<'_>, keys: usize, then: &mut Use<'_>) -> Result<()> {
    let (device, requests) = (make.device, make.requests);
    let (q, weights) = queries(&mut make)?;
    let caches = make.each(|m| m.bf16s(keys * INDEX_DIM))?;
    let mut out = make.zeros::<f32>(requests * keys)?;
    let mut words = make.zeros(requests)?;
    let row = |r: usize| {
        let keys_of_r = caches[r].shaped([keys, INDEX_DIM])?;
        Ok(IndexScoresRow { query: r, start_pos: position(keys), keys: keys_of_r, out: r * keys })
    };
    let rows = (0..requests).map(row).collect::<Result<Vec<_>>>()?;
    then(&mut |range| {
        let args = IndexScores {
            q: q.shaped([requests, HEADS, INDEX_DIM])?,
            weights: weights.shaped([requests, HEADS])?,
            ratio: KEY_RATIO,
            method: Method::Reference,
            rows: &rows[range.clone()],
            out: out.view_mut(),
            status: status(&mut words, range),
        };
        let cost = args.cost();
        device.index_scores(args).map(|()| cost)
    })?;
    assert_good(&words)
}

fn select_keys(mut make: Maker<'_>, keys: usize, then: &mut Use<'_>) -> Result<()> {
    let (device, requests) = (make.device, make.requests);
    let (q, weights) = queries(&mut make)?;
    let caches = make.each(|m| m.bf16s(keys * INDEX_DIM))?;
    let mut out = make.zeros::<i32>(requests * K)?;
    let mut words = make.zeros(requests)?;
    let row = |r: usize| {
        let keys_of_r = caches[r].shaped([keys, INDEX_DIM])?;
        Ok(SelectKeysRow { query: r, start_pos: position(keys), keys: keys_of_r, offset: 0, out: r * K })
    };
    let rows = (0..requests).map(row).collect::<Result<Vec<_>>>()?;
    then(&mut |range| {
        let args = SelectKeys {
            q: q.shaped([requests, HEADS, INDEX_DIM])?,
            weights: weights.shaped([requests, HEADS])?,
            ratio: KEY_RATIO,
            method: Method::Reference,
            k: K,
            rows: &rows[range.clone()],
            out: out.view_mut(),
            status: status(&mut words, range),
        };
        let cost = args.cost();
        device.select_keys(args).map(|()| cost)
    })?;
    assert_good(&words)
}

fn top_k(mut make: Maker<'_>, (n, scores): (usize, Scores), then: &mut Use<'_>) -> Result<()> {
    let (device, requests) = (make.device, make.requests);
    let scores = make.each(|m| match scores {
        Scores::Random => m.f32s(n),
        Scores::Equal => m.device.upload(&vec![1.0; n]),
        Scores::Ascending => m.device.upload(&(0..n).map(|i| i as f32).collect::<Vec<_>>()),
    })?;
    let mut out = make.zeros::<i32>(requests * K)?;
    let mut words = make.zeros(requests)?;
    let rows: Vec<_> = (scores.iter().enumerate())
        .map(|(r, scores)| TopKRow { scores: scores.view(), offset: 0, out: r * K })
        .collect();
    then(&mut |range| {
        let (rows, out) = (&rows[range.clone()], out.view_mut());
        let args = TopK { k: K, rows, out, status: status(&mut words, range) };
        let cost = args.cost();
        device.top_k(args).map(|()| cost)
    })?;
    assert_good(&words)
}

type CompressShape = (usize, usize, StateLayout, bool);

fn compress(mut make: Maker<'_>, shape: CompressShape, then: &mut Use<'_>) -> Result<()> {
    let ((ratio, d, layout, block), device, requests) = (shape, make.device, make.requests);
    let features = coff(ratio) * d;
    let ape = make.f32s(ratio * features)?;
    let norm = make.f32s(d)?;
    let inputs = make.each(|m| m.f32s(2 * features))?;
    let mut kv_states = make.each(|m| m.f32s(window(ratio) * features))?;
    let mut score_states = make.each(|m| m.f32s(window(ratio) * features))?;
    let mut out = make.zeros::<bf16>(requests * d)?;
    let mut words = make.zeros(requests)?;
    // The last token of the ninth block, or the token before it.
    let start_pos = (9 * ratio - if block { 1 } else { 2 }) as u32;
    then(&mut |range| {
        // Made anew for every call: a list that stays would hold `out` as long as it holds the states.
        let states = kv_states[range.clone()].iter_mut().zip(&mut score_states[range.clone()]);
        let rows = states.zip(range.clone()).map(|((kv_state, score_state), r)| {
            Ok(CompressRow {
                start_pos,
                kv: inputs[r].view().slice(0..features).reshape([1, features])?,
                score: inputs[r].view().slice(features..2 * features).reshape([1, features])?,
                kv_state: kv_state.shaped_mut([window(ratio), features])?,
                score_state: score_state.shaped_mut([window(ratio), features])?,
                out: r,
            })
        });
        let mut rows = rows.collect::<Result<Vec<_>>>()?;
        let args = Compress {
            ratio: ratio as u32,
            layout,
            emit: Emit::EveryToken,
            ape: ape.shaped([ratio, features])?,
            norm: norm.view(),
            epsilon: 1e-6,
            rows: &mut rows,
            out: out.shaped_mut([requests, d])?,
            status: status(&mut words, range),
        };
        let cost = args.cost();
        device.compress(args).map(|()| cost)
    })?;
    assert_good(&words)
}

fn gather_rows(mut make: Maker<'_>, n: usize, then: &mut Use<'_>) -> Result<()> {
    let (device, requests) = (make.device, make.requests);
    let sources = make.each(|m| m.f32s(n))?;
    let mut out = make.zeros::<f32>(requests * n)?;
    let rows: Vec<_> = sources.iter().map(|s| GatherRow { source: s.view().into() }).collect();
    then(&mut |range| {
        let out = out.shaped_mut([requests, n])?.slice(range.clone()).into();
        let args = GatherRows { rows: &rows[range], out };
        let cost = args.cost();
        device.gather_rows(args).map(|()| cost)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every case is a legal call over good data, joint and solo, and costs something.
    #[test]
    fn every_case_runs() {
        let device = Device::cpu().unwrap();
        for case in Case::all() {
            let mut calls = 0;
            let mut check = |call: &mut Call<'_>| {
                let (joint, solo) = (call(0..2)?, call(1..2)?);
                assert!(joint.bytes > solo.bytes && solo.bytes > 0, "{case:?}");
                calls += 1;
                Ok(())
            };
            open(case, (&device, 2), &mut check).unwrap();
            assert_eq!(calls, 1, "{case:?}");
        }
    }

    #[test]
    #[should_panic(expected = "fails closed: INVALID_INDEX")]
    fn bad_data_is_noticed() {
        assert_good(&Device::cpu().unwrap().upload(&[0, 1]).unwrap()).unwrap();
    }
}
