//! Compressor runs: any cut into calls, either layout, tokens taken back.

use super::Case;
use super::bits::{self, Finding, RowBits, Verdict};
use super::case::{Problem, Rng, compress, convert_state};
use super::lab::Lab;
use super::suite::Depth;
use crate::dims::window;
use crate::{Compress, Emit, Op};

/// Ratios and features that are tried: the three of the model, and odd ones.
const MODELS: [(u32, usize); 8] =
    [(4, 128), (4, 512), (128, 512), (4, 32), (1, 32), (3, 64), (128, 32), (130, 32)];
/// Long blocks are thousands of calls.
const BRIEF_MODELS: [(u32, usize); 2] = [(4, 128), (1, 32)];

pub(super) fn cases(depth: Depth) -> Vec<Case> {
    let mut cases = Vec::new();
    for &(ratio, dim) in if depth == Depth::Brief { &BRIEF_MODELS[..] } else { &MODELS } {
        let mut add = |name: &str, body: fn(&mut Lab<'_>, (u32, usize)) -> Verdict| {
            let name = format!("{}/runs/{name}/m{ratio}/d{dim}", Compress::NAME);
            cases.push(Case::new(name, move |lab| body(lab, (ratio, dim))));
        };
        add("one_by_one", one_by_one);
        add("any_cut", any_cut);
        add("layouts", layouts);
        add("converted", converted);
        add("taken_back", taken_back);
        add("emit", emit);
        add("ring_outside", ring_outside);
    }
    cases
}

/// A few rows, fresh and not, each over 3 blocks and more.
fn data((ratio, dim): (u32, usize), ring: Option<usize>, emit: Emit) -> compress::Data {
    let tokens = 3 * ratio as usize + 2;
    let rows = [0, 1, ratio - 1, ratio, 5 * ratio + ratio / 2, u32::MAX - 1 - tokens as u32];
    let rows = rows.map(|start_pos| compress::RowShape { start_pos, tokens }).to_vec();
    compress::Shape { ratio, dim, ring, emit, rows }.generate(11)
}

/// Runs one row in these pieces, the state handed from one call to the next: outputs, and the last state.
fn pieces(
    lab: &mut Lab<'_>,
    data: &compress::Data,
    (row, cuts): (usize, &[usize]),
) -> Result<RowBits, Finding> {
    let mut state = (data.rows[row].kv_state.clone(), data.rows[row].score_state.clone());
    let (mut out, mut status, mut last) = (Vec::new(), 0, None);
    for piece in cuts.windows(2) {
        let part = data.part(row, piece[0]..piece[1], state);
        let results = lab.joint(&part)?;
        let bits = results.row(0);
        out.extend_from_slice(&bits[0].bytes);
        status |= bits[1].bits(0) as u32;
        state = (bits[2].floats(), bits[3].floats());
        last = Some(bits.clone());
    }
    let mut bits = last.unwrap_or_default();
    bits[0].bytes = out;
    bits[1].bytes = status.to_le_bytes().to_vec();
    Ok(bits)
}

/// The rows that are run on their own: briefly, every other one.
fn some_rows(lab: &Lab<'_>, data: &compress::Data) -> impl Iterator<Item = usize> + use<> {
    let step = if lab.depth == Depth::Brief { 2 } else { 1 };
    (step - 1..data.rows()).step_by(step)
}

fn one_by_one(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let data = data(model, None, Emit::EveryToken);
    let whole = lab.joint(&data)?;
    for row in some_rows(lab, &data) {
        let cuts: Vec<usize> = (0..=data.tokens(row)).collect();
        let single = pieces(lab, &data, (row, &cuts))?;
        bits::same(row, "token by token", whole.row(row), &single)?;
        lab.counts.compared += 1;
    }
    lab.oracle(&data, &whole, 0..data.rows())
}

fn any_cut(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let rng = &mut Rng::new(12);
    for emit in [Emit::EveryToken, Emit::Blocks] {
        for ring in [None, Some(window(model.0 as usize) + 3)] {
            let data = data(model, ring, emit);
            let whole = lab.joint(&data)?;
            for row in some_rows(lab, &data) {
                let n = data.tokens(row);
                let mut cuts: Vec<usize> = (1..n).filter(|_| rng.one_in(4)).collect();
                cuts.insert(0, 0);
                cuts.push(n);
                let cut = pieces(lab, &data, (row, &cuts))?;
                bits::same(row, "in pieces", whole.row(row), &cut)?;
                lab.counts.compared += 1;
            }
        }
    }
    Ok(())
}

