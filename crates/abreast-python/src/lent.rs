//! Memory that a Python object lends for the time of a call: by DLPack, or by NumPy's array interface (which, unlike NumPy's
//! DLPack, also has bf16 and tells for every version whether an array is read-only).

use crate::dtype;
use crate::errors::Place;
use crate::family::{self, Family};
use crate::tensor::Tensor;
use abreast::{DType, DeviceId, Element, Kind, View, ViewMut};
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::python::consumer::stream::cuda;
use dlpark::python::{DlpackStream, ImportRequest, ImportedDlpack, StreamArg};
use pyo3::prelude::*;
use std::ffi::c_void;

/// Borrowed memory with its shape, and what keeps it alive.
pub(crate) struct Lent {
    pub(crate) ptr: *mut u8,
    pub(crate) shape: Vec<usize>,
    /// In elements.
    pub(crate) strides: Vec<isize>,
    pub(crate) dtype: DType,
    pub(crate) device: DeviceId,
    pub(crate) read_only: bool,
    /// Of a library that may use the memory again as soon as it is given back, on a stream that we do not know.
    pub(crate) hurried: bool,
    pub(crate) owner: Owner,
}

/// Kept for the memory's sake.
pub(crate) enum Owner {
    Dlpack(#[allow(dead_code)] ImportedDlpack),
    Object(Py<PyAny>),
}

/// Our stream, for producers to order their work before ours.
struct Consumer(*mut c_void);

// SAFETY: the stream is the one that the call is queued on, which its caller keeps alive.
unsafe impl DlpackStream for Consumer {
    fn as_python_arg(&self, _py: Python<'_>, _device: DLDevice) -> PyResult<StreamArg> {
        Ok(cuda(self.0))
    }

    unsafe fn wait_for_producer(&self, _device: DLDevice, producer: *mut c_void) -> PyResult<bool> {
        // The same stream: nothing to wait for. Else the producer is asked by the other protocol.
        Ok(producer == self.0)
    }
}

/// A call's device and its stream, as soon as its first tensor has told.
pub(crate) type Target = (DeviceId, *mut c_void);

impl Lent {
    /// The memory of `object`. `target` says for a device which stream it will be used on, and refuses a wrong device.
    pub(crate) fn of(
        place: Place,
        object: &Bound<'_, PyAny>,
        target: impl FnOnce(DeviceId, Family) -> PyResult<Target>,
    ) -> PyResult<Lent> {
        if let Ok(tensor) = object.cast::<Tensor>() {
            let tensor = tensor.get();
            target(tensor.device(), tensor.family())?;
            return Ok(tensor.lend(object.clone().unbind()));
        }
        let family = Family::of(object);
        if family == Family::Numpy {
            target(DeviceId::CPU, family)?;
            return Lent::of_numpy(place, object);
        }
        if !object.hasattr(pyo3::intern!(object.py(), "__dlpack__"))? {
            return Err(place.type_error("a tensor", object.get_type().name()?));
        }
        let object = match family {
            Family::Torch => &without_gradient(place, object)?,
            _ => object,
        };
        Lent::of_dlpack(place, object, (family, target)).map_err(|error| {
            // What the producer says stays in sight.
            if !error.is_instance_of::<pyo3::exceptions::PyBufferError>(object.py()) {
                return error;
            }
            let refused = place.value("a tensor that DLPack can lend", error.value(object.py()));
            refused.set_cause(object.py(), Some(error));
            refused
        })
    }

