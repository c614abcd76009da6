//! The report for people: a Markdown table, so that it can stand in a page as it is.

use super::ceiling::Bound;
use super::report::{Compared, Record, Report};

/// Smaller changes are not worth a word.
const CHANGE: f64 = 0.05;

/// The machine and its ceilings, then the table.
pub(super) fn render(report: &Report) -> String {
    let (m, c) = (&report.machine, &report.ceilings);
    let rates: Vec<String> = c.fma_gflops_of.iter().map(|(isa, rate)| format!("{isa} {rate:.0}")).collect();
    let level =
        |l: &super::ceiling::Bandwidth| format!("{} {:.0}/{:.0}", bytes(l.bytes), l.read_gbs, l.copy_gbs);
    let memory: Vec<String> = c.memory.iter().map(level).collect();
    format!(
        "{} ({}); {}; abreast {}; {}\nceilings: f32 fused multiply-add {} GFLOP/s; memory read/copy {} GB/s\n\n{}",
        m.cpu,
        m.arch,
        m.device,
        m.version,
        m.date,
        rates.join(", "),
        memory.join(", "),
        aligned(&lines(report)),
    )
}

fn lines(report: &Report) -> Vec<Vec<String>> {
    let with_baseline = report.results.iter().any(|r| r.baseline.is_some());
    let head =
        ["op", "shape", "rows", "median", "p10 to p90", "GFLOP/s", "GB/s", "joint vs solo", "of ceiling"];
    let mut head = head.map(String::from).to_vec();
    if with_baseline {
        head.extend(["baseline".into(), "ours/baseline".into()]);
    }
    for peer in &report.peers {
        head.extend([peer.clone(), "ours/peer".into(), "its way".into()]);
    }
    let line = |r: &Record| {
        let mut line = figures(r);
        if with_baseline {
            line.extend(r.baseline.as_ref().map_or(none(2), |b| vec![time(b.median_us), change(b)]));
        }
        for peer in &r.peers {
            line.extend(peer.as_ref().map_or(none(3), |p| {
                vec![time(p.median_us), format!("{:.2}", p.ratio), p.how.clone().unwrap_or_default()]
            }));
        }
        line
    };
    std::iter::once(head).chain(report.results.iter().map(line)).collect()
}

fn none(cells: usize) -> Vec<String> {
    vec!["-".into(); cells]
}

fn figures(r: &Record) -> Vec<String> {
    let bound = match r.bound {
        Bound::Compute => "compute",
        Bound::Memory => "memory",
    };
    vec![
        r.op.to_string(),
        r.shape.clone(),
        r.rows.to_string(),
        time(r.median_us),
        format!("{} to {}", time(r.p10_us), time(r.p90_us)),
        if r.flops == 0 { "-".into() } else { significant(r.gflops) },
        significant(r.gbs),
        format!("{:.2}x", r.speedup),
        format!("{:.0}% {bound}", 100.0 * r.share),
    ]
}

/// Our time by the baseline's, and a word where it changed.
fn change(b: &Compared) -> String {
    let word = match b.ratio {
        r if r > 1.0 + CHANGE => " slower",
        r if r < 1.0 - CHANGE => " faster",
        _ => "",
    };
    format!("{:.2}{word}", b.ratio)
}

/// Microseconds or milliseconds, three digits.
fn time(us: f64) -> String {
    if us < 1000.0 { format!("{} µs", significant(us)) } else { format!("{} ms", significant(us / 1000.0)) }
}

fn significant(x: f64) -> String {
    let digits = match x {
        _ if x < 10.0 => 2,
        _ if x < 100.0 => 1,
        _ => 0,
    };
    format!("{x:.digits$}")
}

fn bytes(n: usize) -> String {
    if n < 1 << 20 { format!("{} KiB", n >> 10) } else { format!("{} MiB", n >> 20) }
}

/// A Markdown table, its columns padded; the first line is the head.
fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(&format!("| {cell:<width$} "));
        }
        text.push_str("|\n");
        if i == 0 {
            widths.iter().for_each(|width| text.push_str(&format!("| {} ", "-".repeat((*width).max(3)))));
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(ratio: f64) -> Compared {
        Compared { median_us: 10.0, ratio, how: None }
    }

    #[test]
    fn changes_beyond_five_percent_are_named() {
        assert_eq!(change(&compared(1.051)), "1.05 slower");
        assert_eq!(change(&compared(0.94)), "0.94 faster");
        assert_eq!(change(&compared(1.04)), "1.04");
        assert_eq!(change(&compared(0.96)), "0.96");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(time(1.234), "1.23 µs");
        assert_eq!(time(12.34), "12.3 µs");
        assert_eq!(time(999.4), "999 µs");
        assert_eq!(time(123_456.0), "123 ms");
    }

    #[test]
    fn columns_are_aligned() {
        let lines = [["op", "time"], ["top_k", "1 µs"]].map(|l| l.map(String::from).to_vec());
        assert_eq!(aligned(&lines), "| op    | time |\n| ----- | ---- |\n| top_k | 1 µs |\n");
    }
}
