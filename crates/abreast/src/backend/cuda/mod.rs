//! NVIDIA GPUs. Nothing is needed to build: driver and compiler are found at run time.
//!
//! An operation makes a [`plan`]: a table that the kernels read on the device, scratch, and launches. Calls are queued in
//! order on one stream; nothing waits but a download.

mod cache;
mod capture;
mod compress;
mod convert_state;
#[cfg(test)]
mod defects;
mod driver;
mod frees;
mod gather_rows;
mod index_scores;
mod kernels;
mod nvrtc;
#[cfg(test)]
mod own_process;
mod recording;
mod select_keys;
mod sparse_attention;
mod sparse_attention_hopper;
mod staging;
mod target;
mod top_k;

use self::capture::Relaxed;
pub(crate) use self::driver::Stream;
use self::driver::{Memory, Queue};
use self::kernels::Kernels;
use self::target::Target;
use super::gpu::plan::{Launch, Plan, Room};
use super::{Allocation, Backend, Recording, Run, each_operation};
use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::ops::Checked;
use crate::step::Limits;
use crate::view::DeviceId;
use cudarc::driver::{CudaFunction, CudaStream, sys};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct Cuda {
    queue: Arc<Queue>,
    /// Shared by the handles of other streams.
    kernels: Arc<Kernels>,
    /// Held while a call is queued, so that the calls of two threads do not mix.
    scratch: Mutex<Scratch>,
}

/// Device memory that calls use one after another, kept between them.
#[derive(Default)]
struct Scratch {
    table: Option<(Memory, usize)>,
    space: Option<(Memory, usize)>,
    captured: capture::Shared,
}

impl Cuda {
    pub(crate) fn open(ordinal: u32, stream: Option<Stream>) -> Result<Cuda> {
        let queue = Arc::new(Queue::open(ordinal, stream)?);
        frees::register(&queue);
        let kernels = Arc::new(Kernels::new(&queue)?);
        Ok(Cuda { queue, kernels, scratch: Mutex::default() })
    }

    /// The same device on another stream.
    pub(crate) fn on_stream(&self, stream: Stream) -> Result<Cuda> {
        self.queue.enter()?;
        let queue = Arc::new(Queue::open(self.queue.id.ordinal, Some(stream))?);
        frees::register(&queue);
        Ok(Cuda { queue, kernels: self.kernels.clone(), scratch: Mutex::default() })
    }

    fn target(&self, room: Room) -> Target {
        Target { room, chip: self.kernels.chip }
    }

    /// Queues a plan: its table, then its launches.
    fn run(&self, plan: Plan) -> Result<()> {
        if plan.launches.is_empty() {
            return Ok(());
        }
        let _relaxed = Relaxed::new();
        self.queue.enter()?;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        // Also by captured calls: an engine may make no others.
        capture::free_gone();
        if let Some(capture) = self.queue.capture()? {
            return self.run_captured((&plan, &capture), &mut scratch);
        }
        let Scratch { table, space, .. } = &mut *scratch;
        let table = self.grow(table, plan.table.len(), "the row table")?;
        let space = self.grow(space, plan.scratch, "scratch")?;
        // Compiled before anything is queued: a call that fails here has touched nothing.
        let functions = self.kernels.of(&self.queue, &plan.launches)?;
        self.queue.upload(&plan.table, table)?;
        let mut launches = plan.launches.iter().zip(&functions);
        let launched = launches.try_for_each(|pair| self.launch(&self.queue.stream, pair, (table, space)));
        self.queue.queued()?;
        launched
    }

