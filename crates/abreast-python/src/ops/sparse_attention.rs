//! `sparse_attention`.

use super::{numbers, rows};
use crate::call::Call;
use crate::rows::{Names, Ragged};
use abreast::{AttentionRow, SparseAttention, bf16};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
#[pyo3(name = "sparse_attention")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("sparse_attention", args, "q")?;
    let q = call.view::<bf16, 3>("q")?;
    let [queries, heads, dim] = q.shape();
    let said = call.ints("query_rows")?.and_then(|rows| rows.count());
    let n = rows(call, [said, Some(queries)])?;
    let (query, out_row) = (numbers(call, "query_rows", n)?, numbers(call, "out_rows", n)?);
    let names = Names { data: "kv", offsets: "kv_offsets", lens: "kv_lens" };
    let kv = Ragged::<2>::new(call, names)?.rows::<bf16>(call, (n, false))?;
    let names = Names { data: "indices", offsets: "indices_offsets", lens: "indices_lens" };
    let indices = Ragged::<1>::new(call, names)?.rows::<i32>(call, (n, false))?;
    let sinks = call.get("sinks")?.map(|sinks| call.view_of("sinks", &sinks)).transpose()?;
    let scale = call.number("scale")?.unwrap_or(1.0 / (dim as f32).sqrt());
    let (method, status) = (call.method()?, call.status()?);
    // Without gaps, which nobody would write.
    let (result, out) = call.out::<bf16, 3>([n, heads, dim])?;
    let rows: Vec<_> = (0..n)
        .map(|r| AttentionRow {
            query: query[r],
            out: out_row[r],
            // SAFETY: kept by the call; read while nobody writes it, as the caller of any function of arrays promises.
            kv: unsafe { kv[r].view() },
            // SAFETY: as above.
            indices: unsafe { indices[r].view() },
        })
        .collect();
    call.run(|device| {
        device.sparse_attention(SparseAttention { q, sinks, scale, method, rows: &rows, out, status })
    })?;
    call.finish(result)
}
