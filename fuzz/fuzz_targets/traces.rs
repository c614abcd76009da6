//! Any bytes as a recording for `abreast replay`: read or refused in one line, never a panic.

#![no_main]

use abreast_cli::replay;
use abreast_fuzz::recording;
use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static SMALL: LazyLock<(Vec<u8>, Vec<u8>)> = LazyLock::new(|| {
    let (json, tensors) = recording::small();
    assert_eq!(replay::check(&json, &[&tensors]), Ok((3, 3)), "undamaged");
    (json, tensors)
});

fn damaged(bytes: &[u8]) -> arbitrary::Result<()> {
    let mut draw = Unstructured::new(bytes);
    let (mut json, mut tensors) = SMALL.clone();
    let data = tensors.len() - 8 - u64::from_le_bytes(*tensors.first_chunk().expect("a length")) as usize;
    for _ in 0..draw.int_in_range(0..=3)? {
        recording::damage(&mut json, &mut draw)?;
    }
    for _ in 0..draw.int_in_range(0..=3)? {
        recording::damage(&mut tensors, &mut draw)?;
    }
    if draw.arbitrary()? {
        recording::mend_header(&mut tensors, data);
    }
    check(&json, &tensors);
    Ok(())
}

fn check(json: &[u8], tensors: &[u8]) {
    if let Err(line) = replay::check(json, &[tensors]) {
        assert!(!line.is_empty() && line.len() < 100_000, "{line}");
    }
}

fuzz_target!(|bytes: &[u8]| {
    // The bytes as they are, as either file; then the small recording with the damage that they say.
    check(bytes, &SMALL.1);
    check(&SMALL.0, bytes);
    let _ = damaged(bytes);
});
