//! `index_scores`.

use super::{each, numbers, rows};
use crate::call::Call;
use crate::ints::Ints;
use crate::rows::{Names, Ragged};
use abreast::dims::causal_count;
use abreast::{IndexScores, IndexScoresRow, bf16};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How many rows a call of the indexer has.
pub(super) fn count(call: &Call<'_>, queries: usize) -> PyResult<usize> {
    let said = |name| Ok::<_, PyErr>(call.ints(name)?.and_then(|ints: Ints| ints.count()));
    rows(call, [said("query_rows")?, said("start_pos")?, Some(queries)])
}

/// Where the rows' results start, where it is not said: each in an entry of `out`, or one behind the other.
pub(super) fn starts(call: &Call<'_>, lens: &[usize], entry: Option<usize>) -> PyResult<Vec<usize>> {
    if call.get("out_offsets")?.is_some() {
        return each(call, "out_offsets", lens.len());
    }
    let packed = lens.iter().scan(0, |next, len| {
        let start = *next;
        *next += len;
        Some(start)
    });
    Ok(match entry {
        Some(entry) => (0..lens.len()).map(|r| r * entry).collect(),
        None => packed.collect(),
    })
}

#[pyfunction]
#[pyo3(name = "index_scores")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("index_scores", args, "q")?;
    let q = call.view::<bf16, 3>("q")?;
    let weights = call.view::<f32, 2>("weights")?;
    let n = count(call, q.shape()[0])?;
    let query = numbers(call, "query_rows", n)?;
    let start_pos: Vec<u32> = each(call, "start_pos", n)?;
    let ratio: u32 = call.count("ratio")?;
    let names = Names { data: "keys", offsets: "keys_offsets", lens: "keys_lens" };
    let keys = Ragged::<2>::new(call, names)?.rows::<bf16>(call, (n, false))?;
    let (method, status) = (call.method()?, call.status()?);
    // A ratio of 0 is the library's to refuse, and so are fewer keys than are visible: no memory is asked for on their account.
    let visible = start_pos.iter().map(|&p| causal_count(p, ratio.max(1)));
    let counts: Vec<_> = visible.zip(&keys).map(|(count, keys)| count.min(keys.shape[0])).collect();
    let (result, out, entry) = call.flat_out::<f32>(&[counts.iter().sum()])?;
    let starts = starts(call, &counts, entry)?;
    let rows: Vec<_> = (0..n)
        .map(|r| IndexScoresRow {
            query: query[r],
            start_pos: start_pos[r],
            // SAFETY: kept by the call, and only read.
            keys: unsafe { keys[r].view() },
            out: starts[r],
        })
        .collect();
    call.run(|device| {
        device.index_scores(IndexScores { q, weights, ratio, method, rows: &rows, out, status })
    })?;
    call.finish(result)
}
