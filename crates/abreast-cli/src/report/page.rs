//! The page: self-contained, without script. All names are other people's, and text to a browser.

use super::{Chart, Kind, Series, charts, plot};
use crate::bench::past::{Line, Past};
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1460px;padding:0 1rem;color:#222}\
h1{font-size:1.5rem}h2{font-size:1.2rem;border-bottom:1px solid #ccc;margin-top:2.5rem}h3{font-size:1rem;margin:.5rem 0}\
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(460px,1fr));gap:1rem}table{border-collapse:collapse}\
td,th{padding:.1rem .6rem;text-align:right;border-bottom:1px solid #eee}.key{margin-right:1rem}.better{color:#06712c}.worse{color:#b00020}";

pub(super) fn render(reports: &[(String, Past)], peers: Option<&Past>) -> Result<String, String> {
    let charts = charts(reports, peers);
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(page, "<title>abreast: measured times</title><style>{STYLE}</style></head><body>");
    page.push_str("<h1>Time of one joint call, by rows</h1>\n<ul>");
    for (label, report) in reports {
        let _ = write!(page, "<li><b>{}</b>: {}</li>", escaped(label), escaped(&setting(report)));
    }
    if let Some(peers) = peers {
        let _ = write!(page, "<li><b>{}</b>: {}</li>", escaped(&peers.name), escaped(&setting(peers)));
    }
    page.push_str(
        "</ul>\n<p>Medians; inputs are cold unless said. Floor: the least bytes at the rate of the memory, or the least \
        operations at the rate of the unit. Bare reads: a kernel that only reads what the operation must.</p>\n",
    );
    let mut op = "";
    for chart in &charts {
        if chart.op != op {
            let close = if op.is_empty() { "" } else { "</div>" };
            let _ = write!(page, "{close}\n<h2>{}</h2>\n<div class=\"charts\">", escaped(chart.op));
            op = chart.op;
        }
        let _ = write!(page, "\n<section><h3>{}</h3>\n", escaped(chart.shape));
        for series in &chart.series {
            let (colour, name) = (plot::colour(series.kind), escaped(&series.name));
            let _ = write!(page, "<span class=\"key\" style=\"color:{colour}\">&#9644; {name}</span>");
        }
        page.push('\n');
        page.push_str(&plot::svg(chart)?);
        page.push_str(&table(chart));
        page.push_str("</section>");
    }
    if !charts.is_empty() {
        page.push_str("</div>");
    }
    page.push_str("\n</body></html>\n");
    Ok(page)
}

/// Where and when a report was measured, as far as it says.
fn setting(past: &Past) -> String {
    let m = &past.machine;
    let gpu = m.gpu.as_ref().map(|gpu| &gpu.name);
    let texts: [Option<(&str, &Line)>; 5] = [
        gpu.map(|text| ("", text)),
        Some(("", &m.cpu)).filter(|(_, cpu)| !cpu.is_empty()),
        past.method.as_ref().map(|text| ("method ", text)),
        m.version.as_ref().map(|text| ("abreast ", text)),
        m.date.as_ref().map(|text| ("", text)),
    ];
    texts
        .into_iter()
        .flatten()
        .map(|(what, text)| format!("{what}{}", &**text))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The same numbers; our first report against each of the others.
fn table(chart: &Chart<'_>) -> String {
    let Some(ours) = chart.series.iter().find(|series| series.kind == Kind::Ours(0)) else {
        return String::new();
    };
    let others: Vec<&Series> = chart.series.iter().filter(|series| series.kind != Kind::Ours(0)).collect();
    let mut text = format!("\n<table><tr><th>rows</th><th>{} µs</th>", escaped(&ours.name));
    for other in &others {
        let _ = write!(text, "<th>{0}</th><th>ours / {0}</th>", escaped(&other.name));
    }
    for &(rows, us) in &ours.points {
        let _ = write!(text, "</tr>\n<tr><td>{rows}</td><td>{}</td>", number(us));
        for other in &others {
            let Some(&(_, them)) = other.points.iter().find(|point| point.0 == rows) else {
                text.push_str("<td></td><td></td>");
                continue;
            };
            let judged = matches!(other.kind, Kind::Ours(_) | Kind::Peer | Kind::Goal);
            let class = match us / them {
                ratio if judged && ratio <= 1.0 => " class=\"better\"",
                _ if judged => " class=\"worse\"",
                _ => "",
            };
            let _ = write!(text, "<td>{}</td><td{class}>{:.2}</td>", number(them), us / them);
        }
    }
    text.push_str("</tr></table>");
    text
}

fn number(us: f64) -> String {
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}
