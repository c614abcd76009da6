//! Exact top-k: the table and the launches of `top_k.metal`.

use super::index_scores::status;
use crate::backend::plan::{Launch, Plan, Room};
use crate::ops::{Checked, TopK};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    out: u64,
    status: u64,
    k: i32,
    rows: i32,
    in_scratch: i32,
    pad: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Row {
    pub(super) scores: u64,
    pub(super) out: u64,
    pub(super) n: i64,
    pub(super) offset: i32,
    pub(super) pad: i32,
}

/// What the selections of a call share.
pub(super) struct Selections {
    pub(super) k: usize,
    pub(super) out: u64,
    pub(super) status: u64,
    /// Scores are at offsets into the scratch memory, and their call cleared the status words.
    pub(super) in_scratch: bool,
}

pub(super) fn plan(mut op: Checked<TopK<'_>>, room: Room) -> Plan {
    let mut plan = Plan::default();
    let selections = Selections {
        k: op.k,
        out: op.out.as_mut_ptr() as u64,
        status: status(&op.status),
        in_scratch: false,
    };
    let rows = op.rows.iter().map(|row| Row {
        scores: row.scores.as_ptr() as u64,
        out: row.out as u64,
        n: row.scores.len() as i64,
        offset: row.offset,
        pad: 0,
    });
    selections.push(&mut plan, rows, room);
    plan
}

impl Selections {
    pub(super) fn push(&self, plan: &mut Plan, rows: impl ExactSizeIterator<Item = Row>, room: Room) {
        let n = room.rows(rows.len());
        let head = Head {
            out: self.out,
            status: self.status,
            k: self.k as i32,
            rows: n as i32,
            in_scratch: self.in_scratch as i32,
            pad: 0,
        };
        let padding = Row { n: -1, ..Row::zeroed() };
        let table = plan.push(&head, (rows, padding, n));
        let kernel = |name| ("top_k", name);
        if !self.in_scratch {
            let grid = [n.div_ceil(128) as u32, 1];
            plan.launch(Launch { kernel: kernel("top_k_start"), grid, threads: 128, table, ..Launch::PLAIN });
        }
        let shared = (self.k.next_power_of_two() * size_of::<u64>()) as u32;
        plan.launch(Launch {
            kernel: kernel("top_k"),
            grid: [n as u32, 1],
            threads: 1024,
            shared,
            table,
            ..Launch::PLAIN
        });
    }
}
