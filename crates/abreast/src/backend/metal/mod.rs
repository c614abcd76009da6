//! Apple GPUs, through Metal 3. Host and device share memory: a view is the address that the device has for it, and the host's copies
//! are plain copies.
//!
//! An operation makes a plan: a table that the kernels read, scratch, and launches. A [`driver::Driver`] runs it: Apple's, or the CPU
//! harness, which runs the very text of the kernels where there is no Mac.

#[cfg(target_vendor = "apple")]
mod apple;
mod compress;
mod convert_state;
#[cfg(all(test, feature = "metal-harness"))]
mod defects;
mod driver;
mod gather_rows;
#[cfg(feature = "metal-harness")]
mod harness;
mod index_scores;
mod kernels;
mod queue;
mod recording;
mod select_keys;
mod sparse_attention;
mod top_k;

#[cfg(feature = "metal-harness")]
pub use self::harness::Schedule;

use self::driver::Driver;
use self::kernels::Kernels;
use self::queue::{Block, ID, Queue};
use super::gpu::plan::{Launch, Plan, Room};
use super::{Allocation, Backend, Recording, Run, each_operation};
use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::ops::Checked;
use crate::step::Limits;
use crate::view::DeviceId;
use std::sync::{Arc, Mutex, PoisonError};

struct Metal<D: Driver> {
    queue: Arc<Queue<D>>,
    kernels: Kernels<D>,
    /// Device memory that calls use one after another, kept between them. Held while a call is submitted.
    scratch: Mutex<Option<Block<D>>>,
}

/// The device of this Mac; elsewhere the harness, where this build has it.
pub(crate) fn open() -> Result<Arc<dyn Backend>> {
    #[cfg(target_vendor = "apple")]
    return Ok(Arc::new(Metal::new(apple::queue()?)));
    #[cfg(not(target_vendor = "apple"))]
    return open_harness(Schedule::default());
}

#[cfg(feature = "metal-harness")]
pub(crate) fn open_harness(schedule: Schedule) -> Result<Arc<dyn Backend>> {
    let harness = harness::Harness::open(schedule).map_err(|why| Error::Unavailable { device: ID, why })?;
    Ok(Arc::new(Metal::new(Arc::new(Queue::new(harness)))))
}

/// The most threadgroup memory of a launch: Apple's chips have 32 KiB, of which a kernel that asks for more at launch declares less than
/// 2 KiB itself. Metal refuses more by ending the process, or not at all.
const MOST_SHARED: u32 = 30 << 10;

impl<D: Driver> Metal<D> {
    fn new(queue: Arc<Queue<D>>) -> Metal<D> {
        Metal { queue, kernels: Kernels::new(), scratch: Mutex::default() }
    }

    fn pipelines(&self, plan: &Plan) -> Result<Vec<Arc<D::Pipeline>>> {
        let get = |launch: &Launch| {
            if launch.shared > MOST_SHARED {
                let (name, bytes) = (launch.kernel.1, launch.shared);
                let why = format!(
                    "{name}: a row needs {bytes} bytes of threadgroup memory, there are {MOST_SHARED}"
                );
                return Err(Error::Unavailable { device: ID, why });
            }
            let pipeline = self.kernels.get(self.queue.driver(), launch.kernel);
            pipeline.map_err(|why| Error::Unavailable { device: ID, why })
        };
        plan.launches.iter().map(get).collect()
    }

    /// Submits a plan.
    fn run(&self, plan: Plan) -> Result<()> {
        if plan.launches.is_empty() {
            return Ok(());
        }
        // Compiled before anything is submitted: a call that fails here has touched nothing.
        let pipelines = self.pipelines(&plan)?;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.as_ref().is_none_or(|block| block.len() < plan.scratch) {
            // The old block first: its place may be the new one's.
            *scratch = None;
            *scratch = Some(self.queue.allocate(plan.scratch.next_power_of_two(), "scratch")?);
        }
        let scratch = scratch.as_ref().expect("large enough");
        self.queue.submit((&plan.launches, &pipelines), (&plan.table, scratch))
    }
}

impl<D: Driver> Backend for Metal<D> {
    fn id(&self) -> DeviceId {
        ID
    }

    fn describe(&self) -> String {
        format!("{ID}, {}", self.queue.driver().describe())
    }

    fn gpu(&self) -> Option<Gpu> {
        Some(self.queue.driver().gpu())
    }

    fn allocate(&self, bytes: usize, what: &'static str) -> Result<Box<dyn Allocation>> {
        Ok(Box::new(self.queue.allocate(bytes, what)?))
    }

    fn upload(&self, from: &[u8], to: *mut u8) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let place = self.queue.on_host((to as u64, from.len()))?;
        // SAFETY: the device is done, and there are as many bytes at the place, which the caller alone may write.
        unsafe { place.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn download(&self, from: *const u8, to: &mut [u8]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        let place = self.queue.on_host((from as u64, to.len()))?;
        // SAFETY: the device is done, and there are as many bytes at the place, which nobody may write meanwhile.
        unsafe { place.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn on_host(&self, at: *mut u8, bytes: usize) -> Result<Option<*mut u8>> {
        self.queue.on_host((at as u64, bytes)).map(Some)
    }

    #[cfg(target_vendor = "apple")]
    unsafe fn adopt(&self, buffer: *mut std::ffi::c_void) -> Result<(Box<dyn Allocation>, usize)> {
        // SAFETY: the caller's promise is the driver's.
        let memory = unsafe { self.queue.driver().adopt(buffer) };
        let memory = memory.map_err(|why| Error::Unavailable { device: ID, why })?;
        let block = self.queue.adopt(memory)?;
        let len = block.len();
        Ok((Box::new(block), len))
    }

    fn synchronize(&self) -> Result<()> {
        self.queue.drain().map(|_| ())
    }

    fn record(self: Arc<Self>, limits: Limits) -> Result<Box<dyn Recording>> {
        Ok(Box::new(recording::Step::new(self, limits)))
    }
}

macro_rules! plan_and_run {
    ($($name:ident($op:ty))*) => {
        impl<D: Driver> Run for Metal<D> {
            $(fn $name(&self, op: Checked<$op>) -> Result<()> {
                self.run($name::plan(op, Room::Own))
            })*
        }
    };
}
each_operation!(plan_and_run);
