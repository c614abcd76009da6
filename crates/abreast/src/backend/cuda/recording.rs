//! A step as one graph. Its operations' plans are put one behind the other; as long as the launches are those of the recorded
//! graph, only the table is new.

use super::driver::{Memory, Owned, Queue};
use super::frees::OpenStep;
use super::{Cuda, compress, convert_state, gather_rows, index_scores, select_keys, sparse_attention, top_k};
use crate::backend::plan::{Launch, Plan, Room};
use crate::backend::{Recording, Run, each_operation};
use crate::error::Result;
use crate::ops::Checked;
use crate::step::Limits;
use cudarc::driver::{CudaGraph, CudaStream, DriverError, result, sys};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Graph {
    cuda: Arc<Cuda>,
    room: Room,
    /// Behind a lock, since operations are taken through a shared reference.
    taken: Mutex<Plan>,
    recorded: Option<Recorded>,
    /// Only for recording: the queue's own stream stays free for other threads' calls.
    side: Owned<Arc<CudaStream>>,
}

/// A graph and the memory that it works on.
struct Recorded {
    launches: Vec<Launch>,
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
        cuda.queue.enter()?;
        let side = Owned::new(cuda.queue.context.new_stream().map_err(|e| cuda.queue.fault(e))?);
        Ok(Graph { cuda, room: Room::Limits(limits), taken: Mutex::default(), recorded: None, side })
    }

    fn take(&self, plan: Plan) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).append(plan);
    }

    fn record(&self, plan: &Plan) -> Result<Recorded> {
        let queue = &self.cuda.queue;
        let fault = |e| queue.fault(e);
        let functions = plan.launches.iter().map(|l| self.cuda.kernels.get(queue, l.kernel));
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let table = queue.allocate(plan.table.len(), "a step's row table")?;
        let scratch = queue.allocate(plan.scratch, "a step's scratch")?;
        self.side
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(fault)?;
        let launched = plan
            .launches
            .iter()
            .zip(&functions)
            .try_for_each(|pair| self.cuda.launch(&self.side, pair, (table.address, scratch.address)));
        // Ended in any case: the stream must not go on recording.
        let flags = sys::CUgraphInstantiate_flags(0);
        let graph = self.side.end_capture(flags).map_err(fault);
        launched?;
        let graph = graph?.expect("a recording of at least one launch");
        Ok(Recorded {
            launches: plan.launches.clone(),
            table,
            table_bytes: plan.table.len(),
            _scratch: scratch,
            scratch_bytes: plan.scratch,
            graph: Owned::new(graph),
        })
    }
}

impl Recorded {
    fn fits(&self, plan: &Plan) -> bool {
        self.launches == plan.launches
            && self.table_bytes == plan.table.len()
            && self.scratch_bytes >= plan.scratch
    }

    fn replay(&self, cuda: &Cuda, plan: &Plan) -> Result<()> {
        let queue = &cuda.queue;
        let fault = |e| queue.fault(e);
        // Calls of other threads go before all of it or after all of it.
        let _queue = cuda.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        queue.upload(&plan.table, self.table.address)?;
        self.launch(queue).map_err(fault)
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
        timed().map_err(|e| queue.fault(e))
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
                self.take($name::plan(op, self.cuda.target(self.room)));
                Ok(())
            })*
        }
    };
}
each_operation!(take);

impl Recording for Graph {
    fn start(&mut self) -> Box<dyn Send> {
        self.taken.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        Box::new(OpenStep::new())
    }

    fn submit(&mut self) -> Result<()> {
        let plan = std::mem::take(self.taken.get_mut().unwrap_or_else(PoisonError::into_inner));
        if plan.launches.is_empty() {
            // Nothing to repeat: an older graph's addresses may be free.
            self.recorded = None;
            return Ok(());
        }
        self.cuda.queue.enter()?;
        if !self.recorded.as_ref().is_some_and(|recorded| recorded.fits(&plan)) {
            // The old one's memory first: its place may be the new one's.
            self.recorded = None;
            self.recorded = Some(self.record(&plan)?);
        }
        self.recorded.as_ref().expect("just recorded").replay(&self.cuda, &plan)
    }

    fn repeat(&mut self, runs: usize) -> Result<Option<Vec<Duration>>> {
        self.cuda.queue.enter()?;
        let repeat = |recorded: &Recorded| recorded.repeat(&self.cuda, runs);
        self.recorded.as_ref().map_or_else(|| Ok(vec![Duration::ZERO; runs]), repeat).map(Some)
    }
}
