//! `compress`.

use super::{each, rows};
use crate::call::Call;
use crate::ints::Ints;
use crate::rows::{Names, Ragged};
use abreast::{Compress, CompressRow, Emit, StateLayout, bf16};
use pyo3::prelude::*;
use pyo3::types::PyDict;

pub(super) const LAYOUTS: [(&str, StateLayout); 2] =
    [("shifted", StateLayout::Shifted), ("ring", StateLayout::Ring)];

#[pyfunction]
#[pyo3(name = "compress")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("compress", args, "ape")?;
    let ape = call.view::<f32, 2>("ape")?;
    let norm = call.view::<f32, 1>("norm")?;
    let kv = Ragged::<2>::new(call, Names { data: "kv", offsets: "kv_offsets", lens: "kv_lens" })?;
    let said = Ints::parse(call.place("start_pos"), &call.need("start_pos")?)?.count();
    let n = rows(call, [said, kv.count()])?;
    let kv = kv.rows::<f32>(call, (n, false))?;
    let names = Names { data: "score", offsets: "kv_offsets", lens: "kv_lens" };
    let score = Ragged::<2>::new(call, names)?.rows::<f32>(call, (n, false))?;
    let state = |data| {
        let names = Names { data, offsets: "state_offsets", lens: "state_lens" };
        Ragged::<2>::new(call, names)?.rows::<f32>(call, (n, true))
    };
    let (kv_state, score_state) = (state("kv_state")?, state("score_state")?);
    let start_pos: Vec<u32> = each(call, "start_pos", n)?;
    let ratio: u32 = call.count("ratio")?;
    let layout = call.choice("layout", &LAYOUTS)?;
    let emit = call.choice("emit", &[("every_token", Emit::EveryToken), ("blocks", Emit::Blocks)])?;
    let epsilon = call.number("epsilon")?.unwrap_or(1e-6);
    let status = call.status()?;
    let mut next = 0;
    let mut rows = Vec::with_capacity(n);
    for r in 0..n {
        let mut row = CompressRow {
            start_pos: start_pos[r],
            // SAFETY: kept by the call, and only read.
            kv: unsafe { kv[r].view() },
            // SAFETY: as above.
            score: unsafe { score[r].view() },
            // SAFETY: kept by the call, and apart from all else, which `run` checks.
            kv_state: unsafe { kv_state[r].view_mut() },
            // SAFETY: as above.
            score_state: unsafe { score_state[r].view_mut() },
            out: 0,
        };
        let outputs = match emit {
            Emit::EveryToken => row.tokens(),
            // A ratio of 0 is the library's to refuse.
            Emit::Blocks => row.blocks(ratio.max(1)),
        };
        (row.out, next) = (next, next + outputs);
        rows.push(row);
    }
    if let Some(given) = call.ints("out_rows")? {
        let place = call.place("out_rows");
        given.check(place, n)?;
        for (r, row) in rows.iter_mut().enumerate() {
            row.out = given.at(place, r)?;
        }
        if call.get("out")?.is_none() {
            return Err(place.value("None where out is", "numbers"));
        }
    }
    let (result, out) = call.out::<bf16, 2>([next, norm.len()])?;
    call.run(|device| {
        device.compress(Compress { ratio, layout, emit, ape, norm, epsilon, rows: &mut rows, out, status })
    })?;
    call.finish(result)
}
