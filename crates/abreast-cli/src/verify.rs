//! `abreast verify`: the conformance suite.

use crate::backend::{BackendName, MethodName};
use crate::{CommandResult, Outcome};
use abreast::conformance::{self, Counts, Depth, Failure, Finding, Options, Report};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which backend to verify
    #[arg(long, value_enum, default_value = "cpu")]
    backend: BackendName,
    /// Which arithmetic, where an operation has two
    #[arg(long, value_enum, default_value = "reference")]
    method: MethodName,
    /// Only cases whose name contains TEXT
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// A million rows compared with themselves alone instead of some 65,000
    #[arg(long)]
    full: bool,
    /// Every kind of case, but few rows alone and few cases at random: for tools that slow every launch down
    #[arg(long, conflicts_with = "full")]
    brief: bool,
    /// Only print the names of the cases
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let depth = match (args.brief, args.full) {
        (true, _) => Depth::Brief,
        (_, true) => Depth::Full,
        _ => Depth::Quick,
    };
    let options = Options { filter: args.filter, depth, method: args.method.into(), fail_fast: false };
    let names = conformance::cases(&options);
    if names.is_empty() {
        let filter = options.filter.unwrap_or_default();
        return Err(format!("no case's name contains {filter:?}; `abreast verify --list` shows them all"));
    }
    if args.list {
        crate::print(&(names.join("\n") + "\n"))?;
        return Ok(Outcome::Good);
    }
    let device = args.backend.open()?;
    let bar = ProgressBar::new(names.len() as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}").map_err(|e| e.to_string())?;
    bar.set_style(style);
    let start = Instant::now();
    let report = conformance::run(&device, &options, &mut |progress| {
        bar.set_position(progress.done as u64);
        bar.set_message(progress.case.to_owned());
    });
    bar.finish_and_clear();
    let (device, time) = (device.describe(), start.elapsed());
    let text = if args.json {
        format!("{:#}\n", to_json(&device, &report, time))
    } else {
        table(&device, &report, time)
    };
    crate::print(&text)?;
    Ok(if report.is_good() { Outcome::Good } else { Outcome::Bad })
}

fn table(device: &str, report: &Report, time: Duration) -> String {
    let mut text = format!(
        "{device}\n\n{:<30} {:>6} {:>8} {:>8} {:>8} {:>7}\n",
        "group", "cases", "rows", "compared", "oracle", "failed"
    );
    // Writing to a string cannot fail.
    let mut line = |name: &str, (cases, failed): (usize, usize), counts: &Counts| {
        let Counts { rows, compared, oracle, .. } = counts;
        let _ = writeln!(text, "{name:<30} {cases:>6} {rows:>8} {compared:>8} {oracle:>8} {failed:>7}");
    };
    for group in &report.groups {
        line(&group.name, (group.cases, group.failed), &group.counts);
    }
    let counts = report.counts();
    line("all", (report.cases(), report.failures.len()), &counts);
    for Failure { case, shape, finding } in &report.failures {
        let on = if shape.is_empty() { String::new() } else { format!(" ({shape})") };
        let _ = writeln!(text, "\nFAILED {case}{on}\n  {finding}");
    }
    let Counts { calls, red_zones, repeats, hostile, refused, rows, .. } = counts;
    // Only what these cases count.
    let said = [
        (rows, "rows of joint calls have the bits that they have alone"),
        (calls, "calls"),
        (repeats, "repeats"),
        (hostile, "hostile problems"),
        (refused, "bad arguments refused"),
        (red_zones, "buffers with whole red zones"),
    ];
    text.push('\n');
    for (n, what) in said.into_iter().filter(|(n, _)| *n > 0) {
        let _ = writeln!(text, "{n} {what}.");
    }
    let _ = writeln!(text, "{:.1} s.", time.as_secs_f64());
    let last =
        if report.is_good() { "All good." } else { "Run a failed case alone: abreast verify --filter NAME" };
    text + last + "\n"
}

fn to_json(device: &str, report: &Report, time: Duration) -> Value {
    let counts = |c: &Counts| {
        json!({ "rows": c.rows, "compared": c.compared, "oracle": c.oracle, "calls": c.calls, "red_zones": c.red_zones,
            "repeats": c.repeats, "hostile": c.hostile, "refused": c.refused })
    };
    let group = |g: &conformance::Group| json!({ "name": g.name, "cases": g.cases, "failed": g.failed, "counts": counts(&g.counts) });
    json!({
        "device": device,
        "cases": report.cases(),
        "failed": report.failures.len(),
        "seconds": time.as_secs_f64(),
        "counts": counts(&report.counts()),
        "groups": report.groups.iter().map(group).collect::<Vec<_>>(),
        "failures": report.failures.iter().map(failure).collect::<Vec<_>>(),
    })
}

fn failure(Failure { case, shape, finding }: &Failure) -> Value {
    match finding {
        Finding::Bits(d) => {
            let bits = |bits: u64| format!("0x{bits:0digits$x}", digits = d.digits);
            json!({ "case": case, "shape": shape, "row": d.row, "output": d.part, "position": d.position, "got": bits(d.got),
                "want": bits(d.want), "against": d.against, "note": d.note.trim() })
        }
        Finding::Text { what, want, got } => {
            json!({ "case": case, "shape": shape, "what": what, "want": want, "got": got })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abreast::conformance::Difference;

    /// Nothing fails here as long as all is well: the one place that shows what a failure looks like.
    #[test]
    fn a_failure_shows_case_row_position_and_both_bit_patterns() {
        let difference = Difference {
            against: "alone".into(),
            row: 3,
            part: "out",
            position: 17,
            digits: 4,
            got: 0x3f80,
            want: 0x3f81,
            note: String::new(),
        };
        let case = "sparse_attention/law/r9/s0";
        let shape = "9 rows, h5/d64";
        let finding = Finding::Bits(Box::new(difference));
        let failed = Failure { case: case.into(), shape: shape.into(), finding };
        assert_eq!(failed.finding.to_string(), "row 3, out[17]: got 0x3f80, alone 0x3f81");
        assert_eq!(
            failure(&failed),
            json!({ "case": case, "shape": shape, "row": 3, "output": "out", "position": 17, "got": "0x3f80",
                "want": "0x3f81", "against": "alone", "note": "" })
        );
    }
}
