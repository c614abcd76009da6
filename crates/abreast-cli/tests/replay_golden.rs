//! The recorded decode steps and edge cases, as they ship and cut into other shapes.

mod common;

use common::{Recording, abreast, ids, replay, shipped_json};
use serde_json::{Value, json};

fn assert_all_right(name: &str, status: Option<i32>, report: &Value) {
    let wrong: Vec<&Value> =
        report["cases"].as_array().expect("cases").iter().filter(|case| case["ok"] != true).collect();
    assert!(wrong.is_empty(), "{name}: {wrong:#?}");
    assert_eq!(report["failed"], 0, "{name}");
    assert_eq!(status, Some(0), "{name}");
}

#[test]
fn every_shipped_case_is_right_and_joint_is_alone() {
    let out = abreast(&["replay", "--json"]);
    let report: Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    assert_all_right("shipped", out.status.code(), &report);
    let mut recorded = ids(&shipped_json("manifest.json")["cases"]);
    recorded.extend(ids(&shipped_json("edge.json")["cases"]));
    assert_eq!(ids(&report["cases"]), recorded);
    for case in report["cases"].as_array().expect("cases") {
        assert_eq!(case["bits_equal"], true, "{case}");
        assert!(case["max_error"].is_f64(), "{case}");
        // The recording's own measurement: 99.97 % of an f32 path's outputs are exact.
        if case["core"] == "sparse_attention" && !case["id"].as_str().expect("id").starts_with("edge") {
            let part = case["exact"].as_f64().expect("exact") / case["compared"].as_f64().expect("compared");
            assert!(part >= 0.9997, "{case}");
        }
    }
    // Recorded groups ran as such, and edge cases beside each other.
    let groups = report["groups"].as_array().expect("groups");
    for group in shipped_json("manifest.json")["groups"].as_array().expect("groups") {
        let rows = group["cases"].as_array().expect("ids").len();
        assert!(groups.iter().any(|g| g["id"] == group["id"] && g["rows"] == rows), "{group}");
    }
    assert!(groups.iter().any(|g| g["core"] == "indexer" && g["rows"].as_u64() > Some(20)));
    if let Some(peak) = report["peak_resident_bytes"].as_u64() {
        assert!(peak < 300_000_000, "{peak} bytes resident");
    }
}

