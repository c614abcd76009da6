//! A tensor of our own: results for libraries that cannot make one, memory by address, and other element types over the same bytes.

use crate::errors::{Place, to_python};
use crate::family::Family;
use crate::lent::{Lent, Owner, compact};
use crate::{devices, dtype};
use abreast::{Buffer, DType, DeviceId, Kind};
use dlpark::ffi::{DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{CudaStreamRequest, DlpackExporter, ExportRequest, export_dlpack};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::c_void;
use std::sync::Arc;

/// Contiguous memory with a shape and an element type, for DLPack: `numpy.from_dlpack`, `torch.from_dlpack` and the like take it
/// without a copy.
#[pyclass(frozen, module = "abreast")]
pub(crate) struct Tensor {
    memory: Arc<Memory>,
    shape: Vec<usize>,
    dtype: DType,
}

/// Where the bytes are, and what keeps them.
struct Memory {
    ptr: *mut u8,
    device: DeviceId,
    /// The stream that we work on, where the memory is our own.
    stream: usize,
    read_only: bool,
    /// Whose memory it is, where it is a view: its stream is the one to work on.
    family: Family,
    hurried: bool,
    owner: Option<Kept>,
}

impl Drop for Memory {
    /// A consumer may let go on any thread, one that holds the interpreter unknown to us included.
    fn drop(&mut self) {
        let owner = self.owner.take();
        Python::try_attach(|_| drop(owner));
    }
}

enum Kept {
    Own(#[allow(dead_code)] Buffer<u8>),
    Lent(Owner),
    Caller(Option<Py<PyAny>>),
}

// SAFETY: an address; what it points to is reached through views alone, whose users say why they may.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Tensor {
    pub(crate) fn device(&self) -> DeviceId {
        self.memory.device
    }

    pub(crate) fn family(&self) -> Family {
        self.memory.family
    }

    /// Zeroed memory of the device.
    pub(crate) fn zeros(
        py: Python<'_>,
        (device, stream): (DeviceId, *mut c_void),
        (shape, dtype): (Vec<usize>, DType),
    ) -> PyResult<Tensor> {
        let bytes = shape.iter().try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n));
        let bytes =
            bytes.ok_or_else(|| PyValueError::new_err(format!("shape {shape:?} is beyond any memory")))?;
        let address = stream as usize;
        let handle = devices::open(py, device, stream).map_err(to_python)?;
        let buffer = py.detach(|| handle.zeros::<u8>(bytes)).map_err(to_python)?;
        let ptr = buffer.view().as_ptr().cast_mut();
        let memory = Memory {
            ptr,
            device,
            stream: address,
            read_only: false,
            family: Family::Other,
            hurried: false,
            owner: Some(Kept::Own(buffer)),
        };
        Ok(Tensor { memory: Arc::new(memory), shape, dtype })
    }

    /// As an argument of a call; `object` is this tensor.
    pub(crate) fn lend(&self, object: Py<PyAny>) -> Lent {
        let (shape, strides) = (self.shape.clone(), compact(&self.shape));
        let Memory { ptr, device, read_only, hurried, .. } = *self.memory;
        let (dtype, owner) = (self.dtype, Owner::Object(object));
        Lent { ptr, shape, strides, dtype, device, read_only, hurried, owner }
    }

    fn export<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let refuse = |e: &dyn std::fmt::Display| PyBufferError::new_err(e.to_string());
        let shape: Vec<i64> = self.shape.iter().map(|&n| n as i64).collect();
        let metadata = Dynamic::compact(shape);
        let mut tensor = metadata.initialize_as::<M>(self.memory.clone()).map_err(|e| refuse(&e))?;
        tensor.set_data(self.memory.ptr.cast());
        tensor.set_device(self.dlpack_device());
        tensor.set_dtype(dtype::to_dlpack(self.dtype));
        tensor.set_flags(DlpackExporter::flags(self)).map_err(|e| refuse(&e))?;
        // SAFETY: the memory has so many elements, contiguous as the strides say, and is kept by the context.
        Ok(unsafe { tensor.finish() })
    }

    fn dlpack_device(&self) -> DLDevice {
        match self.memory.device.kind {
            Kind::Cuda => DLDevice::cuda(self.memory.device.ordinal as i32),
            _ => DLDevice::CPU,
        }
    }
}

