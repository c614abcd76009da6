//! The suite, the recorded step and the CPU's bits on an NVIDIA GPU; skipped, and said, where there is none.
#![cfg(feature = "cuda")]

#[path = "common/gpu.rs"]
mod on_gpu;

use abreast::conformance::{self, Decoder, Options};
use abreast::{
    Compress, CompressRow, Device, Emit, GatherRow, GatherRows, IndexScores, IndexScoresRow, Kind, Limits,
    Method, Result, StateLayout, bf16,
};

/// The GPU; `None`, printed, where this machine has none.
fn gpu() -> Option<Device> {
    Device::open(Kind::Cuda).map_err(|why| println!("SKIPPED: {why}")).ok()
}

fn the_suite_holds(method: Method) {
    let Some(gpu) = gpu() else { return };
    let report = conformance::run(&gpu, &Options { method, ..Options::default() }, &mut |_| ());
    println!("{}, {method:?}: {} cases, {:?}", gpu.describe(), report.cases(), report.counts());
    assert!(report.is_good(), "{:#?}", report.failures);
}

#[test]
fn the_suite_holds_for_reference() {
    the_suite_holds(Method::Reference);
}

#[test]
fn the_suite_holds_for_fast() {
    the_suite_holds(Method::Fast);
}

/// A handle goes when its work is done: other handles' memory that it uses may be freed and taken right after.
#[test]
fn a_handle_goes_when_its_work_is_done() {
    let Some(owner) = gpu() else { return };
    let (rows, len) = (64, 2 << 20);
    let mut out = owner.zeros::<u32>(rows * len).expect("memory");
    for round in 0..5 {
        let source = owner.upload(&vec![round; len]).expect("memory");
        owner.synchronize().expect("no fault");
        let user = gpu().expect("a handle");
        let list = vec![GatherRow { source: source.view().into() }; rows];
        let copies = out.shaped_mut([rows, len]).expect("a shape").into();
        user.gather_rows(GatherRows { rows: &list, out: copies }).expect("copies");
        drop(user);
        drop(source);
        drop(owner.upload(&vec![u32::MAX; len]).expect("memory"));
        assert!(out.read().expect("results").iter().all(|&x| x == round), "round {round}");
    }
}

