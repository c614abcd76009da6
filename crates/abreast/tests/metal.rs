//! Metal: on a Mac, or its kernels on the CPU (feature `metal-harness`). Skipped, and said, where there is neither; a failure there where
//! ABREAST_REQUIRE_METAL demands it.
#![cfg(feature = "metal")]

#[path = "common/gpu.rs"]
mod on_gpu;

use abreast::conformance;
use abreast::conformance::case::{Problem, index_scores, select_keys, sparse_attention};
use abreast::{
    Compress, CompressRow, Device, Emit, Error, GatherRow, GatherRows, Kind, Limits, Method, StateLayout,
};

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
    for method in [Method::Reference, Method::Fast] {
        let options = conformance::Options { method, ..Default::default() };
        let report = conformance::run(&gpu, &options, &mut |_| ());
        println!("{}, {method:?}: {} cases, {:?}", gpu.describe(), report.cases(), report.counts());
        assert!(report.is_good(), "{:#?}", report.failures);
    }
}

/// Host and device share memory: what one writes the other reads, where it stands.
#[test]
fn the_host_reads_and_writes_in_place() {
    let Some(gpu) = gpu() else { return };
    let mut source = gpu.zeros::<u32>(3000).expect("memory");
    let mut out = gpu.zeros::<u32>(3000).expect("memory");
    for round in 0..20 {
        let host = source.host_mut().expect("no fault").expect("shared memory");
        host.iter_mut().zip(round..).for_each(|(place, value)| *place = value);
        let rows = [GatherRow { source: source.view().into() }];
        let copied = out.shaped_mut([1, 3000]).expect("a shape").into();
        gpu.gather_rows(GatherRows { rows: &rows, out: copied }).expect("a copy");
        let copied = out.host().expect("no fault").expect("shared memory");
        assert!(copied.iter().copied().eq(round..round + 3000), "round {round}");
    }
}

/// Memory that is dropped while work uses it stays until that is done; its place may be taken at once.
#[test]
fn buffers_are_dropped_in_flight() {
    let Some(gpu) = gpu() else { return };
    let mut out = gpu.zeros::<u32>(100 * 5000).expect("memory");
    for (row, part) in (0..100u32).zip((0..100).map(|row| row * 5000..(row + 1) * 5000)) {
        let source = gpu.upload(&vec![row; 5000]).expect("memory");
        let rows = [GatherRow { source: source.view().into() }];
        let part = out.view_mut().slice(part).reshape([1, 5000]).expect("a shape").into();
        gpu.gather_rows(GatherRows { rows: &rows, out: part }).expect("a copy");
        drop(source);
        drop(gpu.upload(&[u32::MAX; 5000]).expect("memory"));
    }
    let out = out.read().expect("results");
    assert!((0..out.len()).all(|at| out[at] == at as u32 / 5000));
}

/// What a step's calls drop is used by its timed repetitions too.
#[test]
fn timed_steps_keep_what_they_drop() {
    let Some(gpu) = gpu() else { return };
    let mut out = gpu.zeros::<u32>(5000).expect("memory");
    let mut step = gpu.step(Limits { rows: 1, width: 0, keys: 0 }).expect("a step");
    let times = step.time(3, |calls| {
        let source = gpu.upload(&[7u32; 5000])?;
        let rows = [GatherRow { source: source.view().into() }];
        calls.gather_rows(GatherRows { rows: &rows, out: out.shaped_mut([1, 5000])?.into() })
    });
    assert_eq!(times.expect("times").len(), 3);
    assert_eq!(out.read().expect("results"), [7; 5000]);
}

