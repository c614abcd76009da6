//! When memory may be freed. A view names a device and no handle: memory of one handle may be in use on another's stream, or by
//! a step whose operations were taken and have not been queued yet. So a free waits on the device for all streams (for a
//! caller's by an event of ours: he may have destroyed it), and it is put off until all steps are through that were open anywhere in the
//! process when the memory was given up: one that opens later cannot name it.

use super::capture::Relaxed;
use super::driver::Queue;
use cudarc::driver::result;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

static STATE: Mutex<State> =
    Mutex::new(State { queues: Vec::new(), steps: 0, open: BTreeSet::new(), waiting: Vec::new() });

struct State {
    queues: Vec<Weak<Queue>>,
    /// How many steps were opened so far, which numbers them.
    steps: u64,
    open: BTreeSet<u64>,
    waiting: Vec<Waiting>,
}

/// Memory that was given up.
struct Waiting {
    address: u64,
    /// That it was allocated on.
    queue: Arc<Queue>,
    /// How many steps had been opened by then.
    steps: u64,
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream on which memory may be in use from now on.
pub(super) fn register(queue: &Arc<Queue>) {
    let mut state = state();
    state.queues.retain(|queue| queue.strong_count() > 0);
    state.queues.push(Arc::downgrade(queue));
}

/// Frees memory when nothing uses it any more.
pub(super) fn free(address: u64, queue: &Arc<Queue>) {
    let mut state = state();
    let steps = state.steps;
    state.waiting.push(Waiting { address, queue: queue.clone(), steps });
    release(state);
}

/// Frees what no open step can name.
fn release(mut state: MutexGuard<'_, State>) {
    let oldest = state.open.first().copied().unwrap_or(u64::MAX);
    let free: Vec<_> = state.waiting.extract_if(.., |waiting| waiting.steps <= oldest).collect();
    if free.is_empty() {
        return;
    }
    // Queues that go with this go when the lock is given back.
    let others: Vec<_> = state.queues.iter().filter_map(Weak::upgrade).collect();
    drop(state);
    for Waiting { address, queue, .. } in free {
        if queue.enter().is_ok() {
            free_behind(address, &queue, &others);
        }
    }
}

/// On a stream of ours, since the caller's may be captured or gone. After a device fault there is nothing to free, and no error
/// to tell.
fn free_behind(address: u64, queue: &Queue, others: &[Arc<Queue>]) {
    let _relaxed = Relaxed::new();
    let stream = queue.own();
    for other in others.iter().filter(|other| other.id == queue.id) {
        let _ = match &other.foreign {
            Some(foreign) => stream.wait(&foreign.done),
            None if Arc::ptr_eq(other.own(), stream) => Ok(()),
            None => stream.join(other.own()),
        };
    }
    // SAFETY: `Memory` owns it and frees it once, here, behind all that may use it.
    let _ = unsafe { result::free_async(address, stream.cu_stream()) };
}

/// While it lives, nothing is freed that was there when it began: operations that were taken have their memory until they are queued.
pub(super) struct OpenStep(u64);

impl OpenStep {
    pub(super) fn new() -> OpenStep {
        let mut state = state();
        let number = state.steps;
        state.steps += 1;
        state.open.insert(number);
        OpenStep(number)
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        let mut state = state();
        state.open.remove(&self.0);
        release(state);
    }
}
