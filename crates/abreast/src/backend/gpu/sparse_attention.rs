//! The table that every attention kernel reads.

use super::plan::{Plan, Room, address, status};
use crate::ops::{Checked, SparseAttention};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    q: u64,
    sinks: u64,
    out: u64,
    status: u64,
    scale: f32,
    heads: i32,
    dim: i32,
    width: i32,
    rows: i32,
    /// Heads of a block, where the kernel asks.
    group: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Row {
    kv: u64,
    indices: u64,
    query: u64,
    out: u64,
    kv_len: i64,
    width: i32,
    active: i32,
}

/// What launches are sized by.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct Extent {
    pub(in crate::backend) rows: usize,
    pub(in crate::backend) heads: usize,
    pub(in crate::backend) dim: usize,
    /// Slots of the widest row.
    pub(in crate::backend) width: usize,
}

impl Extent {
    pub(in crate::backend) fn of(op: &Checked<SparseAttention<'_>>, room: Room) -> Extent {
        let [_, heads, dim] = op.q.shape();
        let width = room.width(op.rows.iter().map(|row| row.indices.len()));
        Extent { rows: room.rows(op.rows.len()), heads, dim, width }
    }

    /// Places for a head's logits in scratch: one more than the widest row has, where the sum goes.
    fn places(self) -> usize {
        self.width + 1
    }

    /// Bytes of scratch of kernels that keep logits there, behind what a row's first look finds; more than there are where a step's
    /// limits ask for that.
    pub(in crate::backend) fn scratch(self) -> usize {
        const FOUND: usize = 8;
        let logits = self.heads * self.places() * size_of::<f32>();
        self.rows.saturating_mul(logits).saturating_add((self.rows * FOUND).next_multiple_of(256))
    }
}

/// Appends the table: where it starts. `group` is for the kernel that asks for it.
pub(in crate::backend) fn table(
    plan: &mut Plan,
    op: &mut Checked<SparseAttention<'_>>,
    (extent, group): (Extent, i32),
) -> usize {
    let head = Head {
        q: op.q.as_ptr() as u64,
        sinks: address(op.sinks.as_ref().map(|s| s.as_ptr())),
        out: op.out.as_mut_ptr() as u64,
        status: status(&op.status),
        scale: op.scale,
        heads: extent.heads as i32,
        dim: extent.dim as i32,
        width: extent.places() as i32,
        rows: extent.rows as i32,
        group,
    };
    let rows = op.rows.iter().map(|row| Row {
        kv: row.kv.as_ptr() as u64,
        indices: row.indices.as_ptr() as u64,
        query: row.query as u64,
        out: row.out as u64,
        kv_len: row.kv.shape()[0] as i64,
        width: row.indices.len() as i32,
        active: 1,
    });
    plan.push(&head, (rows, Row::zeroed(), extent.rows))
}
