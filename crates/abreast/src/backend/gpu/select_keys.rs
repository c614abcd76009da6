//! Scores in scratch, and what is selected from them.

use super::index_scores::{Scores, Seen};
use super::plan::{Room, status};
use super::top_k::{Row, Selections};
use crate::dims::causal_count;
use crate::ops::{Checked, SelectKeys};

/// Scores that each row sees, and where they start in the scratch memory.
pub(in crate::backend) struct Places {
    counts: Vec<usize>,
    starts: Vec<usize>,
    /// Bytes of it all; a step has the place for its limits.
    pub(in crate::backend) scratch: usize,
}

/// Places of a row of so many scores: rows start at whole lines of memory.
fn places(scores: usize) -> usize {
    scores.next_multiple_of(128 / size_of::<f32>())
}

impl Places {
    pub(in crate::backend) fn of(op: &Checked<SelectKeys<'_>>, room: Room) -> Places {
        let counts: Vec<usize> = op.rows.iter().map(|row| causal_count(row.start_pos, op.ratio)).collect();
        let mut end = 0;
        let mut start = |&count: &usize| {
            end += places(count);
            end - places(count)
        };
        let starts = counts.iter().map(&mut start).collect();
        let places = match room {
            Room::Own => end,
            Room::Limits(limits) => limits.rows * places(limits.keys),
        };
        Places { counts, starts, scratch: places * size_of::<f32>() }
    }

    /// The scores, and their rows.
    pub(in crate::backend) fn scores<'o>(
        &'o self,
        op: &'o Checked<SelectKeys<'_>>,
    ) -> (Scores<'o>, impl ExactSizeIterator<Item = Seen<'o>> + Clone) {
        let (q, weights, method, status) = (op.q, op.weights, op.method, status(&op.status));
        let rows = op.rows.iter().enumerate().map(|(e, row)| {
            let (query, count, out) = (row.query, self.counts[e], self.starts[e]);
            Seen { keys: row.keys, query, count, out }
        });
        (Scores { q, weights, method, out: None, status }, rows)
    }

    /// The selections from these scores, and their rows.
    pub(in crate::backend) fn selections(&self, op: &mut Checked<SelectKeys<'_>>) -> (Selections, Vec<Row>) {
        let row = |(e, row): (usize, &crate::ops::SelectKeysRow<'_>)| Row {
            scores: (self.starts[e] * size_of::<f32>()) as u64,
            out: row.out as u64,
            n: self.counts[e] as i64,
            offset: row.offset,
            pad: 0,
        };
        let rows = op.rows.iter().enumerate().map(row).collect();
        let (k, out, status) = (op.k, op.out.as_mut_ptr() as u64, status(&op.status));
        (Selections { k, out, status, in_scratch: true }, rows)
    }
}
