//! The law of rows: the bits of a row are its own.

use super::bits::Verdict;
use super::case::{Problem, Rng, sparse_attention};
use super::lab::Lab;
use super::shapes::{Draw, OPS};
use super::{Case, Depth};
use crate::{Method, Op, SparseAttention};

/// About the multiplications of one case.
fn work(depth: Depth) -> usize {
    if depth == Depth::Brief { 1 << 19 } else { 1 << 22 }
}

/// The numbers of rows that are tried: thresholds are where others break.
fn row_counts(depth: Depth) -> Vec<usize> {
    if depth == Depth::Brief {
        return vec![1, 2, 3, 5, 7, 17, 33, 65];
    }
    let most = if depth == Depth::Full { 513 } else { 257 };
    (1..=66)
        .chain(95..=97)
        .chain(127..=129)
        .chain(255..=257)
        .chain(511..=513)
        .filter(|&r| r <= most)
        .collect()
}

pub(super) fn cases(depth: Depth, method: Method) -> Vec<Case> {
    let mut cases = Vec::new();
    // 25,557 rows for one seed; with 511 to 513 rows, 36,330: a million with 28 seeds.
    let seeds = if depth == Depth::Full { 28 } else { 1 };
    for op in OPS {
        for seed in 0..seeds {
            for rows in row_counts(depth) {
                let draw = Draw { op, rows, seed, work: work(depth), method, depth };
                cases.push(Case::new(format!("{op}/law/r{rows}/s{seed}"), move |lab| law(lab, draw)));
            }
        }
        let draw = move |rows, seed| Draw { op, rows, seed, work: work(depth), method, depth };
        let repeats = match depth {
            Depth::Brief => 3,
            Depth::Quick => 50,
            Depth::Full => 1000,
        };
        cases.push(Case::new(format!("{op}/law/repeats"), move |lab| repeat(lab, draw(19, 900), repeats)));
        cases.push(Case::new(format!("{op}/law/scratch"), move |lab| scratch(lab, draw(13, 901))));
        cases.push(Case::new(format!("{op}/law/no_rows"), move |lab| no_rows(lab, draw(5, 902))));
    }
    for heads in [1, 8, 16, 32, 64, 100, 128] {
        let name = format!("{}/law/widths/h{heads}", SparseAttention::NAME);
        cases.push(Case::new(name, move |lab| widths(lab, heads)));
    }
    cases
}

/// One problem, every way to run it.
fn law(lab: &mut Lab<'_>, draw: Draw) -> Verdict {
    let (shape, mut problem) = draw.make();
    lab.shape = shape;
    let rng = &mut Rng::new(draw.seed << 32 | draw.rows as u64);
    let n = problem.rows();
    let all: Vec<usize> = (0..n).collect();
    let mut loaded = problem.load(lab.device, lab.method)?;
    let loaded = &mut *loaded;

    let alone = if lab.depth == Depth::Brief { n.min(3) } else { n };
    let solo: Vec<&[usize]> = all.chunks(1).take(alone).collect();
    let solo = lab.run(loaded, &solo, 0x5a)?;
    let joint = lab.run(loaded, &[&all], 0xa5)?;
    lab.counts.rows += lab.same(&joint, &solo, "alone")?;

    let order = rng.permutation(n);
    let permuted = lab.run(loaded, &[&order], 0x00)?;
    lab.same(&permuted, &joint, "in order")?;

    let order = rng.permutation(n);
    let chunks = match lab.depth {
        // Never 8 to 16 rows: see `docs/gpu-testing.md`, clusters.
        Depth::Brief => order.chunks(n.saturating_sub(5).max(1)).collect(),
        Depth::Quick | Depth::Full => split(&order, rng),
    };
    let split = lab.run(loaded, &chunks, 0xff)?;
    lab.same(&split, &joint, "in one call")?;

    let some: Vec<usize> = rng.permutation(n).into_iter().take(n.div_ceil(2)).collect();
    let subset = lab.run(loaded, &[&some], 0x3c)?;
    lab.same(&subset, &joint, "beside all")?;

    let checked = rng.permutation(n);
    lab.oracle(&*problem, &joint, checked.into_iter().take(2))?;

    problem.poison(&some, rng);
    let mut loaded = problem.load(lab.device, lab.method)?;
    let poisoned = lab.run(&mut *loaded, &[&rng.permutation(n)], 0x77)?;
    for &row in &some {
        super::bits::same(row, "without poison", poisoned.row(row), joint.row(row))?;
    }
    lab.counts.compared += some.len() as u64;
    Ok(())
}

