//! What the backend needs of a Metal device, without Metal's types: Apple's driver does it, and so does the CPU harness.

use crate::backend::gpu::plan::Launch;
use crate::device::Gpu;
use std::sync::Arc;
use std::time::Duration;

pub(super) trait Driver: Send + Sync + Sized + 'static {
    /// A kernel file, compiled.
    type Library: Send;
    /// A kernel, ready to be launched.
    type Pipeline: Send + Sync;
    type Memory: Memory;
    type Ticket: Ticket;

    /// One line for people: chip, system and whatever decides what is computed.
    fn describe(&self) -> String;
    fn gpu(&self) -> Gpu;
    /// Memory of at least one byte that host and device share, resident until it is dropped; `None` where there is none.
    fn allocate(&self, bytes: usize) -> Option<Self::Memory>;
    /// A buffer of the caller's, retained and made resident.
    ///
    /// # Safety
    /// It is an `id<MTLBuffer>`.
    #[cfg(target_vendor = "apple")]
    unsafe fn adopt(&self, buffer: *mut std::ffi::c_void) -> Result<Self::Memory, String>;
    fn library(&self, stem: &str, text: &str) -> Result<Self::Library, String>;
    fn pipeline(&self, library: &Self::Library, name: &str) -> Result<Self::Pipeline, String>;
    /// Queues launches, each after the one before it and all after what was submitted before.
    fn submit(&self, work: &Work<'_, Self>) -> Result<Self::Ticket, String>;
}

/// Launches with all that they need. The memory stays until the ticket is done.
pub(super) struct Work<'a, D: Driver> {
    pub(super) launches: &'a [Launch],
    /// One per launch.
    pub(super) pipelines: &'a [Arc<D::Pipeline>],
    pub(super) table: &'a D::Memory,
    pub(super) scratch: &'a D::Memory,
}

pub(super) trait Memory: Send + Sync {
    /// Where kernels find it.
    fn address(&self) -> u64;
    /// Where the host finds it.
    fn contents(&self) -> *mut u8;
    fn len(&self) -> usize;
}

/// Work that was submitted.
pub(super) trait Ticket: Send {
    fn is_done(&self) -> bool;
    /// Waits for its end: how long the device worked, or what went wrong.
    fn wait(&self) -> Result<Duration, String>;
}