/// The state rows of a ring as the shifted layout has them. Positions before 0 are fresh.
fn shifted(data: &compress::Data, row: usize) -> (Vec<f32>, Vec<f32>) {
    let (ratio, features) = (data.ratio as usize, data.features());
    let (rows, start) = (window(ratio), data.rows[row].start_pos as usize);
    let mut state = (vec![0.0; rows * features], vec![f32::NEG_INFINITY; rows * features]);
    // The oldest position of the shifted state: the previous block's first where blocks overlap.
    let oldest = (start / ratio * ratio + ratio) as i64 - rows as i64;
    for to in 0..rows {
        let position = oldest + to as i64;
        if position < 0 || position >= start as i64 {
            continue;
        }
        let (from, to) = (position as usize % data.state_rows * features, to * features);
        state.0[to..to + features].copy_from_slice(&data.rows[row].kv_state[from..from + features]);
        state.1[to..to + features].copy_from_slice(&data.rows[row].score_state[from..from + features]);
    }
    state
}

/// A ring and the shifted layout give the same outputs.
fn layouts(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let least = window(model.0 as usize);
    let step = if lab.depth == Depth::Brief { 3 } else { 1 };
    for rows in [least, least + 1, least + 5, 2 * least].into_iter().step_by(step) {
        let ring = data(model, Some(rows), Emit::EveryToken);
        let mut other = data(model, None, Emit::EveryToken);
        for row in 0..ring.rows() {
            let (kv_state, score_state) = shifted(&ring, row);
            let compress::Row { kv, score, .. } = ring.rows[row].clone();
            other.rows[row] = compress::Row { kv, score, kv_state, score_state, ..other.rows[row].clone() };
        }
        (other.ape, other.norm) = (ring.ape.clone(), ring.norm.clone());
        let (got, want) = (lab.joint(&ring)?, lab.joint(&other)?);
        for row in 0..ring.rows() {
            let outputs = |results: &super::lab::Results| results.row(row)[..2].to_vec();
            bits::same(row, "in the shifted layout", &outputs(&got), &outputs(&want))?;
            lab.counts.compared += 1;
        }
    }
    Ok(())
}

/// A state that is converted between two calls goes on with the same outputs.
fn converted(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let (rng, least) = (&mut Rng::new(15), window(model.0 as usize));
    let layouts = [None, Some(least), Some(least + 4)];
    for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0), (1, 2), (2, 1)].map(|(a, b)| (layouts[a], layouts[b]))
    {
        let (before, mut after) = (data(model, from, Emit::Blocks), data(model, to, Emit::Blocks));
        (after.ape, after.norm) = (before.ape.clone(), before.norm.clone());
        // A state whose previous block lies before position 0 is none that a conversion could know of.
        let real = |&row: &usize| before.rows[row].start_pos == 0 || before.rows[row].start_pos >= model.0;
        for row in some_rows(lab, &before).filter(real) {
            let (n, whole) = (before.tokens(row), &before.rows[row]);
            let at = rng.below(n);
            let head =
                lab.joint(&before.part(row, 0..at, (whole.kv_state.clone(), whole.score_state.clone())))?;
            let straight = lab.joint(&before.part(row, at..n, states(head.row(0))))?;
            let rows = vec![whole.start_pos + at as u32];
            let shape = convert_state::Shape { ratio: model.0, dim: model.1, from, to, rows };
            let moved = lab.joint(&convert_state::Data { shape, states: vec![states(head.row(0))] })?;
            let state = (moved.row(0)[0].floats(), moved.row(0)[1].floats());
            (after.rows[row].kv, after.rows[row].score) = (whole.kv.clone(), whole.score.clone());
            let went_on = lab.joint(&after.part(row, at..n, state))?;
            let outputs = |results: &super::lab::Results| results.row(0)[..2].to_vec();
            bits::same(row, "without the conversion", &outputs(&went_on), &outputs(&straight))?;
            lab.counts.compared += 1;
        }
    }
    Ok(())
}

