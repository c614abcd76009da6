//! Memory and work in order. What was submitted is remembered until it is done: until then its table, and memory that was freed
//! meanwhile, stay where they are.

use super::driver::{Driver, Memory, Ticket, Work};
use crate::backend::Allocation;
use crate::backend::gpu::plan::Launch;
use crate::error::{Error, Result};
use crate::view::{DeviceId, Kind};
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The one Metal device that a Mac with Apple silicon has.
pub(super) const ID: DeviceId = DeviceId { kind: Kind::Metal, ordinal: 0 };

/// The smallest table; one that is done is used again.
const TABLE: usize = 16 << 10;
/// How much work may wait for the device; the next to come waits for the oldest.
const MOST_FLIGHTS: usize = 32;

pub(super) struct Queue<D: Driver> {
    /// Let go of in the process that opened it alone: Metal does not survive a fork.
    driver: ManuallyDrop<D>,
    state: Mutex<State<D>>,
    process: u32,
}

struct State<D: Driver> {
    /// All memory by its address: its length, and its place in the host's memory.
    blocks: BTreeMap<u64, (usize, Contents)>,
    flights: VecDeque<Flight<D>>,
    /// Free tables.
    tables: Vec<D::Memory>,
    /// Steps whose operations are being taken: these name memory that is not in use yet.
    open_steps: usize,
    /// Memory that was freed while a step was open.
    waiting: Vec<D::Memory>,
    /// What the device said when it failed.
    fault: Option<String>,
}

/// Memory's place on the host.
#[derive(Clone, Copy)]
struct Contents(*mut u8);
// SAFETY: a number; who reads or writes there waits for the device and holds the queue's lock.
unsafe impl Send for Contents {}

/// Work that was submitted, and memory that goes when it is done.
struct Flight<D: Driver> {
    ticket: D::Ticket,
    table: D::Memory,
    freed: Vec<D::Memory>,
}

impl<D: Driver> Queue<D> {
    pub(super) fn new(driver: D) -> Queue<D> {
        let state = State {
            blocks: BTreeMap::new(),
            flights: VecDeque::new(),
            tables: Vec::new(),
            open_steps: 0,
            waiting: Vec::new(),
            fault: None,
        };
        Queue { driver: ManuallyDrop::new(driver), state: Mutex::new(state), process: std::process::id() }
    }

    pub(super) fn driver(&self) -> &D {
        &self.driver
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every call starts with.
    fn enter(&self) -> Result<MutexGuard<'_, State<D>>> {
        if self.process != std::process::id() {
            let why = "it was opened before this process was forked, and Metal does not survive that".into();
            return Err(Error::Unavailable { device: ID, why });
        }
        let state = self.state();
        match &state.fault {
            Some(what) => Err(Error::Fault { device: ID, what: what.clone() }),
            None => Ok(state),
        }
    }

    /// Zeroed memory.
    pub(super) fn allocate(self: &Arc<Self>, bytes: usize, what: &'static str) -> Result<Block<D>> {
        let mut state = self.enter()?;
        let new = || self.driver.allocate(bytes.max(1));
        let memory = match new() {
            Some(memory) => memory,
            // What was freed may still wait for work to be done.
            None => {
                state.drain()?;
                new().ok_or(Error::OutOfMemory { device: ID, what, bytes })?
            }
        };
        // SAFETY: new memory of this length.
        unsafe { memory.contents().write_bytes(0, memory.len()) };
        state.blocks.insert(memory.address(), (memory.len(), Contents(memory.contents())));
        Ok(Block { memory: ManuallyDrop::new(memory), queue: self.clone() })
    }

    /// Submits launches with their table.
    pub(super) fn submit(
        &self,
        (launches, pipelines): (&[Launch], &[Arc<D::Pipeline>]),
        (table, scratch): (&[u8], &Block<D>),
    ) -> Result<()> {
        let mut state = self.enter()?;
        state.reap()?;
        let place = state.table(&self.driver, table.len())?;
        // SAFETY: a free table of at least this length.
        unsafe { place.contents().copy_from_nonoverlapping(table.as_ptr(), table.len()) };
        let work = Work { launches, pipelines, table: &place, scratch: &*scratch.memory };
        match self.driver.submit(&work) {
            Ok(ticket) => {
                state.flights.push_back(Flight { ticket, table: place, freed: Vec::new() });
                Ok(())
            }
            Err(what) => Err(state.fail(what)),
        }
    }

    /// Waits for all work; the time that the last of it took on the device.
    pub(super) fn drain(&self) -> Result<Duration> {
        self.enter()?.drain()
    }

