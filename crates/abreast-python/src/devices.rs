//! The handles that calls run on: one for the CPU, one for every stream of a GPU, opened at first use and kept.

use abreast::{Device, DeviceId, Error, Kind, Result};
use pyo3::Python;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device, stream and process: a handle does not live on in a forked child, which opens its own.
type Key = (DeviceId, usize, u32);

type Open = Option<HashMap<Key, Device>>;

static OPEN: Mutex<Open> = Mutex::new(None);

/// Only with the interpreter, and never across a `detach`: a fork takes place with the interpreter held, so no child finds this locked
/// by a thread that it has not.
fn locked(_: Python<'_>) -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handle for a device and, on a GPU, a stream.
pub(crate) fn open(py: Python<'_>, device: DeviceId, stream: *mut c_void) -> Result<Device> {
    let key = (device, stream as usize, std::process::id());
    let known = |open: &mut Open| open.get_or_insert_default().get(&key).cloned();
    if let Some(handle) = known(&mut locked(py)) {
        return Ok(handle);
    }
    let same = |((other, _, process), _): &(&Key, &Device)| (*other, *process) == (device, key.2);
    let sibling = locked(py).iter().flatten().find(same).map(|(_, sibling)| sibling.clone());
    let address = key.1;
    let handle = py.detach(|| fresh(device, address as *mut c_void, sibling))?;
    // Another thread may have been faster: there is one for all.
    Ok(locked(py).get_or_insert_default().entry(key).or_insert(handle).clone())
}

fn fresh(device: DeviceId, stream: *mut c_void, sibling: Option<Device>) -> Result<Device> {
    // SAFETY of both: the stream is the current one of the array's library, or one that the caller named: the documentation of `stream`
    // asks to call `release_stream` before such a stream is destroyed.
    match (device.kind, sibling) {
        (Kind::Cpu, _) => Device::cpu(),
        // SAFETY: as said.
        (Kind::Cuda, Some(sibling)) => unsafe { sibling.on_stream(stream) },
        // SAFETY: as said.
        (Kind::Cuda, None) => unsafe { Device::cuda_on_stream(device.ordinal, stream) },
        _ => Err(Error::Unavailable { device, why: "the Python package has no such device".into() }),
    }
}

/// Forgets what is kept for a stream.
pub(crate) fn release(py: Python<'_>, device: DeviceId, stream: *mut c_void) -> bool {
    let key = (device, stream as usize, std::process::id());
    let handle = locked(py).as_mut().and_then(|open| open.remove(&key));
    // Work may have to be waited for.
    py.detach(|| handle.map(drop).is_some())
}

/// `cpu`, `cuda` or `cuda:1`.
pub(crate) fn parse(name: &str) -> Option<DeviceId> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", "0") => Some(DeviceId::CPU),
        ("cuda", ordinal) => Some(DeviceId { kind: Kind::Cuda, ordinal: ordinal.parse().ok()? }),
        _ => None,
    }
}
