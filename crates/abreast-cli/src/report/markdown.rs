//! The same figures as a Markdown table, one line a shape: what a page of benchmarks holds.

use super::{Chart, Kind, charts};
use crate::bench::past::Past;
use crate::bench::significant;
use std::fmt::Write;

/// Figures that differ by less are not told apart.
const NOISE: f64 = 1.03;

pub(super) fn render(reports: &[(String, Past)], peers: Option<&Past>) -> String {
    let mut text = String::from(
        "| operation | shape | rows | floor | best peer | goal | ours, cold | ours / peer | ours / goal | ours / floor | ours, warm |\n\
        | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for chart in charts(reports, peers) {
        let _ =
            writeln!(text, "| {} | {} | {} |", cell(chart.op), cell(chart.shape), line(&chart).join(" | "));
    }
    text
}

/// A chart's columns, each with a figure for each number of rows. What a peer does faster is bold.
fn line(chart: &Chart<'_>) -> Vec<String> {
    let points = |kind| chart.series.iter().find(|s| s.kind == kind).map_or(&[][..], |s| &s.points);
    let ours = points(Kind::Ours(0));
    let at = |kind, rows| points(kind).iter().find(|point| point.0 == rows).map(|point| point.1);
    let column = |figure: &dyn Fn(usize, f64) -> Option<String>| {
        let figures: Vec<_> = ours.iter().map(|&(rows, us)| figure(rows, us)).collect();
        if figures.iter().all(Option::is_none) {
            return String::new();
        }
        let shown = |figure: Option<String>| figure.unwrap_or_else(|| "-".into());
        figures.into_iter().map(shown).collect::<Vec<_>>().join(" / ")
    };
    let times = |kind| column(&|rows, _| at(kind, rows).map(significant));
    let over = |kind| column(&|rows, us| at(kind, rows).map(|them| ratio(us / them)));
    let own = |rows, us| match at(Kind::Peer, rows) {
        Some(peer) if us > NOISE * peer => Some(format!("**{}**", significant(us))),
        _ => Some(significant(us)),
    };
    vec![
        column(&|rows, _| Some(rows.to_string())),
        times(Kind::Floor),
        times(Kind::Peer),
        times(Kind::Goal),
        column(&own),
        over(Kind::Peer),
        over(Kind::Goal),
        over(Kind::Floor),
        times(Kind::Warm),
    ]
}

fn ratio(x: f64) -> String {
    if x < 10.0 { format!("{x:.2}") } else { format!("{x:.0}") }
}

/// A name that others wrote, in a cell.
fn cell(name: &str) -> String {
    name.replace('|', "\\|")
}
