//! Planted defects: a backend that is wrong in one way must turn the suite red, and the same backend without a
//! defect green. Nothing here is in the library that others use.

mod broken;
mod indexer;
mod states;

use super::{Options, run};
use crate::Device;
use broken::Broken;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A way to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    // Attention
    BitOfManyRows,
    BadIndexIsZero,
    SinkDropped,
    RepeatCountedOnce,
    NeighboursCache,
    LastRowSkipped,
    OnePastTheEnd,
    UnnamedRowWritten,
    StatusLost,
    DamageSpreads,
    OrderOfRows,
    EverySeventhCall,
    HeadsBeyond64,
    StaleScratch,
    LeadingSkips,
    NoWidthLeftAlone,
    RowsRefused,
    OverflowIsInf,
    // Indexer
    CausalCountPlusOne,
    ReluHidesNan,
    KeysStagedAsHalf,
    SharedScoreScratch,
    // Selection
    TieDropped,
    TiesDescending,
    NegativeZeroBelow,
    IndexOffByOne,
    OffsetCut,
    PaddingSelected,
    NanSelected,
    BinsOnly,
    // Compressor
    StatesSwapped,
    OverlapCopyLost,
    RingForgets,
    PositionOffByOne,
    EpsilonTimesTen,
    CompressStatusLost,
    LateNanOverlooked,
    StaleNewState,
    // Gather and memory
    GatherLastIsFirst,
    NanPayloadLost,
    LastByteNotRead,
}

use Defect::*;

/// Every defect, and the cases that are to find it.
const DEFECTS: [(Defect, &str); 42] = [
    (BitOfManyRows, "sparse_attention/law/r"),
    (BadIndexIsZero, "sparse_attention/fail_closed"),
    (SinkDropped, "sparse_attention/law/r"),
    (RepeatCountedOnce, "sparse_attention/law/r"),
    (NeighboursCache, "sparse_attention/law/r"),
    (LastRowSkipped, "sparse_attention/law/r1"),
    (OnePastTheEnd, "sparse_attention/law/r"),
    (UnnamedRowWritten, "sparse_attention/law/r"),
    (StatusLost, "sparse_attention/fail_closed"),
    (DamageSpreads, "sparse_attention/law/r"),
    (OrderOfRows, "sparse_attention/law/r"),
    (EverySeventhCall, "sparse_attention/law/repeats"),
    (HeadsBeyond64, "sparse_attention/law/r"),
    (StaleScratch, "sparse_attention/law/scratch"),
    (LeadingSkips, "sparse_attention/known/leading"),
    (NoWidthLeftAlone, "sparse_attention/law/r"),
    (RowsRefused, "sparse_attention/law/r6"),
    (OverflowIsInf, "sparse_attention/fail_closed"),
    (CausalCountPlusOne, "index_scores/known/causal"),
    (ReluHidesNan, "index_scores/fail_closed"),
    (KeysStagedAsHalf, "index_scores/hostile"),
    (SharedScoreScratch, "select_keys/law/r"),
    (TieDropped, "top_k/ties/all_equal"),
    (TiesDescending, "top_k/ties/five"),
    (NegativeZeroBelow, "top_k/ties/all_zero"),
    (IndexOffByOne, "top_k/law/r1/"),
    (OffsetCut, "top_k/law/r"),
    (PaddingSelected, "top_k/law/r"),
    (NanSelected, "top_k/fail_closed"),
    (BinsOnly, "top_k/ties/last_mantissa"),
    (StatesSwapped, "compress/law/r2/"),
    (OverlapCopyLost, "compress/runs/any_cut/m4"),
    (RingForgets, "compress/runs/taken_back"),
    (PositionOffByOne, "compress/law/r"),
    (EpsilonTimesTen, "compress/known/epsilon"),
    (CompressStatusLost, "compress/fail_closed"),
    (LateNanOverlooked, "compress/windows/not_a_number"),
    (LateNanOverlooked, "compress/hostile"),
    (StaleNewState, "convert_state/law/r"),
    (GatherLastIsFirst, "gather_rows/law/r"),
    (NanPayloadLost, "gather_rows/law/r"),
    (LastByteNotRead, "device/memory"),
];

fn device(defect: Option<Defect>) -> Device {
    Device::from_backend(Arc::new(Broken::new(defect).expect("the CPU backend opens")))
}

fn options(filter: &str) -> Options {
    Options { filter: Some(filter.into()), fail_fast: true, ..Options::default() }
}

#[test]
fn every_defect_turns_the_suite_red() {
    let mut missed = Vec::new();
    for (defect, filter) in DEFECTS {
        let report = run(&device(Some(defect)), &options(filter), &mut |_| ());
        match report.failures.first() {
            Some(failure) => println!("{defect:?}: {}: {}", failure.case, failure.finding),
            None => missed.push((defect, filter, report.cases())),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn without_a_defect_it_is_green() {
    let filters: BTreeSet<&str> = DEFECTS.iter().map(|(_, filter)| *filter).collect();
    for filter in filters {
        let report = run(&device(None), &options(filter), &mut |_| ());
        assert!(report.is_good(), "{filter}: {:?}", report.failures);
    }
}
