//! A step as one submission. Its operations' plans are put one behind the other; as long as the launches are those of the last
//! run, pipelines and scratch are the last run's, and only the table is new.

use super::driver::Driver;
use super::queue::Block;
use super::{
    Metal, compress, convert_state, gather_rows, index_scores, select_keys, sparse_attention, top_k,
};
use crate::backend::gpu::plan::{Plan, Room};
use crate::backend::{Recording, Run, each_operation};
use crate::error::Result;
use crate::ops::Checked;
use crate::step::Limits;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) struct Step<D: Driver> {
    metal: Arc<Metal<D>>,
    room: Room,
    /// Behind a lock, since operations are taken through a shared reference.
    taken: Mutex<Plan>,
    recorded: Option<Recorded<D>>,
}

/// What the last run submitted.
struct Recorded<D: Driver> {
    plan: Plan,
    pipelines: Vec<Arc<D::Pipeline>>,
    scratch: Block<D>,
}

impl<D: Driver> Step<D> {
    pub(super) fn new(metal: Arc<Metal<D>>, limits: Limits) -> Step<D> {
        Step { metal, room: Room::Limits(limits), taken: Mutex::default(), recorded: None }
    }

    fn take(&self, plan: Plan) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).append(plan);
    }
}

impl<D: Driver> Recorded<D> {
    fn new(metal: &Metal<D>, plan: Plan) -> Result<Recorded<D>> {
        let pipelines = metal.pipelines(&plan)?;
        let scratch = metal.queue.allocate(plan.scratch, "a step's scratch")?;
        Ok(Recorded { plan, pipelines, scratch })
    }

    fn submit(&self, metal: &Metal<D>) -> Result<()> {
        metal.queue.submit((&self.plan.launches, &self.pipelines), (&self.plan.table, &self.scratch))
    }
}

macro_rules! take {
    ($($name:ident($op:ty))*) => {
        impl<D: Driver> Run for Step<D> {
            $(fn $name(&self, op: Checked<$op>) -> Result<()> {
                self.take($name::plan(op, self.room));
                Ok(())
            })*
        }
    };
}
each_operation!(take);

impl<D: Driver> Recording for Step<D> {
    fn start(&mut self) -> Box<dyn Send> {
        *self.taken.get_mut().unwrap_or_else(PoisonError::into_inner) = Plan::default();
        Box::new(self.metal.queue.open_step())
    }

    fn submit(&mut self) -> Result<()> {
        let plan = std::mem::take(self.taken.get_mut().unwrap_or_else(PoisonError::into_inner));
        if plan.launches.is_empty() {
            // Nothing to repeat: an older run's addresses may be free.
            self.recorded = None;
            return Ok(());
        }
        match &mut self.recorded {
            Some(recorded)
                if recorded.plan.launches == plan.launches && recorded.scratch.len() >= plan.scratch =>
            {
                recorded.plan.table = plan.table;
            }
            recorded => {
                // The old one's memory first: its place may be the new one's.
                *recorded = None;
                *recorded = Some(Recorded::new(&self.metal, plan)?);
            }
        }
        self.recorded.as_ref().expect("recorded above").submit(&self.metal)
    }

    fn repeat(&mut self, runs: usize) -> Result<Option<Vec<Duration>>> {
        let Some(recorded) = &self.recorded else { return Ok(Some(vec![Duration::ZERO; runs])) };
        self.metal.queue.drain()?;
        let run = |_| recorded.submit(&self.metal).and_then(|()| self.metal.queue.drain());
        (0..runs).map(run).collect::<Result<_>>().map(Some)
    }
}
