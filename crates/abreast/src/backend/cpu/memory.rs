//! Host memory: buffers, and the scratch that a device keeps between calls.

use crate::backend::Allocation;
use crate::error::{Error, Result};
use crate::view::DeviceId;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::{Mutex, PoisonError};

/// Zeroed memory on cache lines of its own. Pages that nobody touches cost nothing: the allocator is asked for an
/// alignment that it gives fresh pages for, and the cache line is found within.
pub(super) struct Memory {
    base: *mut u8,
    layout: Layout,
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// What `alloc_zeroed` aligns to without writing the zeros itself.
const PLAIN: usize = 16;

impl Memory {
    pub(super) fn zeroed(bytes: usize, what: &'static str) -> Result<Memory> {
        let out_of_memory = || Error::OutOfMemory { device: DeviceId::CPU, what, bytes };
        let size = bytes.checked_add(LINE).ok_or_else(out_of_memory)?;
        let layout = Layout::from_size_align(size, PLAIN).map_err(|_| out_of_memory())?;
        // SAFETY: the layout has a size of at least a line.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() { Err(out_of_memory()) } else { Ok(Memory { base, layout }) }
    }

    fn bytes(&self) -> usize {
        self.layout.size() - LINE
    }
}

impl Allocation for Memory {
    fn ptr(&self) -> *mut u8 {
        // SAFETY: the first line's start is at most a line away, and the block is a line larger than its bytes.
        unsafe { self.base.add(self.base.align_offset(LINE)) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.base, self.layout) }
    }
}

// SAFETY: `Memory` owns its bytes; access goes through views, which follow the borrow rules.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Scratch memory: a call leases a block and gives it back, so that concurrent calls never share one and a step in
/// steady state allocates nothing.
#[derive(Default)]
pub(super) struct Arena {
    free: Mutex<Vec<Memory>>,
}

impl Arena {
    /// One block of `bytes` for each of `threads`.
    pub(super) fn lease(&self, threads: usize, bytes: usize) -> Result<Slots<'_>> {
        let out_of_memory = || Error::OutOfMemory { device: DeviceId::CPU, what: "scratch", bytes };
        let stride = bytes.checked_next_multiple_of(LINE).ok_or_else(out_of_memory)?;
        let total = stride.checked_mul(threads).ok_or_else(out_of_memory)?;
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = match kept.filter(|memory| memory.bytes() >= total) {
            Some(memory) => memory,
            None => Memory::zeroed(total, "scratch")?,
        };
        Ok(Slots { arena: self, memory: Some(memory), stride })
    }
}

/// Leased scratch, one slot per thread.
pub(super) struct Slots<'a> {
    arena: &'a Arena,
    memory: Option<Memory>,
    stride: usize,
}

impl Slots<'_> {
    pub(super) fn get(&self, thread: usize) -> *mut u8 {
        let memory = self.memory.as_ref().expect("held until dropped");
        assert!((thread + 1) * self.stride <= memory.bytes());
        // SAFETY: within the block, as just checked.
        unsafe { memory.ptr().add(thread * self.stride) }
    }
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        self.arena.free.lock().unwrap_or_else(PoisonError::into_inner).extend(self.memory.take());
    }
}
