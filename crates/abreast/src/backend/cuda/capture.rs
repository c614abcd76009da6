//! Calls on a stream of the caller's while he captures it into a graph of his own: each replay must find the call's table and
//! scratch as they were, whatever was called since.
//!
//! So a captured call shares nothing with others outside its graph: its table is written once, at capture, on a stream that is not
//! captured, into memory that belongs to the graph, and the graph holds nothing but launches. The driver tells when the
//! graph and all its instances are gone. Two instances of one graph must not run at the same time: they share the scratch,
//! as they share the caller's own memory.

use super::driver::{Memory, Queue};
use super::kernels::Kernels;
use super::{Cuda, Scratch};
use crate::backend::gpu::plan::Plan;
use crate::error::{Error, Result};
use cudarc::driver::{DriverError, result, sys};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A capture that a stream takes part in.
pub(super) struct Capture {
    /// The driver's number of it, never used twice.
    id: u64,
    graph: sys::CUgraph,
}

/// What the calls of one capture on one stream use one after another.
#[derive(Default)]
pub(super) struct Shared(Option<(u64, Weak<Memory>, usize)>);

/// What a graph keeps: a call's table, the scratch that it shares with its neighbours, and the kernels, which may outlive their device's handle.
type Held = (Memory, Option<Arc<Memory>>, Arc<Kernels>);

/// Memory of graphs that are gone. The driver tells on a thread of its own, where it may not be called.
static GONE: Mutex<Vec<Held>> = Mutex::new(Vec::new());

unsafe extern "C" fn graph_is_gone(held: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `hold`, and told once.
    let held = unsafe { Box::from_raw(held.cast::<Held>()) };
    GONE.lock().unwrap_or_else(PoisonError::into_inner).push(*held);
}

/// Frees what graphs kept that are gone.
pub(super) fn free_gone() {
    let gone = std::mem::take(&mut *GONE.lock().unwrap_or_else(PoisonError::into_inner));
    drop(gone);
}

