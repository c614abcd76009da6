//! The CPU backend: the whole suite, the same bits from every instruction set and number of threads, one handle on
//! many threads.

use abreast::conformance::case::{Problem, compress, index_scores, select_keys, sparse_attention, top_k};
use abreast::conformance::{self, Options, RowBits};
use abreast::{CpuOptions, Device, Emit, Isa, Method};

fn is_good(device: &Device) {
    let report = conformance::run(device, &Options::default(), &mut |_| ());
    println!("{}: {} cases, {:?}", device.describe(), report.cases(), report.counts());
    for failure in &report.failures {
        println!("FAILED {} ({}): {}", failure.case, failure.shape, failure.finding);
    }
    assert!(report.is_good(), "{} of {} cases failed", report.failures.len(), report.cases());
}

#[test]
fn conformance() {
    is_good(&Device::cpu().unwrap());
}

/// With more threads than cores, and numbers of them that divide nothing.
#[test]
fn conformance_of_narrower_vectors() {
    for (isa, threads) in Isa::ALL.into_iter().zip([5, 3, 7, 3]) {
        if isa.is_available() && isa != Isa::best() {
            is_good(&Device::cpu_with(CpuOptions { isa: Some(isa), threads: Some(threads) }).unwrap());
        }
    }
}

/// What `tests/golden/digest.txt` holds: a line per operation.
fn digest(device: &Device) -> String {
    let digest = conformance::digest(device).unwrap();
    digest.into_iter().map(|(op, bits)| format!("{op} {bits:016x}\n")).collect()
}

#[test]
fn golden_bits() {
    let golden = include_str!("golden/digest.txt");
    for isa in Isa::ALL {
        if !isa.is_available() {
            println!("not checked: this processor has no {isa}");
            continue;
        }
        for threads in 1..=6 {
            let device = Device::cpu_with(CpuOptions { isa: Some(isa), threads: Some(threads) }).unwrap();
            assert_eq!(digest(&device), golden, "{isa}, {threads} threads");
        }
    }
}

/// A small problem of every kind, a row more each time.
fn problems(rows: usize) -> Vec<Box<dyn Problem>> {
    let seed = rows as u64;
    let row = |r: usize| sparse_attention::RowShape { kv_len: 9 + r, width: 3 * r };
    let attention = sparse_attention::Shape { heads: 5, dim: 64, rows: (0..rows).map(row).collect() };
    let row = |r: usize| index_scores::RowShape { start_pos: 31 * r as u32, spare: 1 };
    let scores = index_scores::Shape { heads: 3, dim: 32, ratio: 2, rows: (0..rows).map(row).collect() };
    let top = top_k::Shape { k: 17, rows: (0..rows).map(|r| 40 * r).collect() };
    let row = |r: usize| compress::RowShape { start_pos: r as u32, tokens: 9 };
    let rows = (0..rows).map(row).collect();
    let runs = compress::Shape { ratio: 4, dim: 32, ring: None, emit: Emit::Blocks, rows };
    vec![
        Box::new(attention.generate(seed)),
        Box::new(scores.generate(seed)),
        Box::new(top.generate(seed)),
        Box::new(select_keys::Shape { scores, k: 7 }.generate(seed)),
        Box::new(runs.generate(seed)),
        // So large that the device's own threads take part.
        Box::new(top_k::Shape { k: 300, rows: vec![30_000; 3] }.generate(seed)),
    ]
}

fn joint(device: &Device, problem: &dyn Problem) -> Vec<RowBits> {
    joint_by(device, problem, Method::Reference)
}

fn joint_by(device: &Device, problem: &dyn Problem, method: Method) -> Vec<RowBits> {
    let all: Vec<usize> = (0..problem.rows()).collect();
    let mut loaded = problem.load(device, method).unwrap();
    loaded.reset(0x5a).unwrap();
    loaded.call(&all, 0).unwrap();
    loaded.results(&all).unwrap()
}

#[test]
fn one_handle_on_many_threads() {
    let device = Device::cpu().unwrap();
    let expected: Vec<Vec<Vec<RowBits>>> =
        (1..10).map(|rows| problems(rows).iter().map(|p| joint(&device, &**p)).collect()).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (device, expected) = (device.clone(), &expected);
            scope.spawn(move || {
                for call in 0..200 {
                    // Every thread on its own way through the problems; all buffers are dropped after each call.
                    let (rows, kind) = ((call * 7 + thread) % 9, (call + thread) % 6);
                    let got = joint(&device, &*problems(rows + 1)[kind]);
                    assert_eq!(got, expected[rows][kind], "thread {thread}, call {call}");
                }
            });
        }
    });
}

/// On the CPU both methods have one arithmetic.
#[test]
fn fast_is_reference() {
    let device = Device::cpu().unwrap();
    let rows = vec![sparse_attention::RowShape { kv_len: 50, width: 40 }; 3];
    let attention = sparse_attention::Shape { heads: 5, dim: 64, rows }.generate(1);
    let rows = vec![index_scores::RowShape { start_pos: 99, spare: 0 }; 3];
    let scores = index_scores::Shape { heads: 3, dim: 32, ratio: 2, rows }.generate(2);
    let both = |method| (joint_by(&device, &attention, method), joint_by(&device, &scores, method));
    assert_eq!(both(Method::Fast), both(Method::Reference));
}

/// A sink so low that it takes no weight is no sink, bit for bit.
#[test]
fn lowest_sink_is_none() {
    let device = Device::cpu().unwrap();
    let rows = vec![sparse_attention::RowShape { kv_len: 50, width: 41 }; 2];
    let mut data = sparse_attention::Shape { heads: 5, dim: 64, rows }.generate(1);
    data.sinks = None;
    let without = joint(&device, &data);
    data.sinks = Some(vec![f32::MIN; 5]);
    assert_eq!(joint(&device, &data), without);
}

#[test]
fn out_of_memory_is_an_error() {
    let device = Device::cpu().unwrap();
    let error = device.zeros::<f32>(1 << 60).unwrap_err();
    assert_eq!(error.to_string(), "cpu: out of memory: 4611686018427387904 bytes asked for a buffer");
    // Not even a number of bytes.
    let error = device.zeros::<f32>(usize::MAX).unwrap_err();
    assert!(matches!(error, abreast::Error::Argument { .. }), "{error}");
    for problem in problems(4) {
        conformance::check(&device, &*problem, Method::Reference).unwrap();
    }
}

/// Rows without keys cost no memory beside a long one, and a call with them works as it does without.
#[test]
fn padding_rows_need_no_scratch() {
    let device = Device::cpu().unwrap();
    let (keys, empty) = (1 << 20, 100_000);
    let mut rows = vec![index_scores::RowShape { start_pos: 0, spare: 0 }; empty];
    rows[empty / 2].start_pos = 4 * keys - 1;
    let scores = index_scores::Shape { heads: 1, dim: 32, ratio: 4, rows };
    let all = joint(&device, &select_keys::Shape { scores: scores.clone(), k: 3 }.generate(1));
    let one = select_keys::Shape { scores, k: 3 }.generate(1);
    let mut loaded = one.load(&device, Method::Reference).unwrap();
    loaded.reset(0x5a).unwrap();
    loaded.call(&[empty / 2], 0).unwrap();
    assert_eq!(loaded.results(&[empty / 2]).unwrap()[0], all[empty / 2]);
}
