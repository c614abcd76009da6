//! A device: memory, and one method per operation.

use crate::backend::{self, Allocation, Backend};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::ops::{Compress, ConvertState, GatherRows, IndexScores, Op, SelectKeys, SparseAttention, TopK};
use crate::step::{Limits, Step};
use crate::view::{self, DeviceId, View, ViewMut};
use crate::{CpuOptions, Kind};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

/// A handle to one device. Clones share it; it may be used from any number of threads.
///
/// Calls are checked once, then queued in order; host reads wait. A call on the CPU is done when it returns. A handle that was
/// opened before the process was forked is refused in the child. Calls of two handles of one GPU are in no order: what one writes is there for the
/// other after [`Device::synchronize`] or, on a stream, after it was handed over. A row's bits do not depend on what else
/// runs on the device.
#[derive(Clone)]
pub struct Device {
    backend: Arc<dyn Backend>,
}

impl Device {
    /// The first device of a kind, with default options.
    pub fn open(kind: Kind) -> Result<Device> {
        backend::open(kind).map(Device::from_backend)
    }

    /// The host's processor, all cores, best instruction set.
    pub fn cpu() -> Result<Device> {
        Self::open(Kind::Cpu)
    }

    /// The host's processor with a number of threads and an instruction set of the caller's choice. Neither
    /// changes a bit of any result.
    pub fn cpu_with(options: CpuOptions) -> Result<Device> {
        backend::open_cpu(options).map(Device::from_backend)
    }