impl DlpackExporter for Tensor {
    fn device(&self) -> DLDevice {
        self.dlpack_device()
    }

    fn flags(&self) -> DlpackFlags {
        if self.memory.read_only { DlpackFlags::READ_ONLY } else { DlpackFlags::empty() }
    }

    /// The consumer's stream waits for ours.
    fn prepare_export(&self, py: Python<'_>, request: &ExportRequest<'_>) -> PyResult<()> {
        let Memory { device, stream, .. } = *self.memory;
        if device.kind != Kind::Cuda || !matches!(self.memory.owner, Some(Kept::Own(_))) {
            return Ok(());
        }
        let consumer = match request.cuda_stream()? {
            CudaStreamRequest::NoSync => return Ok(()),
            CudaStreamRequest::Omitted | CudaStreamRequest::LegacyDefault => 0,
            CudaStreamRequest::PerThreadDefault => 2,
            CudaStreamRequest::Pointer(address) => address,
        };
        let handle = devices::open(py, device, stream as *mut c_void).map_err(to_python)?;
        // SAFETY: the consumer names a stream of its own that lives.
        py.detach(|| unsafe { handle.hand_over(consumer as *mut c_void) }).map_err(to_python)
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.export()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.export()
    }
}

#[pymethods]
impl Tensor {
    /// Elements along each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Name of the element type, such as "bfloat16".
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.dtype)
    }

    /// "cpu", or "cuda:0" and the like.
    #[getter(device)]
    fn device_name(&self) -> String {
        self.memory.device.to_string()
    }

    /// Address of the first element, on the device.
    #[getter]
    fn data_ptr(&self) -> usize {
        self.memory.ptr as usize
    }

    /// Whether calls refuse to write it.
    #[getter]
    fn read_only(&self) -> bool {
        self.memory.read_only
    }

    /// The same bytes as elements of another type of the same size, such as "uint16" for "bfloat16".
    #[pyo3(name = "view")]
    fn viewed(&self, dtype: &str) -> PyResult<Tensor> {
        let dtype = element_type(dtype)?;
        same_size(dtype, self.dtype)?;
        Ok(Tensor { memory: self.memory.clone(), shape: self.shape.clone(), dtype })
    }

    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(&self, py: Python<'py>, options: Option<Bound<'py, PyDict>>) -> PyResult<Py<PyAny>> {
        let option = |name: &str| match &options {
            Some(options) => Ok::<_, PyErr>(options.get_item(name)?.filter(|value| !value.is_none())),
            None => Ok(None),
        };
        let known = ["stream", "max_version", "dl_device", "copy"];
        if let Some(options) = &options
            && let Some(name) =
                options.keys().iter().find(|k| !known.iter().any(|n| k.eq(*n).unwrap_or(false)))
        {
            return Err(PyTypeError::new_err(format!("__dlpack__ has no argument {name}")));
        }
        let request = ExportRequest::parse(
            option("stream")?.as_ref(),
            option("max_version")?.map(|v| v.extract()).transpose()?,
            option("dl_device")?.map(|v| v.extract()).transpose()?,
            option("copy")?.map(|v| v.extract()).transpose()?,
        )?;
        export_dlpack(self, py, request)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        let DLDevice { device_type: DLDeviceType(kind), device_id } = self.dlpack_device();
        (kind, device_id)
    }

    /// What keeps the memory may hold this tensor: such a circle is found, as long as nobody else keeps the memory.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if Arc::strong_count(&self.memory) > 1 {
            return Ok(());
        }
        match &self.memory.owner {
            Some(Kept::Lent(Owner::Object(owner)) | Kept::Caller(Some(owner))) => visit.call(owner),
            _ => Ok(()),
        }
    }

    fn __repr__(&self) -> String {
        let (dtype, device) = (dtype::name(self.dtype), self.memory.device);
        format!("abreast.Tensor(shape={:?}, dtype={dtype}, device={device})", self.shape)
    }
}

