//! The driver: context, stream and memory of one device.

use super::capture::Relaxed;
use super::frees;
use super::staging::Staging;
use crate::backend::Allocation;
use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::view::{DeviceId, Kind};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// One device and the stream that everything of a handle is queued on.
pub(super) struct Queue {
    pub(super) id: DeviceId,
    pub(super) context: Owned<Arc<CudaContext>>,
    pub(super) stream: Owned<Arc<CudaStream>>,
    pub(super) foreign: Option<Owned<Foreign>>,
    staging: Mutex<Staging>,
    process: u32,
}

/// What a handle on a stream of the caller's has besides. He may destroy that stream when the work on it is done, and may capture it.
pub(super) struct Foreign {
    /// Passed when all is done that this handle queued.
    pub(super) done: CudaEvent,
    /// For what must not be captured.
    side: Arc<CudaStream>,
}

/// A thing of the driver's, given back only by the process that took it: in a forked child the driver does not work, not even
/// to let go.
pub(super) struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(super) fn new(value: T) -> Owned<T> {
        Owned { value: ManuallyDrop::new(value), process: std::process::id() }
    }
}

impl<T> Deref for Owned<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Owned<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // What is given back must not spoil what another thread captures.
            let _relaxed = Relaxed::new();
            // SAFETY: dropped here alone, once.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// A stream of the caller's; null is the default stream.
pub(crate) struct Stream(pub(crate) *mut c_void);

/// The oldest architecture that kernels are compiled for: Ampere.
const OLDEST: (i32, i32) = (8, 0);

