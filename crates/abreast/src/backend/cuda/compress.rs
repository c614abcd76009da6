//! The compressor: the table and the launch of `compress.cu`.

use super::target::Target;
use crate::backend::gpu::plan::{Launch, Plan, status};
use crate::dims::{OVERLAP_RATIO, PARTIALS};
use crate::ops::{Checked, Compress, Emit, StateLayout};
use bytemuck::{Pod, Zeroable};
use half::bf16;

/// A row and all that its call shares: calls of several compressors can be one launch.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Row {
    kv: u64,
    score: u64,
    kv_state: u64,
    score_state: u64,
    ape: u64,
    norm: u64,
    out: u64,
    status: u64,
    start: u32,
    tokens: u32,
    state_rows: u32,
    ratio: u32,
    phase: u32,
    place: u32,
    d: i32,
    ring: i32,
    every_token: i32,
    epsilon: f32,
    pad: [i32; 2],
}

/// Threads of a block, as in the kernels; of overlapped blocks at most.
const OVERLAPPED_THREADS: usize = 256;
const PLAIN_THREADS: usize = 6 * PARTIALS;
/// Scores and values of 128 slots, 32 features.
const TILE: usize = 2 * 128 * PARTIALS * size_of::<f32>();

pub(super) fn plan(mut op: Checked<Compress<'_, '_>>, target: Target) -> Plan {
    let (rows, [_, d]) = (target.room.rows(op.rows.len()), op.out.shape());
    let overlapped = op.ratio as usize == OVERLAP_RATIO;
    let (ratio, out, status) = (op.ratio, op.out.as_mut_ptr() as u64, status(&op.status));
    let shared = Row {
        ape: op.ape.as_ptr() as u64,
        norm: op.norm.as_ptr() as u64,
        ratio: op.ratio,
        d: d as i32,
        ring: (op.layout == StateLayout::Ring) as i32,
        every_token: (op.emit == Emit::EveryToken) as i32,
        epsilon: op.epsilon,
        ..Row::zeroed()
    };
    let listed = op.rows.iter_mut().enumerate().map(|(e, row)| Row {
        kv: row.kv.as_ptr() as u64,
        score: row.score.as_ptr() as u64,
        kv_state: row.kv_state.as_mut_ptr() as u64,
        score_state: row.score_state.as_mut_ptr() as u64,
        out: out + (row.out * d * size_of::<bf16>()) as u64,
        status: if status == 0 { 0 } else { status + (e * size_of::<u32>()) as u64 },
        start: row.start_pos,
        tokens: row.tokens() as u32,
        state_rows: row.kv_state.shape()[0] as u32,
        phase: row.start_pos % ratio,
        place: (row.start_pos as usize % row.kv_state.shape()[0]) as u32,
        ..shared
    });
    let mut plan = Plan::default();
    let table = plan.push(&(), (listed, Row::zeroed(), rows));
    let parts = if target.chip.hopper { parts(rows, overlapped) } else { 1 };
    let threads = (d / parts).next_multiple_of(PARTIALS).min(OVERLAPPED_THREADS);
    let shared = 2 * d * size_of::<f32>();
    let (kernel, threads, shared) = match (overlapped, op.layout) {
        (true, StateLayout::Ring) => ("compress_ring", threads, shared),
        (true, StateLayout::Shifted) => ("compress_shifted", threads, shared),
        (false, _) => {
            ("compress_plain", PLAIN_THREADS, shared + TILE * if target.chip.hopper { 3 } else { 2 })
        }
    };
    plan.launch(Launch {
        kernel: ("compress", kernel),
        grid: [parts as u32, rows as u32],
        threads: threads as u32,
        shared: shared as u32,
        table,
        entry: size_of::<Row>(),
        cluster: parts as u32,
        overlaps: true,
    });
    plan
}

/// How many blocks share a row, so that more than one multiprocessor brings and weighs it where there are few. Compressors of one ratio
/// have as many, whatever their sizes: they may be one launch. Measured on an H200.
fn parts(rows: usize, overlapped: bool) -> usize {
    match (overlapped, rows) {
        (true, ..=32) => 4,
        (true, _) => 2,
        (false, ..=8) => 16,
        (false, ..=16) => 8,
        (false, ..=32) => 4,
        (false, _) => 2,
    }
}
