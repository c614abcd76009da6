//! What a process may do to a device on the CPU.
#![cfg(unix)]

mod common;

use abreast::conformance::RowBits;
use abreast::{CpuOptions, Device, Error};
use common::{Work, bits, load, passes, returns_when_forked, start};

#[test]
fn a_forked_child_gets_an_error() {
    passes(start("forks", &[]));
}

#[test]
#[ignore = "a process of a_forked_child_gets_an_error"]
fn forks() {
    let open = || Device::cpu_with(CpuOptions { threads: Some(4), isa: None }).expect("a CPU");
    let results = |device: &Device| -> Vec<Vec<RowBits>> { load(device).iter_mut().map(Work::run).collect() };
    let (device, dropped_by_both) = (open(), open());
    // The threads have worked: they are what the child lacks.
    let want = (bits(&device), results(&device));
    assert_eq!(bits(&dropped_by_both), want.0);
    let mut work = load(&device);
    let returned = returns_when_forked(|| {
        for work in &mut work {
            let refused = work.call();
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{}: {refused:?}", work.op);
        }
        let own = open();
        assert_eq!((bits(&own), results(&own)), want, "a handle of the child's own");
        drop(dropped_by_both);
    });
    assert!(returned);
    assert_eq!((bits(&device), results(&device)), want, "the parent's handle, after the fork");
}