    fn launch(
        &self,
        stream: &Arc<CudaStream>,
        (launch, function): (&Launch, &CudaFunction),
        (table, scratch): (u64, u64),
    ) -> Result<()> {
        let [x, y] = launch.grid;
        let blocks = x.checked_mul(y).filter(|&blocks| blocks <= i32::MAX as u32).ok_or_else(|| {
            let why = format!("one launch has {x} times {y} blocks, more than a grid can: split the call");
            Error::Unavailable { device: self.queue.id, why }
        })?;
        use sys::CUlaunchAttributeID as Id;
        // SAFETY: plain data of the driver's, for which zeros are a value.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut set = 0;
        if launch.cluster > 1 {
            attributes[set].id = Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[set].value.clusterDim.x = launch.cluster;
            attributes[set].value.clusterDim.y = 1;
            attributes[set].value.clusterDim.z = 1;
            set += 1;
        }
        if launch.overlaps && self.kernels.chip.hopper {
            attributes[set].id = Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[set].value.programmaticStreamSerializationAllowed = 1;
            set += 1;
        }
        // SAFETY: as above.
        let mut config: sys::CUlaunchConfig = unsafe { std::mem::zeroed() };
        (config.gridDimX, config.gridDimY, config.gridDimZ) = (blocks, 1, 1);
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (launch.threads, 1, 1);
        (config.sharedMemBytes, config.hStream) = (launch.shared, stream.cu_stream());
        (config.attrs, config.numAttrs) = (attributes.as_mut_ptr(), set as u32);
        let table = table + launch.table as u64;
        let mut parameters =
            [(&raw const table).cast::<c_void>(), (&raw const scratch).cast(), (&raw const x).cast()]
                .map(|p| p.cast_mut());
        // SAFETY: the kernels take two addresses and a number. The plan's table matches the kernel's struct, its addresses are views that
        // the contract checked, and the scratch is as large as the plan says.
        unsafe {
            let (function, none) = (function.cu_function(), std::ptr::null_mut());
            sys::cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), none).result()
        }
        .map_err(|e| self.queue.fault(e))
    }

    /// The address of kept memory of at least `bytes`.
    fn grow(&self, kept: &mut Option<(Memory, usize)>, bytes: usize, what: &'static str) -> Result<u64> {
        match kept {
            Some((memory, size)) if *size >= bytes => Ok(memory.address),
            _ => {
                // The old block first: its place may be the new one's.
                *kept = None;
                let size = bytes.next_power_of_two();
                let (memory, _) = kept.insert((self.queue.allocate(size, what)?, size));
                Ok(memory.address)
            }
        }
    }
}

impl Drop for Cuda {
    /// Waits for this handle's work: it may use memory of other handles, whose frees do not wait for a stream that is gone.
    fn drop(&mut self) {
        if self.queue.enter().is_ok() {
            let _relaxed = Relaxed::new();
            // After a device fault there is nothing to wait for, and nobody to tell.
            let _ = match &self.queue.foreign {
                Some(foreign) => foreign.done.synchronize(),
                None => self.queue.stream.synchronize(),
            };
        }
    }
}

impl Backend for Cuda {
    fn id(&self) -> DeviceId {
        self.queue.id
    }

    fn describe(&self) -> String {
        let name = self.queue.context.name().unwrap_or_else(|_| "a device without a name".into());
        format!("{}, {name}, {}", self.queue.id, self.kernels.describe())
    }

    fn gpu(&self) -> Option<Gpu> {
        Some(self.queue.gpu())
    }

    fn allocate(&self, bytes: usize, what: &'static str) -> Result<Box<dyn Allocation>> {
        let _relaxed = Relaxed::new();
        self.queue.enter()?;
        self.queue.uncaptured("an allocation")?;
        let memory = self.queue.allocate(bytes, what)?;
        self.queue.clear(&memory, bytes)?;
        Ok(Box::new(memory))
    }

    fn upload(&self, from: &[u8], to: *mut u8) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let _relaxed = Relaxed::new();
        self.queue.enter()?;
        self.queue.uncaptured("a copy from the host")?;
        self.queue.upload(from, to as u64)?;
        self.queue.queued()
    }

    fn download(&self, from: *const u8, to: &mut [u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let _relaxed = Relaxed::new();
        self.queue.enter()?;
        self.queue.uncaptured("a copy to the host")?;
        self.queue.download(from as u64, to)
    }

    fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::new();
        self.queue.enter()?;
        self.queue.uncaptured("a wait")?;
        self.queue.stream.synchronize().map_err(|e| self.queue.fault(e))
    }

    fn on_stream(&self, stream: Stream) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(Cuda::on_stream(self, stream)?))
    }

    fn hand_over(&self, stream: Stream) -> Result<()> {
        self.queue.enter()?;
        // SAFETY: the caller says that the stream is of this device and lives.
        let stream = unsafe { self.queue.context.wrap_borrowed_stream(stream.0.cast()) };
        let handed = match &self.queue.foreign {
            Some(foreign) => stream.wait(&foreign.done),
            None => stream.join(&self.queue.stream),
        };
        handed.map_err(|e| self.queue.fault(e))
    }

    fn record(self: Arc<Self>, limits: Limits) -> Result<Box<dyn Recording>> {
        Ok(Box::new(recording::Graph::new(self, limits)?))
    }
}

macro_rules! plan_and_run {
    ($($name:ident($op:ty))*) => {
        impl Run for Cuda {
            $(fn $name(&self, op: Checked<$op>) -> Result<()> {
                self.run($name::plan(op, self.target(Room::Own)))
            })*
        }
    };
}
each_operation!(plan_and_run);