/// What a step's calls drop is used by its timed repetitions too.
#[test]
fn timed_steps_keep_what_they_drop() {
    let Some(gpu) = gpu() else { return };
    let other = gpu.clone();
    let mut out = gpu.zeros::<u32>(5000).expect("memory");
    let mut step = gpu.step(Limits { rows: 1, width: 0, keys: 0 }).expect("a step");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Takes whatever is free.
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                drop(other.upload(&[u32::MAX; 5000]).expect("memory"));
            }
        });
        for _ in 0..20 {
            let times = step.time(100, |calls| {
                let source = gpu.upload(&[7u32; 5000])?;
                let rows = [GatherRow { source: source.view().into() }];
                calls.gather_rows(GatherRows { rows: &rows, out: out.shaped_mut([1, 5000])?.into() })
            });
            let good = times.is_ok() && out.read().is_ok_and(|out| out == [7; 5000]);
            if !good {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert!(good, "{times:?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// Rows that no block has the shared memory for are refused, and the device lives on.
#[test]
fn too_wide_rows_are_refused() {
    let Some(gpu) = gpu() else { return };
    for features in [1 << 17, 1 << 20] {
        for refused in [wide_scores(&gpu, features), wide_entry(&gpu, features)] {
            let why = refused.expect_err("more than a block has").to_string();
            assert!(why.contains("rows are too wide"), "{why}");
            assert_eq!(gpu.upload(&[7u32]).and_then(|x| x.read()).expect("no fault"), [7]);
        }
    }
}

fn wide_scores(gpu: &Device, dim: usize) -> Result<()> {
    let (q, weights, mut out) = (gpu.zeros::<bf16>(dim)?, gpu.zeros::<f32>(1)?, gpu.zeros::<f32>(1)?);
    let row = IndexScoresRow { query: 0, start_pos: 0, keys: q.shaped([1, dim])?, out: 0 };
    gpu.index_scores(IndexScores {
        q: q.shaped([1, 1, dim])?,
        weights: weights.shaped([1, 1])?,
        ratio: 1,
        method: Method::Reference,
        rows: &[row],
        out: out.view_mut(),
        status: None,
    })
}

fn wide_entry(gpu: &Device, d: usize) -> Result<()> {
    let fed = gpu.zeros::<f32>(d)?;
    let (mut values, mut scores, mut out) = (gpu.zeros(d)?, gpu.zeros(d)?, gpu.zeros::<bf16>(d)?);
    let row = CompressRow {
        start_pos: 0,
        kv: fed.shaped([1, d])?,
        score: fed.shaped([1, d])?,
        kv_state: values.shaped_mut([1, d])?,
        score_state: scores.shaped_mut([1, d])?,
        out: 0,
    };
    gpu.compress(Compress {
        ratio: 1,
        layout: StateLayout::Ring,
        emit: Emit::Blocks,
        ape: fed.shaped([1, d])?,
        norm: fed.view(),
        epsilon: 1e-6,
        rows: &mut [row],
        out: out.shaped_mut([1, d])?,
        status: None,
    })
}

#[test]
fn the_bits_are_the_cpus() {
    gpu().iter().for_each(on_gpu::the_bits_are_the_cpus);
}

#[test]
fn replayed_steps_have_the_bits_of_the_cpu() {
    gpu().iter().for_each(|gpu| on_gpu::replayed_steps_have_the_bits_of_the_cpu(gpu, 200));
}

/// On the caller's streams, with views of memory by its address.
#[test]
fn the_callers_stream_and_memory() {
    let Some(own) = gpu() else { return };
    let cpu = Device::cpu().expect("a CPU");
    let want = Decoder::new(&cpu, Method::Reference, (3, false)).and_then(|mut d| d.run(40)).expect("steps");
    // CUDA's names for the legacy default stream and for the one of this thread.
    for stream in [0, 1, 2] {
        // SAFETY: these streams are always there.
        let gpu = unsafe { Device::cuda_on_stream(0, stream as *mut std::ffi::c_void) }.expect("a handle");
        // The legacy default stream cannot be recorded; steps are recorded on a stream of their own.
        for recorded in [false, true] {
            let got = Decoder::new(&gpu, Method::Reference, (3, recorded))
                .and_then(|mut d| d.run(40))
                .expect("steps");
            assert_eq!(got, want, "stream {stream}, recorded: {recorded}");
        }
        let source = gpu.upload(&[1.0f32, 2.0, 3.0]).expect("a buffer");
        let mut out = gpu.zeros::<f32>(3).expect("a buffer");
        // SAFETY: the buffer lives until the copy has been read back.
        let view = unsafe { abreast::View::<f32, 1>::from_raw(source.view().as_ptr(), [3], gpu.id()) };
        let rows = [abreast::GatherRow { source: view.into() }];
        let whole = out.shaped_mut([1, 3]).expect("a shape").into();
        gpu.gather_rows(abreast::GatherRows { rows: &rows, out: whole }).expect("a copy");
        assert_eq!(out.read().expect("read"), [1.0, 2.0, 3.0]);
    }
    drop(own);
}

// What takes minutes, or the whole card: `--include-ignored`.

/// Queues large calls on a stream of its own until told to stop.
fn busy(stop: &std::sync::atomic::AtomicBool) {
    let gpu = Device::open(Kind::Cuda).expect("a second handle");
    let source = gpu.zeros::<f32>(1 << 24).expect("memory");
    let mut out = gpu.zeros::<f32>(1 << 24).expect("memory");
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        for _ in 0..20 {
            let rows = [abreast::GatherRow { source: source.view().into() }];
            let out = out.shaped_mut([1, 1 << 24]).expect("a shape").into();
            gpu.gather_rows(abreast::GatherRows { rows: &rows, out }).expect("a copy");
        }
        gpu.synchronize().expect("no fault");
    }
}

#[test]
#[ignore = "needs a GPU to itself for a while"]
fn repeats_have_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let first = conformance::digest(&gpu).expect("digests");
    let repeat = |times: usize| {
        for n in 0..times {
            assert_eq!(conformance::digest(&gpu).expect("digests"), first, "repeat {n}");
        }
    };
    repeat(250);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| busy(&stop));
        repeat(250);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
#[ignore = "needs a GPU to itself for a while"]
fn streams_do_not_mix() {
    if gpu().is_none() {
        return;
    }
    let decode = |device: &Device, seed: u64, recorded: bool| {
        Decoder::new(device, Method::Reference, (seed, recorded))
            .and_then(|mut d| d.run(2_000))
            .expect("steps")
    };
    let cpu = Device::cpu().expect("a CPU");
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (cpu, decode) = (&cpu, &decode);
            scope.spawn(move || {
                let gpu = Device::open(Kind::Cuda).expect("a handle");
                assert_eq!(decode(&gpu, seed, seed % 2 == 0), decode(cpu, seed, false), "stream {seed}");
            });
        }
    });
}

#[test]
#[ignore = "needs a GPU to itself for a while"]
fn one_handle_on_eight_threads() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu().expect("a CPU");
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (gpu, cpu) = (&gpu, &cpu);
            scope.spawn(move || {
                let run = |device: &Device| {
                    Decoder::new(device, Method::Reference, (seed, seed % 2 == 1))
                        .and_then(|mut d| d.run(500))
                };
                assert_eq!(run(gpu).expect("steps"), run(cpu).expect("steps"), "thread {seed}");
            });
        }
    });
}

#[test]
#[ignore = "needs a GPU to itself for a while"]
fn soak() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu().expect("a CPU");
    let mut replayed = Decoder::new(&gpu, Method::Reference, (9, true)).expect("a decoder");
    let mut called = Decoder::new(&cpu, Method::Reference, (9, false)).expect("a decoder");
    for round in 0..100 {
        assert_eq!(replayed.run(1_000).expect("steps"), called.run(1_000).expect("steps"), "round {round}");
    }
}
