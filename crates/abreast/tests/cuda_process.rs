//! Cold, killed, forked and failing processes on an NVIDIA GPU; skipped, and said, where there is none.
#![cfg(all(unix, feature = "cuda", feature = "conformance"))]

mod common;
mod cuda_process {
    mod cache;
    mod failure;
    mod memory;
}

use abreast::{Device, Kind};
use common::passes;
use std::ffi::OsStr;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The GPU is one test's alone: some fill it. `None`, printed, where this machine has none.
fn gpu() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::open(Kind::Cuda) {
        Ok(_) => Some(alone),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

fn open() -> Device {
    Device::open(Kind::Cuda).expect("a GPU")
}

const CACHE: &str = "ABREAST_CACHE";
const BITS: &str = "ABREAST_TEST_BITS";

/// A process that opens the GPU with this compile cache and computes; it passes where the bits are these.
fn computing(cache: &OsStr, bits: &str) -> Child {
    common::start("computes", &[(CACHE, cache), (BITS, OsStr::new(bits))])
}

#[test]
#[ignore = "a process of others"]
fn computes() {
    // Where many are to start at once, they wait for this.
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new()).expect("the start");
    let want = std::env::var(BITS).expect("only for a process that another test starts");
    assert_eq!(common::bits(&open()), want);
}

/// The right bits.
fn want() -> String {
    common::bits(&Device::cpu().expect("a CPU"))
}

/// Runs the ignored test of this name in a process of its own, where there is a GPU.
fn run_alone(test: &str) {
    if let Some(_alone) = gpu() {
        print!("{}", passes(common::start(test, &[])));
    }
}
