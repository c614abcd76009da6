//! One error type. A message names the operation, the argument, its row, what it must be and what it is.

use crate::DeviceId;
use std::fmt;

/// What every call of the library returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call was refused or failed. Bad *data* is no error: it gives a neutral result and a status word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks the operation's contract; nothing was launched and no output touched.
    #[error("{op}: {arg} must be {must}, got {got}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// The argument, with its row where it belongs to one.
        arg: Arg,
        /// What it must be.
        must: String,
        /// What it is.
        got: String,
    },
    /// A device's memory ran out; nothing was launched and the next call may succeed.
    #[error("{device}: out of memory: {bytes} bytes asked for {what}")]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// What the memory was for.
        what: &'static str,
        /// How many bytes were asked for.
        bytes: usize,
    },
    /// The device failed. What it had queued is lost, and every later call on this handle fails too.
    #[error("{device}: the device failed: {what}")]
    Fault {
        /// The device.
        device: DeviceId,
        /// What its driver says.
        what: String,
    },
    /// This build or machine has no such device.
    #[error("{device} is not available: {why}")]
    Unavailable {
        /// The device that was asked for.
        device: DeviceId,
        /// What is missing, and what to do about it.
        why: String,
    },
}

/// An argument by its name, and the entry of the row list that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arg {
    /// Entry of the operation's row list; `None` for an argument of the whole call.
    pub row: Option<usize>,
    /// The field's name.
    pub name: &'static str,
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            Some(row) => write!(f, "rows[{row}].{}", self.name),
            None => f.write_str(self.name),
        }
    }
}
