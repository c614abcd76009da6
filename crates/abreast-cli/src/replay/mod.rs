//! `abreast replay`: recorded decode steps, run jointly and alone, against what was recorded.
//!
//! `docs/traces.md` describes the format, so that people can record their own.

mod cases;
mod format;
mod judge;
mod plan;
mod report;
mod shared;
mod source;
mod tensors;

pub use format::Manifest;
pub use tensors::Tensors;

use crate::backend::BackendName;
use crate::{CommandResult, Outcome};
use abreast::{Device, Error};
use cases::{Case, Core};
use indicatif::{ProgressBar, ProgressStyle};
use judge::Verdict;
use plan::{Group, Plan};
use report::{CaseReport, GroupReport, Report};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory with manifest.json, edge.json or both, and the safetensors that they name; without it, the data
    /// that ships with the program
    dir: Option<PathBuf>,
    /// Which device runs the calls
    #[arg(long, value_enum, default_value = "cpu")]
    backend: BackendName,
    /// One JSON object on stdout instead of the table
    #[arg(long)]
    json: bool,
}

/// Reads one recording: its JSON and the safetensors that it names, each in memory. Returns how many cases and how
/// many calls it holds; an error is one line that names the case and the tensor. Never panics, whatever the bytes.
pub fn check(json: &[u8], files: &[&[u8]]) -> Result<(usize, usize), String> {
    let manifest = Manifest::parse(json)?;
    let mut tensors = Tensors::default();
    files.iter().try_for_each(|file| tensors.add(file))?;
    let plan = Plan::new(&manifest, &tensors, "")?;
    Ok((plan.cases.len(), plan.groups.len()))
}

pub(crate) fn run(args: Args) -> CommandResult {
    let sources = source::open(args.dir.as_deref())?;
    // Everything is checked before anything runs.
    let mut plans = Vec::new();
    for source in &sources {
        let mut tensors = Tensors::default();
        for (path, bytes) in &source.files {
            tensors.add(bytes).map_err(|e| format!("{path}: {e}"))?;
        }
        let stem = source.name.trim_end_matches(".json");
        let plan =
            Plan::new(&source.manifest, &tensors, stem).map_err(|e| format!("{}: {e}", source.path))?;
        plans.push((source, plan));
    }
    let device = args.backend.open()?;
    let bar =
        progress(plans.iter().flat_map(|(_, plan)| &plan.groups).map(|group| 1 + group.cases.len()).sum());
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: device.describe(),
        data: args.dir.map_or("shipped".into(), |dir| dir.display().to_string()),
        cases: Vec::new(),
        groups: Vec::new(),
        failed: 0,
        peak_resident_bytes: None,
    };
    for (source, plan) in &plans {
        let mut cases: Vec<Option<CaseReport>> = plan.cases.iter().map(|_| None).collect();
        for group in &plan.groups {
            bar.set_message(group.id.clone());
            let done = replay(&device, (plan, group), &bar);
            let done = done.map_err(|e| format!("{}: {}: {e}", source.path, group.id))?;
            let core = plan.cases[group.cases[0]].core();
            let rows = group.cases.iter().zip(done.rows).map(|(&case, (verdict, differs))| {
                let id = source.manifest.cases[case].id.as_str();
                CaseReport::new((id, core, &group.id), verdict, differs)
            });
            let rows: Vec<CaseReport> = rows.collect();
            let line = GroupReport::new(&group.id, &rows, done.times);
            report.groups.push(GroupReport { refused: done.refused, ..line });
            for (&case, row) in group.cases.iter().zip(rows) {
                cases[case] = Some(match cases[case].take() {
                    Some(before) => before.and(row),
                    None => row,
                });
            }
        }
        report.cases.extend(cases.into_iter().flatten());
    }
    bar.finish_and_clear();
    report.failed = report.cases.iter().filter(|case| !case.ok).count();
    report.peak_resident_bytes = crate::info::peak_resident_bytes();
    crate::print(&if args.json { report.json()? } else { report.table() })?;
    Ok(if report.failed == 0 { Outcome::Good } else { Outcome::Bad })
}

/// On stderr, and only where somebody watches.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
    ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A group after its replay.
struct Done {
    /// Each row's verdict, and the first bit in which joint and alone differ.
    rows: Vec<(Verdict, Option<String>)>,
    /// Of the joint call, and of the calls alone together.
    times: [Duration; 2],
    refused: bool,
}

/// Runs one group jointly and each of its cases alone.
fn replay(device: &Device, of: (&Plan<'_>, &Group), bar: &ProgressBar) -> Result<Done, Error> {
    let (plan, group) = of;
    macro_rules! rows {
        ($kind:path) => {{
            let row = |&case: &usize| match &plan.cases[case] {
                $kind(case) => Some(&**case),
                _ => None,
            };
            step(device, &group.cases.iter().filter_map(row).collect::<Vec<_>>(), bar)
        }};
    }
    match plan.cases[group.cases[0]] {
        Case::SparseAttention(_) => rows!(Case::SparseAttention),
        Case::Indexer(_) => rows!(Case::Indexer),
        Case::Compressor(_) => rows!(Case::Compressor),
    }
}

fn step<C: Core>(device: &Device, cases: &[&C], bar: &ProgressBar) -> Result<Done, Error> {
    if let Some(argument) = cases.iter().find_map(|case| case.refused()) {
        bar.inc(1 + cases.len() as u64);
        return refusal(C::run(device, cases).map(|_| ()), argument);
    }
    // The first run warms caches up; the second must repeat its bits and is the one that is timed.
    let (first, _) = C::run(device, cases)?;
    let (joint, joint_time) = C::run(device, cases)?;
    bar.inc(1);
    let mut done = Done { rows: Vec::new(), times: [joint_time, Duration::ZERO], refused: false };
    for ((case, first), joint) in cases.iter().zip(&first).zip(&joint) {
        let (alone, time) = C::run(device, &[case])?;
        done.times[1] += time;
        let again = C::difference(first, joint).map(|why| format!("one joint call and the next: {why}"));
        let differs = again.or_else(|| alone.iter().find_map(|alone| C::difference(joint, alone)));
        done.rows.push((case.judge(joint), differs));
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
