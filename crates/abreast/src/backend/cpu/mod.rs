//! The host's processor: the readable reference, and fast.
//!
//! One generic body per operation over a small vector trait ([`lanes`]); [`isa`] chooses the vectors once. Every
//! element of a result has one order of operations, fixed by the row's shape, so that neither the vectors nor the
//! threads show in the bits.

#[cfg(target_arch = "aarch64")]
mod arm;
mod attention_scratch;
mod compress;
mod convert_state;
mod dots;
mod gather_rows;
mod index_scores;
mod isa;
mod lanes;
mod math;
mod memory;
mod select_keys;
mod softmax;
mod sparse_attention;
mod top_k;
mod values;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use isa::Isa;

use self::memory::{Arena, Memory, Slots, Starts};
use super::{Allocation, Backend, Immediate, Recording, Run, each_operation};
use crate::error::{Arg, Error, Result};
use crate::ops::Checked;
use crate::step::Limits;
use crate::view::{DeviceId, ViewMut};
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// How the CPU backend works. No choice changes a bit of any result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuOptions {
    /// Instruction set; by default the best that this processor has.
    pub isa: Option<Isa>,
    /// Threads, 1 to 1024; by default one per core.
    pub threads: Option<usize>,
}

/// More than any machine has cores; so many more that starting them fails take the process along.
const MAX_THREADS: usize = 1024;

pub(crate) struct Cpu {
    isa: Isa,
    pool: rayon::ThreadPool,
    scratch: Arena,
    /// The process that owns the threads.
    process: u32,
}

impl Cpu {
    pub(crate) fn open(options: CpuOptions) -> Result<Cpu> {
        let unavailable = |why: String| Error::Unavailable { device: DeviceId::CPU, why };
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.is_available() {
            return Err(unavailable(format!("this processor has no {isa}")));
        }
        if options.threads.is_some_and(|threads| !(1..=MAX_THREADS).contains(&threads)) {
            return Err(Error::Argument {
                op: "open",
                arg: Arg { row: None, name: "threads" },
                must: format!("1 to {MAX_THREADS}"),
                got: options.threads.unwrap_or_default().to_string(),
            });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.unwrap_or(0))
            .thread_name(|i| format!("abreast-{i}"))
            .build()
            .map_err(|e| unavailable(format!("no threads: {e}")))?;
        Ok(Cpu { isa, pool, scratch: Arena::default(), process: std::process::id() })
    }
}

/// Work for the threads.
struct Work {
    /// Into how many tasks it falls.
    parts: usize,
    /// Bytes that a task needs for itself.
    scratch: usize,
    /// About how long one thread takes for all of it.
    nanoseconds: u64,
}

/// Work of less is done before another thread has woken up and helped.
const WORTH_A_THREAD: u64 = 60_000;

/// Where a task runs: which part of the work it is, and the scratch memory that nobody else uses meanwhile.
struct Task {
    part: usize,
    scratch: *mut u8,
}

impl Cpu {
    /// The pool's threads do not live on in a forked child: waiting for them there would never end.
    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let why = "it was opened before this process was forked; open it again".into();
        Err(Error::Unavailable { device: DeviceId::CPU, why })
    }

    fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Scratch memory. A forked child is turned away first: the arena's lock may be held by a thread that it has not.
    fn lease(&self, slots: usize, bytes: usize) -> Result<Slots<'_>> {
        self.check_process()?;
        self.scratch.lease(slots, bytes)
    }

    /// Running sums over the entries of a call.
    fn starts(&self, shares: impl ExactSizeIterator<Item = usize>) -> Result<Starts<'_>> {
        let slots = self.lease(1, Starts::bytes(shares.len()))?;
        Ok(Starts::fill(slots, shares))
    }

    /// Takes what some work needs: afterwards nothing can fail.
    fn prepare(&self, work: Work) -> Result<Prepared<'_>> {
        let Work { parts, scratch: bytes, nanoseconds } = work;
        let threads = if parts <= 1 || nanoseconds < WORTH_A_THREAD { 1 } else { self.threads() };
        let slots = self.lease(if parts == 0 { 0 } else { threads }, bytes)?;
        Ok(Prepared { cpu: self, parts, threads, slots })
    }
}

/// Work that has its scratch memory.
struct Prepared<'a> {
    cpu: &'a Cpu,
    parts: usize,
    threads: usize,
    slots: Slots<'a>,
}

impl Prepared<'_> {
    /// Runs the parts on the threads. What a part's scratch holds at first is unspecified.
    fn run(self, task: impl Fn(Task) + Sync) {
        let Prepared { cpu, parts, threads, slots } = self;
        if threads == 1 {
            return (0..parts).for_each(|part| task(Task { part, scratch: slots.get(0) }));
        }
        cpu.pool.install(|| {
            (0..parts).into_par_iter().with_max_len(1).for_each(|part| {
                let thread = rayon::current_thread_index().expect("a task runs on the pool");
                task(Task { part, scratch: slots.get(thread) });
            });
        });
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

    fn on_host(&self, at: *mut u8, _bytes: usize) -> Result<Option<*mut u8>> {
        Ok(Some(at))
    }

    fn synchronize(&self) -> Result<()> {
        // A call returns when its work is done.
        Ok(())
    }

    fn record(self: Arc<Self>, _limits: Limits) -> Result<Box<dyn Recording>> {
        Ok(Box::new(Immediate(self)))
    }
}

macro_rules! launch {
    ($($name:ident($op:ty))*) => {
        impl Run for Cpu {
            $(fn $name(&self, op: Checked<$op>) -> Result<()> {
                $name::launch(self, op)
            })*
        }
    };
}
each_operation!(launch);

/// A pointer that tasks share; each writes its own part.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}
// SAFETY: whoever dereferences it says why its part is its own.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer `offset` elements on.
    ///
    /// # Safety
    /// `offset` is within the memory that this points to.
    unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

/// The status words of a call, one per entry, or none: tasks of one row add their bits.
struct StatusWords(Option<(Shared<u32>, usize)>);

impl StatusWords {
    fn of(view: Option<&mut ViewMut<'_, u32, 1>>) -> StatusWords {
        StatusWords(view.map(|view| {
            let words = view.as_slice_mut().expect("a CPU view");
            (Shared(words.as_mut_ptr()), words.len())
        }))
    }

    /// Clears the words: when nothing can fail any more.
    fn clear(&self) {
        if let Some((words, len)) = &self.0 {
            // SAFETY: the view's own words, which only this type reaches.
            unsafe { std::slice::from_raw_parts_mut(words.at(0), *len) }.fill(0);
        }
    }

    fn add(&self, row: usize, bits: u32) {
        if let (Some((words, _)), true) = (&self.0, bits != 0) {
            // SAFETY: the contract gave the view one word per entry, and only this type reaches them.
            let word = unsafe { AtomicU32::from_ptr(words.at(row)) };
            word.fetch_or(bits, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
