//! Index scores, top-k and the two in one call.

use super::{Attempt, Break, args, elsewhere, output, refused, row, table, untouched};
use crate::conformance::Case;
use crate::conformance::bits::Verdict;
use crate::conformance::lab::Lab;
use crate::{
    IndexScores, IndexScoresRow, Method, Op, Result, SelectKeys, SelectKeysRow, TopK, TopKRow, bf16,
};

pub(super) fn cases() -> Vec<Case> {
    let scores = table(IndexScores::NAME, scores(), run_scores);
    let top = table(TopK::NAME, top(), run_top);
    scores.into_iter().chain(top).chain(table(SelectKeys::NAME, select(), run_select)).collect()
}

type Scores = for<'a> fn(IndexScores<'a>) -> IndexScores<'a>;
type ScoresRow = for<'a> fn(&mut IndexScoresRow<'a>);

/// Two rows of 3 heads of 32 features that see 5 keys of 6 each; 4 queries, an output of 20.
fn run_scores(lab: &mut Lab<'_>, attempt: &Attempt<Scores, ScoresRow>) -> Verdict {
    let device = lab.device;
    let (q, keys) = (device.zeros::<bf16>(4 * 3 * 32)?, device.zeros::<bf16>(6 * 32)?);
    let weights = device.zeros::<f32>(4 * 3)?;
    let mut out = output::<f32>(device, "out", 20)?;
    let mut status = output::<u32>(device, "status", 2)?;
    let entry = |r: usize| -> Result<IndexScoresRow<'_>> {
        Ok(IndexScoresRow { query: r, start_pos: 19, keys: keys.shaped([6, 32])?, out: 8 * r })
    };
    let mut rows = [entry(0)?, entry(1)?];
    if let Break::Row(edit) = attempt.bad {
        edit(&mut rows[1]);
    }
    let call = IndexScores {
        q: q.shaped([4, 3, 32])?,
        weights: weights.shaped([4, 3])?,
        ratio: 4,
        method: Method::Reference,
        rows: &rows,
        out: out.view_mut(),
        status: Some(status.view_mut()),
    };
    let call = if let Break::Args(edit) = attempt.bad { edit(call) } else { call };
    let result = device.index_scores(call);
    refused(lab, result, attempt.text)?;
    untouched(lab, &out)?;
    untouched(lab, &status)
}

/// The same elements under another shape.
macro_rules! shaped {
    ($view:expr, $shape:expr) => {
        $view.reshape($shape).expect("as many elements")
    };
}

fn scores() -> Vec<Attempt<Scores, ScoresRow>> {
    vec![
        args("q_device", "index_scores: q must be on {device}, got metal:77", |a| IndexScores {
            q: elsewhere(),
            ..a
        }),
        args("no_heads", "index_scores: q must be of at least 1 head, got 0 heads", |a| IndexScores {
            q: shaped!(a.q.slice(0..0), [4, 0, 32]),
            ..a
        }),
        args("wide", "index_scores: q must be of a head size of at most 1048576, got 2097152", |a| {
            IndexScores { q: shaped!(a.q.slice(0..0), [0, 6, 1 << 21]), ..a }
        }),
        args("heads", "index_scores: q must be of at most 2047 heads of 1048576, got 2048", |a| {
            IndexScores { q: shaped!(a.q.slice(0..0), [0, 2048, 1 << 20]), ..a }
        }),
        args("dim", "index_scores: q must be of a head size divisible by 32, got 16", |a| IndexScores {
            q: shaped!(a.q, [4, 6, 16]),
            ..a
        }),
        args("weights_shape", "index_scores: weights must be [4, 3], got [3, 4]", |a| IndexScores {
            weights: shaped!(a.weights, [3, 4]),
            ..a
        }),
        args("weights_device", "index_scores: weights must be on {device}, got metal:77", |a| IndexScores {
            weights: elsewhere(),
            ..a
        }),
        args("ratio", "index_scores: ratio must be at least 1, got 0", |a| IndexScores { ratio: 0, ..a }),
        args("status_shape", "index_scores: status must be [2], got [1]", |a| IndexScores {
            status: a.status.map(|status| status.slice(0..1)),
            ..a
        }),
        row("query", "index_scores: rows[1].query must be below 4, got 4", |r| r.query = 4),
        row("keys_shape", "index_scores: rows[1].keys must be [_, 32], got [3, 64]", |r| {
            r.keys = shaped!(r.keys, [3, 64])
        }),
        row("keys_device", "index_scores: rows[1].keys must be on {device}, got metal:77", |r| {
            r.keys = elsewhere()
        }),
        row(
            "keys_short",
            "index_scores: rows[1].keys must be of at least (start_pos + 1) / ratio = 5 rows, got 4 rows",
            |r| r.keys = r.keys.slice(0..4),
        ),
        row(
            "last_position",
            "index_scores: rows[1].keys must be of at least (start_pos + 1) / ratio = 1073741824 rows, got 6 rows",
            |r| r.start_pos = u32::MAX,
        ),
        row("out", "index_scores: rows[1].out must be at most 15 (20 - 5), got 16", |r| r.out = 16),
        row(
            "out_max",
            "index_scores: rows[1].out must be at most 15 (20 - 5), got 18446744073709551615",
            |r| r.out = usize::MAX,
        ),
        row(
            "outputs_overlap",
            "index_scores: rows[1].out must be apart from all others, got the place of rows[0].out",
            |r| r.out = 4,
        ),
    ]
}

type Top = for<'a> fn(TopK<'a>) -> TopK<'a>;
type TopRow = for<'a> fn(&mut TopKRow<'a>);