    /// Waits for all work; where the host finds memory of an allocation of this queue.
    pub(super) fn on_host(&self, (address, len): (u64, usize)) -> Result<*mut u8> {
        let mut state = self.enter()?;
        state.drain()?;
        let (start, &(size, contents)) = state.blocks.range(..=address).next_back().expect("an allocation");
        let offset = (address - start) as usize;
        assert!(offset <= size && len <= size - offset, "within the allocation");
        // SAFETY: within the allocation.
        Ok(unsafe { contents.0.add(offset) })
    }

    /// Takes memory in that was not allocated here, unless it was taken in before; as it is.
    #[cfg(target_vendor = "apple")]
    pub(super) fn adopt(self: &Arc<Self>, memory: D::Memory) -> Result<Block<D>> {
        let mut state = self.enter()?;
        if state.blocks.contains_key(&memory.address()) {
            let why = "it holds this buffer already: drop the other handle to it first".into();
            return Err(Error::Unavailable { device: ID, why });
        }
        state.blocks.insert(memory.address(), (memory.len(), Contents(memory.contents())));
        Ok(Block { memory: ManuallyDrop::new(memory), queue: self.clone() })
    }

    /// While what it returns lives, nothing is freed.
    pub(super) fn open_step(self: &Arc<Self>) -> OpenStep<D> {
        self.state().open_steps += 1;
        OpenStep(self.clone())
    }

    pub(super) fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }
}

impl<D: Driver> State<D> {
    fn fail(&mut self, what: String) -> Error {
        self.fault.get_or_insert_with(|| what.clone());
        Error::Fault { device: ID, what }
    }

    /// Ends the oldest work, when it is done.
    fn land(&mut self) -> Result<Duration> {
        let Some(flight) = self.flights.pop_front() else { return Ok(Duration::ZERO) };
        let ended = flight.ticket.wait();
        self.tables.push(flight.table);
        ended.map_err(|what| self.fail(what))
    }

    fn reap(&mut self) -> Result<()> {
        while self.flights.len() >= MOST_FLIGHTS || self.flights.front().is_some_and(|f| f.ticket.is_done()) {
            self.land()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<Duration> {
        let mut last = Duration::ZERO;
        while !self.flights.is_empty() {
            last = self.land()?;
        }
        Ok(last)
    }

    /// A table that nobody reads, of at least `bytes`.
    fn table(&mut self, driver: &D, bytes: usize) -> Result<D::Memory> {
        if let Some(at) = self.tables.iter().position(|table| table.len() >= bytes) {
            return Ok(self.tables.swap_remove(at));
        }
        let bytes = bytes.next_power_of_two().max(TABLE);
        driver.allocate(bytes).ok_or(Error::OutOfMemory { device: ID, what: "the row table", bytes })
    }

    /// Memory that nobody names any more, kept until the work that may use it is done.
    fn free(&mut self, memory: D::Memory) {
        match self.flights.back_mut() {
            _ if self.open_steps > 0 => self.waiting.push(memory),
            Some(flight) => flight.freed.push(memory),
            None => drop(memory),
        }
    }
}

impl<D: Driver> Drop for Queue<D> {
    fn drop(&mut self) {
        let own = self.is_own_process();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Memory goes when nothing uses it. After a fault nobody knows: what waits for work that failed may wait for ever.
        if own && state.fault.is_none() && state.drain().is_ok() {
            state.tables.clear();
            // SAFETY: dropped here alone, once.
            unsafe { ManuallyDrop::drop(&mut self.driver) };
        } else {
            std::mem::forget(std::mem::take(&mut state.flights));
            std::mem::forget([std::mem::take(&mut state.tables), std::mem::take(&mut state.waiting)]);
        }
    }
}

/// Memory of the device that host and device share.
pub(super) struct Block<D: Driver> {
    memory: ManuallyDrop<D::Memory>,
    queue: Arc<Queue<D>>,
}

impl<D: Driver> Block<D> {
    pub(super) fn len(&self) -> usize {
        self.memory.len()
    }
}

impl<D: Driver> Allocation for Block<D> {
    fn ptr(&self) -> *mut u8 {
        self.memory.address() as *mut u8
    }
}

impl<D: Driver> Drop for Block<D> {
    fn drop(&mut self) {
        if self.queue.is_own_process() {
            let mut state = self.queue.state();
            state.blocks.remove(&self.memory.address());
            // SAFETY: taken here alone, once.
            state.free(unsafe { ManuallyDrop::take(&mut self.memory) });
        }
    }
}

/// While it lives, nothing is freed: operations that were taken have their memory until they are submitted.
pub(super) struct OpenStep<D: Driver>(Arc<Queue<D>>);

impl<D: Driver> Drop for OpenStep<D> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.open_steps -= 1;
        if state.open_steps == 0 {
            for memory in std::mem::take(&mut state.waiting) {
                state.free(memory);
            }
        }
    }
}