    fn of_dlpack(
        place: Place,
        object: &Bound<'_, PyAny>,
        (family, target): (Family, impl FnOnce(DeviceId, Family) -> PyResult<Target>),
    ) -> PyResult<Lent> {
        let request = ImportRequest::new(object.as_borrowed())?;
        let device = device_of(place, request.device()?)?;
        let (_, stream) = target(device, family)?;
        let consumer = Consumer(stream);
        let stream = (device.kind == Kind::Cuda).then_some(&consumer as &dyn DlpackStream);
        let imported =
            request.import(stream, None).or_else(|error| older(object, (device, consumer.0), error))?;
        // Arrays of JAX never change, and its DLPack does not say so.
        let read_only = imported.flags().contains(DlpackFlags::READ_ONLY) || family == Family::Jax;
        let broken = |error: &dyn std::fmt::Display| place.value("a valid DLPack tensor", error);
        let tensor = imported.validate().map_err(|e| broken(&e))?;
        let dtype = dtype::from_dlpack(tensor.dtype())
            .ok_or_else(|| place.type_error("of a known element type", dtype::describe(tensor.dtype())))?;
        let shape: Vec<usize> = tensor.shape().iter().map(|&n| n as usize).collect();
        // PyTorch has tensors that only look as if they had memory: of zeros, of a freed storage, of a compiler.
        if tensor.data_ptr().is_null() && !shape.contains(&0) {
            return Err(place.value("a tensor whose values are in memory", "a null pointer"));
        }
        let strides = tensor.strides_or_compact().map_err(|e| broken(&e))?;
        let strides = strides.iter().map(|&n| n as isize).collect();
        let ptr = tensor.data_ptr().cast::<u8>().cast_mut().wrapping_add(tensor.byte_offset() as usize);
        let hurried = device.kind == Kind::Cuda && matches!(family, Family::Jax | Family::Other);
        let owner = Owner::Dlpack(imported);
        Ok(Lent { ptr, shape, strides, dtype, device, read_only, hurried, owner })
    }

    fn of_numpy(place: Place, object: &Bound<'_, PyAny>) -> PyResult<Lent> {
        // A mask stands beside the memory, and would go unnoticed.
        if family::is_subclass_of_numpys(object) && object.hasattr(pyo3::intern!(object.py(), "mask"))? {
            return Err(place.type_error("an array without a mask", object.get_type().name()?));
        }
        let interface = object.getattr(pyo3::intern!(object.py(), "__array_interface__"))?;
        let (address, read_only): (usize, bool) =
            interface.get_item(pyo3::intern!(object.py(), "data"))?.extract()?;
        let shape: Vec<usize> = interface.get_item(pyo3::intern!(object.py(), "shape"))?.extract()?;
        let bytes: Option<Vec<isize>> =
            interface.get_item(pyo3::intern!(object.py(), "strides"))?.extract()?;
        let code: String = interface.get_item(pyo3::intern!(object.py(), "typestr"))?.extract()?;
        let known = match code.as_str() {
            "<V2" => bfloat16(object)?.then_some(DType::Bf16),
            code => dtype::from_numpy(code),
        };
        let dtype =
            known.ok_or_else(|| place.type_error("of a known element type", format_args!("{code:?}")))?;
        let strides = match bytes {
            None => compact(&shape),
            Some(bytes) => {
                let size = dtype.size() as isize;
                if bytes.iter().any(|b| b % size != 0) {
                    let got = format_args!("strides of {bytes:?} bytes");
                    return Err(place.value("contiguous", got));
                }
                bytes.iter().map(|b| b / size).collect()
            }
        };
        let (device, owner) = (DeviceId::CPU, Owner::Object(object.clone().unbind()));
        let (ptr, hurried) = (address as *mut u8, false);
        Ok(Lent { ptr, shape, strides, dtype, device, read_only, hurried, owner })
    }

    /// Elements one behind the other, in the last `inner` dimensions.
    pub(crate) fn contiguous(&self, place: Place, inner: usize) -> PyResult<()> {
        let skip = self.shape.len() - inner;
        let (shape, strides) = (&self.shape[skip..], &self.strides[skip..]);
        let same = |((n, have), want): ((&usize, &isize), isize)| *n == 1 || *have == want;
        if self.shape.contains(&0) || shape.iter().zip(strides).zip(compact(shape)).all(same) {
            return Ok(());
        }
        let got = format_args!("shape {:?} with strides {:?}", self.shape, self.strides);
        Err(place.value("contiguous", got))
    }

    /// The element type and the number of dimensions, and that every element lies where one can.
    fn typed<T: Element>(&self, place: Place) -> PyResult<()> {
        // A status word has the same bits in a library that lacks unsigned integers.
        let word = (T::DTYPE, self.dtype, place.name) == (DType::U32, DType::I32, "status");
        let same = self.dtype == T::DTYPE || word;
        if !same {
            return Err(place.type_error(T::DTYPE, self.dtype));
        }
        if !(self.ptr as usize).is_multiple_of(align_of::<T>()) {
            let must = format_args!("aligned to {} bytes", align_of::<T>());
            return Err(place.value(must, format_args!("address {:#x}", self.ptr as usize)));
        }
        Ok(())
    }

