//! The judge finds what is wrong: recordings with one falsified expectation each, and nothing else changed.

mod common;

use common::{Recording, replay};
use serde_json::{Value, json};

/// Replays after `falsify` and returns the only case, which must be wrong.
fn wrong(id: &str, falsify: impl Fn(&mut Recording)) -> Value {
    let mut r = Recording::of(&[id]);
    let name = format!("judge-{id}");
    let (status, report) = replay(&r, &name);
    assert_eq!((status, &report["failed"]), (Some(0), &json!(0)), "{id} is right before: {report:#}");
    falsify(&mut r);
    let (status, report) = replay(&r, &name);
    assert_eq!((status, &report["failed"]), (Some(1), &json!(1)), "{id} must be found wrong: {report:#}");
    assert_eq!(report["cases"][0]["ok"], false);
    assert_eq!(report["cases"][0]["bits_equal"], true, "only the expectation was falsified");
    report["cases"][0].clone()
}

fn assert_reason(case: &Value, starts: &str) {
    let reason = case["reason"].as_str().expect("a reason");
    assert!(reason.starts_with(starts), "{reason} should start with {starts}");
}

fn f32_at(data: &mut [u8], i: usize, change: impl Fn(f32) -> f32) {
    let place = &mut data[4 * i..4 * i + 4];
    let value = f32::from_le_bytes((&*place).try_into().expect("4 bytes"));
    place.copy_from_slice(&change(value).to_le_bytes());
}

fn i32_at(data: &mut [u8], i: usize, value: i32) {
    data[4 * i..4 * i + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn an_attention_output_beyond_its_bound() {
    let case = wrong("attn.hca.s20260801.L2.n700.p704", |r| {
        f32_at(&mut r.tensor("outputs", "out_f32").data, 3 * 512 + 17, |v| v * 1.01 + 1e-3);
    });
    assert_reason(&case, "head 3, feature 17: ");
    assert!(case["worst_error"].as_f64() > case["worst_bound"].as_f64());
}

#[test]
fn an_attention_output_that_is_not_a_number() {
    let case = wrong("attn.hca.s20260801.L2.n700.p704", |r| {
        f32_at(&mut r.tensor("outputs", "out_f32").data, 5, |_| f32::NAN);
    });
    assert_eq!(case["max_error"], Value::Null);
}

#[test]
fn a_head_that_must_be_zero() {
    let case = wrong("edge.attn.base", |r| r.case()["zero_heads"] = json!([7]));
    assert_reason(&case, "head 7, feature 0: ");
    assert!(case["reason"].as_str().expect("a reason").contains("must be zero"));
    // Zeros where values were computed.
    wrong("edge.attn.width1", |r| r.case()["outputs"]["out_bf16"] = json!("zeros"));
}

#[test]
fn an_index_out_of_its_place() {
    // A tie broken the other way round.
    let case = wrong("edge.idx.all_equal", |r| {
        let data = &mut r.tensor("outputs", "indices").data;
        i32_at(data, 3, 4);
        i32_at(data, 4, 3);
    });
    assert_reason(&case, "indices[3]: 3 got, 4 recorded");
    assert_eq!(case["max_error"], 2.0, "two slots");
}

#[test]
fn another_set_of_indices() {
    let case = wrong("idx.s20260801.L1.n2300.p2303", |r| {
        // The slot's index is taken twice, so that one of the set is missing.
        let data = &mut r.tensor("outputs", "indices").data;
        let second = i32::from_le_bytes(data[4..8].try_into().expect("4 bytes"));
        i32_at(data, 511, second);
    });
    assert_reason(&case, "set of indices");
    assert_eq!(case["max_error"], Value::Null);
}

#[test]
fn a_wrong_order_of_distinct_scores() {
    let case = wrong("idx.s20260801.L1.n2300.p2303", |r| {
        let data = &mut r.tensor("outputs", "indices").data;
        let (a, b) = (data[0..4].to_vec(), data[400..404].to_vec());
        data[0..4].copy_from_slice(&b);
        data[400..404].copy_from_slice(&a);
    });
    assert_reason(&case, "slot 0: ");
}

#[test]
fn a_score_beyond_its_bound() {
    let case = wrong("edge.idx.base", |r| {
        let data = &mut r.tensor("outputs", "scores_f64").data;
        let value = f64::from_le_bytes(data[72..80].try_into().expect("8 bytes")) + 1e-2;
        data[72..80].copy_from_slice(&value.to_le_bytes());
    });
    assert_reason(&case, "score of key 9: ");
}

#[test]
fn a_cache_that_is_too_short_must_be_refused() {
    // 40 keys, and a position that shows 41.
    let mut r = Recording::of(&["edge.idx.base"]);
    r.case()["pos"] = json!(163);
    let (status, report) = replay(&r, "short");
    assert_eq!((status, &report["cases"][0]["max_error"]), (Some(0), &json!(0.0)), "{report:#}");
    assert!(report["cases"][0]["note"].as_str().expect("a note").contains("refused"));
}

#[test]
fn a_state_one_bit_away() {
    let case = wrong("edge.comp.r4_from_pos1", |r| {
        f32_at(&mut r.tensor("outputs", "score_state").data, 300, |v| f32::from_bits(v.to_bits() ^ 1));
    });
    assert_reason(&case, "score_state[300]: ");
}

#[test]
fn an_entry_with_too_many_other_bits() {
    let flip = |n: usize| {
        move |r: &mut Recording| {
            let data = &mut r.tensor("outputs", "out_bf16").data;
            // Token 2 closes a block.
            (0..n).for_each(|f| data[2 * (2 * 128 + f)] ^= 1);
        }
    };
    let case = wrong("edge.comp.r4_from_pos1", flip(3));
    assert_reason(&case, "token 2: 3 of 128");
    let mut r = Recording::of(&["edge.comp.r4_from_pos1"]);
    flip(2)(&mut r);
    assert_eq!(replay(&r, "two-flips").0, Some(0), "two may be rounded the other way");
}

#[test]
fn an_entry_that_must_fail_closed() {
    let case = wrong("edge.comp.r4_from_pos1", |r| r.case()["fail_closed_at"] = json!([6]));
    assert_reason(&case, "token 6, feature 0: ");
    // A block that fails closed although nobody expects it: its status says so, and its row is zero.
    wrong("edge.comp.kv_nan_second_half", |r| r.case()["fail_closed_at"] = json!([]));
}

#[test]
fn a_loose_recording_is_still_judged() {
    let case = wrong("comp.r4.d128.hfbf16.s20260802.L1.n9.p9", |r| {
        let data = &mut r.tensor("outputs", "emitted_out_f32").data;
        (0..128).for_each(|i| f32_at(data, i, |v| v * 1.01));
    });
    assert_reason(&case, "relative root mean square");
}
