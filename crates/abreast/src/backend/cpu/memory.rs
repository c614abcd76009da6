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

/// Where the shares of consecutive entries start, in scratch memory: running sums, and their total behind the last.
pub(super) struct Starts<'a> {
    _slots: Slots<'a>,
    starts: *const usize,
    entries: usize,
}

// SAFETY: the memory is leased to this alone, and only read once it is filled.
unsafe impl Sync for Starts<'_> {}

impl<'a> Starts<'a> {
    /// `slots` has one slot of [`Starts::bytes`].
    pub(super) fn fill(slots: Slots<'a>, shares: impl ExactSizeIterator<Item = usize>) -> Starts<'a> {
        let (entries, starts) = (shares.len(), slots.get(0).cast::<usize>());
        let mut start = 0;
        for (e, share) in shares.chain([0]).enumerate() {
            // SAFETY: the slot has a place for every entry and one more.
            unsafe { starts.add(e).write(start) };
            start += share;
        }
        Starts { _slots: slots, starts, entries }
    }

    pub(super) const fn bytes(entries: usize) -> usize {
        (entries + 1) * size_of::<usize>()
    }

    fn all(&self) -> &[usize] {
        // SAFETY: filled when this was made.
        unsafe { std::slice::from_raw_parts(self.starts, self.entries + 1) }
    }

    /// Where an entry's share starts.
    pub(super) fn of(&self, entry: usize) -> usize {
        self.all()[entry]
    }

    /// All shares together.
    pub(super) fn total(&self) -> usize {
        self.all()[self.entries]
    }

    /// The entry in whose share `at` falls, and where in it.
    pub(super) fn find(&self, at: usize) -> (usize, usize) {
        let entry = self.all().partition_point(|&start| start <= at) - 1;
        (entry, at - self.of(entry))
    }
}
