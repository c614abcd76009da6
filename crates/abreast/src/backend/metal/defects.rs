//! Kernels with planted defects, each of which must turn the suite red.

use super::Metal;
use super::harness::{Harness, Schedule};
use super::kernels::source;
use super::queue::Queue;
use crate::backend::gpu::defects::{Defect, defect};
use crate::{Device, Method};
use std::sync::Arc;

const fn fast(defect: Defect) -> Defect {
    defect.in_method(Method::Fast)
}

const DEFECTS: [Defect; 11] = [
    defect(
        "sparse_attention",
        ["index >= row.kv_len", "index > row.kv_len"],
        "sparse_attention/fail_closed/",
    ),
    defect("sparse_attention", ["sum = tree(sum);", ""], "sparse_attention/law/r3/"),
    defect(
        "sparse_attention",
        ["dot * head.scale", "dot * head.scale * (head.rows > 1)"],
        "attention/law/r2/",
    ),
    fast(defect(
        "sparse_attention",
        ["h < heads && first + k < row.width", "h < heads && first + k + 1 < row.width"],
        "sparse_attention/law/r3/",
    )),
    fast(defect("index_scores", ["offset[c] >= 0 ? widen", "offset[c] > 0 ? widen"], "index_scores/law/r3/")),
    defect(
        "index_scores",
        ["!is_finite(dot) || !is_finite(weight)", "!is_finite(weight)"],
        "index_scores/fail_closed/",
    ),
    defect(
        "top_k",
        ["equal + ties.before < need", "equal + ties.before + 1 < need"],
        "top_k/ties/all_equal/k5",
    ),
    defect("top_k", ["if (bits == 0x80000000u) bits = 0;", ""], "top_k/ties/all_zero"),
    defect("compress", ["is_finite(kv) ? kv : 0.0f", "kv"], "compress/fail_closed/"),
    defect("convert_state", ["as_type<uint>(-F32_INF)", "0u"], "convert_state/law/r"),
    defect(
        "gather_rows",
        ["i < head.bytes; i += threads) out[i]", "i + 1 < head.bytes; i += threads) out[i]"],
        "gather_rows/law/r",
    ),
];

#[test]
fn every_defect_of_a_kernel_turns_the_suite_red() {
    let mut unnoticed = Vec::new();
    for defect in DEFECTS {
        let harness = match Harness::open(Schedule::default()) {
            Ok(harness) => harness,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let mut metal = Metal::new(Arc::new(Queue::new(harness)));
        metal.kernels.defect = defect;
        if !defect.is_noticed(&Device::from_backend(Arc::new(metal))) {
            unnoticed.push(defect);
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:#?}");
}

/// Every defect's words stand in its kernel, harness or none.
#[test]
fn every_defect_is_there_to_be_planted() {
    for defect in DEFECTS {
        defect.apply(defect.stem, source(defect.stem));
    }
}
