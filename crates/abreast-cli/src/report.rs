//! `abreast report`: reports of `abreast bench --json` as one HTML page, with plots of time against rows, or as a table.

mod markdown;
mod page;
mod plot;

use crate::bench::past::{Figure, Past};
use crate::{CommandResult, Outcome};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Reports of `abreast bench --json`; the first is ours in the tables, with those that have other figures of the same device and
    /// method
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Figures of peers, such as data/peers/h200.csv
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Where the page goes
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Print a Markdown table instead
    #[arg(long, conflicts_with = "output")]
    markdown: bool,
}

pub(crate) fn run(args: Args) -> CommandResult {
    let mut read = args.files.iter().chain(&args.peers);
    if let Some(path) = read.find(|path| !args.markdown && is_same(path, &args.output)) {
        let (output, path) = (args.output.display(), path.display());
        return Err(format!("{output}: must be another file than {path}, which the page is made of"));
    }
    let reports = args.files.iter().map(|path| Ok((label(path), Past::read(path)?)));
    let reports = joined(reports.collect::<Result<Vec<_>, String>>()?);
    let peers = args.peers.as_deref().map(Past::read).transpose()?;
    if args.markdown {
        return crate::print(&markdown::render(&reports, peers.as_ref())).map(|()| Outcome::Good);
    }
    let page = page::render(&reports, peers.as_ref())?;
    let named = |e: std::io::Error| format!("{}: {e}", args.output.display());
    std::fs::write(&args.output, page).map_err(named)?;
    crate::note(&format!("{} is written", args.output.display()));
    Ok(Outcome::Good)
}

/// Whether two paths lead to one file, by whatever links; where there is none yet, they do not.
fn is_same(one: &Path, other: &Path) -> bool {
    // Of a hard link only the file itself tells.
    #[cfg(unix)]
    if let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) {
        use std::os::unix::fs::MetadataExt;
        return (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The parts of a run: reports of one device, method and version that have no figure in common are one, and go by the method.
fn joined(reports: Vec<(String, Past)>) -> Vec<(String, Past)> {
    let mut whole: Vec<(String, Past)> = vec![];
    for (label, report) in reports {
        let key = |f: &Figure| (f.op.clone(), f.shape.clone(), f.rows);
        let apart = |past: &Past| {
            let known: BTreeSet<_> = past.results.iter().map(key).collect();
            !report.results.iter().any(|f| known.contains(&key(f)))
        };
        match whole.iter_mut().find(|(_, past)| past.is_of_the_run_of(&report) && apart(past)) {
            Some((label, past)) => {
                *label = past.method.as_deref().unwrap_or("ours").to_owned();
                past.results.extend(report.results);
            }
            None => whole.push((label, report)),
        }
    }
    whole
}

/// A report goes by its file's name.
fn label(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().replace(char::is_control, " ")
}

/// One operation at one shape: all that is known of its times, each by rows.
struct Chart<'a> {
    op: &'a str,
    shape: &'a str,
    series: Vec<Series>,
}

struct Series {
    name: String,
    kind: Kind,
    /// Rows and microseconds, ascending.
    points: Vec<(usize, f64)>,
}

/// How a series is drawn, and what its column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One of the reports, by its place among them.
    Ours(usize),
    Warm,
    Peer,
    Goal,
    Bare,
    Floor,
}

/// The charts of all operations and shapes that the reports have, in their order.
fn charts<'a>(reports: &'a [(String, Past)], peers: Option<&'a Past>) -> Vec<Chart<'a>> {
    let mut keys: Vec<(&str, &str)> = vec![];
    for f in reports.iter().flat_map(|(_, report)| &report.results) {
        if !keys.contains(&(&*f.op, &*f.shape)) {
            keys.push((&f.op, &f.shape));
        }
    }
    let chart = |(op, shape)| {
        let of = |past: &Past, us: &dyn Fn(&Figure) -> Option<f64>| {
            let own = past.results.iter().filter(|f| (&*f.op, &*f.shape) == (op, shape));
            let mut points: Vec<_> = own.filter_map(|f| Some((f.rows, us(f)?))).collect();
            points.sort_unstable_by_key(|point| point.0);
            points
        };
        let named = |name: &str, kind, points| Series { name: name.into(), kind, points };
        let mut series = vec![];
        for (i, (label, report)) in reports.iter().enumerate() {
            series.push(named(label, Kind::Ours(i), of(report, &|f| Some(f.median_us))));
        }
        let first = &reports[0].1;
        series.push(named("warm", Kind::Warm, of(first, &|f| f.warm_us)));
        if let Some(peers) = peers {
            series.push(named(&peers.name, Kind::Peer, of(peers, &|f| Some(f.median_us))));
            series.push(named("goal", Kind::Goal, of(peers, &|f| f.goal_us)));
            series.push(named("bare reads", Kind::Bare, of(peers, &|f| f.bare_us)));
        }
        series.push(named("floor", Kind::Floor, of(first, &|f| f.floor_us)));
        series.retain(|series| !series.points.is_empty());
        Chart { op, shape, series }
    };
    keys.into_iter().map(chart).collect()
}
