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

/// Threads of a block, as in the kernels.
const OVERLAPPED_THREADS: usize = 512;
const PLAIN_THREADS: usize = 512;
/// Two tiles, one pooled and one on its way: scores and values of 128 slots, 32 features.
const TILES: usize = 2 * 2 * 128 * PARTIALS * size_of::<f32>();
/// Blocks that fill a GPU, and the most of one row.
const BLOCKS: usize = 256;
const MOST_PARTS: usize = 16;

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
    let shared = 2 * d * size_of::<f32>();
    let (grid, entry) = ([1, rows as u32], size_of::<Row>());
    let launch = Launch { grid, table, entry, overlaps: true, ..Launch::PLAIN };
    plan.launch(if overlapped {
        let kernel = if op.layout == StateLayout::Ring { "compress_ring" } else { "compress_shifted" };
        let threads = d.min(OVERLAPPED_THREADS) as u32;
        Launch { kernel: ("compress", kernel), threads, shared: shared as u32, ..launch }
    } else {
        // Such a row is more than one multiprocessor should bring, where there are few.
        let parts = if target.chip.hopper { parts(d, rows) } else { 1 };
        let shared = (shared + TILES) as u32;
        let threads = PLAIN_THREADS as u32;
        let grid = [parts, rows as u32];
        Launch { kernel: ("compress", "compress_plain"), grid, threads, shared, cluster: parts, ..launch }
    });
    plan
}

/// Every part has as many features as a warp at least.
fn parts(d: usize, rows: usize) -> u32 {
    let parts = (BLOCKS / rows.max(1)).clamp(1, MOST_PARTS).min(d / PARTIALS) as u32;
    1 << parts.ilog2()
}
