//! Hostile values at every argument, at random: the oracle's answers, nobody else's damage, red zones intact.

use super::bits::Verdict;
use super::case::Rng;
use super::lab::Lab;
use super::shapes::{Draw, OPS};
use super::{Case, Depth};
use crate::Method;
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

fn hostile(lab: &mut Lab<'_>, (op, method): (&'static str, Method), seeds: Range<usize>) -> Verdict {
    for seed in seeds {
        let rng = &mut Rng::new(seed as u64);
        let draw = Draw {
            op,
            rows: 1 + rng.below(6),
            seed: 1000 + seed as u64,
            work: 1 << 14,
            method,
            depth: lab.depth,
        };
        let (shape, mut problem) = draw.make();
        lab.shape = format!("{shape}, seed {seed}");
        problem.corrupt(rng.pick(&[1, 2, 30, 300, 3000]), rng);
        lab.check(&*problem)?;
        lab.counts.hostile += 1;
    }
    Ok(())
}
