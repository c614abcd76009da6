//! Metal: on a Mac, or its kernels on the CPU (feature `metal-harness`). Skipped, and said, where there is neither; a failure there where
//! ABREAST_REQUIRE_METAL demands it.
#![cfg(feature = "metal")]

use abreast::conformance::case::{Problem, index_scores, select_keys, sparse_attention};
use abreast::conformance::{self, Decoder};
use abreast::{Device, Error, Kind, Method};

fn or_skipped(device: Result<Device, Error>) -> Option<Device> {
    let skipped = |why: &Error| {
        assert!(std::env::var_os("ABREAST_REQUIRE_METAL").is_none(), "{why}");
        println!("SKIPPED: {why}");
    };
    device.inspect_err(skipped).ok()
}

fn gpu() -> Option<Device> {
    or_skipped(Device::open(Kind::Metal))
}

#[test]
#[cfg(not(feature = "metal-harness"))]
fn the_suite_holds() {
    let Some(gpu) = gpu() else { return };
    let report = conformance::run(&gpu, &conformance::Options::default(), &mut |_| ());
    println!("{}: {} cases, {:?}", gpu.describe(), report.cases(), report.counts());
    assert!(report.is_good(), "{:#?}", report.failures);
}

#[test]
fn the_bits_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu().expect("a CPU");
    let digests = [&gpu, &cpu].map(|device| conformance::digest(device).expect("digests"));
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn replayed_steps_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu().expect("a CPU");
    let mut replayed = Decoder::new(&gpu, 5, true).expect("a decoder");
    let mut called = Decoder::new(&cpu, 5, false).expect("a decoder");
    assert_eq!(replayed.run(40).expect("steps"), called.run(40).expect("steps"));
}

/// Attention's heads, head size, and widths: tiles that are whole, partial and missing.
const ATTENTION: [(usize, usize, &[usize]); 4] =
    [(64, 512, &[0, 1, 33]), (3, 32, &[65, 31, 32, 7]), (128, 64, &[70, 2]), (17, 96, &[40, 40])];
/// The indexer's heads, head size, and keys.
const SCORES: [(usize, usize, &[u32]); 4] =
    [(64, 128, &[1, 70, 0]), (32, 128, &[33, 32]), (3, 32, &[5, 64]), (100, 64, &[40])];

/// The fast kernels: the law, the oracle and red zones.
#[test]
fn fast_kernels_keep_the_law() {
    let Some(gpu) = gpu() else { return };
    let mut problems: Vec<Box<dyn Problem>> = Vec::new();
    for (heads, dim, widths) in ATTENTION {
        let row = |&width: &usize| sparse_attention::RowShape { kv_len: 50 + width, width };
        let rows = widths.iter().map(row).collect();
        let mut data = sparse_attention::Shape { heads, dim, rows }.generate(heads as u64);
        data.method = Method::Fast;
        problems.push(Box::new(data));
    }
    for (heads, dim, keys) in SCORES {
        let row = |&keys: &u32| index_scores::RowShape { start_pos: (4 * keys).saturating_sub(1), spare: 3 };
        let scores = index_scores::Shape { heads, dim, ratio: 4, rows: keys.iter().map(row).collect() };
        let mut data = scores.generate(heads as u64);
        data.method = Method::Fast;
        problems.push(Box::new(data));
        let mut data = select_keys::Shape { scores, k: 16 }.generate(heads as u64);
        data.scores.method = Method::Fast;
        problems.push(Box::new(data));
    }
    for problem in problems {
        conformance::check(&gpu, &*problem).unwrap_or_else(|finding| panic!("{}: {finding}", problem.op()));
    }
}

/// On the CPU, with any schedule.
#[cfg(feature = "metal-harness")]
mod harness {
    use super::*;
    use abreast::Schedule;
    use abreast::conformance::Options;

    /// Parts of the names of the cases that run here: all edges, and the law for some numbers of rows. A Mac runs all.
    const EDGES: [&str; 7] =
        ["/fail_closed/", "/errors/", "/ties/", "/runs/", "/known/", "/memory/", "/hostile/b0"];
    const LAW: [&str; 7] =
        ["/law/r1/", "/law/r2/", "/law/r3/", "/law/r7/", "/law/r8/", "/law/r9/", "/law/r33/"];
    const MORE: [&str; 4] = ["/law/scratch", "/law/no_rows", "/replay/", "/hostile/b1"];

    fn holds(schedule: Schedule, filters: &[&[&str]]) {
        let Some(gpu) = or_skipped(Device::metal_harness(schedule)) else { return };
        for filter in filters.concat() {
            let options = Options { filter: Some(filter.into()), ..Options::default() };
            let start = std::time::Instant::now();
            let report = conformance::run(&gpu, &options, &mut |_| ());
            println!(
                "{filter} {schedule:?}: {} cases, {:.1} s",
                report.cases(),
                start.elapsed().as_secs_f64()
            );
            assert!(report.is_good(), "{schedule:?}: {:#?}", report.failures);
        }
    }

    #[test]
    fn the_suite_holds() {
        holds(Schedule::default(), &[&EDGES, &LAW, &MORE]);
    }

    #[test]
    fn the_suite_holds_backwards() {
        holds(Schedule { backwards: true, ..Schedule::default() }, &[&EDGES, &LAW]);
    }

    /// Apple's chips have no subnormal numbers: results may differ from the CPU's there, the law and the oracle hold.
    #[test]
    fn the_suite_holds_without_subnormals() {
        holds(Schedule { flush_subnormals: true, ..Schedule::default() }, &[&["/ties/", "/runs/", "/known/", "/fail_closed/", "/law/r4/", "/law/r9/", "/replay/"]]);
    }
}