/// Apple's threadgroups have 32 KiB: one that needs more is refused, and the handle goes on.
#[test]
fn wide_compressors_are_refused() {
    let Some(gpu) = gpu() else { return };
    for (d, fits) in [(7680, true), (7712, false), (512, true)] {
        let [zeros, mut kv_state, mut score_state] = [(); 3].map(|()| gpu.zeros::<f32>(d).expect("memory"));
        let mut out = gpu.zeros::<half::bf16>(d).expect("memory");
        let (shape, shaped) = ([1, d], "a shape");
        let row = CompressRow {
            start_pos: 0,
            kv: zeros.shaped(shape).expect(shaped),
            score: zeros.shaped(shape).expect(shaped),
            kv_state: kv_state.shaped_mut(shape).expect(shaped),
            score_state: score_state.shaped_mut(shape).expect(shaped),
            out: 0,
        };
        let done = gpu.compress(Compress {
            ratio: 1,
            layout: StateLayout::Shifted,
            emit: Emit::EveryToken,
            ape: zeros.shaped(shape).expect(shaped),
            norm: zeros.view(),
            epsilon: 1e-6,
            rows: &mut [row],
            out: out.shaped_mut(shape).expect(shaped),
            status: None,
        });
        assert_eq!(done.is_ok(), fits, "{d}: {done:?}");
        gpu.synchronize().expect("no fault");
    }
}

#[test]
fn the_bits_are_the_cpus() {
    gpu().iter().for_each(on_gpu::the_bits_are_the_cpus);
}

#[test]
fn replayed_steps_have_the_bits_of_the_cpu() {
    gpu().iter().for_each(|gpu| on_gpu::replayed_steps_have_the_bits_of_the_cpu(gpu, 40));
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
        problems.push(Box::new(sparse_attention::Shape { heads, dim, rows }.generate(heads as u64)));
    }
    for (heads, dim, keys) in SCORES {
        let row = |&keys: &u32| index_scores::RowShape { start_pos: (4 * keys).saturating_sub(1), spare: 3 };
        let scores = index_scores::Shape { heads, dim, ratio: 4, rows: keys.iter().map(row).collect() };
        problems.push(Box::new(scores.generate(heads as u64)));
        problems.push(Box::new(select_keys::Shape { scores, k: 16 }.generate(heads as u64)));
    }
    for problem in problems {
        conformance::check(&gpu, &*problem, Method::Fast)
            .unwrap_or_else(|finding| panic!("{}: {finding}", problem.op()));
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
    const LAW: [&str; 6] = ["/law/r1/", "/law/r2/", "/law/r3/", "/law/r8/", "/law/r9/", "/law/no_rows"];
    const STEPS: [&str; 2] = ["/replay/", "sparse_attention/law/scratch"];
    /// Of the operations that have two methods.
    const FAST: [&str; 5] =
        ["attention/fail", "scores/fail", "attention/law/r3/", "scores/law/r3/", "select_keys/law/r2/"];

    fn holds(schedule: Schedule, method: Method, filters: &[&str]) {
        let Some(gpu) = or_skipped(Device::metal_harness(schedule)) else { return };
        for &filter in filters {
            let options = Options { filter: Some(filter.into()), method, ..Options::default() };
            let start = std::time::Instant::now();
            let report = conformance::run(&gpu, &options, &mut |_| ());
            let seconds = start.elapsed().as_secs_f64();
            println!("{schedule:?}, {method:?}, {filter}: {} cases, {seconds:.1} s", report.cases());
            assert!(report.is_good(), "{schedule:?}, {method:?}: {:#?}", report.failures);
        }
    }

    const IN_ORDER: Schedule = Schedule { backwards: false, flush_subnormals: false };
    const BACKWARDS: Schedule = Schedule { backwards: true, flush_subnormals: false };

    #[test]
    fn the_suite_holds() {
        holds(IN_ORDER, Method::Reference, &[&EDGES[..], &LAW, &STEPS].concat());
    }

    #[test]
    fn the_suite_holds_backwards() {
        let some = ["/fail_closed/", "/ties/five_values", "/runs/any_cut", "/runs/emit", "/hostile/b0"];
        holds(BACKWARDS, Method::Reference, &[&some[..], &LAW].concat());
    }

    #[test]
    fn the_suite_holds_for_fast_kernels() {
        holds(IN_ORDER, Method::Fast, &FAST);
        holds(BACKWARDS, Method::Fast, &FAST);
    }

    /// Apple's chips take subnormal numbers for zeros: results may differ from the CPU's there, the law and the oracle hold.
    #[test]
    fn the_suite_holds_without_subnormals() {
        let schedule = Schedule { backwards: false, flush_subnormals: true };
        holds(schedule, Method::Reference, &["/fail_closed/", "/hostile/b0", "/law/r3/"]);
    }
}
