//! Equal scores: the order is total, so that the selection is one and only.

use super::Case;
use super::bits::{Finding, Verdict};
use super::case::{Problem, Rng, index_scores, select_keys, top_k};
use super::lab::Lab;
use super::suite::Depth;
use crate::{Op, SelectKeys, TopK, bf16};

type Fill = fn(&mut Rng, usize) -> Vec<f32>;

/// How scores are filled, by name.
const FILLS: [(&str, Fill); 12] = [
    ("all_equal", |_, n| vec![0.25; n]),
    ("all_zero_of_both_signs", |rng, n| (0..n).map(|_| rng.pick(&[0.0, -0.0])).collect()),
    ("five_values", |rng, n| (0..n).map(|_| rng.pick(&[-1.0, 0.0, 0.5, 2.0, 3.0])).collect()),
    ("ascending", |_, n| (0..n).map(|i| i as f32).collect()),
    ("descending", |_, n| (0..n).map(|i| -(i as f32)).collect()),
    ("tie_at_the_border", |_, n| (0..n).map(|i| if i % 3 == 0 { 9.0 - i as f32 } else { -1.0 }).collect()),
    ("best_is_last", |_, n| (0..n).map(|i| if i + 1 == n { 1.0 } else { 0.0 }).collect()),
    // All in one bin of a histogram over the upper bits.
    ("last_mantissa_bits", |rng, n| {
        (0..n).map(|_| f32::from_bits(0x3f80_0000 + rng.below(40) as u32)).collect()
    }),
    ("lowest_values", |rng, n| (0..n).map(|_| rng.pick(&[f32::MIN, -3e38])).collect()),
    ("subnormals", |rng, n| {
        (0..n).map(|_| f32::from_bits(rng.below(5) as u32 | (rng.below(2) as u32) << 31)).collect()
    }),
    ("any_finite_bits", |rng, n| {
        let any = |rng: &mut Rng| f32::from_bits(rng.bits() as u32);
        (0..n).map(|_| Some(any(rng)).filter(|x| x.is_finite()).unwrap_or(1.0)).collect()
    }),
    ("every_other_nan", |rng, n| {
        (0..n).map(|i| if i % 2 == 0 { f32::NAN } else { rng.pick(&[1.0, 2.0]) }).collect()
    }),
];

/// Numbers of rows, and scores of the longest: shapes that a backend may spread over its units in ways of their own.
const LONG: [(usize, usize); 10] = [
    (2, 530_001),
    (3, 262_144),
    (3, 300_001),
    (8, 70_001),
    (8, 140_001),
    (16, 66_001),
    (24, 20_001),
    (33, 33_001),
    (33, 66_001),
    (64, 17_001),
];

pub(super) fn cases(depth: Depth) -> Vec<Case> {
    let mut cases = Vec::new();
    let some = |n: usize, ks: &[usize]| match depth {
        // Each k with some.
        Depth::Brief => vec![ks[n % ks.len()]],
        Depth::Quick | Depth::Full => ks.to_vec(),
    };
    for (n, (rows, longest)) in LONG.into_iter().enumerate() {
        for k in some(n, &[512, 2048]) {
            let name = format!("{}/long/{rows}x{longest}/k{k}", TopK::NAME);
            cases.push(Case::new(name, move |lab| long(lab, (rows, longest), k)));
        }
    }
    for (n, (name, fill)) in FILLS.into_iter().enumerate() {
        for k in some(n, &[1, 5, 512, 1024, 2048]) {
            let name = format!("{}/ties/{name}/k{k}", TopK::NAME);
            cases.push(Case::new(name, move |lab| top(lab, fill, k)));
        }
    }
    for k in [1, 512, 2048] {
        cases.push(Case::new(format!("{}/ties/equal_keys/k{k}", SelectKeys::NAME), move |lab| keys(lab, k)));
    }
    cases
}

fn top(lab: &mut Lab<'_>, fill: Fill, k: usize) -> Verdict {
    let rng = &mut Rng::new(k as u64);
    let rows = vec![0, 1, k - 1, k, k + 1, 1500, 4 * k + 3, 5000, 20_001];
    let mut data = top_k::Shape { k, rows }.generate(3);
    data.rows.iter_mut().for_each(|row| row.scores = fill(rng, row.scores.len()));
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, 0..data.rows())
}

/// Long rows beside shorter ones, all fills and random scores in turn.
fn long(lab: &mut Lab<'_>, (rows, longest): (usize, usize), k: usize) -> Verdict {
    let rng = &mut Rng::new((rows * k) as u64);
    // The longest decides where all of them go.
    let full = if lab.depth == Depth::Brief { 1 } else { rows };
    let length =
        |r: usize| if r < full { [longest, longest / 2 + 1, longest - 1, 3000][r % 4] } else { 100 * r };
    let lengths = (0..rows).map(length).collect();
    let mut data = top_k::Shape { k, rows: lengths }.generate(5);
    for (r, row) in data.rows.iter_mut().enumerate().filter(|(r, _)| r % 3 > 0) {
        let (_, fill) = FILLS[(r + rows) % FILLS.len()];
        row.scores = fill(rng, row.scores.len());
    }
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, 0..data.rows())
}

/// Equal keys have equal scores, whatever the order of their sums: the first are selected.
fn keys(lab: &mut Lab<'_>, k: usize) -> Verdict {
    let rows = [1500, 3001, k as u32].map(|keys| index_scores::RowShape { start_pos: keys - 1, spare: 1 });
    let scores =
        index_scores::Shape { heads: lab.size(2, 32), dim: lab.size(32, 128), ratio: 1, rows: rows.to_vec() };
    let mut data = select_keys::Shape { scores, k }.generate(4);
    for cache in &mut data.scores.caches {
        cache.iter_mut().enumerate().for_each(|(i, x)| *x = bf16::from_f32((i % 32) as f32 / 8.0));
    }
    let results = lab.joint(&data)?;
    for row in 0..data.rows() {
        let (count, offset) = (data.scores.count(row), data.slots[row].0);
        for slot in 0..k {
            let want = if slot < count { slot as i32 + offset } else { -1 };
            let got = results.row(row)[0].bits(slot) as u32 as i32;
            if got != want {
                return Err(Finding::text(format_args!("row {row}, out[{slot}]"), want, got));
            }
        }
    }
    Ok(())
}
