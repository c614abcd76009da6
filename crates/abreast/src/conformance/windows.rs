//! Compressor windows: every slot counts, in whichever piece of a window a kernel finds it.

use super::Case;
use super::bits::Verdict;
use super::case::{Problem, Rng, compress};
use super::lab::Lab;
use super::suite::Depth;
use crate::{Compress, Emit, Op, StateLayout};

/// Ratios and features: windows of a part of 128 slots, of 128, of a little more, and of several times as many, whole and not.
const MODELS: [(u32, usize); 6] = [(7, 32), (128, 64), (130, 32), (200, 64), (256, 32), (600, 96)];

pub(super) fn cases(depth: Depth) -> Vec<Case> {
    // A brief run has few windows of that length: a tool may watch every slot.
    let models = if depth == Depth::Brief { &[] } else { &MODELS[..] };
    let mut cases = Vec::new();
    for &model in models {
        let mut add = |name: &str, body: fn(&mut Lab<'_>, (u32, usize)) -> Verdict| {
            let name = format!("{}/windows/{name}/m{}/d{}", Compress::NAME, model.0, model.1);
            cases.push(Case::new(name, move |lab| body(lab, model)));
        };
        add("outweighed", |lab, model| alone(lab, model, -110.0));
        add("alone", |lab, model| alone(lab, model, f32::NEG_INFINITY));
        add("not_a_number", not_a_number);
    }
    cases
}

/// Rows of one token, which ends a block.
fn data((ratio, dim): (u32, usize), ring: bool, rows: usize) -> compress::Data {
    let ring = ring.then_some(ratio as usize + 3);
    let rows = (0..rows as u32).map(|r| compress::RowShape { start_pos: (r + 2) * ratio - 1, tokens: 1 });
    compress::Shape { ratio, dim, ring, emit: Emit::Blocks, rows: rows.collect() }.generate(ratio as u64)
}

/// The score of a feature in a window's slot: the last is the token, all others are in the state.
fn score(data: &mut compress::Data, row: usize, (slot, feature): (usize, usize)) -> &mut f32 {
    let (ratio, dim, state_rows) = (data.ratio as usize, data.dim, data.state_rows);
    let first = data.rows[row].start_pos as usize + 1 - ratio;
    let row = &mut data.rows[row];
    match data.layout {
        _ if slot + 1 == ratio => &mut row.score[feature],
        StateLayout::Ring => &mut row.score_state[(first + slot) % state_rows * dim + feature],
        StateLayout::Shifted => &mut row.score_state[slot * dim + feature],
    }
}

/// Every slot has its turn as the one of a feature that has a weight; all others score `others`.
fn alone(lab: &mut Lab<'_>, model: (u32, usize), others: f32) -> Verdict {
    let (ratio, dim) = (model.0 as usize, model.1);
    for ring in [false, true] {
        let mut data = data(model, ring, ratio.div_ceil(dim));
        for (row, feature) in (0..data.rows()).flat_map(|row| (0..dim).map(move |f| (row, f))) {
            let counts = (row * dim + feature) % ratio;
            for slot in (0..ratio).filter(|&slot| slot != counts) {
                // A token's own score must be finite.
                let least = if slot + 1 == ratio { f32::MIN } else { f32::NEG_INFINITY };
                *score(&mut data, row, (slot, feature)) += others.max(least);
            }
        }
        data.scatter(&mut Rng::new(16));
        lab.check(&data)?;
    }
    Ok(())
}

/// A score that is no number fails closed in whatever slot it is: a row for each of some, the first of all without.
fn not_a_number(lab: &mut Lab<'_>, model: (u32, usize)) -> Verdict {
    let (ratio, dim, rng) = (model.0 as usize, model.1, &mut Rng::new(17));
    let pieces = [1, 127, 128, 129, 130, 131, 255, 256, 257].into_iter();
    let ends = [4, 3, 2, 1].into_iter().filter_map(|back| ratio.checked_sub(back));
    let drawn: Vec<usize> = (0..4).map(|_| rng.below(ratio)).collect();
    let slots: Vec<usize> = pieces.chain(ends).chain(drawn).filter(|&slot| slot < ratio).collect();
    for ring in [false, true] {
        let mut data = data(model, ring, 1 + slots.len());
        for (r, &slot) in slots.iter().enumerate() {
            *score(&mut data, 1 + r, (slot, rng.below(dim))) = f32::NAN;
        }
        data.scatter(rng);
        lab.check(&data)?;
    }
    Ok(())
}
