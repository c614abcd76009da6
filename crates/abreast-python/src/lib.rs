//! The Python package's native part: arrays in, a call of the library, arrays out. No mathematics, and no check that the
//! library makes.
#![allow(clippy::too_many_arguments, reason = "the functions that PyO3 makes of ours have five")]

mod call;
mod devices;
mod dtype;
mod errors;
mod family;
mod ints;
mod lent;
mod ops;
mod rows;
mod spans;
mod tensor;

use abreast::dims::status;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// One line about a device: what computes there, and with what.
#[pyfunction]
#[pyo3(signature = (device = "cpu"))]
fn describe(py: Python<'_>, device: &str) -> PyResult<String> {
    let id = devices::parse(device)
        .ok_or_else(|| PyValueError::new_err(format!("there is no device {device:?}")))?;
    devices::open(py, id, std::ptr::null_mut()).map(|d| d.describe()).map_err(errors::to_python)
}

/// The names of a status word's bits, joined by "|"; "OK" for 0.
#[pyfunction]
fn status_names(word: i64) -> PyResult<String> {
    let place = errors::Place { op: "status_names", row: None, name: "word" };
    // An int32 has the same bits.
    let bits = u32::try_from(word).or_else(|_| i32::try_from(word).map(|word| word as u32));
    bits.map(status::names).map_err(|_| place.value("of 32 bits", word))
}

/// Forgets what is kept for a stream of the caller's own, after the work on it: before the stream is destroyed. Returns whether
/// anything was kept.
#[pyfunction]
#[pyo3(signature = (stream, *, device = "cuda:0"))]
fn release_stream(py: Python<'_>, stream: &Bound<'_, PyAny>, device: &str) -> PyResult<bool> {
    let place = errors::Place { op: "release_stream", row: None, name: "stream" };
    let address = call::stream_address(place, stream)?;
    let id = devices::parse(device)
        .ok_or_else(|| PyValueError::new_err(format!("there is no device {device:?}")))?;
    Ok(devices::release(py, id, address))
}

#[pymodule]
fn _abreast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<tensor::Tensor>()?;
    module.add_function(wrap_pyfunction!(tensor::zeros, module)?)?;
    module.add_function(wrap_pyfunction!(tensor::view, module)?)?;
    module.add_function(wrap_pyfunction!(tensor::from_pointer, module)?)?;
    module.add_function(wrap_pyfunction!(describe, module)?)?;
    module.add_function(wrap_pyfunction!(status_names, module)?)?;
    module.add_function(wrap_pyfunction!(release_stream, module)?)?;
    module.add_function(wrap_pyfunction!(ops::sparse_attention::call, module)?)?;
    module.add_function(wrap_pyfunction!(ops::index_scores::call, module)?)?;
    module.add_function(wrap_pyfunction!(ops::top_k::call, module)?)?;
    module.add_function(wrap_pyfunction!(ops::select_keys::call, module)?)?;
    module.add_function(wrap_pyfunction!(ops::compress::call, module)?)?;
    module.add_function(wrap_pyfunction!(ops::convert_state::call, module)?)?;
    module.add_function(wrap_pyfunction!(ops::gather_rows::call, module)?)?;
    let words = PyDict::new(module.py());
    for (bit, name) in status::ALL {
        words.set_item(name, bit)?;
    }
    module.add("STATUS", words)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
