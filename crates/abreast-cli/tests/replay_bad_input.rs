//! Bad input gives one clear line and exit status 2.

mod common;

use common::{Recording, abreast, temporary};
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use std::sync::OnceLock;

const ATTENTION: &str = "edge.attn.base";
const INDEXER: &str = "edge.idx.base";
const COMPRESSOR: &str = "edge.comp.r4_from_pos1";

/// One line on stderr with all of `words`, nothing on stdout, status 2.
fn assert_refused(name: &str, out: &Output, words: &[&str]) {
    let line = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{name}: {line}");
    assert_eq!(line.trim_end().lines().count(), 1, "{name}: {line}");
    assert!(out.stdout.is_empty(), "{name}");
    for word in words {
        assert!(line.contains(word), "{name}: {word:?} is not in {line}");
    }
}

fn run(dir: &Path) -> Output {
    abreast(&["replay", dir.to_str().expect("a path")])
}

/// A recording of one case with one thing wrong.
fn refused(id: &str, words: &[&str], spoil: impl FnOnce(&mut Recording)) {
    let mut r = Recording::of(&[id]);
    spoil(&mut r);
    let dir = temporary();
    r.write(dir.path());
    assert_refused(id, &run(dir.path()), words);
}

/// A recording of one case, its files then changed on disk.
fn refused_files(words: &[&str], spoil: impl FnOnce(&Path)) {
    let dir = temporary();
    Recording::of(&[ATTENTION]).write(dir.path());
    spoil(dir.path());
    assert_refused("files", &run(dir.path()), words);
}

