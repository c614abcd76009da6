//! Memory of the card: all of it given back, and none of it left.

use crate::common::{Work, load};
use crate::{open, run_alone};
use abreast::conformance::RowBits;
use abreast::{Buffer, Device, Error, GatherRow, GatherRows, Limits, Result, Step};
use cudarc::driver::CudaContext;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const MIB: usize = 1 << 20;

#[test]
fn memory_is_given_back() {
    run_alone("cuda_process::memory::opens_and_drops");
}

/// ABREAST_TEST_OPENINGS asks for fewer openings, for slow tools.
#[test]
#[ignore = "a process of memory_is_given_back"]
fn opens_and_drops() {
    let openings = std::env::var("ABREAST_TEST_OPENINGS").map_or(1000, |n| n.parse().expect("a number"));
    // Some from nothing: the device's context comes and goes with the handle.
    (0..5).for_each(open_and_drop);
    stays_flat("openings", openings, open_and_drop);
}

/// Does something ten times, then many times more: neither memory grows.
fn stays_flat(what: &str, times: usize, mut something: impl FnMut(usize)) {
    // The device's context stays now, and can be asked.
    let context = CudaContext::new(0).expect("a context");
    let used = || {
        context.synchronize().expect("no fault");
        let (free, total) = context.mem_get_info().expect("figures");
        (total - free, resident())
    };
    (0..10).for_each(&mut something);
    let before = used();
    (0..times).for_each(&mut something);
    let after = used();
    println!("{times} {what}: (device, host) bytes in use {before:?} before, {after:?} after");
    assert!(after.0 <= before.0 + 4 * MIB, "the device's memory leaks");
    assert!(after.1 <= before.1 + 64 * MIB, "the host's memory leaks");
    context.check_err().expect("an error of something that was freed");
}

#[test]
fn steps_give_their_memory_back() {
    run_alone("cuda_process::memory::records_anew");
}

/// A step whose shape changes from run to run is recorded anew each time; other steps come and go beside it.
#[test]
#[ignore = "a process of steps_give_their_memory_back"]
fn records_anew() {
    let device = open();
    let limits = Limits { rows: 8, width: 1, keys: 1 };
    let source = device.upload(&[1.0f32; 64]).expect("a buffer");
    let mut out = device.zeros::<f32>(8 * 64).expect("a buffer");
    let mut lasting = device.step(limits).expect("a step");
    stays_flat("recordings", 5000, |n| {
        let (rows, len) = (1 + n % 8, 1 + n % 61);
        let row = GatherRow { source: source.view().slice(0..len).into() };
        let rows = vec![row; rows];
        let mut passing = device.step(limits).expect("a step");
        for step in [&mut lasting, &mut passing] {
            let out = out.view_mut().slice(0..rows.len() * len).reshape([rows.len(), len]).expect("a shape");
            step.run(|calls| calls.gather_rows(GatherRows { rows: &rows, out: out.into() })).expect("a run");
        }
    });
}

#[test]
fn open_steps_keep_no_later_memory() {
    run_alone("cuda_process::memory::steps_overlap");
}

/// Some step is open at any time. Much more memory comes and goes than there is.
#[test]
#[ignore = "a process of open_steps_keep_no_later_memory"]
fn steps_overlap() {
    let device = open();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let device = open();
                let source = device.upload(&[1.0f32; 4]).expect("a buffer");
                let mut out = device.zeros::<f32>(4).expect("a buffer");
                let mut step = device.step(Limits { rows: 1, width: 1, keys: 1 }).expect("a step");
                while !stop.load(Relaxed) {
                    gather(&mut step, (&source, &mut out)).expect("a run");
                }
            });
        }
        let dropped = (0..1000).try_for_each(|_| device.zeros::<u8>(1 << 30).map(drop));
        stop.store(true, Relaxed);
        dropped.expect("memory that was given up");
    });
}

