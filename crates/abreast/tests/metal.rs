//! Metal: on a Mac, or its kernels on the CPU (feature `metal-harness`); skipped, and said, where there is neither.
#![cfg(feature = "metal")]

use abreast::conformance::case::{Problem, index_scores, select_keys, sparse_attention};
use abreast::conformance::{self, Decoder};
use abreast::{Device, Kind, Method};

/// The GPU; `None`, printed, where there is none.
fn gpu() -> Option<Device> {
    Device::open(Kind::Metal).map_err(|why| println!("SKIPPED: {why}")).ok()
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

/// The fast kernels: the law, the oracle and red zones, over tiles that are whole, partial and missing.
#[test]
fn fast_kernels_keep_the_law() {
    let Some(gpu) = gpu() else { return };
    let mut problems: Vec<Box<dyn Problem>> = Vec::new();
    for (heads, dim, widths) in [
        (64, 512, vec![0, 1, 33]),
        (3, 32, vec![65, 31, 32, 7]),
        (128, 64, vec![70, 2]),
        (17, 96, vec![40, 40]),
    ] {
        let row = |&width: &usize| sparse_attention::RowShape { kv_len: 50 + width, width };
        let rows = widths.iter().map(row).collect();
        let mut data = sparse_attention::Shape { heads, dim, rows }.generate(heads as u64);
        data.method = Method::Fast;
        problems.push(Box::new(data));
    }
    for (heads, dim, keys) in
        [(64, 128, vec![1, 70, 0]), (32, 128, vec![33, 32]), (3, 32, vec![5, 64]), (100, 64, vec![40])]
    {
        let row = |&keys: &u32| index_scores::RowShape { start_pos: (4 * keys).saturating_sub(1), spare: 3 };
        let shape = index_scores::Shape { heads, dim, ratio: 4, rows: keys.iter().map(row).collect() };
        let mut data = shape.generate(heads as u64);
        data.method = Method::Fast;
        problems.push(Box::new(data));
        let mut data = select_keys::Shape { scores: shape, k: 16 }.generate(heads as u64);
        data.scores.method = Method::Fast;
        problems.push(Box::new(data));
    }
    for problem in problems {
        conformance::check(&gpu, &*problem).unwrap_or_else(|finding| panic!("{}: {finding}", problem.op()));
    }
}
