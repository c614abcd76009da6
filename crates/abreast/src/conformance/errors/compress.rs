//! The compressor and the conversion of its states.

use super::{Attempt, Break, FILL, args, elsewhere, output, refused, row, table, untouched};
use crate::conformance::Case;
use crate::conformance::arena::{Arena, repeat};
use crate::conformance::bits::Verdict;
use crate::conformance::lab::Lab;
use crate::{
    Compress, CompressRow, ConvertState, ConvertStateRow, Device, Emit, Op, Result, StateLayout, ViewMut,
    bf16,
};

pub(super) fn cases() -> Vec<Case> {
    let compress = table(Compress::NAME, compress(), run_compress);
    compress.into_iter().chain(table(ConvertState::NAME, convert(), run_convert)).collect()
}

type Args = for<'a, 'r> fn(Compress<'a, 'r>) -> Compress<'a, 'r>;
type Row = for<'a> fn(CompressRow<'a>) -> CompressRow<'a>;

/// State rows of every request here, `[8, 64]`.
fn state(device: &Device, name: &'static str) -> Result<Arena<f32>> {
    output(device, name, 8 * 64)
}

/// Two rows of 5 tokens at position 2, ratio 4, 32 features (64 side by side); an output of 12 rows.
fn run_compress(lab: &mut Lab<'_>, attempt: &Attempt<Args, Row>) -> Verdict {
    let device = lab.device;
    let (ape, norm) = (device.zeros::<f32>(4 * 64)?, device.zeros::<f32>(32)?);
    let input = device.zeros::<f32>(5 * 64)?;
    let mut kv_states = [state(device, "kv_state")?, state(device, "kv_state")?];
    let mut score_states = [state(device, "score_state")?, state(device, "score_state")?];
    let mut out = output::<bf16>(device, "out", 12 * 32)?;
    let mut status = output::<u32>(device, "status", 2)?;
    let mut rows = Vec::new();
    for (r, (kv, score)) in kv_states.iter_mut().zip(&mut score_states).enumerate() {
        let row = CompressRow {
            start_pos: 2,
            kv: input.shaped([5, 64])?,
            score: input.shaped([5, 64])?,
            kv_state: kv.view_mut().reshape([8, 64])?,
            score_state: score.view_mut().reshape([8, 64])?,
            out: 6 * r,
        };
        rows.push(match attempt.bad {
            Break::Row(edit) if r == 1 => edit(row),
            _ => row,
        });
    }
    let call = Compress {
        ratio: 4,
        layout: StateLayout::Shifted,
        emit: Emit::EveryToken,
        ape: ape.shaped([4, 64])?,
        norm: norm.view(),
        epsilon: 1e-6,
        rows: &mut rows,
        out: out.view_mut().reshape([12, 32])?,
        status: Some(status.view_mut()),
    };
    let call = if let Break::Args(edit) = attempt.bad { edit(call) } else { call };
    let result = device.compress(call);
    refused(lab, result, attempt.text)?;
    for state in kv_states.iter().chain(&score_states) {
        untouched(lab, state)?;
    }
    untouched(lab, &out)?;
    untouched(lab, &status)
}

/// The same elements under another shape.
macro_rules! shaped {
    ($view:expr, $shape:expr) => {
        $view.reshape($shape).expect("as many elements")
    };
}

