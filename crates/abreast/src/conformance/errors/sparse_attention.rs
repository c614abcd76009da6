use super::{Attempt, Break, args, elsewhere, output, refused, row, table, untouched};
use crate::conformance::Case;
use crate::conformance::bits::Verdict;
use crate::conformance::lab::Lab;
use crate::{AttentionRow, Method, Op, Result, SparseAttention, bf16};

type Args = for<'a> fn(SparseAttention<'a>) -> SparseAttention<'a>;
type Row = for<'a> fn(&mut AttentionRow<'a>);

pub(super) fn cases() -> Vec<Case> {
    table(SparseAttention::NAME, attempts(), run)
}

/// Two rows of 3 heads of 64 features; 4 queries, 5 outputs, a cache of 6 rows, lists of 7.
fn run(lab: &mut Lab<'_>, attempt: &Attempt<Args, Row>) -> Verdict {
    let device = lab.device;
    let (q, kv) = (device.zeros::<bf16>(4 * 3 * 64)?, device.zeros::<bf16>(6 * 64)?);
    let (sinks, indices) = (device.zeros::<f32>(3)?, device.zeros::<i32>(7)?);
    let mut out = output::<bf16>(device, "out", 5 * 3 * 64)?;
    let mut status = output::<u32>(device, "status", 2)?;
    let entry = |r: usize| -> Result<AttentionRow<'_>> {
        Ok(AttentionRow { query: 3 - r, out: r, kv: kv.shaped([6, 64])?, indices: indices.view() })
    };
    let mut rows = [entry(0)?, entry(1)?];
    if let Break::Row(edit) = attempt.bad {
        edit(&mut rows[1]);
    }
    let call = SparseAttention {
        q: q.shaped([4, 3, 64])?,
        sinks: Some(sinks.view()),
        scale: 0.125,
        // It asks for more than `Reference`.
        method: Method::Fast,
        rows: &rows,
        out: out.view_mut().reshape([5, 3, 64])?,
        status: Some(status.view_mut()),
    };
    let call = if let Break::Args(edit) = attempt.bad { edit(call) } else { call };
    let result = device.sparse_attention(call);
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

/// Memory that starts one element beyond what `Fast` reads at once.
macro_rules! askew {
    ($arg:literal) => {
        concat!("sparse_attention: ", $arg, " must be at a multiple of 16 bytes for Fast, got 2 beyond one")
    };
}

fn attempts() -> Vec<Attempt<Args, Row>> {
    vec![
        args("q_device", "sparse_attention: q must be on {device}, got metal:77", |a| SparseAttention {
            q: elsewhere(),
            ..a
        }),
        args("no_heads", "sparse_attention: q must be of 1 to 128 heads, got 0 heads", |a| SparseAttention {
            q: shaped!(a.q.slice(0..0), [4, 0, 64]),
            ..a
        }),
        args("too_many_heads", "sparse_attention: q must be of 1 to 128 heads, got 192 heads", |a| {
            SparseAttention { q: shaped!(a.q, [1, 192, 4]), ..a }
        }),
        args("dim", "sparse_attention: q must be of a head size divisible by 32, got 48", |a| {
            SparseAttention { q: shaped!(a.q, [4, 4, 48]), ..a }
        }),
        args("wide", "sparse_attention: q must be of a head size of at most 1048576, got 2097152", |a| {
            SparseAttention { q: shaped!(a.q.slice(0..0), [0, 3, 1 << 21]), ..a }
        }),
        args("no_dim", "sparse_attention: q must be of a head size divisible by 32, got 0", |a| {
            SparseAttention { q: shaped!(a.q.slice(0..0), [4, 3, 0]), ..a }
        }),
        args("scale_nan", "sparse_attention: scale must be finite, got NaN", |a| SparseAttention {
            scale: f32::NAN,
            ..a
        }),
        args("scale_inf", "sparse_attention: scale must be finite, got -inf", |a| SparseAttention {
            scale: f32::NEG_INFINITY,
            ..a
        }),
        args("sinks_shape", "sparse_attention: sinks must be [3], got [2]", |a| SparseAttention {
            sinks: a.sinks.map(|sinks| sinks.slice(0..2)),
            ..a
        }),
        args("sinks_device", "sparse_attention: sinks must be on {device}, got metal:77", |a| {
            SparseAttention { sinks: Some(elsewhere()), ..a }
        }),
        args("out_shape", "sparse_attention: out must be [_, 3, 64], got [10, 3, 32]", |a| SparseAttention {
            out: shaped!(a.out, [10, 3, 32]),
            ..a
        }),
        args("out_heads", "sparse_attention: out must be [_, 3, 64], got [15, 1, 64]", |a| SparseAttention {
            out: shaped!(a.out, [15, 1, 64]),
            ..a
        }),
        args("status_shape", "sparse_attention: status must be [2], got [1]", |a| SparseAttention {
            status: a.status.map(|status| status.slice(1..2)),
            ..a
        }),
        args("q_askew", askew!("q"), |a| SparseAttention {
            q: shaped!(shaped!(a.q, [768]).slice(1..577), [3, 3, 64]),
            ..a
        }),
        args("out_askew", askew!("out"), |a| SparseAttention {
            out: shaped!(shaped!(a.out, [960]).slice(1..769), [4, 3, 64]),
            ..a
        }),
        row("kv_askew", askew!("rows[1].kv"), |r| {
            r.kv = shaped!(shaped!(r.kv, [384]).slice(1..321), [5, 64])
        }),
        row("query", "sparse_attention: rows[1].query must be below 4, got 4", |r| r.query = 4),
        row("query_max", "sparse_attention: rows[1].query must be below 4, got 18446744073709551615", |r| {
            r.query = usize::MAX
        }),
        row("out", "sparse_attention: rows[1].out must be below 5, got 5", |r| r.out = 5),
        row("kv_shape", "sparse_attention: rows[1].kv must be [_, 64], got [12, 32]", |r| {
            r.kv = shaped!(r.kv, [12, 32])
        }),
        row("kv_device", "sparse_attention: rows[1].kv must be on {device}, got metal:77", |r| {
            r.kv = elsewhere()
        }),
        row("indices_device", "sparse_attention: rows[1].indices must be on {device}, got metal:77", |r| {
            r.indices = elsewhere()
        }),
        row(
            "one_output_for_two",
            "sparse_attention: rows[1].out must be apart from all others, got the place of rows[0].out",
            |r| r.out = 0,
        ),
    ]
}
