//! Page-locked host memory that copies to and from the device go through, so that nobody waits for them.

use super::driver::{Owned, Queue};
use crate::error::Result;
use cudarc::driver::{CudaContext, CudaEvent, DriverError, result};
use std::ffi::c_void;
use std::sync::Arc;

/// Blocks, and bytes of each: the host may run ahead of the device by as much.
const BLOCKS: usize = 4;
const BLOCK: usize = 1 << 20;

/// Blocks that are used in turn, made at first use: a stream that is only captured needs none.
#[derive(Default)]
pub(super) struct Staging {
    blocks: Vec<Owned<Block>>,
    current: usize,
    /// Bytes of the current block that copies were queued from or to.
    used: usize,
}

struct Block {
    memory: *mut c_void,
    /// Passed when the device has read or written all that was queued.
    copied: CudaEvent,
    context: Arc<CudaContext>,
}

// SAFETY: page-locked memory belongs to no thread; it is reached through `&mut`.
unsafe impl Send for Block {}

impl Block {
    fn new(context: &Arc<CudaContext>) -> std::result::Result<Block, DriverError> {
        context.bind_to_thread()?;
        let copied = context.new_event(None)?;
        // SAFETY: a plain allocation, owned by the block.
        let memory = unsafe { result::malloc_host(BLOCK, 0) }?;
        Ok(Block { memory, copied, context: context.clone() })
    }

    fn bytes(&mut self, start: usize, n: usize) -> &mut [u8] {
        assert!(start + n <= BLOCK);
        // SAFETY: within the block's `BLOCK` bytes, and the device is done with these.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast::<u8>().add(start), n) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() && self.copied.synchronize().is_ok() {
            // SAFETY: allocated in `new`, freed once, and the device is done with it.
            let _ = unsafe { result::free_host(self.memory) };
        }
    }
}

impl Staging {
    /// Room for `n` bytes, at most a block: the block and where in it. Small tables share a block, so that the host is held up by
    /// megabytes that it is ahead, and not by calls.
    fn room(&mut self, queue: &Queue, n: usize) -> Result<(&mut Block, usize)> {
        let fault = |e| queue.fault(e);
        if self.blocks.is_empty() || self.used + n > BLOCK {
            self.current = if self.blocks.is_empty() { 0 } else { (self.current + 1) % BLOCKS };
            if self.current == self.blocks.len() {
                self.blocks.push(Owned::new(Block::new(&queue.context).map_err(fault)?));
            }
            self.blocks[self.current].copied.synchronize().map_err(fault)?;
            self.used = 0;
        }
        let start = self.used;
        self.used += n.next_multiple_of(64);
        Ok((&mut self.blocks[self.current], start))
    }

    /// Queues a copy to the device; `from` is free when this returns.
    pub(super) fn upload(&mut self, queue: &Queue, (from, to): (&[u8], u64)) -> Result<()> {
        for (n, piece) in from.chunks(BLOCK).enumerate() {
            let (block, start) = self.room(queue, piece.len())?;
            let bytes = block.bytes(start, piece.len());
            bytes.copy_from_slice(piece);
            // SAFETY: the caller hands in device memory of the length of `from`; the block stays until its event has passed.
            unsafe { result::memcpy_htod_async(to + (n * BLOCK) as u64, bytes, queue.stream.cu_stream()) }
                .and_then(|()| block.copied.record(&queue.stream))
                .map_err(|e| queue.fault(e))?;
        }
        Ok(())
    }

    /// Copies from the device, after all that was queued before.
    pub(super) fn download(&mut self, queue: &Queue, (from, to): (u64, &mut [u8])) -> Result<()> {
        for (n, piece) in to.chunks_mut(BLOCK).enumerate() {
            let (block, start) = self.room(queue, piece.len())?;
            let bytes = block.bytes(start, piece.len());
            // SAFETY: the caller hands in device memory of the length of `to`.
            unsafe { result::memcpy_dtoh_async(bytes, from + (n * BLOCK) as u64, queue.stream.cu_stream()) }
                .and_then(|()| block.copied.record(&queue.stream))
                .and_then(|()| block.copied.synchronize())
                .map_err(|e| queue.fault(e))?;
            piece.copy_from_slice(block.bytes(start, piece.len()));
        }
        Ok(())
    }
}
