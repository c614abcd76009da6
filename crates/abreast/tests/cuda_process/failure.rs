//! A device that fails, and a process that forks.

use crate::common::{Work, bits, load, returns_when_forked};
use crate::{open, run_alone, want};
use abreast::{Buffer, Device, Error, GatherRow, GatherRows, Kind, Limits, Result, Step, View};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A handle with all that a call could go through.
struct Handle {
    device: Device,
    work: Vec<Work>,
    buffer: Buffer<f32>,
    out: Buffer<f32>,
    step: Step,
}

impl Handle {
    /// Everything works.
    fn new() -> Handle {
        let device = open();
        let mut handle = Handle {
            work: load(&device),
            buffer: device.upload(&[1.0; 4]).expect("a buffer"),
            out: device.zeros(4).expect("a buffer"),
            step: device.step(Limits { rows: 8, width: 128, keys: 512 }).expect("a step"),
            device,
        };
        for (call, result) in handle.calls() {
            result.unwrap_or_else(|why| panic!("{call}: {why}"));
        }
        assert_eq!(handle.out.read().expect("read"), [1.0; 4]);
        handle
    }

    /// Makes every call there is.
    fn calls(&mut self) -> Vec<(&'static str, Result<()>)> {
        let mut calls: Vec<_> = self.work.iter_mut().map(|work| (work.op, work.call())).collect();
        let rows = [GatherRow { source: self.buffer.view().into() }];
        let out = self.out.shaped_mut([1, 4]).expect("a shape").into();
        let step = self.step.run(|calls| calls.gather_rows(GatherRows { rows: &rows, out }));
        calls.extend([
            ("step", step),
            ("write", self.buffer.write(&[1.0; 4])),
            ("read", self.buffer.read().map(drop)),
            ("zeros", self.device.zeros::<u8>(100).map(drop)),
            ("upload", self.device.upload(&[1u8; 100]).map(drop)),
            ("synchronize", self.device.synchronize()),
            ("a clone's synchronize", self.device.clone().synchronize()),
        ]);
        calls
    }

    fn all_fail(&mut self, with: fn(&Error) -> bool) {
        for (call, result) in self.calls() {
            assert!(result.as_ref().is_err_and(with), "{call} gives {result:?}");
        }
    }
}

#[test]
fn a_device_fault_stays_an_error() {
    run_alone("cuda_process::failure::faults");
}

#[test]
#[ignore = "a process of a_device_fault_stays_an_error"]
fn faults() {
    let is_fault: fn(&Error) -> bool = |why| matches!(why, Error::Fault { .. });
    let cpu = Device::cpu().expect("a CPU");
    let want = bits(&cpu);
    let (mut handle, mut other) = (Handle::new(), Handle::new());
    // SAFETY: none. Nothing is at this address, for the device or the host: the fault is wanted.
    let nowhere = unsafe { View::<f32, 1>::from_raw(0x1000 as *const f32, [4], handle.device.id()) };
    let rows = [GatherRow { source: nowhere.into() }];
    let out = handle.out.shaped_mut([1, 4]).expect("a shape").into();
    // Queued: the fault may not have come yet.
    let queued = handle.device.gather_rows(GatherRows { rows: &rows, out });
    assert!(queued.is_ok() || queued.as_ref().is_err_and(is_fault), "{queued:?}");
    let read = handle.out.read();
    println!("the first read: {read:?}");
    assert!(read.as_ref().is_err_and(is_fault), "{read:?}");
    for _ in 0..3 {
        handle.all_fail(is_fault);
    }
    // They share the device's context, which is lost; so is every later handle of this process.
    other.all_fail(is_fault);
    let again = Device::open(Kind::Cuda).and_then(|device| device.upload(&[1.0f32])?.read());
    println!("a new handle: {again:?}");
    assert!(again.is_err(), "{again:?}");
    assert_eq!(bits(&cpu), want);
    drop((handle, other));
    assert_eq!(bits(&Device::cpu().expect("a CPU")), want);
}

#[test]
fn a_forked_child_gets_an_error() {
    run_alone("cuda_process::failure::forks");
}

#[test]
#[ignore = "a process of a_forked_child_gets_an_error"]
fn forks() {
    let (mut handle, dropped_by_both, want) = (Handle::new(), Handle::new(), want());
    let before = bits(&handle.device);
    let returned = returns_when_forked(|| {
        handle.all_fail(|why| matches!(why, Error::Unavailable { .. }));
        let again = Device::open(Kind::Cuda);
        assert!(again.is_err(), "CUDA does not survive a fork, but opened: {again:?}");
        assert_eq!(bits(&Device::cpu().expect("a CPU")), want);
        drop(dropped_by_both);
    });
    assert!(returned);
    handle
        .calls()
        .into_iter()
        .for_each(|(call, result)| result.unwrap_or_else(|why| panic!("{call}: {why}")));
    assert_eq!([before, bits(&handle.device)], [want.clone(), want]);
}

#[test]
fn a_forked_child_of_a_busy_process_gets_an_error() {
    run_alone("cuda_process::failure::forks_while_busy");
}

/// A thread opens and ends steps, and so holds this library's locks at many of the forks.
#[test]
#[ignore = "a process of a_forked_child_of_a_busy_process_gets_an_error"]
fn forks_while_busy() {
    let (mut handle, mut busy, stop) = (Handle::new(), Handle::new(), AtomicBool::new(false));
    let returned = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                busy.step.run(|_| Ok(())).expect("nothing to do");
            }
        });
        let mut child = || handle.all_fail(|why| matches!(why, Error::Unavailable { .. }));
        let returned = (0..200).all(|_| returns_when_forked(&mut child));
        stop.store(true, Relaxed);
        returned
    });
    assert!(returned);
}