/// Every operation on a handle of its own; every other time all is dropped while the work is queued.
fn open_and_drop(n: usize) {
    let device = open();
    let mut work = load(&device);
    let large = device.zeros::<u8>(MIB).expect("a buffer");
    for work in &mut work {
        if n.is_multiple_of(2) {
            work.run();
        } else {
            work.call().expect("queued");
        }
    }
    drop((work, large));
}

/// Bytes of this process in the machine's memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a figure");
    1024 * line.split_whitespace().nth(1).expect("a figure").parse::<usize>().expect("a figure")
}

#[test]
fn a_full_card_is_an_error() {
    run_alone("cuda_process::memory::fills_the_card");
}

/// Takes all that there is, down to the last bytes.
fn fill(device: &Device) -> Vec<Buffer<u8>> {
    let (mut taken, mut size) = (Vec::new(), 1 << 40);
    while size > 0 {
        match device.zeros(size) {
            Ok(buffer) => taken.push(buffer),
            Err(Error::OutOfMemory { .. }) => size /= 2,
            Err(why) => panic!("{why}"),
        }
    }
    taken
}

fn untouched(work: &Work) {
    work.loaded.results(&[]).unwrap_or_else(|why| panic!("{}, outputs: {why:?}", work.op));
}

fn gather(step: &mut Step, (source, out): (&Buffer<f32>, &mut Buffer<f32>)) -> Result<()> {
    let rows = [GatherRow { source: source.view().into() }];
    let out = out.shaped_mut([1, 4])?.into();
    step.run(|calls| calls.gather_rows(GatherRows { rows: &rows, out }))
}

#[test]
#[ignore = "a process of a_full_card_is_an_error"]
fn fills_the_card() {
    let cpu = Device::cpu().expect("a CPU");
    let want: Vec<Vec<RowBits>> = load(&cpu).iter_mut().map(Work::run).collect();
    // One has no memory of its own yet; the other has, but only one of its kernels.
    let (bare, used, filler) = (open(), open(), open());
    let (mut on_bare, mut on_used) = (load(&bare), load(&used));
    assert_eq!(on_used[0].run(), want[0]);
    on_bare.iter_mut().chain(&mut on_used).for_each(Work::reset);
    let (source, mut out) = (bare.upload(&[1.0f32; 4]).expect("room"), bare.zeros::<f32>(4).expect("room"));
    let mut step = bare.step(Limits { rows: 1, width: 1, keys: 1 }).expect("a step");

    for round in 0..2 {
        let taken = fill(&filler);
        let refused = |result: &Result<()>| matches!(result, Err(Error::OutOfMemory { .. }));
        if round == 0 {
            for work in &mut on_bare {
                let result = work.call();
                assert!(refused(&result), "{} on a full card gives {result:?}", work.op);
                untouched(work);
            }
            let result = gather(&mut step, (&source, &mut out));
            assert!(refused(&result), "a step on a full card gives {result:?}");
            assert_eq!(out.read().expect("read"), [0.0; 4]);
        }
        let mut results = Vec::new();
        for (work, want) in on_used.iter_mut().zip(&want) {
            work.reset();
            let result = work.call();
            match &result {
                Ok(()) => assert_eq!(&work.results(), want, "{}", work.op),
                _ if refused(&result) => untouched(work),
                Err(why) => panic!("{}: {why}", work.op),
            }
            results.push((work.op, result.is_ok()));
        }
        println!("{} buffers filled the card; calls that need no more of it: {results:?}", taken.len());
        drop(taken);
        filler.synchronize().expect("freed");
        for (n, want) in want.iter().enumerate() {
            assert_eq!([&on_bare[n].run(), &on_used[n].run()], [want, want], "{}", on_bare[n].op);
        }
        gather(&mut step, (&source, &mut out)).expect("room again");
        assert_eq!(out.read().expect("read"), [1.0; 4]);
    }
}