/// Widths on both sides of what a tile may be.
const SHORT: [usize; 14] = [0, 1, 15, 16, 17, 64, 65, 79, 80, 81, 127, 128, 129, 160];

/// Rows of every width beside each other.
fn widths(lab: &mut Lab<'_>, heads: usize) -> Verdict {
    let brief = lab.depth == Depth::Brief;
    let widths = match heads {
        // Fewer rows of so many heads would share a GPU in other ways.
        128 if brief => [&[321][..], &SHORT, &[9; 25]].concat(),
        _ if brief => [&[321][..], &SHORT].concat(),
        _ => [&[640, 641, 1000, 2176, 4096][..], &SHORT].concat(),
    };
    let row = |&width| sparse_attention::RowShape { kv_len: 4500, width };
    let shape = sparse_attention::Shape { heads, dim: 512, rows: widths.iter().map(row).collect() };
    let mut data = shape.generate(heads as u64);
    data.skip_and_repeat(&mut Rng::new(905));
    let mut loaded = data.load(lab.device, lab.method)?;
    let all: Vec<usize> = (0..widths.len()).collect();
    let alone = if brief { 3 } else { all.len() };
    let solo = lab.run(&mut *loaded, &all.chunks(1).take(alone).collect::<Vec<_>>(), 0x5a)?;
    let joint = lab.run(&mut *loaded, &[&all], 0xa5)?;
    lab.counts.rows += lab.same(&joint, &solo, "alone")?;
    lab.oracle(&data, &joint, [0, 4, 9])
}

/// Cuts a list at random places.
fn split<'l>(mut list: &'l [usize], rng: &mut Rng) -> Vec<&'l [usize]> {
    let mut chunks = Vec::new();
    while !list.is_empty() {
        let (chunk, rest) = list.split_at(1 + rng.below(list.len().min(7)));
        chunks.push(chunk);
        list = rest;
    }
    chunks
}

/// One joint call again and again.
fn repeat(lab: &mut Lab<'_>, draw: Draw, times: usize) -> Verdict {
    let (shape, problem) = draw.make();
    lab.shape = shape;
    let mut loaded = problem.load(lab.device, lab.method)?;
    let all: Vec<usize> = (0..problem.rows()).collect();
    let first = lab.run(&mut *loaded, &[&all], 0x5a)?;
    for time in 1..times {
        let again = lab.run(&mut *loaded, &[&all], time as u8)?;
        lab.same(&again, &first, "the first time")?;
        lab.counts.repeats += 1;
    }
    Ok(())
}

/// Larger calls full of NaN leave nothing behind.
fn scratch(lab: &mut Lab<'_>, draw: Draw) -> Verdict {
    let (shape, problem) = Draw { work: draw.work / 64, ..draw }.make();
    lab.shape = shape;
    let mut loaded = problem.load(lab.device, lab.method)?;
    let all: Vec<usize> = (0..problem.rows()).collect();
    let before = lab.run(&mut *loaded, &[&all], 0x5a)?;
    for op in OPS {
        let (_, mut hostile) = Draw { op, rows: 23, seed: 903, work: 4 * draw.work, ..draw }.make();
        hostile.poison(&[], &mut Rng::new(904));
        lab.joint(&*hostile)?;
        let after = lab.run(&mut *loaded, &[&all], 0xa5)?;
        lab.same(&after, &before, "before a hostile call")?;
    }
    Ok(())
}

/// A call without rows touches nothing.
fn no_rows(lab: &mut Lab<'_>, draw: Draw) -> Verdict {
    let (shape, problem) = draw.make();
    lab.shape = shape;
    let mut loaded = problem.load(lab.device, lab.method)?;
    lab.run(&mut *loaded, &[&[]], 0x5a)?;
    Ok(())
}
