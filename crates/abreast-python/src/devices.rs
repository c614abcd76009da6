//! The handles that calls run on: one for the CPU, one for every stream of a GPU, opened at first use and kept.

use abreast::{Device, DeviceId, Error, Kind, Result};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Device, stream and process: a handle does not live on in a forked child, which opens its own.
type Key = (DeviceId, usize, u32);

static OPEN: Mutex<Option<HashMap<Key, Device>>> = Mutex::new(None);

/// The handle for a device and, on a GPU, a stream.
pub(crate) fn open(device: DeviceId, stream: *mut c_void) -> Result<Device> {
    let key = (device, stream as usize, std::process::id());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = open.get_or_insert_default();
    if let Some(handle) = open.get(&key) {
        return Ok(handle.clone());
    }
    let sibling = open.iter().find(|((other, _, process), _)| (*other, *process) == (device, key.2));
    // SAFETY of both: the stream is the current one of the array's library, or one that the caller named: the documentation of `stream`
    // asks to call `release_stream` before such a stream is destroyed.
    let handle = match (device.kind, sibling) {
        (Kind::Cpu, _) => Device::cpu()?,
        // SAFETY: as said.
        (Kind::Cuda, Some((_, sibling))) => unsafe { sibling.on_stream(stream) }?,
        // SAFETY: as said.
        (Kind::Cuda, None) => unsafe { Device::cuda_on_stream(device.ordinal, stream) }?,
        _ => return Err(Error::Unavailable { device, why: "the Python package has no such device".into() }),
    };
    open.insert(key, handle.clone());
    Ok(handle)
}

/// Forgets what is kept for a stream.
pub(crate) fn release(device: DeviceId, stream: *mut c_void) -> bool {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (device, stream as usize, std::process::id());
    open.as_mut().is_some_and(|open| open.remove(&key).is_some())
}

/// `cpu`, `cuda` or `cuda:1`.
pub(crate) fn parse(name: &str) -> Option<DeviceId> {
    match name.split_once(':').unwrap_or((name, "0")) {
        ("cpu", "0") => Some(DeviceId::CPU),
        ("cuda", ordinal) => Some(DeviceId { kind: Kind::Cuda, ordinal: ordinal.parse().ok()? }),
        _ => None,
    }
}