/// Two rows of 9 scores, 5 selected; an output of 12.
fn run_top(lab: &mut Lab<'_>, attempt: &Attempt<Top, TopRow>) -> Verdict {
    let device = lab.device;
    let scores = device.zeros::<f32>(9)?;
    let mut out = output::<i32>(device, "out", 12)?;
    let mut status = output::<u32>(device, "status", 2)?;
    let mut rows = [0, 6].map(|out| TopKRow { scores: scores.view(), offset: 7, out });
    if let Break::Row(edit) = attempt.bad {
        edit(&mut rows[1]);
    }
    let call = TopK { k: 5, rows: &rows, out: out.view_mut(), status: Some(status.view_mut()) };
    let call = if let Break::Args(edit) = attempt.bad { edit(call) } else { call };
    let result = device.top_k(call);
    refused(lab, result, attempt.text)?;
    untouched(lab, &out)?;
    untouched(lab, &status)
}

fn top() -> Vec<Attempt<Top, TopRow>> {
    vec![
        args("k_zero", "top_k: k must be 1 to 2048, got 0", |a| TopK { k: 0, ..a }),
        args("k_large", "top_k: k must be 1 to 2048, got 2049", |a| TopK { k: 2049, ..a }),
        args("status_shape", "top_k: status must be [2], got [0]", |a| TopK {
            status: a.status.map(|status| status.slice(0..0)),
            ..a
        }),
        row("scores_device", "top_k: rows[1].scores must be on {device}, got metal:77", |r| {
            r.scores = elsewhere()
        }),
        row("offset_negative", "top_k: rows[1].offset must be at least 0, got -1", |r| r.offset = -1),
        row(
            "offset_large",
            "top_k: rows[1].offset must be at most 2147483639, so that the last index fits an i32, got 2147483640",
            |r| r.offset = i32::MAX - 7,
        ),
        row("out", "top_k: rows[1].out must be at most 7 (12 - 5), got 8", |r| r.out = 8),
        row(
            "slots_overlap",
            "top_k: rows[1].out must be apart from all others, got the place of rows[0].out",
            |r| r.out = 4,
        ),
    ]
}

type Select = for<'a> fn(SelectKeys<'a>) -> SelectKeys<'a>;
type SelectRow = for<'a> fn(&mut SelectKeysRow<'a>);

/// Two rows of 3 heads of 32 features that see 5 keys of 6 each, 7 selected; an output of 20.
fn run_select(lab: &mut Lab<'_>, attempt: &Attempt<Select, SelectRow>) -> Verdict {
    let device = lab.device;
    let (q, keys) = (device.zeros::<bf16>(4 * 3 * 32)?, device.zeros::<bf16>(6 * 32)?);
    let weights = device.zeros::<f32>(4 * 3)?;
    let mut out = output::<i32>(device, "out", 20)?;
    let mut status = output::<u32>(device, "status", 2)?;
    let entry = |r: usize| -> Result<SelectKeysRow<'_>> {
        Ok(SelectKeysRow { query: r, start_pos: 19, keys: keys.shaped([6, 32])?, offset: 9, out: 8 * r })
    };
    let mut rows = [entry(0)?, entry(1)?];
    if let Break::Row(edit) = attempt.bad {
        edit(&mut rows[1]);
    }
    let call = SelectKeys {
        q: q.shaped([4, 3, 32])?,
        weights: weights.shaped([4, 3])?,
        ratio: 4,
        method: Method::Reference,
        k: 7,
        rows: &rows,
        out: out.view_mut(),
        status: Some(status.view_mut()),
    };
    let call = if let Break::Args(edit) = attempt.bad { edit(call) } else { call };
    let result = device.select_keys(call);
    refused(lab, result, attempt.text)?;
    untouched(lab, &out)?;
    untouched(lab, &status)
}

fn select() -> Vec<Attempt<Select, SelectRow>> {
    vec![
        args("q_device", "select_keys: q must be on {device}, got metal:77", |a| SelectKeys {
            q: elsewhere(),
            ..a
        }),
        args("weights_shape", "select_keys: weights must be [4, 3], got [3, 4]", |a| SelectKeys {
            weights: shaped!(a.weights, [3, 4]),
            ..a
        }),
        args("ratio", "select_keys: ratio must be at least 1, got 0", |a| SelectKeys { ratio: 0, ..a }),
        args("k_zero", "select_keys: k must be 1 to 2048, got 0", |a| SelectKeys { k: 0, ..a }),
        args("k_large", "select_keys: k must be 1 to 2048, got 4096", |a| SelectKeys { k: 4096, ..a }),
        args("status_shape", "select_keys: status must be [2], got [1]", |a| SelectKeys {
            status: a.status.map(|status| status.slice(0..1)),
            ..a
        }),
        row("query", "select_keys: rows[1].query must be below 4, got 9", |r| r.query = 9),
        row("keys_shape", "select_keys: rows[1].keys must be [_, 32], got [3, 64]", |r| {
            r.keys = shaped!(r.keys, [3, 64])
        }),
        row(
            "keys_short",
            "select_keys: rows[1].keys must be of at least (start_pos + 1) / ratio = 5 rows, got 2 rows",
            |r| r.keys = r.keys.slice(0..2),
        ),
        row("offset_negative", "select_keys: rows[1].offset must be at least 0, got -2147483648", |r| {
            r.offset = i32::MIN
        }),
        row(
            "offset_large",
            "select_keys: rows[1].offset must be at most 2147483643, so that the last index fits an i32, got 2147483644",
            |r| r.offset = i32::MAX - 3,
        ),
        row("out", "select_keys: rows[1].out must be at most 13 (20 - 7), got 14", |r| r.out = 14),
        row(
            "slots_overlap",
            "select_keys: rows[1].out must be apart from all others, got the place of rows[0].out",
            |r| r.out = 6,
        ),
    ]
}