/// While it lives, calls of this thread that wait or allocate do no harm to captures under way, this thread's or others': they
/// touch streams that are not captured.
pub(super) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub(super) fn new() -> Relaxed {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: swaps a setting of this thread.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        Relaxed(mode)
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as above.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

impl Queue {
    /// The capture that the stream takes part in, if any.
    pub(super) fn capture(&self) -> Result<Option<Capture>> {
        use sys::CUstreamCaptureStatus as Status;
        if self.foreign.is_none() {
            return Ok(None);
        }
        let (mut status, mut id) = (Status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let mut graph = std::ptr::null_mut();
        let none = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: writes three values; the dependencies are not asked for.
        unsafe {
            let stream = self.stream.cu_stream();
            sys::cuStreamGetCaptureInfo_v2(stream, &mut status, &mut id, &mut graph, none.0, none.1)
        }
        .result()
        .map_err(|e| self.fault(e))?;
        match status {
            Status::CU_STREAM_CAPTURE_STATUS_NONE => Ok(None),
            Status::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(Some(Capture { id, graph })),
            _ => {
                let why = "the capture of its stream has failed; end that first".into();
                Err(Error::Unavailable { device: self.id, why })
            }
        }
    }

    /// What cannot be part of a graph is refused while one is captured.
    pub(super) fn uncaptured(&self, what: &str) -> Result<()> {
        match self.capture()? {
            None => Ok(()),
            Some(_) => {
                let why =
                    format!("its stream is being captured into a graph, of which {what} cannot be a part");
                Err(Error::Unavailable { device: self.id, why })
            }
        }
    }
}

impl Cuda {
    /// Puts a plan into the graph that the stream is captured into.
    pub(super) fn run_captured(
        &self,
        (plan, capture): (&Plan, &Capture),
        scratch: &mut Scratch,
    ) -> Result<()> {
        let functions = self.kernels.of(&self.queue, &plan.launches)?;
        let fault = |e| self.queue.fault(e);
        let side = self.queue.own();
        let Shared(shared) = &mut scratch.captured;
        let kept = shared.as_ref().filter(|(id, _, bytes)| *id == capture.id && *bytes >= plan.scratch);
        let space = match kept.and_then(|(_, memory, _)| memory.upgrade()) {
            None if plan.scratch > 0 => {
                let bytes = plan.scratch.next_power_of_two();
                let memory = Arc::new(self.queue.allocate_on(side, (bytes, "a captured call's scratch"))?);
                *shared = Some((capture.id, Arc::downgrade(&memory), bytes));
                Some(memory)
            }
            space => space,
        };
        let table = self.queue.allocate_on(side, (plan.table.len(), "a captured call's row table"))?;
        let addresses = (table.address, space.as_ref().map_or(0, |space| space.address));
        // SAFETY: the table's own memory; the host's bytes stay until the stream is waited for.
        unsafe { result::memcpy_htod_async(table.address, &plan.table, side.cu_stream()) }
            .and_then(|()| side.synchronize())
            .map_err(fault)?;
        capture.hold((table, space, self.kernels.clone())).map_err(fault)?;
        for (launch, function) in plan.launches.iter().zip(&functions) {
            self.launch(&self.queue.stream, (launch, function), addresses)?;
        }
        Ok(())
    }
}

impl Capture {
    /// The graph, its copies and instances keep the memory.
    fn hold(&self, held: Held) -> std::result::Result<(), DriverError> {
        let held = Box::into_raw(Box::new(held));
        let mut object = std::ptr::null_mut();
        let flag = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: the function takes what `held` is, once, when the last reference is given up.
        let made = unsafe { sys::cuUserObjectCreate(&mut object, held.cast(), Some(graph_is_gone), 1, flag) };
        if let Err(e) = made.result() {
            // SAFETY: nobody else got it.
            drop(unsafe { Box::from_raw(held) });
            return Err(e);
        }
        let flag = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the graph is the one that is being captured; our reference becomes its.
        let moved = unsafe { sys::cuGraphRetainUserObject(self.graph, object, 1, flag) }.result();
        if moved.is_err() {
            // SAFETY: the reference is still ours; giving it up frees the memory.
            let _ = unsafe { sys::cuUserObjectRelease(object, 1) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Device, GatherRow, GatherRows, Limits};
    use cudarc::driver::{CudaGraph, CudaStream};

    fn copy(gpu: &Device, sources: &[&Buffer<f32>], out: &mut Buffer<f32>) -> Result<()> {
        let rows: Vec<_> = sources.iter().map(|s| GatherRow { source: s.view().into() }).collect();
        let shape = [sources.len(), out.len() / sources.len()];
        gpu.gather_rows(GatherRows { rows: &rows, out: out.shaped_mut(shape)?.into() })
    }

    /// Judged by this thread alone: other tests are under way.
    fn capture(stream: &Arc<CudaStream>, calls: impl FnOnce()) -> CudaGraph {
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .expect("a capture starts");
        calls();
        stream.end_capture(sys::CUgraphInstantiate_flags(0)).expect("a capture ends").expect("a graph")
    }

    #[test]
    fn a_callers_graph_replays_its_calls() {
        let queue = match Queue::open(0, None) {
            Ok(queue) => queue,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let stream = queue.context.new_stream().expect("a stream");
        // SAFETY: the stream outlives the handle.
        let gpu = unsafe { Device::cuda_on_stream(0, stream.cu_stream().cast()) }.expect("a handle");
        let sources = [1.0, 2.0, 3.0].map(|x: f32| gpu.upload(&[x; 100]).expect("a buffer"));
        let mut out = gpu.zeros::<f32>(200).expect("a buffer");
        let mut other = gpu.zeros::<f32>(100).expect("a buffer");
        gpu.synchronize().expect("no fault");
        let [a, b, c] = &sources;
        // The first call of all: the kernel is compiled and loaded within the capture.
        let graph = capture(&stream, || {
            copy(&gpu, &[a, b], &mut out).expect("a captured call");
            // What cannot be part of a graph is refused, and does the capture no harm.
            let refused = [
                gpu.zeros::<f32>(1).map(drop).expect_err("an allocation"),
                other.write(&[0.0; 100]).expect_err("a copy from the host"),
                a.read().map(drop).expect_err("a copy to the host"),
                replay(&gpu, c, &mut other).map(drop).expect_err("a step"),
            ];
            for error in refused {
                assert!(error.to_string().contains("being captured"), "{error}");
            }
        });
        for _ in 0..3 {
            out.write(&[0.0; 200]).expect("written");
            // Other tables, through the memory that calls share.
            for _ in 0..100 {
                copy(&gpu, &[c], &mut other).expect("a call");
            }
            graph.launch().expect("a replay");
            assert_eq!(out.read().expect("read"), [[1.0; 100], [2.0; 100]].concat());
            assert_eq!(other.read().expect("read"), [3.0; 100]);
        }
        // Its memory is told to be free when it is gone, and freed at the next call.
        drop(graph);
        gpu.synchronize().expect("no fault");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let gone = || GONE.lock().unwrap_or_else(PoisonError::into_inner).len();
        while gone() == 0 {
            assert!(std::time::Instant::now() < deadline, "the driver never told that the graph is gone");
            std::thread::yield_now();
        }
        // Other tests' graphs may go meanwhile: a later call frees those.
        while gone() > 0 {
            assert!(std::time::Instant::now() < deadline, "what a graph kept is not freed");
            copy(&gpu, &[c], &mut other).expect("a call");
        }
    }

    /// A step of one call.
    fn replay(gpu: &Device, source: &Buffer<f32>, out: &mut Buffer<f32>) -> Result<crate::Step> {
        let mut step = gpu.step(Limits { rows: 1, width: 1, keys: 1 })?;
        step.run(|calls| {
            let rows = [GatherRow { source: source.view().into() }];
            let shape = [1, out.len()];
            calls.gather_rows(GatherRows { rows: &rows, out: out.shaped_mut(shape)?.into() })
        })?;
        Ok(step)
    }

    /// Whatever other handles do meanwhile, on the capturing thread, too; and the graph outlives the handle that it was captured with.
    #[test]
    fn a_capture_and_what_goes_on_beside_it_do_each_other_no_harm() {
        let queue = match Queue::open(0, None) {
            Ok(queue) => queue,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let stream = queue.context.new_stream().expect("a stream");
        // SAFETY: the stream outlives the handle.
        let gpu = unsafe { Device::cuda_on_stream(0, stream.cu_stream().cast()) }.expect("a handle");
        let own = Device::cuda(0).expect("a handle");
        let sources = [1.0, 2.0].map(|x: f32| own.upload(&[x; 100]).expect("a buffer"));
        let mut out = own.zeros::<f32>(100).expect("a buffer");
        let doomed = own.zeros::<f32>(1 << 20).expect("a buffer");
        let mut beside = own.zeros::<f32>(100).expect("a buffer");
        let doomed_step = replay(&own, &sources[1], &mut beside).expect("a step");
        own.synchronize().expect("no fault");
        let graph = capture(&stream, || {
            copy(&gpu, &[&sources[0]], &mut out).expect("a captured call");
            drop((doomed, doomed_step));
            let another = Device::cuda(0).expect("a handle");
            let source = another.upload(&[3.0; 100]).expect("a buffer");
            for gpu in [own.clone(), another] {
                let mut beside = gpu.zeros::<f32>(100).expect("a buffer");
                gpu.synchronize().expect("no fault");
                copy(&gpu, &[&source], &mut beside).expect("a call");
                drop(replay(&gpu, &source, &mut beside).expect("a step"));
                assert_eq!(beside.read().expect("read"), [3.0; 100]);
            }
        });
        drop(gpu);
        graph.launch().expect("a replay");
        stream.synchronize().expect("no fault");
        assert_eq!(out.read().expect("read"), [1.0; 100]);
    }
}