    /// Whether this can be elements of `T`, rows of `inner` dimensions in each of which they are contiguous; and, where
    /// it is `written`, whether it may be.
    pub(crate) fn usable<T: Element>(&self, place: Place, (inner, written): (usize, bool)) -> PyResult<()> {
        self.typed::<T>(place)?;
        if written && self.read_only {
            return Err(place.value("writable", "a read-only array"));
        }
        self.contiguous(place, inner)
    }

    pub(crate) fn ranked<const N: usize>(&self, place: Place) -> PyResult<[usize; N]> {
        self.shape.as_slice().try_into().map_err(|_| {
            place.value(format_args!("of {N} dimensions"), format_args!("shape {:?}", self.shape))
        })
    }

    pub(crate) fn len(&self) -> usize {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }
}

/// Elements of one row or of a whole array, checked.
#[derive(Clone, Copy)]
pub(crate) struct Span<T, const N: usize> {
    pub(crate) ptr: *mut T,
    pub(crate) shape: [usize; N],
    pub(crate) device: DeviceId,
}

impl<T: Element, const N: usize> Span<T, N> {
    /// An array without elements may have no address at all.
    fn address(&self) -> *mut T {
        if self.ptr.is_null() { std::ptr::dangling_mut() } else { self.ptr }
    }

    /// # Safety
    /// The memory stays, and nobody writes it, as long as the view is used.
    pub(crate) unsafe fn view<'a>(self) -> View<'a, T, N> {
        // SAFETY: the caller's promise; alignment, type and extent were checked when the span was made.
        unsafe { View::from_raw(self.address(), self.shape, self.device) }
    }

    /// # Safety
    /// The memory stays, and nobody else reads or writes it, as long as the view is used.
    pub(crate) unsafe fn view_mut<'a>(self) -> ViewMut<'a, T, N> {
        // SAFETY: as above.
        unsafe { ViewMut::from_raw(self.address(), self.shape, self.device) }
    }

    /// First and last-plus-one address.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let elements: usize = if self.shape.contains(&0) { 0 } else { self.shape.iter().product() };
        self.ptr as usize..self.ptr as usize + elements * size_of::<T>()
    }
}

/// A producer that does not know the argument `max_version` yet.
fn older(
    object: &Bound<'_, PyAny>,
    (device, stream): (DeviceId, *mut c_void),
    error: PyErr,
) -> PyResult<ImportedDlpack> {
    let py = object.py();
    if !error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) {
        return Err(error);
    }
    let options = pyo3::types::PyDict::new(py);
    if device.kind == Kind::Cuda {
        // The protocol's number for the default stream is 1.
        options.set_item("stream", (stream as usize).max(1))?;
    }
    let capsule = object.call_method("__dlpack__", (), Some(&options))?;
    ImportRequest::new(capsule.as_borrowed())?.import(None, None)
}

/// Whether an array of NumPy with elements of two unknown bytes is one of ml_dtypes.bfloat16.
fn bfloat16(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    let scalar =
        array.getattr(pyo3::intern!(array.py(), "dtype"))?.getattr(pyo3::intern!(array.py(), "type"))?;
    Ok(scalar.getattr(pyo3::intern!(array.py(), "__name__"))?.extract::<String>()? == "bfloat16")
}

/// Row-major strides.
pub(crate) fn compact(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].wrapping_mul(shape[i] as isize);
    }
    strides
}

/// Pinned memory is the host's; managed memory is the GPU's that it is lent for.
fn device_of(place: Place, device: DLDevice) -> PyResult<DeviceId> {
    match device.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => Ok(DeviceId::CPU),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => {
            Ok(DeviceId { kind: Kind::Cuda, ordinal: device.device_id as u32 })
        }
        other => Err(place.value("on cpu or cuda", format_args!("DLPack device type {}", other.0))),
    }
}

/// A tensor of PyTorch without its history: gradients are not computed here, and that must not go unnoticed. Nor must signs that are
/// only noted beside the memory.
fn without_gradient<'py>(place: Place, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    if tensor.call_method0(pyo3::intern!(py, "is_neg"))?.is_truthy()? {
        return Err(place.value("a tensor whose values are in memory (resolve_neg())", "a negated view"));
    }
    if !tensor.getattr(pyo3::intern!(py, "requires_grad"))?.is_truthy()? {
        return Ok(tensor.clone());
    }
    if py.import("torch")?.call_method0("is_grad_enabled")?.is_truthy()? {
        let must = "a tensor without gradient (under torch.no_grad() or by detach())";
        return Err(place.value(must, "one that requires it, and none is computed here"));
    }
    tensor.call_method0("detach")
}
