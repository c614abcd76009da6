//! How the operations run: one folder per backend, the same file names in each.

pub(crate) mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(any(
    feature = "cuda",
    all(feature = "metal", any(target_vendor = "apple", feature = "metal-harness"))
))]
mod gpu;
#[cfg(all(feature = "metal", any(target_vendor = "apple", feature = "metal-harness")))]
pub(crate) mod metal;

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::ops::{
    Checked, Compress, ConvertState, GatherRows, IndexScores, SelectKeys, SparseAttention, TopK,
};
use crate::step::Limits;
use crate::view::{DeviceId, Kind};
use std::sync::Arc;
use std::time::Duration;

/// Hands every operation to a macro: its name, which is also its module's in each backend, and the type of its arguments.
macro_rules! each_operation {
    ($macro:ident) => {
        $macro! {
            sparse_attention($crate::ops::SparseAttention<'_>)
            index_scores($crate::ops::IndexScores<'_>)
            top_k($crate::ops::TopK<'_>)
            select_keys($crate::ops::SelectKeys<'_>)
            compress($crate::ops::Compress<'_, '_>)
            convert_state($crate::ops::ConvertState<'_, '_>)
            gather_rows($crate::ops::GatherRows<'_>)
        }
    };
}
pub(crate) use each_operation;

/// What every backend does, beside the operations.
pub(crate) trait Backend: Run + Send + Sync {
    fn id(&self) -> DeviceId;
    fn describe(&self) -> String;
    /// What the driver tells, where this is a GPU.
    fn gpu(&self) -> Option<Gpu> {
        None
    }

    /// Zeroed memory, aligned to at least 64 bytes.
    fn allocate(&self, bytes: usize, what: &'static str) -> Result<Box<dyn Allocation>>;
    /// Copies host bytes to device memory that an allocation of this backend owns.
    fn upload(&self, from: &[u8], to: *mut u8) -> Result<()>;
    /// Copies device memory to the host, after all queued work.
    fn download(&self, from: *const u8, to: &mut [u8]) -> Result<()>;
    /// Waits for all queued work; where the host finds memory of an allocation of this backend, `None` where it cannot.
    fn on_host(&self, _at: *mut u8, _bytes: usize) -> Result<Option<*mut u8>> {
        Ok(None)
    }
    /// Memory of a foreign buffer, kept until the allocation is dropped, and its length in bytes.
    ///
    /// # Safety
    /// The buffer is one of this backend's driver.
    #[cfg(all(feature = "metal", target_vendor = "apple"))]
    unsafe fn adopt(&self, _buffer: *mut std::ffi::c_void) -> Result<(Box<dyn Allocation>, usize)> {
        let why = "it takes in no foreign buffers".into();
        Err(Error::Unavailable { device: self.id(), why })
    }
    /// Waits for all queued work.
    fn synchronize(&self) -> Result<()>;

    /// The same device on a stream of the caller's.
    #[cfg(feature = "cuda")]
    fn on_stream(&self, _stream: cuda::Stream) -> Result<Arc<dyn Backend>> {
        Err(Error::Unavailable { device: self.id(), why: "it has no streams".into() })
    }

    /// Lets a stream of the caller's wait for all queued work.
    #[cfg(feature = "cuda")]
    fn hand_over(&self, _stream: cuda::Stream) -> Result<()> {
        Ok(())
    }

    /// Starts a step that is recorded at its first run and replayed later.
    fn record(self: Arc<Self>, limits: Limits) -> Result<Box<dyn Recording>>;
}

/// The operations. Arguments arrive checked: a backend trusts them, and checks only data.
pub(crate) trait Run {
    fn sparse_attention(&self, op: Checked<SparseAttention<'_>>) -> Result<()>;
    fn index_scores(&self, op: Checked<IndexScores<'_>>) -> Result<()>;
    fn top_k(&self, op: Checked<TopK<'_>>) -> Result<()>;
    fn select_keys(&self, op: Checked<SelectKeys<'_>>) -> Result<()>;
    fn compress(&self, op: Checked<Compress<'_, '_>>) -> Result<()>;
    fn convert_state(&self, op: Checked<ConvertState<'_, '_>>) -> Result<()>;
    fn gather_rows(&self, op: Checked<GatherRows<'_>>) -> Result<()>;
}

/// A step between its first operation and its last: takes operations, then runs them all.
pub(crate) trait Recording: Run + Send {
    /// Forgets operations that were taken and not run. What it returns is dropped when those to come were run or given up: until
    /// then their memory stays.
    fn start(&mut self) -> Box<dyn Send>;
    /// Runs what was taken since `start`.
    fn submit(&mut self) -> Result<()>;
    /// Runs what `submit` ran again, `runs` times, and tells the device's time of each; `None` where operations run as they
    /// are taken.
    fn repeat(&mut self, _runs: usize) -> Result<Option<Vec<Duration>>> {
        Ok(None)
    }
}

/// Memory of a device that is freed on drop, after the work that uses it.
pub(crate) trait Allocation: Send + Sync {
    fn ptr(&self) -> *mut u8;
}

pub(crate) fn open(kind: Kind) -> Result<Arc<dyn Backend>> {
    match kind {
        Kind::Cpu => open_cpu(cpu::CpuOptions::default()),
        #[cfg(feature = "cuda")]
        Kind::Cuda => Ok(Arc::new(cuda::Cuda::open(0, None)?)),
        #[cfg(all(feature = "metal", any(target_vendor = "apple", feature = "metal-harness")))]
        Kind::Metal => metal::open(),
        #[allow(unreachable_patterns)]
        _ => {
            let feature = if kind == Kind::Metal { "metal`, on macOS" } else { "cuda`" };
            let why = format!("this build lacks it; build with `--features {feature}");
            Err(Error::Unavailable { device: DeviceId { kind, ordinal: 0 }, why })
        }
    }
}

pub(crate) fn open_cpu(options: cpu::CpuOptions) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(cpu::Cpu::open(options)?))
}

/// A step where nothing is gained by recording: every operation runs as it comes.
pub(crate) struct Immediate<T>(pub(crate) Arc<T>);

macro_rules! immediate {
    ($($name:ident($op:ty))*) => {
        impl<T: Run> Run for Immediate<T> {
            $(fn $name(&self, op: Checked<$op>) -> Result<()> {
                self.0.$name(op)
            })*
        }
    };
}
each_operation!(immediate);

impl<T: Run + Send + Sync> Recording for Immediate<T> {
    fn start(&mut self) -> Box<dyn Send> {
        Box::new(())
    }

    fn submit(&mut self) -> Result<()> {
        Ok(())
    }
}
