//! `abreast replay`: recorded decode steps, run jointly and alone, against what was recorded.
//!
//! `docs/traces.md` describes the format, so that people can record their own.

mod call;
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

use crate::backend::{BackendName, MethodName};
use crate::{CommandResult, Outcome};
use cases::On;
use indicatif::{ProgressBar, ProgressStyle};
use plan::Plan;
use report::{CaseReport, GroupReport, Report};
use source::Source;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A directory with manifest.json, edge.json or both, and the safetensors that they name; without it, the data
    /// that ships with the program
    dir: Option<PathBuf>,
    /// Which device runs the calls
    #[arg(long, value_enum, default_value = "cpu")]
    backend: BackendName,
    /// Which arithmetic, where an operation has two; `fast` is held to the bounds of bf16 weights
    #[arg(long, value_enum, default_value = "reference")]
    method: MethodName,
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
    let plans = sources.iter().map(plan).collect::<Result<Vec<Plan<'_>>, String>>()?;
    let on = On { device: &args.backend.open()?, method: args.method.into() };
    let steps = plans.iter().flat_map(|plan| &plan.groups).map(|group| 1 + group.cases.len());
    let bar = progress(steps.sum());
    let data = args.dir.map_or("shipped".into(), |dir| dir.display().to_string());
    let mut report = Report::new(on.device.describe(), data);
    for (source, plan) in sources.iter().zip(&plans) {
        let mut cases: Vec<Option<CaseReport>> = plan.cases.iter().map(|_| None).collect();
        for group in &plan.groups {
            bar.set_message(group.id.clone());
            let done = call::replay(on, (plan, group), &bar);
            let done = done.map_err(|e| format!("{}: {}: {e}", source.path, group.id))?;
            let core = plan.cases[group.cases[0]].core();
            let names = |case: usize| (source.manifest.cases[case].id.as_str(), core, group.id.as_str());
            let rows = group.cases.iter().zip(done.rows);
            let rows: Vec<CaseReport> = rows
                .map(|(&case, (verdict, differs))| CaseReport::new(names(case), verdict, differs))
                .collect();
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
    report.finish();
    crate::print(&if args.json { report.json()? } else { report.table() })?;
    Ok(if report.failed == 0 { Outcome::Good } else { Outcome::Bad })
}

/// Looks up and checks everything that one JSON file names.
fn plan(source: &Source) -> Result<Plan<'_>, String> {
    let mut tensors = Tensors::default();
    for (path, bytes) in &source.files {
        tensors.add(bytes).map_err(|e| format!("{path}: {e}"))?;
    }
    let stem = source.name.trim_end_matches(".json");
    Plan::new(&source.manifest, &tensors, stem).map_err(|e| format!("{}: {e}", source.path))
}

/// On stderr, and only where somebody watches.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}");
    ProgressBar::new(steps as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
