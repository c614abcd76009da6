//! Every allocation of the device fails once: the call is refused, nothing is touched, and the next call is right.

// Of what tests with processes share, the problems alone.
#[allow(dead_code)]
mod common;

use abreast::{CpuOptions, Device, Error};
use common::load;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, but for the device's memory on a thread that has armed it.
struct Failing;

thread_local! {
    /// How many of the device's allocations still succeed; `None`: all.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Device memory asks for zeros, and for this alignment as nothing else here does.
const DEVICE_ALIGN: usize = 16;

// SAFETY: hands everything on to the system's allocator, or gives null, as an allocator may.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() == DEVICE_ALIGN {
            match LEFT.get() {
                Some(0) => return std::ptr::null_mut(),
                left => LEFT.set(left.map(|n| n - 1)),
            }
        }
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Runs `call` with `n` allocations that succeed; whether another one was asked for, and what it gave.
fn with<T>(n: usize, call: impl FnOnce() -> T) -> (bool, T) {
    LEFT.set(Some(n));
    let result = call();
    (LEFT.replace(None) == Some(0), result)
}

#[test]
fn every_allocation_of_a_call_may_fail() {
    let threads = Some(3);
    for kind in 0..common::problems().len() {
        let mut refused = 0;
        loop {
            // A new device: it keeps no scratch yet.
            let device = Device::cpu_with(CpuOptions { threads, isa: None }).unwrap();
            let want = load(&device)[kind].run();
            let device = Device::cpu_with(CpuOptions { threads, isa: None }).unwrap();
            let mut work = load(&device).swap_remove(kind);
            work.reset();
            let before = work.results();
            let (_, result) = with(refused, || work.call());
            match result {
                Ok(()) => {
                    assert_eq!(work.results(), want, "{}", work.op);
                    break;
                }
                Err(why) => assert!(matches!(why, Error::OutOfMemory { .. }), "{}: {why}", work.op),
            }
            assert_eq!(work.results(), before, "{}: touched before allocation {refused} failed", work.op);
            assert_eq!(work.run(), want, "{}: the next call", work.op);
            refused += 1;
            assert!(refused < 10, "{}: no end", work.op);
        }
        println!("{}: {refused} allocations", common::problems()[kind].op());
    }
}

#[test]
fn a_buffer_may_fail() {
    let device = Device::cpu().unwrap();
    let (asked, buffer) = with(0, || device.upload(&[1.0f32, 2.0]));
    assert!(asked && matches!(buffer, Err(Error::OutOfMemory { .. })), "{buffer:?}");
    assert_eq!(device.upload(&[1.0f32, 2.0]).unwrap().read().unwrap(), [1.0, 2.0]);
}
