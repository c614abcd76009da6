//! Whose arrays a call got: which stream they work on, and how a result like them is made.

use crate::dtype;
use abreast::{DType, DeviceId, Kind};
use dlpark::python::consumer::exchange::ExchangeApi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use std::ffi::c_void;

/// The library that an array belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    Torch,
    Numpy,
    Cupy,
    Jax,
    /// Anything else that speaks DLPack, our own tensors included.
    Other,
}

/// A class of a module that may or may not have been imported by now: nothing is imported on its behalf.
struct Class {
    module: &'static str,
    name: &'static str,
    found: PyOnceLock<Py<PyType>>,
}

impl Class {
    const fn new(module: &'static str, name: &'static str) -> Class {
        Class { module, name, found: PyOnceLock::new() }
    }

    fn has(&self, object: &Bound<'_, PyAny>) -> bool {
        let py = object.py();
        let class = match self.found.get(py) {
            Some(class) => class,
            None => match imported(py, self.module).and_then(|m| m.getattr(self.name).ok()) {
                Some(class) => match class.cast_into::<PyType>() {
                    Ok(class) => self.found.get_or_init(py, || class.unbind()),
                    Err(_) => return false,
                },
                None => return false,
            },
        };
        // SAFETY: two type objects, and the interpreter is held.
        unsafe { pyo3::ffi::PyType_IsSubtype(object.get_type().as_type_ptr(), class.as_ptr().cast()) != 0 }
    }
}

static TORCH: Class = Class::new("torch", "Tensor");
static NUMPY: Class = Class::new("numpy", "ndarray");
static CUPY: Class = Class::new("cupy", "ndarray");

/// Whether an array of NumPy's family is of a class that was derived from NumPy's.
pub(crate) fn is_subclass_of_numpys(array: &Bound<'_, PyAny>) -> bool {
    NUMPY.found.get(array.py()).is_none_or(|class| !array.get_type().is(class))
}

/// A module that is there already.
fn imported<'py>(py: Python<'py>, name: &str) -> Option<Bound<'py, PyAny>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        let modules = py.import("sys")?.getattr("modules")?;
        PyResult::Ok(modules.cast_into::<PyDict>()?.unbind())
    });
    modules.ok()?.bind(py).get_item(name).ok()?
}

impl Family {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> Family {
        if TORCH.has(object) {
            Family::Torch
        } else if NUMPY.has(object) {
            Family::Numpy
        } else if CUPY.has(object) {
            Family::Cupy
        } else {
            let module = object.get_type().module();
            let jax = module.and_then(|m| m.to_str().map(|m| m.starts_with("jax"))).unwrap_or(false);
            if jax { Family::Jax } else { Family::Other }
        }
    }

    /// The stream that the array's library works on now; null is the default stream, on which those that do not tell
    /// are waited for by the device.
    pub(crate) fn stream(self, object: &Bound<'_, PyAny>, ordinal: u32) -> PyResult<*mut c_void> {
        let py = object.py();
        if let Some(api) = ExchangeApi::from_object(object.as_borrowed())?
            && let Ok(stream) = api.with_tensor_view_no_sync(object.as_borrowed(), |_, stream| stream)
        {
            return Ok(stream);
        }
        let address: usize = match self {
            Family::Torch => {
                let cuda = py.import("torch")?.getattr("cuda")?;
                cuda.call_method1("current_stream", (ordinal,))?.getattr("cuda_stream")?.extract()?
            }
            Family::Cupy => {
                let cuda = py.import("cupy")?.getattr("cuda")?;
                cuda.call_method0("get_current_stream")?.getattr("ptr")?.extract()?
            }
            _ => 0,
        };
        Ok(address as *mut c_void)
    }

    /// An array of this library without contents; `None` where results are tensors of our own.
    pub(crate) fn empty<'py>(
        self,
        like: &Bound<'py, PyAny>,
        (dtype, shape, device): (DType, &[usize], DeviceId),
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = like.py();
        let shape = PyTuple::new(py, shape)?;
        let options = PyDict::new(py);
        match self {
            Family::Torch => {
                let torch = py.import("torch")?;
                options.set_item("dtype", torch.getattr(dtype::name(dtype))?)?;
                options.set_item("device", like.getattr("device")?)?;
                torch.call_method("empty", (shape,), Some(&options)).map(Some)
            }
            Family::Cupy if dtype != DType::Bf16 => {
                options.set_item("dtype", dtype::name(dtype))?;
                py.import("cupy")?.call_method("empty", (shape,), Some(&options)).map(Some)
            }
            Family::Numpy if device.kind == Kind::Cpu => {
                let Some(dtype) = numpy_dtype(like, dtype)? else { return Ok(None) };
                options.set_item("dtype", dtype)?;
                py.import("numpy")?.call_method("empty", (shape,), Some(&options)).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// NumPy has no bf16 of its own: that of ml_dtypes, where it is there.
fn numpy_dtype<'py>(like: &Bound<'py, PyAny>, dtype: DType) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = like.py();
    if dtype == DType::Bf16 {
        return imported(py, "ml_dtypes").map(|m| m.getattr("bfloat16")).transpose();
    }
    Ok(Some(pyo3::types::PyString::new(py, dtype::name(dtype)).into_any()))
}
