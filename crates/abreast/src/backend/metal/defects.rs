//! Kernels with planted defects, each of which must turn the suite red.

use super::Metal;
use super::harness::{Harness, Schedule};
use super::kernels::source;
use super::queue::Queue;
use crate::Device;
use crate::conformance::{Options, run};
use std::sync::Arc;

/// Words of one kernel file and what they are replaced by; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Defect {
    stem: &'static str,
    words: &'static str,
    by: &'static str,
    /// Where it must be found.
    filter: &'static str,
}

impl Defect {
    /// The file with the defect, if it is in this one.
    pub(super) fn apply(self, stem: &str, text: String) -> String {
        if self.stem != stem {
            return text;
        }
        assert_eq!(text.matches(self.words).count(), 1, "{self:?}: the words must stand there once");
        text.replace(self.words, self.by)
    }
}

const fn defect(stem: &'static str, [words, by]: [&'static str; 2], filter: &'static str) -> Defect {
    Defect { stem, words, by, filter }
}

const DEFECTS: [Defect; 1] = [defect(
    "sparse_attention",
    ["index >= row.kv_len", "index > row.kv_len"],
    "sparse_attention/fail_closed",
)];

#[test]
fn every_defect_of_a_kernel_turns_the_suite_red() {
    let mut unnoticed = Vec::new();
    for defect in DEFECTS {
        let harness = match Harness::open(Schedule::default()) {
            Ok(harness) => harness,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let mut metal = Metal::new(Arc::new(Queue::new(harness)));
        metal.kernels.defect = defect;
        let options = Options { filter: Some(defect.filter.into()), fail_fast: true, ..Options::default() };
        let report = run(&Device::from_backend(Arc::new(metal)), &options, &mut |_| ());
        match report.failures.first() {
            Some(failure) => println!("{} found in {}", defect.words, failure.case),
            None => unnoticed.push(defect),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:#?}");
}

/// Every defect's words stand in its kernel, harness or none.
#[test]
fn every_defect_is_there_to_be_planted() {
    for defect in DEFECTS {
        defect.apply(defect.stem, source(defect.stem));
    }
}
