//! Hostile values at every argument, at random: the oracle's answers, nobody else's damage, red zones intact.

use super::bits::Verdict;
use super::case::Rng;
use super::lab::Lab;
use super::shapes::{Draw, OPS};
use super::{Case, Depth};
use crate::{Compress, Method, Op};
use std::ops::Range;

pub(super) fn cases(depth: Depth, method: Method) -> Vec<Case> {
    let (batches, problems) = match depth {
        Depth::Brief => (1, 10),
        Depth::Quick => (15, 50),
        Depth::Full => (200, 50),
    };
    let one = |op: &'static str, batch: usize| {
        let seeds = batch * problems..(batch + 1) * problems;
        Case::new(format!("{op}/hostile/b{batch}"), move |lab| hostile(lab, (op, method), seeds.clone()))
    };
    // 5,250 problems.
    OPS.into_iter().flat_map(|op| (0..batches).map(move |batch| one(op, batch))).collect()
}

/// The work of a problem, and one in how many values may be hostile. They are small, so that they are many; of the compressor also
/// windows of more than one piece, with so few hostile values that a kernel must look at every slot to find them.
fn size(depth: Depth, op: &str, seed: usize) -> (usize, &'static [usize]) {
    match op == Compress::NAME && depth != Depth::Brief && seed.is_multiple_of(4) {
        true => (1 << 18, &[300, 3000, 10_000, 30_000]),
        false => (1 << 14, &[1, 2, 30, 300, 3000]),
    }
}

fn hostile(lab: &mut Lab<'_>, (op, method): (&'static str, Method), seeds: Range<usize>) -> Verdict {
    for seed in seeds {
        let rng = &mut Rng::new(seed as u64);
        let (work, odds) = size(lab.depth, op, seed);
        let (rows, depth) = (1 + rng.below(6), lab.depth);
        let draw = Draw { op, rows, seed: 1000 + seed as u64, work, method, depth };
        let (shape, mut problem) = draw.make();
        lab.shape = format!("{shape}, seed {seed}");
        problem.corrupt(rng.pick(odds), rng);
        lab.check(&*problem)?;
        lab.counts.hostile += 1;
    }
    Ok(())
}
