//! The suite, the recorded step and the CPU's bits on an NVIDIA GPU; skipped, and said, where there is none.
#![cfg(feature = "cuda")]

use abreast::conformance::{self, Decoder, Options};
use abreast::{Device, Kind};

/// The GPU; `None`, printed, where this machine has none.
fn gpu() -> Option<Device> {
    Device::open(Kind::Cuda).map_err(|why| println!("SKIPPED: {why}")).ok()
}

#[test]
fn the_suite_holds() {
    let Some(gpu) = gpu() else { return };
    let report = conformance::run(&gpu, &Options::default(), &mut |_| ());
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
    assert_eq!(replayed.run(200).expect("steps"), called.run(200).expect("steps"));
}
