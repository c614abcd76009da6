use super::{Attempt, Break, args, output, refused, row, table, untouched};
use crate::conformance::Case;
use crate::conformance::bits::Verdict;
use crate::conformance::lab::Lab;
use crate::{GatherRow, GatherRows, Op, View};

/// How many rows the output claims to have.
type Args = usize;
/// What the second row is.
type Row = Source;

#[derive(Clone, Copy)]
enum Source {
    Short,
    OtherType,
    Elsewhere,
    Output,
}

pub(super) fn cases() -> Vec<Case> {
    let attempts = vec![
        args("out_rows", "gather_rows: out must be [2, 10], got [4, 10]", 4),
        row("source_length", "gather_rows: rows[1].source must be [20], got [19]", Source::Short),
        row("source_type", "gather_rows: rows[1].source must be f32, got i32", Source::OtherType),
        row(
            "source_device",
            "gather_rows: rows[1].source must be on {device}, got metal:77",
            Source::Elsewhere,
        ),
        row(
            "source_is_output",
            "gather_rows: rows[1].source must be apart from out, got a part of it",
            Source::Output,
        ),
    ];
    table(GatherRows::NAME, attempts, run)
}

/// Two rows of 20.
fn run(lab: &mut Lab<'_>, attempt: &Attempt<Args, Row>) -> Verdict {
    let device = lab.device;
    let (data, integers) = (device.zeros::<f32>(20)?, device.zeros::<i32>(20)?);
    let mut out = output::<f32>(device, "out", 40)?;
    let mut view = out.view_mut();
    // SAFETY: the call refuses a source within its output before anybody looks through it.
    let alias = unsafe { View::from_raw(view.as_mut_ptr().cast_const().wrapping_add(3), [20], device.id()) };
    let second = match attempt.bad {
        Break::Row(Source::Short) => data.view().slice(0..19).into(),
        Break::Row(Source::OtherType) => integers.view().into(),
        Break::Row(Source::Elsewhere) => super::elsewhere::<f32, 1>().into(),
        Break::Row(Source::Output) => alias.into(),
        Break::Args(_) => data.view().into(),
    };
    let rows = [GatherRow { source: data.view().into() }, GatherRow { source: second }];
    let count = if let Break::Args(rows) = attempt.bad { rows } else { 2 };
    let result =
        device.gather_rows(GatherRows { rows: &rows, out: view.reshape([count, 40 / count])?.into() });
    refused(lab, result, attempt.text)?;
    untouched(lab, &out)
}
