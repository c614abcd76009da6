//! `gather_rows`: any element type, so the rows are seen as what the first one holds.

use super::rows;
use crate::call::Call;
use crate::lent::Span;
use crate::rows::{Names, Ragged};
use abreast::{AnyView, AnyViewMut, DType, Element, GatherRow, GatherRows, bf16, f16};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
#[pyo3(name = "gather_rows")]
pub(crate) fn call<'py>(args: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let call = &Call::open("gather_rows", args, "sources")?;
    match call.first_dtype()? {
        DType::Bf16 => gather::<bf16>(call),
        DType::F16 => gather::<f16>(call),
        DType::F32 => gather::<f32>(call),
        DType::F64 => gather::<f64>(call),
        DType::I8 => gather::<i8>(call),
        DType::I16 => gather::<i16>(call),
        DType::I32 => gather::<i32>(call),
        DType::I64 => gather::<i64>(call),
        DType::U8 => gather::<u8>(call),
        DType::U16 => gather::<u16>(call),
        DType::U32 => gather::<u32>(call),
        DType::U64 => gather::<u64>(call),
        other => Err(call.place("sources").type_error("of a known element type", other)),
    }
}

fn gather<'py, T: Element>(call: &Call<'py>) -> PyResult<Bound<'py, PyAny>> {
    let names = Names { data: "sources", offsets: "offsets", lens: "lens" };
    let sources = Ragged::<1>::new(call, names)?;
    let n = rows(call, [sources.count()])?;
    let sources: Vec<Span<T, 1>> = sources.rows(call, (n, false))?;
    let (result, out) = call.out::<T, 2>([n, sources.first().map_or(0, |source| source.shape[0])])?;
    let rows: Vec<_> = sources
        .iter()
        // SAFETY: kept by the call, and only read.
        .map(|source| GatherRow { source: AnyView::from(unsafe { source.view() }) })
        .collect();
    let out = AnyViewMut::from(out);
    call.run(|device| device.gather_rows(GatherRows { rows: &rows, out }))?;
    call.finish(result)
}