#[test]
fn directories() {
    let dir = temporary();
    assert_refused("missing", &run(&dir.path().join("none")), &["none", "must be a directory"]);
    assert_refused("empty", &run(dir.path()), &["must hold manifest.json or edge.json"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("writes");
    assert_refused("a file", &run(&file), &["file", "must be a directory"]);
    std::fs::create_dir(dir.path().join("edge.json")).expect("a directory");
    assert_refused("a directory for a file", &run(dir.path()), &["edge.json", "must be a file"]);
}

#[test]
fn files() {
    refused_files(&["manifest.json", "t.safetensors", "not there"], |dir| {
        std::fs::remove_file(dir.join("t.safetensors")).expect("removes");
    });
    refused_files(&["t.safetensors", "header"], |dir| {
        std::fs::write(dir.join("t.safetensors"), "").expect("writes");
    });
    refused_files(&["t.safetensors", "header"], |dir| {
        std::fs::write(dir.join("t.safetensors"), u64::MAX.to_le_bytes()).expect("writes");
    });
    refused_files(&["t.safetensors", "not fully covered"], |dir| {
        let path = dir.join("t.safetensors");
        let bytes = std::fs::read(&path).expect("reads");
        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("writes");
    });
    refused_files(&["manifest.json", "EOF while parsing"], |dir| {
        std::fs::write(dir.join("manifest.json"), "{").expect("writes");
    });
    refused_files(&["manifest.json", "missing field `files`"], |dir| {
        std::fs::write(dir.join("manifest.json"), "{}").expect("writes");
    });
    refused_files(&["manifest.json", "recursion"], |dir| {
        let deep = format!("{{\"files\": [], \"cases\": {}", "[".repeat(100_000));
        std::fs::write(dir.join("manifest.json"), deep).expect("writes");
    });
}

/// A file that claims more than memory holds.
#[test]
fn absurd_sizes_on_disk() {
    refused_files(&["manifest.json", "at most 268435456 bytes"], |dir| {
        let file = std::fs::File::options().write(true).open(dir.join("manifest.json")).expect("opens");
        file.set_len(1 << 40).expect("sparse");
    });
    refused_files(&["t.safetensors", "not fully covered"], |dir| {
        let file = std::fs::File::options().write(true).open(dir.join("t.safetensors")).expect("opens");
        file.set_len(1 << 40).expect("sparse");
    });
}

#[test]
fn manifests() {
    let set = |key: &'static str, value: Value| move |r: &mut Recording| r.json[key] = value;
    refused(ATTENTION, &["files must lie beside it", "../t"], set("files", json!(["../t.safetensors"])));
    refused(ATTENTION, &["files must lie beside it", "/etc"], set("files", json!(["/etc/passwd"])));
    refused(ATTENTION, &["files must lie beside it"], set("files", json!([""])));
    refused(ATTENTION, &["must be in one file"], set("files", json!(["t.safetensors", "t.safetensors"])));
    refused(ATTENTION, &["no such tensor"], set("files", json!([])));
    refused(ATTENTION, &["at least one"], set("cases", json!([])));
    refused(ATTENTION, &["invalid type"], set("cases", json!({})));
    refused(ATTENTION, &["cases[0]", "missing field `id`"], set("cases", json!([{}])));
    refused(ATTENTION, &["cases[0]"], set("cases", json!([7])));
    refused(ATTENTION, &["group g", "case nobody"], set("groups", json!([{"id": "g", "cases": ["nobody"]}])));
    refused(ATTENTION, &["once", ATTENTION], set("groups", json!([[ATTENTION, ATTENTION]])));
    refused(ATTENTION, &["a group must be"], set("groups", json!([7])));
    refused(ATTENTION, &["control characters"], |r| r.case()["id"] = json!("a\nb"));
    refused(ATTENTION, &["unknown variant `dense`"], |r| r.case()["core"] = json!("dense"));
    refused(ATTENTION, &["case edge.attn.base: id must be unique"], |r| {
        let case = r.case().clone();
        r.json["cases"].as_array_mut().expect("cases").push(case);
    });
}

#[test]
fn groups_of_cases_that_cannot_be_one_call() {
    for other in [INDEXER, "edge.attn.big_logits", "edge.attn.sink_extremes"] {
        let mut r = Recording::of(&[ATTENTION, other]);
        r.json["groups"] = json!([[ATTENTION, other]]);
        let dir = temporary();
        r.write(dir.path());
        assert_refused(other, &run(dir.path()), &["groups[0]", ATTENTION, other, "must share"]);
    }
}

#[test]
fn numbers() {
    let set = |key: &'static str, value: Value| move |r: &mut Recording| r.case()[key] = value;
    for value in [json!(-1), json!(1.5), json!("4"), json!(null), json!(1e300)] {
        refused(ATTENTION, &["edge.attn.base"], set("kv_len", value.clone()));
        refused(INDEXER, &["edge.idx.base"], set("pos", value.clone()));
        refused(COMPRESSOR, &["edge.comp.r4_from_pos1"], set("tokens", value));
    }
    refused(
        ATTENTION,
        &["input kv (tensor edge/attn.kv)", "BF16 [>= 45, 512]", "BF16 [44, 512]"],
        set("kv_len", json!(45)),
    );
    refused(ATTENTION, &["input kv", ">= 18446744073709551615"], set("kv_len", json!(u64::MAX)));
    refused(ATTENTION, &["input indices", "I32 [15]", "I32 [14]"], set("width", json!(15)));
    refused(ATTENTION, &["zero_heads", "below 64", "64"], set("zero_heads", json!([64])));
    refused(ATTENTION, &["scale", "finite"], set("scale", json!(1e300)));
    refused(INDEXER, &["ratio", "at least 1"], set("ratio", json!(0)));
    refused(INDEXER, &["top_k", "1 to 2048", "0"], set("top_k", json!(0)));
    refused(INDEXER, &["top_k", "1 to 2048"], set("top_k", json!(1u64 << 60)));
    refused(INDEXER, &["output indices", "I32 [40]", "I32 [512]"], set("top_k", json!(40)));
    refused(INDEXER, &["valid_count", "40", "41"], set("valid_count", json!(41)));
    refused(INDEXER, &["input keys", "BF16 [39, 128]"], |r| {
        r.case()["n_keys"] = json!(39);
        r.case()["valid_count"] = json!(39);
        r.case()["outputs"].as_object_mut().expect("outputs").remove("scores_f64");
    });
    refused(INDEXER, &["offset", "at least 0", "-1"], set("offset", json!(-1)));
    refused(INDEXER, &["offset", "fits an i32"], set("offset", json!(i32::MAX)));
    refused(COMPRESSOR, &["coff", "2 for ratio 4", "1"], set("coff", json!(1)));
    refused(COMPRESSOR, &["ratio", "at least 1"], set("ratio", json!(0)));
    refused(COMPRESSOR, &["head_dim", "at least 1"], set("head_dim", json!(0)));
    refused(COMPRESSOR, &["input kv", "F32 [15, 18446744073709551615]"], set("head_dim", json!(u64::MAX)));
    refused(COMPRESSOR, &["input kv"], set("tokens", json!(u64::MAX)));
    refused(COMPRESSOR, &["emitted_at", "[2, 6, 10, 14]"], set("emitted_at", json!([2, 6, 10])));
    refused(COMPRESSOR, &["fail_closed_at", "3"], set("fail_closed_at", json!([3])));
    refused(COMPRESSOR, &["epsilon", "finite and positive"], set("eps", json!(0.0)));
    refused(COMPRESSOR, &["start_pos", "u32::MAX"], |r| {
        r.case()["start_pos"] = json!(u32::MAX - 2);
        r.case().as_object_mut().expect("a case").remove("emitted_at");
        r.case()["outputs"].as_object_mut().expect("outputs").remove("emitted_out_f32");
    });
}

#[test]
fn tensors() {
    refused(ATTENTION, &["input q (tensor nowhere)", "no such tensor"], |r| {
        r.case()["inputs"]["q"] = json!("nowhere")
    });
    refused(ATTENTION, &["input q must be there"], |r| {
        r.case()["inputs"].as_object_mut().expect("inputs").remove("q");
    });
    refused(ATTENTION, &["output out_bf16 must be there"], |r| r.case()["outputs"] = json!({}));
    refused(INDEXER, &["output indices must be there"], |r| r.case()["outputs"] = json!({}));
    refused(ATTENTION, &["input q", "BF16", "F16 [64, 512]"], |r| r.tensor("inputs", "q").dtype = Dtype::F16);
    refused(ATTENTION, &["input sinks", "F32 [64]", "F32 [8, 8]"], |r| {
        r.tensor("inputs", "sinks").shape = vec![8, 8];
    });
    refused(ATTENTION, &["input q", ">= 1", "[0, 512]"], |r| {
        let q = r.tensor("inputs", "q");
        (q.shape, q.data) = (vec![0, 512], Vec::new());
    });
    // A shape of a great many rows of nothing.
    refused(INDEXER, &["input q", ">= 1", "[4611686018427387904, 0]"], |r| {
        let q = r.tensor("inputs", "q");
        (q.shape, q.data) = (vec![1 << 62, 0], Vec::new());
    });
    refused(ATTENTION, &["head size divisible by 32", "48"], |r| {
        for (kind, name) in [("inputs", "q"), ("inputs", "kv"), ("outputs", "out_bf16")] {
            let tensor = r.tensor(kind, name);
            tensor.shape[1] = 48;
            tensor.data.truncate(2 * 48 * tensor.shape[0]);
        }
    });
    refused(ATTENTION, &["1 to 128 heads", "129"], |r| {
        for (kind, name, size) in
            [("inputs", "q", 1024), ("inputs", "sinks", 4), ("outputs", "out_bf16", 1024)]
        {
            let tensor = r.tensor(kind, name);
            tensor.shape[0] = 129;
            tensor.data.resize(129 * size, 0);
        }
    });
}

#[test]
fn patches() {
    let set = |value: Value| move |r: &mut Recording| r.case()["patches"] = value;
    refused(ATTENTION, &["patches", "inputs of the case", "keys"], set(json!({"keys": [[0, 0]]})));
    refused(ATTENTION, &["patches of q", "below 32768", "32768"], set(json!({"q": [[32768, 0]]})));
    refused(ATTENTION, &["patches of q", "16 bits", "65536"], set(json!({"q": [[0, 65536]]})));
    refused(ATTENTION, &["patches of sinks", "32 bits"], set(json!({"sinks": [[0, u64::MAX]]})));
    refused(ATTENTION, &["invalid value"], set(json!({"q": [[-1, 0]]})));
    refused(ATTENTION, &["case edge.attn.base"], set(json!({"q": [[0]]})));
    refused(ATTENTION, &["case edge.attn.base"], set(json!([])));
}

/// A small recording of all three kinds.
fn small() -> (Vec<u8>, Vec<u8>) {
    static SMALL: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    let cut = || {
        let r = Recording::of(&["edge.attn.width1", INDEXER, "edge.comp.all_zero_kv"]);
        (r.json.to_string().into_bytes(), r.safetensors())
    };
    SMALL.get_or_init(cut).clone()
}

/// Cuts `bytes` off, flips bits, or puts other bytes in; the first kilobytes, where names and numbers are, most often.
fn spoil(bytes: &mut Vec<u8>, (kind, place, value): (u8, usize, u8)) {
    let span = if place % 4 == 0 { bytes.len() } else { bytes.len().min(3000) };
    let at = (place / 4) % span.max(1);
    match kind % 4 {
        _ if bytes.is_empty() => {}
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << (value % 8),
        2 => bytes[at] = value,
        _ => bytes.insert(at, b"0-9\"{}[],:e"[value as usize % 11]),
    }
}

fn damage() -> impl Strategy<Value = Vec<(u8, usize, u8)>> {
    proptest::collection::vec(any::<(u8, usize, u8)>(), 1..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// The parsers alone, in this process: whatever the bytes, an answer.
    #[test]
    fn damaged_bytes_never_panic(json in damage(), tensors in damage(), both in any::<bool>()) {
        let (mut manifest, mut file) = small();
        json.into_iter().for_each(|d| spoil(&mut manifest, d));
        if both {
            tensors.into_iter().for_each(|d| spoil(&mut file, d));
        }
        let _ = abreast_cli::replay::check(&manifest, &[&file]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// The whole program: right, wrong or refused, never killed by a signal or a panic.
    #[test]
    fn damaged_files_end_with_a_status(damage in damage(), in_json in any::<bool>()) {
        let (mut manifest, mut file) = small();
        let bytes = if in_json { &mut manifest } else { &mut file };
        damage.into_iter().for_each(|d| spoil(bytes, d));
        let dir = temporary();
        std::fs::write(dir.path().join("manifest.json"), manifest).expect("writes");
        std::fs::write(dir.path().join("t.safetensors"), file).expect("writes");
        let out = run(dir.path());
        let stderr = String::from_utf8_lossy(&out.stderr);
        prop_assert!(matches!(out.status.code(), Some(0..=2)), "{:?}: {stderr}", out.status);
        if out.status.code() == Some(2) {
            prop_assert_eq!(stderr.trim_end().lines().count(), 1, "{}", stderr);
        }
    }
}

#[test]
fn the_undamaged_recording_is_read() {
    let (manifest, file) = small();
    assert_eq!(abreast_cli::replay::check(&manifest, &[&file]), Ok((3, 3)));
}
