//! Kernels with planted defects, each of which must turn the suite red, and kernels that a sanitizer must not pass.

use super::Cuda;
use super::driver::Queue;
use super::kernels::HOPPER;
use super::nvrtc::{Nvrtc, Source};
use super::own_process::{again, passed};
use super::sparse_attention_hopper::Placement;
use crate::backend::gpu::defects::{Defect, defect};
use crate::{Device, Method};
use cudarc::driver::{LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use rayon::prelude::*;
use std::sync::Arc;

const DEFECTS: &[Defect] = &[
    defect(
        "sparse_attention",
        ["index >= row->kv_len", "index > row->kv_len"],
        "sparse_attention/fail_closed",
    ),
    defect("sparse_attention", ["l == 0 && t->sinks ?", "l == 0 && t->rows < 0 ?"], "sparse_attention/law"),
    defect(
        "sparse_attention",
        ["__fmul_rn(p[0], t->scale)", "__fmul_rn(p[0], t->rows > 8 ? t->scale * 1.0001f : t->scale)"],
        "sparse_attention/law",
    ),
    defect(
        "sparse_attention",
        ["if (bad && l == 0) atomicOr", "if (false) atomicOr"],
        "sparse_attention/fail_closed",
    ),
    defect("sparse_attention", [": -F32_INF;", ": logits(t, scratch, r, h)[j];"], "sparse_attention"),
    defect(
        "sparse_attention",
        [
            "if (index == NO_INDEX) continue;\n                float v",
            "if (index == NO_INDEX) index = 0;\n                float v",
        ],
        "sparse_attention",
    ),
    defect(
        "sparse_attention_hopper",
        ["index < kv_len;", "index <= kv_len;"],
        "sparse_attention/fail_closed",
    ),
    defect(
        "sparse_attention_hopper",
        ["scale = t->scale;", "scale = t->rows > 8 ? t->scale * 1.0001f : t->scale;"],
        "sparse_attention/law",
    ),
    defect(
        "sparse_attention_hopper",
        ["!finite(sink[side])", "sink[side] != sink[side]"],
        "sparse_attention/fail_closed",
    ),
    defect("sparse_attention_hopper", ["is ? logit : -F32_INF", "logit"], "sparse_attention/known"),
    defect(
        "sparse_attention_hopper",
        ["invalid |= next[i]", "invalid |= false && next[i]"],
        "sparse_attention/fail_closed",
    ),
    defect("sparse_attention_hopper", ["sum[side] += low + high;", "sum[side] += low;"], "sparse_attention"),
    defect(
        "sparse_attention_alone_hopper",
        ["index < kv_len;", "index <= kv_len;"],
        "sparse_attention/fail_closed",
    ),
    defect(
        "sparse_attention_alone_hopper",
        ["!finite(sink[side])", "sink[side] != sink[side]"],
        "sparse_attention/fail_closed",
    ),
    defect(
        "sparse_attention_alone_hopper",
        ["if (head < b.heads)", "if (head + 1 < b.heads)"],
        "sparse_attention/known",
    ),
    defect(
        "sparse_attention_alone_hopper",
        ["if (suspect >> side & 1) atomicOr", "if (false) atomicOr"],
        "sparse_attention/fail_closed",
    ),
    defect(
        "index_scores",
        ["bad |= !finite(dot) || !finite(w);", "bad |= !finite(w);"],
        "index_scores/fail_closed",
    ),
    defect("index_scores", ["dot > 0.0f ? dot : 0.0f", "fabsf(dot)"], "index_scores/law"),
    defect("index_scores", ["k < keys ? widen", "k + 1 < keys ? widen"], "index_scores/law"),
    defect("index_scores", ["if (t->row[r].count == 0)", "if (false)"], "index_scores"),
    defect(
        "index_scores_hopper",
        ["__fmaf_rn(dot[i], 0.0f, check[second])", "0.0f"],
        "index_scores/fail_closed",
    ),
    defect(
        "index_scores_hopper",
        ["fmaxf(dot[i], 0.0f)", "(t->rows > 8 ? 1.0001f : 1.0f) * fmaxf(dot[i], 0.0f)"],
        "index_scores/law",
    ),
    defect("index_scores_hopper", ["p < 2 && key < keys", "p < 2 && key <= keys"], "index_scores"),
    defect("index_scores_hopper", ["report_bad(t, last);", ""], "index_scores/fail_closed"),
    defect("index_scores_hopper", ["piece % 8 ^ (row + n) % 8", "piece % 8 ^ (row + n) % 4"], "index_scores"),
    defect(
        "index_scores_hopper",
        ["+ row.query * (HEADS", "+ (t->rows > 8 ? 0 : row.query) * (HEADS"],
        "index_scores/law",
    ),
    defect("top_k", ["equal + tie < need", "equal + tie + 1 < need"], "top_k/ties"),
    defect("top_k", ["<< 32 | (u32)~(u32)i;", "<< 32 | (u32)(0x7fffffff - i) >> 1;"], "top_k/ties"),
    defect("top_k", ["__float_as_uint(__fadd_rn(score, 0.0f))", "__float_as_uint(score)"], "top_k"),
    defect("top_k_hopper", ["rank += other[j] > me", "rank += other[j] >= me"], "top_k/ties"),
    defect("top_k_hopper", ["__float_as_uint(__fadd_rn(score, 0.0f))", "__float_as_uint(score)"], "top_k"),
    defect("top_k_hopper", ["<< 32 | ~index", "<< 32 | index"], "top_k/ties"),
    defect("top_k_hopper", ["? NONFINITE_SCORE : 0;", "? 0 : 0;"], "top_k/fail_closed"),
    defect("top_k_hopper", ["i <= last ? score", "i < 9 ? score"], "top_k/ties/all_equal"),
    defect("top_k_hopper", ["bound.last = hi;", "bound.last = 0;"], "top_k/ties/all_equal"),
    defect("top_k_hopper", ["index(bit / 4) + bit % 4,", "index(bit / 4) + (bit ^ 1) % 4,"], "top_k/long"),
    defect(
        "top_k_hopper",
        ["score = __reduce_min_sync(FULL, there.x)", "score = __reduce_max_sync(FULL, there.x)"],
        "top_k/long",
    ),
    defect("compress", ["finite(kv) ? kv : 0.0f,", "kv,"], "compress/fail_closed"),
    defect(
        "compress",
        ["if (!IN_RING) {\n            moved", "if (false) {\n            moved"],
        "compress/runs",
    ),
    defect("compress", ["IN_RING && now.position < OVERLAP", "false"], "compress/runs"),
    defect(
        "compress",
        ["u32 last = row.ratio - 1 - at.chunk, bytes", "u32 last = row.ratio - at.chunk, bytes"],
        "compress/law",
    ),
    defect("compress", ["u32 at = oldest + slot;", "u32 at = slot;"], "compress/runs"),
    // The largest score of a warp's slots alone.
    defect("compress", ["i < POOLERS; i++) most", "i < 1; i++) most"], "compress/law"),
    // Of later chunks, every fourth slot of a warp alone.
    defect(
        "compress",
        ["slot < row.ratio; slot += POOLERS", "slot < row.ratio; slot += 4 * POOLERS"],
        "compress/windows",
    ),
    // One of two alignments.
    defect("compress", ["(row.kv_state | row.score_state) % 16", "row.kv_state % 16"], "compress/law"),
    // Each warp's sums alone.
    defect("compress", ["sums = pool.sums[warp()][lane()];", "sums = {0.0f, 0.0f};"], "compress/law"),
    defect("convert_state", ["old < 0 ? -F32_INF", "old < 0 ? 0.0f"], "convert_state/law"),
    defect("gather_rows", ["< units) to[", "+ 1 < units) to["], "gather_rows/law"),
];

/// A GPU's queue; `None`, printed, where this machine has none.
fn cuda() -> Option<Cuda> {
    Cuda::open(0, None).map_err(|why| println!("SKIPPED: {why}")).ok()
}

/// Whether the suite turns red, on a device of its own.
fn is_noticed(defect: &Defect) -> bool {
    // Skipped.
    let Some(mut cuda) = cuda() else { return true };
    let kernels = Arc::get_mut(&mut cuda.kernels).expect("of this handle alone");
    kernels.defect = *defect;
    let hopper = HOPPER.iter().any(|(stem, _)| *stem == defect.stem);
    if hopper && !kernels.chip.hopper {
        println!("SKIPPED: {} is for compute capability 9.0", defect.stem);
        return true;
    }
    // Files of every chip run where Hopper's own do not.
    kernels.chip.hopper = hopper;
    // Its suite has few rows, which would take clusters.
    kernels.chip.attention = (defect.stem == "sparse_attention_alone_hopper").then_some(Placement::ALONE);
    let method = if hopper { Method::Fast } else { Method::Reference };
    defect.in_method(method).is_noticed(&Device::from_backend(Arc::new(cuda)))
}

/// Which defect a process is for, by its place in the list.
const WHICH: &str = "ABREAST_TEST_DEFECT";

/// The most that one may take.
const SECONDS: &str = "120";

/// A process each: a kernel that reads where it must not breaks the device for all of its process, and whatever runs there afterwards fails. One that
/// waits for ever is stopped, and not noticed. On all cores, since most of the time goes into compiling.
#[test]
fn every_defect_of_a_kernel_turns_the_suite_red() {
    if cuda().is_none() {
        return;
    }
    let unnoticed: Vec<&Defect> = (0..DEFECTS.len())
        .into_par_iter()
        .filter(|which| {
            let mut process = again("backend::cuda::defects::one_defect", &["timeout", SECONDS]);
            let (noticed, said) = passed(&process.env(WHICH, which.to_string()).output().expect("starts"));
            let lines = said.lines().filter(|line| line.contains("found in") || line.contains("SKIPPED"));
            lines.for_each(|line| println!("{line}"));
            !noticed
        })
        .map(|which| &DEFECTS[which])
        .collect();
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:#?}");
}

#[test]
#[ignore = "a process of every_defect_of_a_kernel_turns_the_suite_red"]
fn one_defect() {
    let which: usize = std::env::var(WHICH).expect("which defect").parse().expect("its place");
    assert!(is_noticed(&DEFECTS[which]));
}

/// Every defect's words stand in its kernel, GPU or none.
#[test]
fn every_defect_is_there_to_be_planted() {
    for defect in DEFECTS {
        let text = super::kernels::source(defect.stem).expect("a kernel of this folder");
        defect.apply(defect.stem, text);
    }
}

/// Runs a kernel of one block of 64 threads on one buffer.
fn plant(body: &str) {
    let Some(cuda) = cuda() else { return };
    let queue: &Queue = &cuda.queue;
    let text = format!("extern \"C\" __global__ void planted(int* x) {{ {body} }}");
    let source = Source { name: "planted", text: &text, architecture: "sm_90a" };
    let (code, _) = Nvrtc::get().and_then(|nvrtc| nvrtc.compile(&source, &[])).expect("compiles");
    let module = queue.context.load_module(Ptx::from_binary(code)).expect("loads");
    let function = module.load_function("planted").expect("is there");
    // SAFETY: not needed: nothing is written before the kernel reads it.
    let mut buffer = unsafe { queue.stream.alloc::<i32>(64) }.expect("memory");
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 256 };
    // SAFETY: none: the kernel is wrong on purpose, within its memory.
    unsafe { queue.stream.launch_builder(&function).arg(&mut buffer).launch(config) }.expect("launches");
    queue.stream.synchronize().expect("ends");
}

#[test]
#[ignore = "for racecheck to find"]
fn planted_race() {
    plant("extern __shared__ int s[]; s[threadIdx.x] = threadIdx.x; x[threadIdx.x] = s[63 - threadIdx.x];");
}

#[test]
#[ignore = "for initcheck to find"]
fn planted_uninitialised() {
    plant("if (x[threadIdx.x] == 77) x[0] = 1;");
}

#[test]
#[ignore = "for synccheck to find"]
fn planted_divergence() {
    plant("if (threadIdx.x < 40) __syncthreads(); x[threadIdx.x] = 1;");
}