    /// An NVIDIA GPU by its number, with a stream of its own.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: u32) -> Result<Device> {
        backend::cuda::Cuda::open(ordinal, None).map(|cuda| Device::from_backend(Arc::new(cuda)))
    }

    /// An NVIDIA GPU by its number; everything is queued on the caller's stream (a `cudaStream_t` or `CUstream`, null for
    /// the default stream), so that it is ordered with the caller's own work.
    ///
    /// Where the caller captures that stream into a graph of his own, calls become a part of it: each replay runs them with the rows,
    /// positions and lengths of the capture. What they need besides (row tables, scratch) the graph keeps until it and its
    /// instances are destroyed; two instances must not run at the same time. Buffers, copies and steps are refused meanwhile.
    ///
    /// # Safety
    /// The stream belongs to the device's primary context, and lives until the handle, its buffers and steps are dropped.
    #[cfg(feature = "cuda")]
    pub unsafe fn cuda_on_stream(ordinal: u32, stream: *mut std::ffi::c_void) -> Result<Device> {
        let stream = Some(backend::cuda::Stream(stream));
        backend::cuda::Cuda::open(ordinal, stream).map(|cuda| Device::from_backend(Arc::new(cuda)))
    }

    /// A buffer of Metal's as it stands, without a copy: the caller's caches, say. It is retained until the result is dropped; elements
    /// beyond a whole number of them are left out.
    ///
    /// # Safety
    /// `buffer` is an `id<MTLBuffer>` of this device in shared storage whose contents are elements of `T`. The caller's own work on it
    /// is not ordered with this handle's: wait for either before the other begins.
    #[cfg(all(feature = "metal", target_vendor = "apple"))]
    pub unsafe fn adopt_metal_buffer<T: Element>(&self, buffer: *mut std::ffi::c_void) -> Result<Buffer<T>> {
        // SAFETY: the caller's promise.
        let (memory, bytes) = unsafe { self.backend.adopt(buffer) }?;
        Ok(Buffer { memory, len: bytes / size_of::<T>(), device: self.clone(), life: PhantomData })
    }

    /// Metal's kernels on the CPU, for tests: the text that Apple's chips run, compiled by
    /// `tools/metal-harness`.
    #[cfg(feature = "metal-harness")]
    pub fn metal_harness(schedule: crate::Schedule) -> Result<Device> {
        backend::metal::open_harness(schedule).map(Device::from_backend)
    }

    pub(crate) fn from_backend(backend: Arc<dyn Backend>) -> Device {
        Device { backend }
    }

    /// Which device this is.
    pub fn id(&self) -> DeviceId {
        self.backend.id()
    }

    /// One line for people: the device, what it computes with, and how many threads.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// What the driver tells about a GPU; `None` where the device is none.
    pub fn gpu(&self) -> Option<Gpu> {
        self.backend.gpu()
    }

    /// Waits until everything that was queued is done; reports a device fault.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }

    /// The same GPU on another stream of the caller's, as by [`Device::cuda_on_stream`]; the two share compiled kernels.
    ///
    /// # Safety
    /// As for [`Device::cuda_on_stream`].
    #[cfg(feature = "cuda")]
    pub unsafe fn on_stream(&self, stream: *mut std::ffi::c_void) -> Result<Device> {
        self.backend.on_stream(backend::cuda::Stream(stream)).map(Device::from_backend)
    }

    /// Lets another stream of the device wait for all that was queued on this handle's: what is queued there next may use
    /// results from here. Nothing to do on a CPU.
    ///
    /// # Safety
    /// The stream belongs to the device's primary context, and lives.
    #[cfg(feature = "cuda")]
    pub unsafe fn hand_over(&self, stream: *mut std::ffi::c_void) -> Result<()> {
        self.backend.hand_over(backend::cuda::Stream(stream))
    }

    /// `len` elements of zero bits.
    pub fn zeros<T: Element>(&self, len: usize) -> Result<Buffer<T>> {
        let bytes = view::elements([len], size_of::<T>())? * size_of::<T>();
        Ok(Buffer {
            memory: self.backend.allocate(bytes, "a buffer")?,
            len,
            device: self.clone(),
            life: PhantomData,
        })
    }

    /// A copy of `data` in the device's memory.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.zeros(data.len())?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// A step that is recorded at its first run and replayed later: see [`Step`].
    pub fn step(&self, limits: Limits) -> Result<Step> {
        Step::new(self.backend.clone(), limits)
    }

    /// Sparse attention over selected cache slots with learned sinks: see [`SparseAttention`].
    pub fn sparse_attention(&self, args: SparseAttention<'_>) -> Result<()> {
        self.backend.sparse_attention(args.check(self.id())?)
    }

    /// The lightning indexer's scores: see [`IndexScores`].
    pub fn index_scores(&self, args: IndexScores<'_>) -> Result<()> {
        self.backend.index_scores(args.check(self.id())?)
    }

    /// Exact top-k with a total order: see [`TopK`].
    pub fn top_k(&self, args: TopK<'_>) -> Result<()> {
        self.backend.top_k(args.check(self.id())?)
    }

    /// The indexer's scores and the selection in one call: see [`SelectKeys`].
    pub fn select_keys(&self, args: SelectKeys<'_>) -> Result<()> {
        self.backend.select_keys(args.check(self.id())?)
    }

    /// The learned KV compressor: see [`Compress`].
    pub fn compress(&self, args: Compress<'_, '_>) -> Result<()> {
        self.backend.compress(args.check(self.id())?)
    }

    /// A compressor's states from one layout to the other: see [`ConvertState`].
    pub fn convert_state(&self, args: ConvertState<'_, '_>) -> Result<()> {
        self.backend.convert_state(args.check(self.id())?)
    }

    /// Copies rows from many places into one buffer: see [`GatherRows`].
    pub fn gather_rows(&self, args: GatherRows<'_>) -> Result<()> {
        self.backend.gather_rows(args.check(self.id())?)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.describe())
    }
}

/// A GPU as its driver describes it. A number that the driver does not tell is 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The product's name.
    pub name: String,
    /// Compute capability, such as (9, 0); of an Apple GPU its family, such as (9, 0) for the M3's.
    pub capability: (u32, u32),
    /// The CUDA version that the driver speaks, such as (13, 0); of an Apple GPU the version of macOS.
    pub driver: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The highest clock rate of the multiprocessors.
    pub clock_khz: u32,
    /// Size of the second-level cache.
    pub l2_bytes: usize,
    /// Size of the device's memory.
    pub memory_bytes: usize,
}

