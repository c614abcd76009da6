//! A step as one graph. Its operations' plans are put together by a schedule; as long as launches and order are those of the
//! recorded graph, only the table is new.

use super::capture::Relaxed;
use super::driver::{Memory, Owned, Queue};
use super::frees::OpenStep;
use super::{Cuda, compress, convert_state, gather_rows, index_scores, select_keys, sparse_attention, top_k};
use crate::backend::gpu::plan::{Launch, Plan, Room};
use crate::backend::gpu::schedule::{LANES, Placed, Schedule};
use crate::backend::{Recording, Run, each_operation};
use crate::error::Result;
use crate::ops::{Checked, Op, Touches};
use crate::step::Limits;
use cudarc::driver::{CudaEvent, CudaFunction, CudaGraph, CudaStream, DriverError, result, sys};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Graph {
    cuda: Arc<Cuda>,
    room: Room,
    /// Behind a lock, since operations are taken through a shared reference.
    taken: Mutex<Schedule>,
    recorded: Option<Recorded>,
    /// Only for recording, one a lane: the queue's own stream stays free for other threads' calls.
    sides: [Owned<Arc<CudaStream>>; LANES],
}

/// A graph and the memory that it works on.
struct Recorded {
    launches: Vec<Launch>,
    order: Vec<Placed>,
    table: Memory,
    table_bytes: usize,
    _scratch: Memory,
    scratch_bytes: usize,
    graph: Owned<CudaGraph>,
}

// SAFETY: a graph may be used from any thread, one at a time: it is reached through `&mut Graph`.
unsafe impl Send for Recorded {}

impl Graph {
    pub(super) fn new(cuda: Arc<Cuda>, limits: Limits) -> Result<Graph> {
        let _relaxed = Relaxed::new();
        cuda.queue.enter()?;
        cuda.queue.uncaptured("a step")?;
        let stream = || cuda.queue.context.new_stream().map(Owned::new).map_err(|e| cuda.queue.fault(e));
        let sides = [stream()?, stream()?];
        Ok(Graph { cuda, room: Room::Limits(limits), taken: Mutex::default(), recorded: None, sides })
    }

    fn take(&self, plan: Plan, touches: Touches) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).take(plan, touches);
    }

    fn record(&self, Schedule { plan, order, .. }: &Schedule) -> Result<Recorded> {
        let queue = &self.cuda.queue;
        let fault = |e| queue.fault(e);
        let functions = self.cuda.kernels.of(queue, &plan.launches)?;
        let table = queue.allocate(plan.table.len(), "a step's row table")?;
        let scratch = queue.allocate(plan.scratch, "a step's scratch")?;
        let main = &self.sides[0];
        main.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(fault)?;
        let launched = self.launch_all((order, &plan.launches, &functions), (table.address, scratch.address));
        // Ended in any case: the stream must not go on recording.
        let flags = sys::CUgraphInstantiate_flags(0);
        let graph = main.end_capture(flags).map_err(fault);
        launched?;
        let graph = graph?.expect("a recording of at least one launch");
        Ok(Recorded {
            launches: plan.launches.clone(),
            order: order.clone(),
            table,
            table_bytes: plan.table.len(),
            _scratch: scratch,
            scratch_bytes: plan.scratch,
            graph: Owned::new(graph),
        })
    }

    /// Queues every call on its lane's stream. An event is passed when a call and all before it in its lane are done.
    fn launch_all(
        &self,
        (order, launches, functions): (&[Placed], &[Launch], &[CudaFunction]),
        memory: (u64, u64),
    ) -> Result<()> {
        let queue = &self.cuda.queue;
        let fault = |e| queue.fault(e);
        let event = |stream: &Arc<CudaStream>| {
            let event = queue.context.new_event(None).map_err(fault)?;
            event.record(stream).map_err(fault).map(|()| event)
        };
        // Other lanes are recorded from here on, and must all have come back in the end.
        let start = event(&self.sides[0])?;
        let used = |lane: usize| order.iter().any(|call| call.lane == lane);
        let others = || (1..LANES).filter(|&lane| used(lane)).map(|lane| &self.sides[lane]);
        others().try_for_each(|side| side.wait(&start)).map_err(fault)?;
        let mut done: Vec<Option<CudaEvent>> = Vec::with_capacity(order.len());
        for (i, call) in order.iter().enumerate() {
            let side = &self.sides[call.lane];
            call.after
                .iter()
                .filter_map(|&i| done[i].as_ref())
                .try_for_each(|event| side.wait(event))
                .map_err(fault)?;
            for n in call.launches.clone() {
                // Behind another lane's call a launch waits for the whole of it.
                let overlaps = launches[n].overlaps && (call.after.is_empty() || n > call.launches.start);
                let launch = Launch { overlaps, ..launches[n].clone() };
                self.cuda.launch(side, (&launch, &functions[n]), memory)?;
            }
            let awaited = order[i + 1..].iter().any(|later| later.after.contains(&i));
            done.push(awaited.then(|| event(side)).transpose()?);
        }
        others().try_for_each(|side| self.sides[0].wait(&event(side)?).map_err(fault))
    }
}

