//! What any GPU's tests hold against the CPU.

use abreast::conformance::{self, Decoder};
use abreast::{Device, Method};

pub(crate) fn the_bits_are_the_cpus(gpu: &Device) {
    let cpu = Device::cpu().expect("a CPU");
    let digests = [gpu, &cpu].map(|device| conformance::digest(device).expect("digests"));
    assert_eq!(digests[0], digests[1]);
}

/// A recorded step, replayed, against the calls one by one.
pub(crate) fn replayed_steps_have_the_bits_of_the_cpu(gpu: &Device, steps: usize) {
    let cpu = Device::cpu().expect("a CPU");
    let run = |device: &Device, recorded: bool| {
        Decoder::new(device, Method::Reference, (5, recorded)).and_then(|mut d| d.run(steps)).expect("steps")
    };
    assert_eq!(run(gpu, true), run(&cpu, false));
}