fn compress() -> Vec<Attempt<Args, Row>> {
    vec![
        args("ratio", "compress: ratio must be at least 1, got 0", |a| Compress { ratio: 0, ..a }),
        args("dim", "compress: out must be of a row size divisible by 32, got 16", |a| Compress {
            out: shaped!(a.out, [24, 16]),
            ..a
        }),
        args("wide", "compress: out must be of a row size of at most 1048576, got 2097152", |a| Compress {
            out: shaped!(a.out.slice(0..0), [0, 1 << 21]),
            ..a
        }),
        args("no_dim", "compress: out must be of a row size divisible by 32, got 0", |a| Compress {
            out: shaped!(a.out.slice(0..0), [12, 0]),
            ..a
        }),
        args("ape_shape", "compress: ape must be [4, 64], got [3, 64]", |a| Compress {
            ape: a.ape.slice(0..3),
            ..a
        }),
        args("ape_of_another_ratio", "compress: ape must be [8, 32], got [4, 64]", |a| Compress {
            ratio: 8,
            ..a
        }),
        args("ape_device", "compress: ape must be on {device}, got metal:77", |a| Compress {
            ape: elsewhere(),
            ..a
        }),
        args("norm_shape", "compress: norm must be [32], got [31]", |a| Compress {
            norm: a.norm.slice(0..31),
            ..a
        }),
        args("norm_device", "compress: norm must be on {device}, got metal:77", |a| Compress {
            norm: elsewhere(),
            ..a
        }),
        args("epsilon_zero", "compress: epsilon must be finite and positive, got 0", |a| Compress {
            epsilon: 0.0,
            ..a
        }),
        args("epsilon_negative", "compress: epsilon must be finite and positive, got -0.000001", |a| {
            Compress { epsilon: -1e-6, ..a }
        }),
        args("epsilon_nan", "compress: epsilon must be finite and positive, got NaN", |a| Compress {
            epsilon: f32::NAN,
            ..a
        }),
        args("epsilon_inf", "compress: epsilon must be finite and positive, got inf", |a| Compress {
            epsilon: f32::INFINITY,
            ..a
        }),
        args("status_shape", "compress: status must be [2], got [1]", |a| Compress {
            status: a.status.map(|status| status.slice(0..1)),
            ..a
        }),
        row("kv_shape", "compress: rows[1].kv must be [_, 64], got [10, 32]", |r| CompressRow {
            kv: shaped!(r.kv, [10, 32]),
            ..r
        }),
        row("kv_device", "compress: rows[1].kv must be on {device}, got metal:77", |r| CompressRow {
            kv: elsewhere(),
            ..r
        }),
        row("score_shape", "compress: rows[1].score must be [5, 64], got [4, 64]", |r| CompressRow {
            score: r.score.slice(0..4),
            ..r
        }),
        row("score_device", "compress: rows[1].score must be on {device}, got metal:77", |r| CompressRow {
            score: elsewhere(),
            ..r
        }),
        row("kv_state_shape", "compress: rows[1].kv_state must be [8, 64], got [16, 32]", |r| CompressRow {
            kv_state: shaped!(r.kv_state, [16, 32]),
            ..r
        }),
        row("score_state_shape", "compress: rows[1].score_state must be [8, 64], got [7, 64]", |r| {
            CompressRow { score_state: r.score_state.slice(0..7), ..r }
        }),
        args("ring_short", "compress: rows[0].kv_state must be of at least 8 rows, got 7 rows", |a| {
            for row in a.rows.iter_mut() {
                // Both states one row shorter: from the longer one to the next.
                shorten(row);
            }
            Compress { layout: StateLayout::Ring, ..a }
        }),
        row(
            "last_position",
            "compress: rows[1].start_pos must be at most 4294967290, so that every position is below u32::MAX, \
             got 4294967291",
            |r| CompressRow { start_pos: u32::MAX - 4, ..r },
        ),
        row("position_max", POSITION_MAX, |r| CompressRow { start_pos: u32::MAX, ..r }),
        row("out", "compress: rows[1].out must be at most 7 (12 - 5), got 8", |r| CompressRow {
            out: 8,
            ..r
        }),
        row(
            "outputs_overlap",
            "compress: rows[1].out must be apart from all others, got the place of rows[0].out",
            |r| CompressRow { out: 4, ..r },
        ),
        args(
            "states_overlap",
            "compress: rows[1].kv_state must be apart from all others, got the place of rows[0].score_state",
            |a| {
                if let [first, second] = &mut a.rows[..] {
                    alias(&mut first.score_state, &mut second.kv_state);
                }
                a
            },
        ),
        args(
            "states_of_one_overlap",
            "compress: rows[1].score_state must be apart from all others, got the place of rows[1].kv_state",
            |a| {
                let row = &mut a.rows[1];
                alias(&mut row.kv_state, &mut row.score_state);
                a
            },
        ),
    ]
}

const POSITION_MAX: &str = "compress: rows[1].start_pos must be at most 4294967290, so that every position is below \
                            u32::MAX, got 4294967295";

/// Takes the last row of both states away.
fn shorten(row: &mut CompressRow<'_>) {
    for state in [&mut row.kv_state, &mut row.score_state] {
        let (ptr, [rows, features], device) = (state.as_mut_ptr(), state.shape(), state.device());
        // SAFETY: a part of the view that it replaces.
        *state = unsafe { ViewMut::from_raw(ptr, [rows - 1, features], device) };
    }
}