/// A ring of `window + k - 1` rows forgets k tokens that are taken back.
fn taken_back(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let rng = &mut Rng::new(13);
    let step = if lab.depth == Depth::Brief { 4 } else { 1 };
    for k in (1..=5).step_by(step) {
        let data = data(model, Some(window(model.0 as usize) + k - 1), Emit::EveryToken);
        for row in some_rows(lab, &data) {
            let n = data.tokens(row);
            let at = rng.below(n - k);
            let state = (data.rows[row].kv_state.clone(), data.rows[row].score_state.clone());
            let head = lab.joint(&data.part(row, 0..at, state))?;
            // A draft of k tokens, bad ones among them, that is not accepted.
            let mut draft = data.part(row, at..at + k, states(head.row(0)));
            let values = draft.rows[0].kv.len();
            draft.rows[0].kv = (0..values).map(|_| rng.unit() * 100.0).collect();
            draft.rows[0].score[rng.below(values)] = f32::NAN;
            let drafted = lab.joint(&draft)?;
            let redone = lab.joint(&data.part(row, at..n, states(drafted.row(0))))?;
            let straight = lab.joint(&data.part(row, at..n, states(head.row(0))))?;
            let outputs = |results: &super::lab::Results| results.row(0)[..2].to_vec();
            bits::same(row, "without the draft", &outputs(&redone), &outputs(&straight))?;
            lab.counts.compared += 1;
        }
    }
    Ok(())
}

fn states(bits: &RowBits) -> (Vec<f32>, Vec<f32>) {
    (bits[2].floats(), bits[3].floats())
}

/// The rows that `Blocks` emits are those of `EveryToken` at the blocks' ends; between them are zeros.
fn emit(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    for ring in [None, Some(window(model.0 as usize))] {
        let (every, blocks) = (data(model, ring, Emit::EveryToken), data(model, ring, Emit::Blocks));
        let (got, want) = (lab.joint(&blocks)?, lab.joint(&every)?);
        for row in 0..every.rows() {
            let mut all = want.row(row).clone();
            let bytes = 2 * every.dim;
            let ends = |token: &usize| (every.rows[row].start_pos + *token as u32) % model.0 + 1 == model.0;
            let out = &want.row(row)[0].bytes;
            let at = |token: usize| &out[token * bytes..(token + 1) * bytes];
            all[0].bytes = (0..every.tokens(row)).filter(ends).flat_map(at).copied().collect();
            bits::same(row, "of every token", got.row(row), &all)?;
            let between = (0..every.tokens(row)).filter(|token| !ends(token));
            if let Some(token) = between.into_iter().find(|&token| at(token).iter().any(|&byte| byte != 0)) {
                return Err(Finding::text(format_args!("row {row}, token {token}"), "a zero row", "another"));
            }
            lab.counts.compared += 1;
        }
    }
    Ok(())
}

/// State rows of a ring outside the window may hold anything.
fn ring_outside(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let (ratio, rng) = (model.0 as usize, &mut Rng::new(14));
    let rows = window(ratio) + 4;
    let clean = data(model, Some(rows), Emit::Blocks);
    let mut dirty = clean.clone();
    let features = dirty.features();
    for row in &mut dirty.rows {
        let start = row.start_pos as usize;
        // Before the first block's end, the window reaches back to the block before.
        let first = (start / ratio * ratio + ratio).saturating_sub(window(ratio));
        let read: Vec<usize> = (first..start).map(|position| position % rows).collect();
        for free in (0..rows).filter(|row| !read.contains(row)) {
            let range = free * features..(free + 1) * features;
            row.kv_state[range.clone()].iter_mut().for_each(|x| *x = rng.hostile_f32());
            row.score_state[range].iter_mut().for_each(|x| *x = rng.hostile_f32());
        }
    }
    let (got, want) = (lab.joint(&dirty)?, lab.joint(&clean)?);
    for row in 0..clean.rows() {
        let outputs = |results: &super::lab::Results| results.row(row)[..2].to_vec();
        bits::same(row, "beside clean state rows", &outputs(&got), &outputs(&want))?;
        lab.counts.compared += 1;
    }
    Ok(())
}