impl Recorded {
    fn fits(&self, Schedule { plan, order, .. }: &Schedule) -> bool {
        self.launches == plan.launches
            && self.order == *order
            && self.table_bytes == plan.table.len()
            && self.scratch_bytes >= plan.scratch
    }

    fn replay(&self, cuda: &Cuda, plan: &Plan) -> Result<()> {
        let queue = &cuda.queue;
        let fault = |e| queue.fault(e);
        // Calls of other threads go before all of it or after all of it.
        let _queue = cuda.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        queue.upload(&plan.table, self.table.address)?;
        let launched = self.launch(queue).map_err(fault);
        queue.queued()?;
        launched
    }

    /// Replays with the table as it is, between events.
    fn repeat(&self, cuda: &Cuda, runs: usize) -> Result<Vec<Duration>> {
        let queue = &cuda.queue;
        let timed = || -> std::result::Result<_, DriverError> {
            let _queue = cuda.scratch.lock().unwrap_or_else(PoisonError::into_inner);
            let event = || queue.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
            let events = (0..=runs).map(|_| event()).collect::<std::result::Result<Vec<_>, _>>()?;
            events[0].record(&queue.stream)?;
            for event in &events[1..] {
                self.launch(queue)?;
                event.record(&queue.stream)?;
            }
            let times = events.windows(2).map(|pair| pair[0].elapsed_ms(&pair[1]));
            times.map(|ms| Ok(Duration::from_secs_f64(f64::from(ms?) * 1e-3))).collect()
        };
        let times = timed().map_err(|e| queue.fault(e));
        queue.queued()?;
        times
    }

    fn launch(&self, queue: &Queue) -> std::result::Result<(), DriverError> {
        // SAFETY: the graph's launches are those of the plan, on memory that lives as long as the graph.
        unsafe { result::graph::launch(self.graph.cu_graph_exec(), queue.stream.cu_stream()) }
    }
}

macro_rules! take {
    ($($name:ident($op:ty))*) => {
        impl Run for Graph {
            $(fn $name(&self, op: Checked<$op>) -> Result<()> {
                let touches = op.touches();
                self.take($name::plan(op, self.cuda.target(self.room)), touches);
                Ok(())
            })*
        }
    };
}
each_operation!(take);

impl Recording for Graph {
    fn start(&mut self) -> Box<dyn Send> {
        *self.taken.get_mut().unwrap_or_else(PoisonError::into_inner) = Schedule::default();
        // Another thread may have held the lock when this process was forked.
        if self.cuda.queue.forked() { Box::new(()) } else { Box::new(OpenStep::new()) }
    }

    fn submit(&mut self) -> Result<()> {
        let taken = std::mem::take(self.taken.get_mut().unwrap_or_else(PoisonError::into_inner));
        if taken.plan.launches.is_empty() {
            // Nothing to repeat: an older graph's addresses may be free.
            self.recorded = None;
            return Ok(());
        }
        // A kernel that is loaded, or memory for a copy, must not spoil what another thread captures.
        let _relaxed = Relaxed::new();
        self.cuda.queue.enter()?;
        self.cuda.queue.uncaptured("a step")?;
        if !self.recorded.as_ref().is_some_and(|recorded| recorded.fits(&taken)) {
            // The old one's memory first: its place may be the new one's.
            self.recorded = None;
            self.recorded = Some(self.record(&taken)?);
        }
        self.recorded.as_ref().expect("just recorded").replay(&self.cuda, &taken.plan)
    }

    fn repeat(&mut self, runs: usize) -> Result<Option<Vec<Duration>>> {
        let _relaxed = Relaxed::new();
        self.cuda.queue.enter()?;
        let repeat = |recorded: &Recorded| recorded.repeat(&self.cuda, runs);
        self.recorded.as_ref().map_or_else(|| Ok(vec![Duration::ZERO; runs]), repeat).map(Some)
    }
}