/// A shape; a number in it that is none of an array is a wrong value, not a wrong type.
fn extents(shape: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    shape.extract().map_err(|error: PyErr| match error.is_instance_of::<PyOverflowError>(shape.py()) {
        true => PyValueError::new_err(format!("shape must be of numbers from 0 to 2**64 - 1, got {shape}")),
        false => error,
    })
}

fn element_type(name: &str) -> PyResult<DType> {
    dtype::from_name(name).ok_or_else(|| PyTypeError::new_err(format!("there is no element type {name:?}")))
}

fn same_size(new: DType, old: DType) -> PyResult<()> {
    if new.size() == old.size() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("an element of {old} has not the size of {new}")))
}

fn device_by_name(name: &str) -> PyResult<DeviceId> {
    devices::parse(name).ok_or_else(|| PyValueError::new_err(format!("there is no device {name:?}")))
}

/// A tensor of zeros on "cpu" or "cuda:N"; for any stream, so it waits until they are there.
#[pyfunction]
#[pyo3(signature = (shape, dtype = "float32", *, device = "cpu"))]
pub(crate) fn zeros(py: Python<'_>, shape: &Bound<'_, PyAny>, dtype: &str, device: &str) -> PyResult<Tensor> {
    let shape = extents(shape)?;
    let (device, stream) = (device_by_name(device)?, std::ptr::null_mut());
    let tensor = Tensor::zeros(py, (device, stream), (shape, element_type(dtype)?))?;
    let handle = devices::open(py, device, stream).map_err(to_python)?;
    py.detach(|| handle.synchronize()).map_err(to_python)?;
    Ok(tensor)
}

/// The memory of `array` (NumPy, or anything that speaks DLPack) as elements of another type of the same size; no copy.
#[pyfunction]
#[pyo3(signature = (array, dtype))]
pub(crate) fn view(array: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Tensor> {
    let place = Place { op: "view", row: None, name: "array" };
    let lent = Lent::of(place, array, |device, family| match device.kind {
        Kind::Cuda => Ok((device, family.stream(array, device.ordinal)?)),
        _ => Ok((device, std::ptr::null_mut())),
    })?;
    lent.contiguous(place, lent.shape.len())?;
    let dtype = element_type(dtype)?;
    same_size(dtype, lent.dtype)?;
    let Lent { ptr, shape, device, read_only, hurried, owner, .. } = lent;
    let memory = Memory {
        ptr,
        device,
        stream: 0,
        read_only,
        family: Family::of(array),
        hurried,
        owner: Some(Kept::Lent(owner)),
    };
    Ok(Tensor { memory: Arc::new(memory), shape, dtype })
}

/// Memory by its address, on "cpu" or "cuda:N": contiguous elements that stay as long as the tensor is used; `owner` is kept for it.
///
/// The address is believed: a wrong one is undefined behaviour.
#[pyfunction]
#[pyo3(signature = (address, shape, dtype, **options))]
pub(crate) fn from_pointer(
    address: usize,
    shape: &Bound<'_, PyAny>,
    dtype: &str,
    options: Option<Bound<'_, PyDict>>,
) -> PyResult<Tensor> {
    let shape = extents(shape)?;
    let (mut device, mut owner, mut read_only) = (DeviceId::CPU, None, false);
    for (name, value) in options.iter().flatten() {
        match name.extract::<String>()?.as_str() {
            "device" => device = device_by_name(&value.extract::<String>()?)?,
            "owner" => owner = Some(value.unbind()),
            "read_only" => read_only = value.extract()?,
            other => return Err(PyTypeError::new_err(format!("from_pointer has no argument {other:?}"))),
        }
    }
    let dtype = element_type(dtype)?;
    let elements = shape.iter().try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n));
    let fits = elements.is_some_and(|bytes| bytes <= isize::MAX as usize);
    if !fits || (address == 0 && elements != Some(0)) {
        let text = format!("no memory of shape {shape:?} starts at address {address:#x}");
        return Err(PyValueError::new_err(text));
    }
    let memory = Memory {
        ptr: address as *mut u8,
        device,
        stream: 0,
        read_only,
        family: Family::Other,
        hurried: false,
        owner: Some(Kept::Caller(owner)),
    };
    Ok(Tensor { memory: Arc::new(memory), shape, dtype })
}
