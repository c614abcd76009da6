//! The compressor: the table and the launch of `compress.metal`.

use crate::backend::gpu::plan::{Launch, Plan, Room, status};
use crate::dims::OVERLAP_RATIO;
use crate::ops::{Checked, Compress, Emit, StateLayout};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    ape: u64,
    norm: u64,
    out: u64,
    status: u64,
    epsilon: f32,
    ratio: i32,
    d: i32,
    overlaps: i32,
    ring: i32,
    every_token: i32,
    rows: i32,
    pad: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Row {
    kv: u64,
    score: u64,
    kv_state: u64,
    score_state: u64,
    out: u64,
    start: u32,
    tokens: u32,
    state_rows: u32,
    active: i32,
}

/// Threads of a block: one a feature, up to this.
const THREADS: usize = 512;

pub(super) fn plan(mut op: Checked<Compress<'_, '_>>, room: Room) -> Plan {
    let (rows, [_, d]) = (room.rows(op.rows.len()), op.out.shape());
    let head = Head {
        ape: op.ape.as_ptr() as u64,
        norm: op.norm.as_ptr() as u64,
        out: op.out.as_mut_ptr() as u64,
        status: status(&op.status),
        epsilon: op.epsilon,
        ratio: op.ratio as i32,
        d: d as i32,
        overlaps: (op.ratio as usize == OVERLAP_RATIO) as i32,
        ring: (op.layout == StateLayout::Ring) as i32,
        every_token: (op.emit == Emit::EveryToken) as i32,
        rows: rows as i32,
        pad: 0,
    };
    let mut plan = Plan::default();
    let listed = op.rows.iter_mut().map(|row| Row {
        kv: row.kv.as_ptr() as u64,
        score: row.score.as_ptr() as u64,
        kv_state: row.kv_state.as_mut_ptr() as u64,
        score_state: row.score_state.as_mut_ptr() as u64,
        out: row.out as u64,
        start: row.start_pos,
        tokens: row.tokens() as u32,
        state_rows: row.kv_state.shape()[0] as u32,
        active: 1,
    });
    let table = plan.push(&head, (listed, Row::zeroed(), rows));
    let shared = (d * size_of::<f32>()) as u32;
    let threads = d.min(THREADS) as u32;
    plan.launch(Launch {
        kernel: ("compress", "compress"),
        grid: [rows as u32, 1],
        threads,
        shared,
        table,
        ..Launch::PLAIN
    });
    plan
}
