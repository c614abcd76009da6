//! The CPU harness as a driver: kernels are compiled by the script of `tools/metal-harness`, and one thread of this process runs what is
//! submitted, in order, while the host goes on.

use super::driver::{Driver, Memory, Ticket, Work};
use crate::device::Gpu;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How the harness runs the threads of a kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Threadgroups, simdgroups and lanes in descending order, in place of ascending. Legal kernels give the same bits.
    pub backwards: bool,
    /// Subnormal numbers are zeros, as on Apple's chips.
    pub flush_subnormals: bool,
}

/// The script that compiles kernels; without arguments it tells its compiler.
const COMPILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/metal-harness/compile");

pub(super) struct Harness {
    compiler: String,
    schedule: Schedule,
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
}

struct Job {
    launches: Vec<(Arc<Pipeline>, Arguments)>,
    end: Arc<End>,
}

/// What a kernel is called with; the same struct is in the harness's header.
#[repr(C)]
struct Arguments {
    table: u64,
    scratch: u64,
    grid: [u32; 2],
    threads: u32,
    shared: u32,
    backwards: u32,
    flush_subnormals: u32,
    error: *mut c_char,
    error_size: usize,
}
// SAFETY: numbers, and a pointer that is null until the worker sets it.
unsafe impl Send for Arguments {}

/// How a job ended.
#[derive(Default)]
pub(super) struct End {
    result: Mutex<Option<Result<Duration, String>>>,
    set: Condvar,
}

impl Harness {
    pub(super) fn open(schedule: Schedule) -> Result<Harness, String> {
        let compiler = compile(&[])?;
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            for Job { launches, end } in queue {
                let result = run(launches);
                *end.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                end.set.notify_all();
            }
        };
        let worker = std::thread::Builder::new().name("metal harness".into()).spawn(work);
        let worker = worker.map_err(|e| format!("no thread: {e}"))?;
        Ok(Harness { compiler, schedule, jobs: Some(jobs), worker: Some(worker) })
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            // It has panicked or ended; either is an end.
            let _ = worker.join();
        }
    }
}

/// Runs the script; what it prints.
fn compile(arguments: &[&Path]) -> Result<String, String> {
    let output = Command::new(COMPILE).args(arguments).output().map_err(|e| format!("{COMPILE}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn run(launches: Vec<(Arc<Pipeline>, Arguments)>) -> Result<Duration, String> {
    let start = Instant::now();
    let mut error = [0 as c_char; 256];
    for (pipeline, mut arguments) in launches {
        (arguments.error, arguments.error_size) = (error.as_mut_ptr(), error.len());
        // SAFETY: the plan's promise: a table of the kernel's struct, addresses of live memory, scratch of the right size.
        if unsafe { (pipeline.function)(&arguments) } != 0 {
            // SAFETY: the harness has written a text that ends within the array.
            let text = unsafe { CStr::from_ptr(error.as_ptr()) }.to_string_lossy();
            return Err(format!("{}: {text}", pipeline.name));
        }
    }
    Ok(start.elapsed())
}

pub(super) struct Pipeline {
    name: String,
    function: unsafe extern "C" fn(*const Arguments) -> c_int,
    /// Holds the function.
    _library: Arc<libloading::Library>,
}

impl Driver for Harness {
    type Library = Arc<libloading::Library>;
    type Pipeline = Pipeline;
    type Memory = Heap;
    type Ticket = Arc<End>;

    fn describe(&self) -> String {
        let order = if self.schedule.backwards { "descending" } else { "ascending" };
        let subnormals = if self.schedule.flush_subnormals { ", subnormals are zeros" } else { "" };
        format!("kernels on the CPU by {}, threads in {order} order{subnormals}", self.compiler)
    }

    fn gpu(&self) -> Gpu {
        Gpu {
            name: "the CPU harness".into(),
            capability: (0, 0),
            driver: (0, 0),
            multiprocessors: 0,
            clock_khz: 0,
            // So little that a benchmark's own inputs are small.
            l2_bytes: 1 << 20,
            memory_bytes: 8 << 20,
        }
    }

    fn allocate(&self, bytes: usize) -> Option<Heap> {
        let layout = Layout::from_size_align(bytes, 64).ok()?;
        // SAFETY: of at least one byte.
        let start = unsafe { alloc(layout) };
        (!start.is_null()).then_some(Heap { start, layout })
    }

    #[cfg(target_vendor = "apple")]
    unsafe fn adopt(&self, _buffer: *mut std::ffi::c_void) -> Result<Heap, String> {
        Err("the harness has no Metal buffers".into())
    }

    fn library(&self, stem: &str, text: &str) -> Result<Arc<libloading::Library>, String> {
        let mut hash = DefaultHasher::new();
        text.hash(&mut hash);
        let folder = std::env::temp_dir().join("abreast-metal-harness");
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let path = |extension: &str| folder.join(format!("{stem}-{:016x}.{extension}", hash.finish()));
        let (source, library) = (path("metal"), path("so"));
        if std::fs::read_to_string(&source).ok().as_deref() != Some(text) {
            // In one piece: another thread or process may compile it just now.
            let thread = std::thread::current().id();
            let new = path(&format!("{}-{thread:?}", std::process::id()));
            let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &source));
            written.map_err(|e| format!("{}: {e}", source.display()))?;
        }
        compile(&[&source, &library])?;
        // SAFETY: a library that was compiled just now from a kernel of this crate; it starts nothing when it is loaded.
        let library = unsafe { libloading::Library::new(&library) };
        library.map(Arc::new).map_err(|e| format!("{stem}: {e}"))
    }

    fn pipeline(&self, library: &Arc<libloading::Library>, name: &str) -> Result<Pipeline, String> {
        // SAFETY: the script exports every kernel under this name and with this type.
        let function = unsafe { library.get(format!("mtl_{name}\0").as_bytes()) };
        let function = *function.map_err(|e| format!("{name}: {e}"))?;
        Ok(Pipeline { name: name.into(), function, _library: library.clone() })
    }

    fn submit(&self, work: &Work<'_, Harness>) -> Result<Arc<End>, String> {
        let Schedule { backwards, flush_subnormals } = self.schedule;
        let launches = work.launches.iter().zip(work.pipelines).map(|(launch, pipeline)| {
            let arguments = Arguments {
                table: work.table.address() + launch.table as u64,
                scratch: work.scratch.address(),
                grid: launch.grid,
                threads: launch.threads,
                shared: launch.shared,
                backwards: backwards.into(),
                flush_subnormals: flush_subnormals.into(),
                error: std::ptr::null_mut(),
                error_size: 0,
            };
            (pipeline.clone(), arguments)
        });
        let end = Arc::new(End::default());
        let job = Job { launches: launches.collect(), end: end.clone() };
        let jobs = self.jobs.as_ref().expect("open");
        jobs.send(job).map_err(|_| "the harness's thread has ended".to_string())?;
        Ok(end)
    }
}

impl Ticket for Arc<End> {
    fn is_done(&self) -> bool {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn wait(&self) -> Result<Duration, String> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.set.wait_while(result, |result| result.is_none());
        result.unwrap_or_else(PoisonError::into_inner).clone().expect("set")
    }
}

/// Host memory, which a sanitizer watches like any other.
pub(super) struct Heap {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory; the queue says who touches it when.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Memory for Heap {
    fn address(&self) -> u64 {
        self.start as u64
    }

    fn contents(&self) -> *mut u8 {
        self.start
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.start, self.layout) }
    }
}