/// Owned memory of a device, freed when dropped. Aligned to 64 bytes or more.
pub struct Buffer<T> {
    memory: Box<dyn Allocation>,
    len: usize,
    device: Device,
    life: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it, read.
    pub fn view(&self) -> View<'_, T, 1> {
        // SAFETY: the allocation holds `len` initialised, aligned elements for as long as `self` is borrowed.
        unsafe { View::from_raw(self.memory.ptr().cast(), [self.len], self.device.id()) }
    }

    /// All of it, written.
    pub fn view_mut(&mut self) -> ViewMut<'_, T, 1> {
        // SAFETY: as in `view`, and `self` is borrowed exclusively.
        unsafe { ViewMut::from_raw(self.memory.ptr().cast(), [self.len], self.device.id()) }
    }

    /// All of it, read as `shape`; an error where the numbers of elements differ.
    pub fn shaped<const N: usize>(&self, shape: [usize; N]) -> Result<View<'_, T, N>> {
        self.view().reshape(shape)
    }

    /// All of it, written as `shape`; an error where the numbers of elements differ.
    pub fn shaped_mut<const N: usize>(&mut self, shape: [usize; N]) -> Result<ViewMut<'_, T, N>> {
        self.view_mut().reshape(shape)
    }

    /// The contents in place, after all queued work, where host and device share memory: on the CPU and on Metal. `None` elsewhere.
    pub fn host(&self) -> Result<Option<&[T]>> {
        let place = self.device.backend.on_host(self.memory.ptr(), self.len * size_of::<T>())?;
        // SAFETY: the allocation holds `len` initialised, aligned elements; nobody writes while `self` is borrowed.
        Ok(place.map(|place| unsafe { std::slice::from_raw_parts(place.cast(), self.len) }))
    }

    /// As [`Buffer::host`], to be written.
    pub fn host_mut(&mut self) -> Result<Option<&mut [T]>> {
        let place = self.device.backend.on_host(self.memory.ptr(), self.len * size_of::<T>())?;
        // SAFETY: as in `host`, and `self` is borrowed exclusively.
        Ok(place.map(|place| unsafe { std::slice::from_raw_parts_mut(place.cast(), self.len) }))
    }

    /// Overwrites the buffer from host memory.
    ///
    /// # Panics
    /// Where `data` has another length.
    pub fn write(&mut self, data: &[T]) -> Result<()> {
        assert_eq!(data.len(), self.len, "buffer: data must have the buffer's length");
        self.write_at(0, data)
    }

    /// Overwrites a part of the buffer from host memory.
    ///
    /// # Panics
    /// Where the part does not lie within the buffer.
    pub fn write_at(&mut self, start: usize, data: &[T]) -> Result<()> {
        let mut part = self.view_mut().slice(start..start + data.len());
        let to = part.as_mut_ptr().cast();
        self.device.backend.upload(bytemuck::cast_slice(data), to)
    }

    /// A copy of the contents, after all queued work.
    pub fn read(&self) -> Result<Vec<T>> {
        self.read_at(0..self.len)
    }

    /// A copy of a part of the contents, after all queued work.
    ///
    /// # Panics
    /// Where `range` does not lie within the buffer.
    pub fn read_at(&self, range: Range<usize>) -> Result<Vec<T>> {
        let part = self.view().slice(range);
        let mut data = Vec::new();
        let out_of_memory = |_| {
            let bytes = part.len() * size_of::<T>();
            Error::OutOfMemory { device: DeviceId::CPU, what: "what is read", bytes }
        };
        data.try_reserve_exact(part.len()).map_err(out_of_memory)?;
        data.resize(part.len(), T::zeroed());
        self.device.backend.download(part.as_ptr().cast(), bytemuck::cast_slice_mut(&mut data))?;
        Ok(data)
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer<{}>[{}] on {}", std::any::type_name::<T>(), self.len, self.device.id())
    }
}
