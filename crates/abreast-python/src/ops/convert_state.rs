//! `convert_state`.

use super::compress::LAYOUTS;
use super::{each, rows};
use crate::call::Call;
use crate::ints::Ints;
use crate::rows::{Names, Ragged};
use abreast::dims::window;
use abreast::{ConvertState, ConvertStateRow, StateLayout};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

#[pyfunction]
#[pyo3(name = "convert_state")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("convert_state", args, "kv_state")?;
    let state = |data| Names { data, offsets: "state_offsets", lens: "state_lens" };
    let kv = Ragged::<2>::new(call, state("kv_state"))?;
    let said = Ints::parse(call.place("position"), &call.need("position")?)?.count();
    let n = rows(call, [said, kv.count()])?;
    let kv = kv.rows::<f32>(call, (n, false))?;
    let score = Ragged::<2>::new(call, state("score_state"))?.rows::<f32>(call, (n, false))?;
    let position: Vec<u32> = each(call, "position", n)?;
    let ratio: u32 = call.count("ratio")?;
    let (from, to) = (call.choice("from_layout", &LAYOUTS)?, call.choice("to_layout", &LAYOUTS)?);
    let features = kv.first().map_or(0, |state| state.shape[1]);
    let new_rows = match call.get("to_rows")? {
        Some(_) => call.count("to_rows")?,
        None => window(ratio as usize),
    };
    if to == StateLayout::Shifted && new_rows != window(ratio as usize) {
        return Err(call
            .place("to_rows")
            .value(format_args!("{} or None", window(ratio as usize)), new_rows));
    }
    if call.get("out_kv")?.is_some() != call.get("out_score")?.is_some() {
        return Err(call.place("out_kv").value("given together with out_score", "one of them"));
    }
    let new = |data: &'static str| {
        let object = match call.get(data)? {
            Some(object) => object,
            None => {
                let object = call.empty::<f32>(&[n, new_rows, features])?;
                args.set_item(data, &object)?;
                object
            }
        };
        let names = Names { data, offsets: "out_offsets", lens: "out_lens" };
        Ok::<_, PyErr>((object, Ragged::<2>::new(call, names)?.rows::<f32>(call, (n, true))?))
    };
    let fresh = call.get("out_kv")?.is_none();
    let ((kv_out, kv_to), (score_out, score_to)) = (new("out_kv")?, new("out_score")?);
    let mut rows: Vec<_> = (0..n)
        .map(|r| ConvertStateRow {
            position: position[r],
            // SAFETY: kept by the call, and only read.
            kv_from: unsafe { kv[r].view() },
            // SAFETY: as above.
            score_from: unsafe { score[r].view() },
            // SAFETY: kept by the call, and apart from all else, which `run` checks.
            kv_to: unsafe { kv_to[r].view_mut() },
            // SAFETY: as above.
            score_to: unsafe { score_to[r].view_mut() },
        })
        .collect();
    call.run(|device| device.convert_state(ConvertState { ratio, from, to, rows: &mut rows }))?;
    let own = |object| if fresh { call.finish(object) } else { Ok(object) };
    Ok(PyTuple::new(call.py(), [own(kv_out)?, own(score_out)?])?.into_any())
}
