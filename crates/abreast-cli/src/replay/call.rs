//! One group of cases: a joint call, and each of its rows alone.

use super::cases::{Case, Core, On};
use super::judge::Verdict;
use super::plan::{Group, Plan};
use abreast::Error;
use indicatif::ProgressBar;
use std::time::Duration;

/// A group after its replay.
pub(super) struct Done {
    /// Each row's verdict, and the first bit in which joint and alone differ.
    pub(super) rows: Vec<(Verdict, Option<String>)>,
    /// Of the joint call, and of the calls alone together.
    pub(super) times: [Duration; 2],
    pub(super) refused: bool,
}

/// Runs one group jointly and each of its cases alone.
pub(super) fn replay(on: On<'_>, of: (&Plan<'_>, &Group), bar: &ProgressBar) -> Result<Done, Error> {
    let (plan, group) = of;
    macro_rules! rows {
        ($kind:path) => {{
            let row = |&case: &usize| match &plan.cases[case] {
                $kind(case) => Some(&**case),
                _ => None,
            };
            step(on, &group.cases.iter().filter_map(row).collect::<Vec<_>>(), bar)
        }};
    }
    match plan.cases[group.cases[0]] {
        Case::SparseAttention(_) => rows!(Case::SparseAttention),
        Case::Indexer(_) => rows!(Case::Indexer),
        Case::Compressor(_) => rows!(Case::Compressor),
    }
}

fn step<C: Core>(on: On<'_>, cases: &[&C], bar: &ProgressBar) -> Result<Done, Error> {
    if let Some(argument) = cases.iter().find_map(|case| case.refused()) {
        bar.inc(1 + cases.len() as u64);
        return refusal(C::run(on, cases).map(|_| ()), argument);
    }
    // The first run warms caches up; the second must repeat its bits and is the one that is timed.
    let (first, _) = C::run(on, cases)?;
    let (joint, joint_time) = C::run(on, cases)?;
    bar.inc(1);
    let mut done = Done { rows: Vec::new(), times: [joint_time, Duration::ZERO], refused: false };
    for ((case, first), joint) in cases.iter().zip(&first).zip(&joint) {
        let (alone, time) = C::run(on, &[case])?;
        done.times[1] += time;
        let again = C::difference(first, joint).map(|why| format!("one joint call and the next: {why}"));
        let differs = again.or_else(|| alone.iter().find_map(|alone| C::difference(joint, alone)));
        done.rows.push((case.judge(joint, on.method), differs));
        bar.inc(1);
    }
    Ok(done)
}

/// A call that the specification makes an error is right when it is refused with that error.
fn refusal(result: Result<(), Error>, argument: &'static str) -> Result<Done, Error> {
    let mut verdict = Verdict::new();
    match result {
        Err(Error::Argument { arg, .. }) if arg.name == argument => {
            verdict.note = Some("right: refused with the argument error that its data demands");
        }
        Err(Error::Argument { arg, .. }) => {
            verdict.fail(|| format!("refused because of {arg}, must be because of {argument}"));
        }
        Err(other) => return Err(other),
        Ok(()) => verdict.fail(|| format!("must be refused because of {argument}, was not")),
    }
    Ok(Done { rows: vec![(verdict, None)], times: [Duration::ZERO; 2], refused: true })
}
