//! `top_k`.

use super::index_scores::starts;
use super::{each, rows};
use crate::call::Call;
use crate::rows::{Names, Ragged};
use abreast::dims::MAX_K;
use abreast::{TopK, TopKRow};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
#[pyo3(name = "top_k")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("top_k", args, "scores")?;
    let names = Names { data: "scores", offsets: "scores_offsets", lens: "scores_lens" };
    let scores = Ragged::<1>::new(call, names)?;
    let n = rows(call, [scores.count()])?;
    let scores = scores.rows::<f32>(call, (n, false))?;
    let offset: Vec<i32> = each(call, "offset", n)?;
    let k: usize = call.count("k")?;
    let status = call.status()?;
    // More is the library's to refuse.
    let slots = k.min(MAX_K);
    let (result, out, entry) = call.flat_out::<i32>(&[n, slots])?;
    let starts = starts(call, &vec![slots; n], entry)?;
    let rows: Vec<_> = (0..n)
        .map(|r| TopKRow {
            // SAFETY: kept by the call, and only read.
            scores: unsafe { scores[r].view() },
            offset: offset[r],
            out: starts[r],
        })
        .collect();
    call.run(|device| device.top_k(TopK { k, rows: &rows, out, status }))?;
    call.finish(result)
}