impl Queue {
    /// A device with a stream of its own, or the caller's.
    pub(super) fn open(ordinal: u32, stream: Option<Stream>) -> Result<Queue> {
        let id = DeviceId { kind: Kind::Cuda, ordinal };
        let unavailable = |why: String| Error::Unavailable { device: id, why };
        // SAFETY: only looks for the library; calling into cudarc without it would panic.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable(
                "no NVIDIA driver: libcuda.so.1 was not found; install the driver".into(),
            ));
        }
        let driver = |e: DriverError| unavailable(format!("the NVIDIA driver says: {}", text(e)));
        result::init().map_err(driver)?;
        let _relaxed = Relaxed::new();
        let count = CudaContext::device_count().map_err(driver)?;
        if ordinal as i64 >= count as i64 {
            return Err(unavailable(format!("the NVIDIA driver sees {count} devices")));
        }
        let context = CudaContext::new(ordinal as usize).map_err(driver)?;
        // One stream a handle: there is nothing to track, and tracking breaks the recording of graphs.
        // SAFETY: no memory of this context is used on two streams without an event of ours between.
        unsafe { context.disable_event_tracking() };
        let capability = context.compute_capability().map_err(driver)?;
        if capability < OLDEST {
            let (major, minor) = capability;
            let why = format!(
                "compute capability {major}.{minor} is older than the oldest supported, {}.{}",
                OLDEST.0, OLDEST.1
            );
            return Err(unavailable(why));
        }
        let own = context.new_stream().map_err(driver)?;
        let (stream, foreign) = match stream {
            None => (own, None),
            Some(Stream(stream)) => {
                let done = context.new_event(None).map_err(driver)?;
                // SAFETY: whoever opened the device so said that the stream is of this device, and lives while there is work on it.
                let stream = unsafe { context.wrap_borrowed_stream(stream.cast()) };
                (stream, Some(Owned::new(Foreign { done, side: own })))
            }
        };
        let staging = Mutex::default();
        let (context, stream) = (Owned::new(context), Owned::new(stream));
        Ok(Queue { id, context, stream, foreign, staging, process: std::process::id() })
    }

    /// The stream of ours: never captured by anybody else, and there as long as this is.
    pub(super) fn own(&self) -> &Arc<CudaStream> {
        self.foreign.as_ref().map_or(&*self.stream, |foreign| &foreign.side)
    }

    /// Notes that memory is in use on the stream; where it is the caller's, nobody may ask the stream itself later.
    pub(super) fn queued(&self) -> Result<()> {
        match &self.foreign {
            Some(foreign) => foreign.done.record(&self.stream).map_err(|e| self.fault(e)),
            None => Ok(()),
        }
    }

    pub(super) fn gpu(&self) -> Gpu {
        use sys::CUdevice_attribute as A;
        let number = |which| self.context.attribute(which).unwrap_or(0) as u32;
        let mut version = 0;
        // SAFETY: writes one number; where it fails the number stays 0.
        let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
        Gpu {
            name: self.context.name().unwrap_or_default(),
            capability: (
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            driver: (version as u32 / 1000, version as u32 % 1000 / 10),
            multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            clock_khz: number(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            l2_bytes: number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE) as usize,
            memory_bytes: self.context.total_mem().unwrap_or(0),
        }
    }

    /// A driver's error, once and on every later call: after a device fault nothing of the handle works.
    /// Running out of memory is none.
    pub(super) fn fault(&self, e: DriverError) -> Error {
        match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::OutOfMemory { device: self.id, what: "what the driver itself needs", bytes: 0 }
            }
            _ => Error::Fault { device: self.id, what: text(e) },
        }
    }

    /// Whether this is a forked child of the process that opened it: it has no device, for the driver does not work there.
    pub(super) fn forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// What every call starts with: this thread uses this device.
    pub(super) fn enter(&self) -> Result<()> {
        if self.forked() {
            let why = "it was opened before this process was forked, and CUDA does not survive that".into();
            return Err(Error::Unavailable { device: self.id, why });
        }
        self.context.bind_to_thread().map_err(|e| self.fault(e))
    }

    pub(super) fn allocate(self: &Arc<Self>, bytes: usize, what: &'static str) -> Result<Memory> {
        let memory = self.allocate_on(&self.stream, (bytes, what))?;
        self.queued()?;
        Ok(memory)
    }

    /// Memory for work that comes after what `stream` has been given by now.
    pub(super) fn allocate_on(
        self: &Arc<Self>,
        stream: &CudaStream,
        (bytes, what): (usize, &'static str),
    ) -> Result<Memory> {
        self.enter()?;
        // SAFETY: a plain allocation, owned by `Memory`.
        let allocated = unsafe { result::malloc_async(stream.cu_stream(), bytes.max(1)) };
        match allocated {
            Ok(address) => Ok(Memory { address, queue: self.clone() }),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(Error::OutOfMemory { device: self.id, what, bytes })
            }
            Err(e) => Err(self.fault(e)),
        }
    }

    pub(super) fn clear(&self, memory: &Memory, bytes: usize) -> Result<()> {
        // SAFETY: within the allocation.
        unsafe { result::memset_d8_async(memory.address, 0, bytes, self.stream.cu_stream()) }
            .map_err(|e| self.fault(e))?;
        self.queued()
    }

    pub(super) fn upload(&self, from: &[u8], to: u64) -> Result<()> {
        self.enter()?;
        self.staging.lock().unwrap_or_else(PoisonError::into_inner).upload(self, (from, to))
    }

    pub(super) fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.enter()?;
        self.staging.lock().unwrap_or_else(PoisonError::into_inner).download(self, (from, to))
    }
}

/// Device memory, freed after the work that uses it: of this stream and of the other handles' on the same device.
pub(super) struct Memory {
    pub(super) address: u64,
    queue: Arc<Queue>,
}

impl Allocation for Memory {
    fn ptr(&self) -> *mut u8 {
        self.address as *mut u8
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.queue.forked() {
            frees::free(self.address, &self.queue);
        }
    }
}

fn text(e: DriverError) -> String {
    match (e.error_name(), e.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({})", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("error {}", e.0 as i32),
    }
}