#[test]
fn the_table_has_a_line_for_every_call() {
    let out = abreast(&["replay"]);
    let text = String::from_utf8(out.stdout).expect("text");
    assert_eq!(out.status.code(), Some(0), "{text}");
    for word in ["joint.csa", "joint.indexer", "joint == alone", "edge.idx.short_cache", " 0 failed"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(out.stderr.is_empty());
}

/// The first `n` heads of a recorded attention call are a recording too.
fn heads(n: usize) -> Recording {
    let mut r = Recording::of(&["attn.hca.s20260801.L2.n700.p704"]);
    for (kind, name) in [("inputs", "q"), ("inputs", "sinks"), ("outputs", "out_f32")] {
        let tensor = r.tensor(kind, name);
        let row = tensor.data.len() / tensor.shape[0];
        tensor.shape[0] = n;
        tensor.data.truncate(n * row);
    }
    r
}

#[test]
fn other_head_counts() {
    for n in [1, 3, 16, 63] {
        let (status, report) = replay(&heads(n), &format!("heads-{n}"));
        assert_all_right(&format!("{n} heads"), status, &report);
        assert_eq!(report["cases"][0]["compared"], n * 512);
    }
}

#[test]
fn a_cache_longer_than_the_row_says_and_absent_sinks() {
    // Width 1 without sinks gives the selected cache row itself, exactly.
    let mut r = Recording::of(&["edge.attn.width1"]);
    let index = i32::from_le_bytes(r.tensor("inputs", "indices").data[..4].try_into().expect("4 bytes"));
    let (kv, dim) = (r.tensor("inputs", "kv").data.clone(), 512);
    let row = &kv[index as usize * 2 * dim..][..2 * dim];
    let heads = r.tensor("inputs", "q").shape[0];
    r.tensor("outputs", "out_bf16").data = row.repeat(heads);
    r.case()["inputs"].as_object_mut().expect("inputs").remove("sinks");
    r.case()["kv_len"] = json!(index + 1);
    let (status, report) = replay(&r, "no-sinks");
    assert_all_right("no sinks", status, &report);
    assert_eq!(report["cases"][0]["max_error"], 0.0);
}

#[test]
fn another_k_and_offset() {
    for (k, offset) in [(1, 0), (40, 7), (512, 1 << 20)] {
        let mut r = Recording::of(&["idx.s20260801.L1.n2300.p2303"]);
        let before = r.case()["offset"].as_i64().expect("a number") as i32;
        r.case()["top_k"] = json!(k);
        r.case()["offset"] = json!(offset);
        let tensor = r.tensor("outputs", "indices");
        tensor.shape = vec![k];
        let slot =
            |b: &[u8]| (i32::from_le_bytes(b.try_into().expect("4 bytes")) - before + offset).to_le_bytes();
        tensor.data = tensor.data.chunks(4).take(k).flat_map(slot).collect();
        let (status, report) = replay(&r, &format!("k-{k}"));
        assert_all_right(&format!("k {k}, offset {offset}"), status, &report);
    }
}

/// The first `n` tokens of a recorded compressor run; its final state is another one, so it is left out.
fn tokens(id: &str, n: usize) -> Recording {
    let mut r = Recording::of(&[id]);
    let emitted: Vec<u64> =
        r.case()["emitted_at"].as_array().expect("list").iter().filter_map(Value::as_u64).collect();
    let emitted: Vec<u64> = emitted.into_iter().filter(|&t| t < n as u64).collect();
    for (kind, name, rows) in [
        ("inputs", "kv", n),
        ("inputs", "score", n),
        ("outputs", "out_bf16", n),
        ("outputs", "emitted_out_f32", emitted.len()),
    ] {
        let tensor = r.tensor(kind, name);
        let row = tensor.data.len() / tensor.shape[0];
        tensor.shape[0] = rows;
        tensor.data.truncate(rows * row);
    }
    let case = r.case();
    case["tokens"] = json!(n);
    case["emitted_at"] = json!(emitted);
    let outputs = case["outputs"].as_object_mut().expect("outputs");
    outputs.retain(|name, _| !name.ends_with("_state"));
    r
}

#[test]
fn shorter_compressor_runs() {
    let cases =
        [("comp.r4.d512.mixed.s20260801.L1.n3.p3", 8), ("comp.r128.d512.mixed.s20260801.L2.n127.p127", 3)];
    for (id, all) in cases {
        for n in [0, 1, all - 1] {
            let (status, report) = replay(&tokens(id, n), &format!("tokens-{all}-{n}"));
            assert_all_right(&format!("{id}, {n} tokens"), status, &report);
        }
    }
}

#[test]
fn requests_with_other_numbers_of_tokens_join() {
    let mut r = tokens("comp.r4.d128.mixed.s20260801.L1.n700.p700", 5);
    let other = Recording::of(&["comp.r4.d128.mixed.s20260801.L1.n2.p2"]);
    r.json["cases"].as_array_mut().expect("cases").push(other.json["cases"][0].clone());
    r.tensors.extend(other.tensors);
    // A group may be a bare list of ids.
    r.json["groups"] =
        json!([["comp.r4.d128.mixed.s20260801.L1.n2.p2", "comp.r4.d128.mixed.s20260801.L1.n700.p700"]]);
    let (status, report) = replay(&r, "mixed-lengths");
    assert_all_right("mixed lengths", status, &report);
    assert_eq!(report["groups"][0]["rows"], 2);
}

#[test]
fn a_state_with_something_before_the_first_block() {
    // An infinite score before position 0 spoils the first block, in a ring as well, and nothing after it.
    let mut r = Recording::of(&["edge.comp.r4_from_pos1"]);
    r.case()["patches"] = json!({ "score_state": [[0, 0x7f80_0000]] });
    r.case()["fail_closed_at"] = json!([2]);
    let (status, report) = replay(&r, "before-first");
    assert_all_right("before the first block", status, &report);
}
