//! The report for people: a Markdown table, so that it can stand in a page as it is.

use super::ceiling::{Bandwidth, Bound};
use super::report::{Compared, Record, Report};

/// Smaller changes are not worth a word.
const CHANGE: f64 = 0.05;

/// The machine and its ceilings, then the table.
pub(super) fn render(report: &Report) -> String {
    let (m, c) = (&report.machine, &report.ceilings);
    let rates: Vec<String> = c.fma_gflops_of.iter().map(|(isa, rate)| format!("{isa} {rate:.0}")).collect();
    // Where the driver does not tell the clock there is none.
    let rates = match c.fma_gflops_of.values().any(|&rate| rate > 0.0) {
        true => format!("{} GFLOP/s", rates.join(", ")),
        false => "unknown".into(),
    };
    let level = |l: &Bandwidth| {
        let read = l.read_gbs.map_or("-".into(), |gbs| format!("{gbs:.0}"));
        format!("{} {read}/{:.0}", bytes(l.bytes), l.copy_gbs)
    };
    let memory: Vec<String> = c.memory.iter().map(level).collect();
    let driver = m.gpu.as_ref().map_or(String::new(), |gpu| format!("; driver {}", gpu.driver));
    let matrix = c.matrix_gflops.map_or(String::new(), |rate| format!("; bf16 matrices {rate:.0} GFLOP/s"));
    let least =
        c.least_call_us.map_or(String::new(), |us| format!("; the smallest call of a step {}", time(us)));
    format!(
        "{} ({}); {}{driver}; abreast {}, method {:?}; {}\nceilings: f32 fused multiply-add {} ({}){matrix}; memory read/copy {} GB/s{least}\n\n{}{}",
        m.cpu,
        m.arch,
        m.device,
        m.version,
        report.method,
        m.date,
        rates,
        c.fma_from,
        memory.join(", "),
        aligned(&lines(report)),
        if m.gpu.is_some() { ON_GPU } else { "" },
    )
}

/// What the columns of a GPU's table mean.
const ON_GPU: &str = "
Times are the device's, of one call in replays of a step of many. Median: inputs are cold, calls touch at least 3 times the
second-level cache before they come back; * less than that, since a step has at most 512 calls and takes 20 ms, and inputs hold a few GiB.
Warm: all calls have the same inputs. Host: until a plain call returns / until the replay of a step of that call does.
Floor: the least bytes at the rate of copies, or the least operations at the rate above.
";

