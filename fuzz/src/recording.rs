//! A small recording of all three cores, and damage to it.

use arbitrary::{Result, Unstructured};
use safetensors::Dtype::{self, BF16, F32, F64, I32};
use safetensors::tensor::TensorView;

const MANIFEST: &str = r#"{"files": ["t.safetensors"], "groups": [{"id": "g", "cases": ["attention"]}, ["indexer"]],
"cases": [
{"id": "attention", "core": "sparse_attention", "source": "oracle", "kv_len": 3, "width": 4, "scale": 0.125,
 "inputs": {"q": "q", "kv": "kv", "indices": "indices", "sinks": "sinks"}, "outputs": {"out_f32": "out"},
 "patches": {"kv": [[1, 32640]]}, "zero_heads": [1]},
{"id": "indexer", "core": "indexer", "source": "hf", "pos": 19, "ratio": 4, "n_keys": 5, "valid_count": 5, "top_k": 2,
 "offset": 128, "inputs": {"q": "q", "weights": "weights", "keys": "keys"},
 "outputs": {"indices": "selected", "scores_f64": "scores"}},
{"id": "compressor", "core": "compressor", "mode": "mixed", "start_pos": 3, "tokens": 5, "ratio": 4, "coff": 2,
 "head_dim": 32, "eps": 1e-6, "emitted_at": [0, 4], "fail_closed_at": [4],
 "inputs": {"kv": "tokens", "score": "tokens", "ape": "ape", "norm": "norm", "kv_state": "state", "score_state": "state"},
 "outputs": {"out_bf16": "zeros", "kv_state": "state"}}]}"#;

const TENSORS: [(&str, Dtype, &[usize]); 14] = [
    ("q", BF16, &[2, 32]),
    ("kv", BF16, &[4, 32]),
    ("indices", I32, &[4]),
    ("sinks", F32, &[2]),
    ("out", F32, &[2, 32]),
    ("weights", F32, &[2]),
    ("keys", BF16, &[5, 32]),
    ("selected", I32, &[2]),
    ("scores", F64, &[5]),
    ("tokens", F32, &[5, 64]),
    ("ape", F32, &[4, 64]),
    ("norm", F32, &[32]),
    ("state", F32, &[8, 64]),
    ("spare", F32, &[0, 7]),
];

/// The JSON and the tensors, undamaged.
pub fn small() -> (Vec<u8>, Vec<u8>) {
    let zeros = [0; 8 * 64 * 4];
    let views = TENSORS.map(|(name, dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name, TensorView::new(dtype, shape.to_vec(), &zeros[..bytes]).expect("data of its shape"))
    });
    (MANIFEST.into(), safetensors::serialize(views, None).expect("tensors without a fault"))
}

/// Texts that parsers trip over.
const HOSTILE: [&str; 20] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "32",
    "33",
    "64",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "1e999",
    "0.5",
    "null",
    "[]",
    "{}",
    "\"q\"",
    "\"zeros\"",
    "[[",
];

/// Puts another text in the place of a number or a name, cuts the bytes off, or changes one.
pub fn damage(bytes: &mut Vec<u8>, draw: &mut Unstructured<'_>) -> Result<()> {
    let at = draw.choose_index(bytes.len().max(1))?.min(bytes.len());
    match draw.int_in_range(0..=7)? {
        0 => bytes.truncate(at),
        1 => bytes.splice(at..at, [draw.arbitrary()?]).for_each(drop),
        2 if at < bytes.len() => bytes[at] = draw.arbitrary()?,
        _ => {
            let part = |b: &u8| b.is_ascii_alphanumeric() || b"_.-\"".contains(b);
            let start = at + bytes[at..].iter().take_while(|b| !part(b)).count();
            let end = start + bytes[start..].iter().take_while(|b| part(b)).count();
            let text = draw.choose(&HOSTILE)?.bytes();
            bytes.splice(start..end, text).for_each(drop);
        }
    }
    Ok(())
}

/// Sets the length of a safetensors header to what it is, so that the rest of the damage is looked at.
pub fn mend_header(file: &mut [u8], data: usize) {
    if let Some((length, rest)) = file.split_first_chunk_mut::<8>() {
        *length = (rest.len().saturating_sub(data) as u64).to_le_bytes();
    }
}
