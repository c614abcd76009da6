//! The list of cases, and the run of it.

use super::bits::{Finding, Verdict};
use super::lab::{Counts, Lab};
use super::shapes::OPS;
use super::{decode, errors, fail_closed, hostile, known, law, memory, runs, steps, ties, windows};
use crate::{Device, Method};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// Every kind of case, small, but few of those at random and few rows alone: for tools under which a launch takes a thousand times as long.
    Brief,
    /// On every change: more than 20,000 rows against themselves alone.
    #[default]
    Quick,
    /// Before a release: a million.
    Full,
}

/// What is run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only cases whose name holds this.
    pub filter: Option<String>,
    /// How much.
    pub depth: Depth,
    /// The arithmetic of the operations that have two.
    pub method: Method,
    /// Stop at the first failure.
    pub fail_fast: bool,
}

/// A case is about to run.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Cases before it.
    pub done: usize,
    /// All cases of this run.
    pub total: usize,
    /// Its name.
    pub case: &'a str,
}

/// A case that failed, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Its name: a filter that runs it alone.
    pub case: String,
    /// The shape that it was on, where shapes are drawn.
    pub shape: String,
    /// The first thing that is wrong.
    pub finding: Finding,
}

/// Cases of one operation and one kind.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// `operation/group`.
    pub name: String,
    /// Cases.
    pub cases: usize,
    /// Cases that failed.
    pub failed: usize,
    /// What they did.
    pub counts: Counts,
}

/// What a run found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The groups in order.
    pub groups: Vec<Group>,
    /// The failures in order.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Whether something ran and nothing failed.
    pub fn is_good(&self) -> bool {
        self.cases() > 0 && self.failures.is_empty()
    }

    /// Cases that ran.
    pub fn cases(&self) -> usize {
        self.groups.iter().map(|group| group.cases).sum()
    }

    /// What they did, all together.
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        self.groups.iter().for_each(|group| all += group.counts);
        all
    }
}

type Body = Box<dyn Fn(&mut Lab<'_>) -> Verdict>;

/// One case.
pub(super) struct Case {
    name: String,
    body: Body,
}

impl Case {
    pub(super) fn new(name: String, body: impl Fn(&mut Lab<'_>) -> Verdict + 'static) -> Case {
        Case { name, body: Box::new(body) }
    }

    /// `operation/group` of `operation/group/detail`.
    fn group(&self) -> &str {
        let end = self.name.match_indices('/').nth(1).map_or(self.name.len(), |(at, _)| at);
        &self.name[..end]
    }

    /// Runs it; a panic is a finding like any other.
    fn run(&self, lab: &mut Lab<'_>) -> Verdict {
        catch_unwind(AssertUnwindSafe(|| (self.body)(lab))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Err(Finding::text("the case", "no panic", text.unwrap_or_default()))
        })
    }
}

fn list(options: &Options) -> Vec<Case> {
    let mut cases = law::cases(options.depth, options.method);
    cases.extend(fail_closed::cases());
    cases.extend(errors::cases());
    cases.extend(ties::cases(options.depth));
    cases.extend(runs::cases(options.depth));
    cases.extend(windows::cases(options.depth));
    cases.extend(known::cases(options.depth));
    cases.extend(hostile::cases(options.depth, options.method));
    cases.extend(memory::cases());
    cases.extend(steps::cases(options.depth));
    cases.extend(decode::cases(options.depth));
    // Operation by operation; within one, the groups in the order above.
    cases.sort_by_key(|case| OPS.iter().position(|op| case.name.starts_with(op)).unwrap_or(OPS.len()));
    if let Some(filter) = &options.filter {
        cases.retain(|case| case.name.contains(filter.as_str()));
    }
    cases
}

/// The names of the cases that [`run`] would run.
pub fn cases(options: &Options) -> Vec<String> {
    list(options).into_iter().map(|case| case.name).collect()
}

/// Runs the suite on a device; `progress` hears of every case before it starts.
pub fn run(device: &Device, options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    let list = list(options);
    let mut report = Report::default();
    for (done, case) in list.iter().enumerate() {
        progress(Progress { done, total: list.len(), case: &case.name });
        let mut lab = Lab::new(device, options.method);
        lab.depth = options.depth;
        let result = case.run(&mut lab);
        if report.groups.last().is_none_or(|group| group.name != case.group()) {
            report.groups.push(Group { name: case.group().into(), ..Group::default() });
        }
        let group = report.groups.last_mut().expect("pushed above");
        group.cases += 1;
        group.counts += lab.counts;
        if let Err(finding) = result {
            group.failed += 1;
            report.failures.push(Failure { case: case.name.clone(), shape: lab.shape, finding });
            if options.fail_fast {
                break;
            }
        }
    }
    report
}