/// Lets two states lie in one place.
fn alias(first: &mut ViewMut<'_, f32, 2>, second: &mut ViewMut<'_, f32, 2>) {
    let (ptr, shape, device) = (first.as_mut_ptr(), first.shape(), first.device());
    // SAFETY: the call refuses the alias before anybody looks through it.
    *second = unsafe { ViewMut::from_raw(ptr, shape, device) };
}

type Convert = for<'a, 'r> fn(ConvertState<'a, 'r>) -> ConvertState<'a, 'r>;
type ConvertRow = for<'a> fn(ConvertStateRow<'a>) -> ConvertStateRow<'a>;

/// Two requests at position 9, ratio 4, from the shifted layout to a ring of 8 rows of 64.
fn run_convert(lab: &mut Lab<'_>, attempt: &Attempt<Convert, ConvertRow>) -> Verdict {
    let device = lab.device;
    let old = device.upload(&[repeat::<f32>(FILL); 8 * 64])?;
    let mut kv_states = [state(device, "kv_to")?, state(device, "kv_to")?];
    let mut score_states = [state(device, "score_to")?, state(device, "score_to")?];
    let mut rows = Vec::new();
    for (r, (kv, score)) in kv_states.iter_mut().zip(&mut score_states).enumerate() {
        let row = ConvertStateRow {
            position: 9,
            kv_from: old.shaped([8, 64])?,
            score_from: old.shaped([8, 64])?,
            kv_to: kv.view_mut().reshape([8, 64])?,
            score_to: score.view_mut().reshape([8, 64])?,
        };
        rows.push(match attempt.bad {
            Break::Row(edit) if r == 1 => edit(row),
            _ => row,
        });
    }
    let (from, to) = (StateLayout::Shifted, StateLayout::Ring);
    let call = ConvertState { ratio: 4, from, to, rows: &mut rows };
    let call = if let Break::Args(edit) = attempt.bad { edit(call) } else { call };
    let result = device.convert_state(call);
    refused(lab, result, attempt.text)?;
    for state in kv_states.iter().chain(&score_states) {
        untouched(lab, state)?;
    }
    Ok(())
}

fn convert() -> Vec<Attempt<Convert, ConvertRow>> {
    vec![
        args("ratio", "convert_state: ratio must be at least 1, got 0", |a| ConvertState { ratio: 0, ..a }),
        args("ring_of_another_ratio", "convert_state: rows[0].kv_from must be [128, 64], got [8, 64]", |a| {
            ConvertState { ratio: 128, ..a }
        }),
        row("dim", "convert_state: rows[1].kv_from must be of a row size divisible by 64, got 32", |r| {
            ConvertStateRow { kv_from: shaped!(r.kv_from, [16, 32]), ..r }
        }),
        row(
            "wide",
            "convert_state: rows[1].kv_from must be of a row size of at most 2097152, got 4194304",
            |r| ConvertStateRow { kv_from: shaped!(r.kv_from.slice(0..0), [0, 1 << 22]), ..r },
        ),
        row("kv_from_shape", "convert_state: rows[1].kv_from must be [8, 64], got [7, 64]", |r| {
            ConvertStateRow { kv_from: r.kv_from.slice(0..7), ..r }
        }),
        row("score_from_shape", "convert_state: rows[1].score_from must be [8, 64], got [6, 64]", |r| {
            ConvertStateRow { score_from: r.score_from.slice(0..6), ..r }
        }),
        row(
            "score_from_device",
            "convert_state: rows[1].score_from must be on {device}, got metal:77",
            |r| ConvertStateRow { score_from: elsewhere(), ..r },
        ),
        row("kv_to_short", "convert_state: rows[1].kv_to must be of at least 8 rows, got 7 rows", |r| {
            ConvertStateRow { kv_to: r.kv_to.slice(0..7), ..r }
        }),
        row("score_to_shape", "convert_state: rows[1].score_to must be [8, 64], got [16, 32]", |r| {
            ConvertStateRow { score_to: shaped!(r.score_to, [16, 32]), ..r }
        }),
        args(
            "states_overlap",
            "convert_state: rows[1].score_to must be apart from all others, got the place of rows[0].kv_to",
            |a| {
                if let [first, second] = &mut a.rows[..] {
                    alias(&mut first.kv_to, &mut second.score_to);
                }
                a
            },
        ),
    ]
}
