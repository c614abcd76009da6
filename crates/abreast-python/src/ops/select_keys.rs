//! `select_keys`.

use super::index_scores::{count, starts};
use super::{each, numbers};
use crate::call::Call;
use crate::rows::{Names, Ragged};
use abreast::dims::MAX_K;
use abreast::{SelectKeys, SelectKeysRow, bf16};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
#[pyo3(name = "select_keys")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("select_keys", args, "q")?;
    let q = call.view::<bf16, 3>("q")?;
    let weights = call.view::<f32, 2>("weights")?;
    let n = count(call, q.shape()[0])?;
    let query = numbers(call, "query_rows", n)?;
    let start_pos: Vec<u32> = each(call, "start_pos", n)?;
    let (ratio, k): (u32, usize) = (call.count("ratio")?, call.count("k")?);
    let offset: Vec<i32> = each(call, "offset", n)?;
    let names = Names { data: "keys", offsets: "keys_offsets", lens: "keys_lens" };
    let keys = Ragged::<2>::new(call, names)?.rows::<bf16>(call, (n, false))?;
    let (method, status) = (call.method()?, call.status()?);
    // More is the library's to refuse.
    let slots = k.min(MAX_K);
    let (result, out, entry) = call.flat_out::<i32>(&[n, slots])?;
    let starts = starts(call, &vec![slots; n], entry)?;
    let rows: Vec<_> = (0..n)
        .map(|r| SelectKeysRow {
            query: query[r],
            start_pos: start_pos[r],
            // SAFETY: kept by the call, and only read.
            keys: unsafe { keys[r].view() },
            offset: offset[r],
            out: starts[r],
        })
        .collect();
    call.run(|device| {
        device.select_keys(SelectKeys { q, weights, ratio, method, k, rows: &rows, out, status })
    })?;
    call.finish(result)
}
