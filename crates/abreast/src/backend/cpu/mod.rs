//! The host's processor: the readable reference, and fast.
//!
//! One generic body per operation over a small vector trait ([`lanes`]); [`isa`] chooses the vectors once. Every
//! element of a result has one order of operations, fixed by the row's shape, so that neither the vectors nor the
//! threads show in the bits.

mod compress;
mod gather_rows;
mod index_scores;
mod isa;
mod lanes;
mod math;
mod select_keys;
mod sparse_attention;
mod top_k;

pub use isa::Isa;

use super::{Allocation, Backend};
use crate::error::{Error, Result};
use crate::ops::{Checked, Compress, GatherRows, IndexScores, SelectKeys, SparseAttention, TopK};
use crate::view::DeviceId;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// How the CPU backend works. No choice changes a bit of any result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuOptions {
    /// Instruction set; by default the best that this processor has.
    pub isa: Option<Isa>,
    /// Threads; by default one per core.
    pub threads: Option<usize>,
}

pub(crate) struct Cpu {
    isa: Isa,
    pool: rayon::ThreadPool,
}

impl Cpu {
    pub(crate) fn open(options: CpuOptions) -> Result<Cpu> {
        let unavailable = |why: String| Error::Unavailable { device: DeviceId::CPU, why };
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.is_available() {
            return Err(unavailable(format!("this processor has no {isa}")));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.unwrap_or(0))
            .thread_name(|i| format!("abreast-{i}"))
            .build()
            .map_err(|e| unavailable(format!("no threads: {e}")))?;
        Ok(Cpu { isa, pool })
    }
}

impl Backend for Cpu {
    fn id(&self) -> DeviceId {
        DeviceId::CPU
    }

    fn describe(&self) -> String {
        format!("cpu, {}, {} threads", self.isa, self.pool.current_num_threads())
    }

    fn allocate(&self, bytes: usize, what: &'static str) -> Result<Box<dyn Allocation>> {
        Memory::zeroed(bytes, what).map(|m| Box::new(m) as _)
    }

    fn upload(&self, from: &[u8], to: *mut u8) -> Result<()> {
        // SAFETY: `Buffer` hands in its own memory, of the length of `from`.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn download(&self, from: *const u8, to: &mut [u8]) -> Result<()> {
        // SAFETY: `Buffer` hands in its own memory, of the length of `to`.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn sparse_attention(&self, op: Checked<SparseAttention<'_>>) -> Result<()> {
        sparse_attention::launch(self, op)
    }

    fn index_scores(&self, op: Checked<IndexScores<'_>>) -> Result<()> {
        index_scores::launch(self, op)
    }

    fn top_k(&self, op: Checked<TopK<'_>>) -> Result<()> {
        top_k::launch(self, op)
    }

    fn select_keys(&self, op: Checked<SelectKeys<'_>>) -> Result<()> {
        select_keys::launch(self, op)
    }

    fn compress(&self, op: Checked<Compress<'_, '_>>) -> Result<()> {
        compress::launch(self, op)
    }

    fn gather_rows(&self, op: Checked<GatherRows<'_>>) -> Result<()> {
        gather_rows::launch(self, op)
    }
}

/// Zeroed memory on a cache line of its own. Pages that nobody touches cost nothing.
struct Memory {
    ptr: *mut u8,
    layout: Layout,
}

impl Memory {
    fn zeroed(bytes: usize, what: &'static str) -> Result<Memory> {
        let out_of_memory = || Error::OutOfMemory { device: DeviceId::CPU, what, bytes };
        let layout = Layout::from_size_align(bytes.max(1), 64).map_err(|_| out_of_memory())?;
        // SAFETY: the layout has a size of at least 1.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() { Err(out_of_memory()) } else { Ok(Memory { ptr, layout }) }
    }
}

impl Allocation for Memory {
    fn ptr(&self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

// SAFETY: `Memory` owns its bytes; access goes through views, which follow the borrow rules.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