fn lines(report: &Report) -> Vec<Vec<String>> {
    let with_baseline = report.results.iter().any(|r| r.baseline.is_some());
    let head = [
        "op",
        "shape",
        "rows",
        "median",
        "p10 to p90",
        "floor",
        "x floor",
        "GFLOP/s",
        "GB/s",
        "joint vs solo",
    ];
    let mut head = head.map(String::from).to_vec();
    if report.machine.gpu.is_some() {
        head.extend(["warm".into(), "x floor".into(), "host call/replay".into()]);
    }
    if with_baseline {
        head.extend(["baseline".into(), "ours/baseline".into()]);
    }
    for peer in &report.peers {
        head.extend([peer.clone(), "ours/peer".into(), "its way".into()]);
    }
    let compared = |r: &Record| r.peers.iter().flatten().find(|peer| peer.goal_us.is_some()).cloned();
    let with_goals = report.results.iter().any(|r| compared(r).is_some());
    if with_goals {
        head.extend(["bare reads".into(), "goal".into(), "ours/goal".into()]);
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
        if with_goals {
            let shown = |us: Option<f64>| us.map_or("-".into(), time);
            line.extend(compared(r).map_or(none(3), |c| {
                let share = c.goal_us.map_or("-".into(), |goal| format!("{:.2}", r.median_us / goal));
                vec![shown(c.bare_us), shown(c.goal_us), share]
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
    let mark = if r.gpu.as_ref().is_some_and(|gpu| !gpu.cold) { " *" } else { "" };
    let mut line = vec![
        r.op.to_string(),
        r.shape.clone(),
        r.rows.to_string(),
        time(r.median_us) + mark,
        format!("{} to {}", time(r.p10_us), time(r.p90_us)),
        format!("{} {bound}", time(r.floor_us)),
        significant(r.median_us / r.floor_us),
        if r.flops == 0 { "-".into() } else { significant(r.gflops) },
        significant(r.gbs),
        format!("{:.2}x", r.speedup),
    ];
    if let Some(gpu) = &r.gpu {
        line.extend([
            time(gpu.warm_us),
            significant(gpu.warm_us / gpu.warm_floor_us),
            format!("{} / {}", time(gpu.call_host_us), time(gpu.replay_host_us)),
        ]);
    }
    line
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

/// Three digits.
pub(crate) fn significant(x: f64) -> String {
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
    use super::super::cases::Case;
    use super::super::ceiling::Ceilings;
    use super::super::machine::{GpuModel, Machine};
    use super::super::measure::{Measured, OnGpu, Timing};
    use super::*;
    use abreast::{Cost, Device, Gpu, Kind, Method};

    fn compared(ratio: f64) -> Compared {
        Compared { median_us: 10.0, ratio, how: None, goal_us: None, bare_us: None }
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

    /// One figure, whose inputs were not cold.
    #[test]
    fn a_gpu_has_columns_of_its_own() {
        let mut machine = Machine::new(&Device::cpu().unwrap(), None);
        let gpu = Gpu {
            name: "GPU".into(),
            capability: (9, 0),
            driver: (13, 0),
            multiprocessors: 132,
            clock_khz: 1_980_000,
            l2_bytes: 60 << 20,
            memory_bytes: 1 << 37,
        };
        machine.gpu = Some(GpuModel::new(Kind::Cuda, gpu));
        let timing = |median| Timing { median, p10: 1.0, p90: 3.0, samples: 5 };
        let on_gpu = OnGpu {
            turn_bytes: 4096,
            cold: false,
            warm: timing(2.0),
            call_host: timing(7.0),
            replay_host: timing(8.0),
        };
        let (joint, solo) = (timing(4.0), timing(8.0));
        let m = Measured { joint, solo, cost: Cost { flops: 0, bytes: 4_000_000 }, gpu: Some(on_gpu) };
        let ceilings = Ceilings {
            fma_gflops: 1.0,
            fma_gflops_of: [("sm_90".to_owned(), 1.0)].into(),
            fma_from: "properties",
            matrix_gflops: Some(1e6),
            least_call_us: Some(1.5),
            memory: vec![Bandwidth { bytes: 8 << 20, read_gbs: None, copy_gbs: 2000.0 }],
        };
        let record = Record::new(Case::GatherRows { n: 512 }, (2, 4), (&m, &ceilings, Method::Fast));
        let text =
            render(&Report { machine, method: Method::Fast, ceilings, peers: vec![], results: vec![record] });
        assert!(text.contains("CUDA 13.0; abreast") && text.contains(", method Fast; "), "{text}");
        assert!(
            text.contains("sm_90 1 GFLOP/s (properties); bf16 matrices 1000000 GFLOP/s; memory read/copy 8 MiB -/2000 GB/s; the"),
            "{text}"
        );
        let cells = ["2", "4.00 µs *", "1.00 µs to 3.00 µs", "2.00 µs memory", "2.00", "-", "1000", "2.00x"];
        let more = ["2.00 µs", "1.00", "7.00 µs / 8.00 µs", ""];
        let line = text.lines().find(|line| line.contains("n 512")).unwrap();
        let found: Vec<&str> = line.split('|').map(str::trim).skip(3).collect();
        assert_eq!(found, [&cells[..], &more[..]].concat());
    }

    #[test]
    fn columns_are_aligned() {
        let lines = [["op", "time"], ["top_k", "1 µs"]].map(|l| l.map(String::from).to_vec());
        assert_eq!(aligned(&lines), "| op    | time |\n| ----- | ---- |\n| top_k | 1 µs |\n");
    }
}
