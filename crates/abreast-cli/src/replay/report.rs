//! What a replay found: a table for people, one JSON object for programs.

use super::judge::Verdict;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Everything that was replayed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) device: String,
    pub(super) data: String,
    pub(super) cases: Vec<CaseReport>,
    pub(super) groups: Vec<GroupReport>,
    /// Cases that are not ok.
    pub(super) failed: usize,
    /// Most memory that the process held, where the system tells.
    pub(super) peak_resident_bytes: Option<u64>,
}

/// One recorded case, in every call that it was a row of.
#[derive(Debug, Serialize)]
pub(super) struct CaseReport {
    pub(super) id: String,
    pub(super) core: &'static str,
    pub(super) group: String,
    pub(super) ok: bool,
    /// Largest error; null where it cannot be measured.
    pub(super) max_error: Option<f64>,
    /// The error that uses up the largest part of its bound, and that bound; null where it cannot be measured.
    pub(super) worst_error: Option<f64>,
    pub(super) worst_bound: f64,
    /// The joint call gave the bits of the call alone.
    pub(super) bits_equal: bool,
    /// Results with exactly the recorded bits, and results compared.
    pub(super) exact: usize,
    pub(super) compared: usize,
    /// What is wrong.
    pub(super) reason: Option<String>,
    pub(super) note: Option<&'static str>,
}

/// One joint call, with its rows run alone beside it.
#[derive(Debug, Serialize)]
pub(super) struct GroupReport {
    pub(super) core: &'static str,
    pub(super) id: String,
    pub(super) rows: usize,
    pub(super) ok: bool,
    pub(super) worst_error: Option<f64>,
    pub(super) worst_bound: f64,
    pub(super) bits_equal: bool,
    pub(super) joint_ms: f64,
    /// Sum of the calls alone.
    pub(super) alone_ms: f64,
    #[serde(skip)]
    pub(super) refused: bool,
}

impl CaseReport {
    /// `differs` is the first bit in which joint and alone differ.
    pub(super) fn new(names: (&str, &'static str, &str), verdict: Verdict, differs: Option<String>) -> Self {
        let (id, core, group) = names;
        let bits_equal = differs.is_none();
        let reason = verdict.wrong.or(differs.map(|why| format!("joint is not alone: {why}")));
        CaseReport {
            id: id.into(),
            core,
            group: group.into(),
            ok: reason.is_none(),
            max_error: verdict.max_error.filter(|e| e.is_finite()),
            worst_error: Some(verdict.worst.0).filter(|e| e.is_finite()),
            worst_bound: verdict.worst.1,
            bits_equal,
            exact: verdict.exact.0,
            compared: verdict.exact.1,
            reason,
            note: verdict.note,
        }
    }

    /// This case, after another call that it was a row of.
    pub(super) fn and(self, other: CaseReport) -> Self {
        let (mut worst, least) = if other.used() > self.used() { (other, self) } else { (self, other) };
        worst.group = format!("{}, {}", worst.group, least.group);
        worst.ok &= least.ok;
        worst.bits_equal &= least.bits_equal;
        worst.max_error = worst.max_error.zip(least.max_error).map(|(a, b)| a.max(b));
        worst.exact = worst.exact.min(least.exact);
        worst.reason = worst.reason.or(least.reason);
        worst
    }

    /// The part of its bound that the worst error uses up.
    fn used(&self) -> f64 {
        match self.worst_error {
            Some(0.0) => 0.0,
            Some(error) => error / self.worst_bound,
            None => f64::INFINITY,
        }
    }
}

impl GroupReport {
    pub(super) fn new(id: &str, cases: &[CaseReport], times: [Duration; 2]) -> Self {
        let worst = cases.iter().max_by(|a, b| a.used().total_cmp(&b.used()));
        GroupReport {
            core: cases.first().map_or("", |case| case.core),
            id: id.into(),
            rows: cases.len(),
            ok: cases.iter().all(|case| case.ok),
            worst_error: worst.and_then(|case| case.worst_error),
            worst_bound: worst.map_or(0.0, |case| case.worst_bound),
            bits_equal: cases.iter().all(|case| case.bits_equal),
            joint_ms: times[0].as_secs_f64() * 1e3,
            alone_ms: times[1].as_secs_f64() * 1e3,
            refused: false,
        }
    }
}

impl Report {
    pub(super) fn new(device: String, data: String) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let (cases, groups) = (Vec::new(), Vec::new());
        Report { version, device, data, cases, groups, failed: 0, peak_resident_bytes: None }
    }

    /// What is known once everything has run.
    pub(super) fn finish(&mut self) {
        self.failed = self.cases.iter().filter(|case| !case.ok).count();
        self.peak_resident_bytes = crate::info::peak_resident_bytes();
    }

    pub(super) fn json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|json| json + "\n").map_err(|e| format!("json: {e}"))
    }

    pub(super) fn table(&self) -> String {
        let width = self.groups.iter().map(|group| group.id.chars().count()).max().unwrap_or(0).max(5);
        let mut text = String::new();
        let mut line = |s: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", s.to_string().trim_end());
        };
        line(format_args!(
            "{:<16} {:<width$} {:>4} {:>11} {:>9} {:>14} {:>9} {:>9}  ",
            "core", "group", "rows", "worst error", "bound", "joint == alone", "joint ms", "alone ms"
        ));
        for group in &self.groups {
            let error = match group.worst_error {
                _ if group.refused => "refused".into(),
                Some(error) => number(error),
                None => "none".into(),
            };
            line(format_args!(
                "{:<16} {:<width$} {:>4} {:>11} {:>9} {:>14} {:>9.2} {:>9.2}  {}",
                group.core,
                group.id,
                group.rows,
                error,
                if group.refused { "right".into() } else { number(group.worst_bound) },
                if group.bits_equal { "yes" } else { "NO" },
                group.joint_ms,
                group.alone_ms,
                if group.ok { "" } else { "FAILED" },
            ));
        }
        line(format_args!(""));
        for case in &self.cases {
            if let Some(reason) = &case.reason {
                line(format_args!("FAILED {}: {reason}", case.id));
            }
            if let Some(note) = case.note {
                line(format_args!("note   {}: {note}", case.id));
            }
        }
        let equal = self.cases.iter().filter(|case| case.bits_equal).count();
        line(format_args!(
            "{} cases in {} calls on {}: {} failed, {equal} with joint == alone in every bit",
            self.cases.len(),
            self.groups.len(),
            self.device,
            self.failed
        ));
        text
    }
}

fn number(x: f64) -> String {
    if x == 0.0 { "0".into() } else { format!("{x:.2e}") }
}
