//! What is scored: a call's queries and rows, or those of a selection whose scores go to scratch.

use super::plan::status;
use crate::dims::causal_count;
use crate::ops::{Checked, IndexScores, Method};
use crate::view::View;
use half::bf16;

/// What the scores of a call share.
pub(in crate::backend) struct Scores<'a> {
    pub(in crate::backend) q: View<'a, bf16, 3>,
    pub(in crate::backend) weights: View<'a, f32, 2>,
    pub(in crate::backend) method: Method,
    /// `None`: the scratch memory.
    pub(in crate::backend) out: Option<u64>,
    pub(in crate::backend) status: u64,
}

/// One row: a query and the keys that it sees.
#[derive(Clone, Copy)]
pub(in crate::backend) struct Seen<'a> {
    pub(in crate::backend) keys: View<'a, bf16, 2>,
    pub(in crate::backend) query: usize,
    /// How many keys.
    pub(in crate::backend) count: usize,
    /// Its first score's place.
    pub(in crate::backend) out: usize,
}

/// The scores of a call, and its rows.
pub(in crate::backend) fn scores<'o>(
    op: &'o mut Checked<IndexScores<'_>>,
) -> (Scores<'o>, impl ExactSizeIterator<Item = Seen<'o>> + Clone) {
    let (out, status) = (Some(op.out.as_mut_ptr() as u64), status(&op.status));
    let (q, weights, method, ratio) = (op.q, op.weights, op.method, op.ratio);
    let rows = op.rows.iter().map(move |row| {
        let count = causal_count(row.start_pos, ratio);
        Seen { keys: row.keys, query: row.query, count, out: row.out }
    });
    (Scores { q, weights, method, out, status }, rows)
}
