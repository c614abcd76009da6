//! Exact top-k: its table, and the launches of the kernel that every GPU has.

use super::plan::{Launch, Plan, Room, status};
use crate::ops::{Checked, TopK, TopKRow};
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
pub(in crate::backend) struct Row {
    pub(in crate::backend) scores: u64,
    pub(in crate::backend) out: u64,
    pub(in crate::backend) n: i64,
    pub(in crate::backend) offset: i32,
    pub(in crate::backend) pad: i32,
}

/// What the selections of a call share.
pub(in crate::backend) struct Selections {
    pub(in crate::backend) k: usize,
    pub(in crate::backend) out: u64,
    pub(in crate::backend) status: u64,
    /// Scores are at offsets into the scratch memory, and their call cleared the status words.
    pub(in crate::backend) in_scratch: bool,
}

/// The selections of a call, and its rows.
pub(in crate::backend) fn selections(
    op: &mut Checked<TopK<'_>>,
) -> (Selections, impl ExactSizeIterator<Item = Row> + Clone) {
    let (k, out, status) = (op.k, op.out.as_mut_ptr() as u64, status(&op.status));
    let row = |row: &TopKRow<'_>| Row {
        scores: row.scores.as_ptr() as u64,
        out: row.out as u64,
        n: row.scores.len() as i64,
        offset: row.offset,
        pad: 0,
    };
    (Selections { k, out, status, in_scratch: false }, op.rows.iter().map(row))
}

impl Selections {
    /// Appends the table: where it starts.
    pub(in crate::backend) fn table(
        &self,
        plan: &mut Plan,
        (rows, room): (impl ExactSizeIterator<Item = Row>, Room),
    ) -> usize {
        let n = room.rows(rows.len());
        let head = Head {
            out: self.out,
            status: self.status,
            k: self.k as i32,
            rows: n as i32,
            in_scratch: self.in_scratch as i32,
            pad: 0,
        };
        plan.push(&head, (rows, Row { n: -1, ..Row::zeroed() }, n))
    }

    /// Appends the launches over a table of `n` rows.
    pub(in crate::backend) fn launch(&self, plan: &mut Plan, (n, table): (usize, usize)) {
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
