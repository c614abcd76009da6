//! When memory may be freed. A view names a device and no handle: memory of one handle may be in use on another's stream, or by
//! a step whose operations were taken and have not been queued yet. So a free waits on the device for all streams (for a
//! caller's by an event of ours: he may have destroyed it), and while
//! a step is open anywhere in the process, it is put off.

use super::capture::Relaxed;
use super::driver::Queue;
use cudarc::driver::result;
use std::sync::{Arc, Mutex, PoisonError, Weak};

static STATE: Mutex<State> = Mutex::new(State { queues: Vec::new(), open_steps: 0, waiting: Vec::new() });

struct State {
    queues: Vec<Weak<Queue>>,
    open_steps: usize,
    /// Addresses, and the queues that they were allocated on.
    waiting: Vec<(u64, Arc<Queue>)>,
}

fn state() -> std::sync::MutexGuard<'static, State> {
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
    if state.open_steps > 0 {
        state.waiting.push((address, queue.clone()));
    } else {
        // Queues that go with this free go when the lock is given back.
        let others: Vec<_> = state.queues.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        free_behind(address, queue, &others);
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

/// While it lives, nothing is freed: operations that were taken have their memory until they are queued.
pub(super) struct OpenStep;

impl OpenStep {
    pub(super) fn new() -> OpenStep {
        state().open_steps += 1;
        OpenStep
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        let mut state = state();
        state.open_steps -= 1;
        if state.open_steps > 0 {
            return;
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for (address, queue) in waiting {
            if queue.enter().is_ok() {
                free(address, &queue);
            }
        }
    }
}
