//! The scores of all rows, then their selections, with the scores in scratch.

use super::index_scores::{Rows, ScoredRow, Scorer};
use super::top_k::{self, Selected, select_all};
use super::{Cpu, Shared, StatusWords};
use crate::dims::causal_count;
use crate::error::Result;
use crate::ops::{Checked, Op, SelectKeys, SelectKeysRow};

pub(super) fn launch(cpu: &Cpu, mut op: Checked<SelectKeys<'_>>) -> Result<()> {
    let words = StatusWords::of(op.status.as_mut());
    let out = Shared(op.out.as_mut_ptr());
    let scorer = Scorer { q: op.q.as_ptr(), weights: op.weights.as_ptr(), shape: op.q.shape() };
    let (ratio, k) = (op.ratio, op.k);
    let count = move |row: &SelectKeysRow<'_>| causal_count(row.start_pos, ratio);
    // The rows' scores, one behind the other.
    let places = &cpu.starts(op.rows.iter().map(count))?;
    let slots = cpu.lease(1, places.total() * size_of::<f32>())?;
    let scratch = Shared(slots.get(0).cast::<f32>());
    // SAFETY: an entry's place lies within the total.
    let scores = |e: usize| Shared(unsafe { scratch.at(places.of(e)) });
    let scored = |e: usize| {
        let row = &op.rows[e];
        ScoredRow { query: row.query, keys: row.keys.as_ptr(), count: count(row), out: scores(e) }
    };
    let scoring =
        scorer.prepare(cpu, Rows { len: op.rows.len(), row: scored, nanoseconds: op.cost().flops / 130 })?;
    let selecting = top_k::prepare(cpu, k, (op.rows.len(), places.total()))?;
    words.clear();
    scoring.run(&words);
    let selected = |e: usize| {
        let row = &op.rows[e];
        // SAFETY: the contract put every row's slots within `out`.
        let out = Shared(unsafe { out.at(row.out) });
        Selected { scores: scores(e), n: count(row), offset: row.offset, out }
    };
    select_all((selecting, k), selected, &words);
    Ok(())
}
