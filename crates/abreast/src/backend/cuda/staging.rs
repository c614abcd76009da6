//! Page-locked host memory that copies to and from the device go through, so that nobody waits for them.

use super::driver::{Owned, Queue};
use crate::error::Result;
use cudarc::driver::{CudaContext, CudaEvent, DriverError, result};
use std::ffi::c_void;
use std::sync::Arc;

/// Blocks, and bytes of each: the host may run ahead of the device by as much.
const BLOCKS: usize = 4;
const BLOCK: usize = 1 << 20;

/// Blocks that are used in turn.
pub(super) struct Staging {
    blocks: Vec<Owned<Block>>,
    next: usize,
}

struct Block {
    memory: *mut c_void,
    /// Passed when the device has read or written the block.
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

    fn bytes(&mut self, n: usize) -> &mut [u8] {
        // SAFETY: the block has `BLOCK` bytes, and the caller has waited for the device.
        unsafe { std::slice::from_raw_parts_mut(self.memory.cast(), n.min(BLOCK)) }
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
    pub(super) fn new(context: &Arc<CudaContext>) -> std::result::Result<Staging, DriverError> {
        let blocks = (0..BLOCKS)
            .map(|_| Block::new(context).map(Owned::new))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Staging { blocks, next: 0 })
    }

    /// The next block, when the device is done with it.
    fn next(&mut self, queue: &Queue) -> Result<&mut Block> {
        let block = &mut self.blocks[self.next];
        self.next = (self.next + 1) % BLOCKS;
        block.copied.synchronize().map_err(|e| queue.fault(e))?;
        Ok(block)
    }

    /// Queues a copy to the device; `from` is free when this returns.
    pub(super) fn upload(&mut self, queue: &Queue, (from, to): (&[u8], u64)) -> Result<()> {
        for (n, piece) in from.chunks(BLOCK).enumerate() {
            let block = self.next(queue)?;
            let bytes = block.bytes(piece.len());
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
            let block = self.next(queue)?;
            let bytes = block.bytes(piece.len());
            // SAFETY: the caller hands in device memory of the length of `to`.
            unsafe { result::memcpy_dtoh_async(bytes, from + (n * BLOCK) as u64, queue.stream.cu_stream()) }
                .and_then(|()| block.copied.record(&queue.stream))
                .and_then(|()| block.copied.synchronize())
                .map_err(|e| queue.fault(e))?;
            piece.copy_from_slice(block.bytes(piece.len()));
        }
        Ok(())
    }
}
