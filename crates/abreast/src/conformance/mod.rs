//! The law and the oracle as a suite that tests, CI and `abreast verify` all call.
//!
//! ```
//! use abreast::{Device, conformance};
//!
//! let options = conformance::Options { filter: Some("top_k/ties".into()), ..Default::default() };
//! let report = conformance::run(&Device::cpu()?, &options, &mut |_| ());
//! assert!(report.is_good(), "{:?}", report.failures);
//! # Ok::<(), abreast::Error>(())
//! ```
//!
//! Every case has a name, `operation/group/detail`, and a filter that is part of the name runs it alone. A case asks
//! a device only through [`Device`](crate::Device), so that every backend is held to the same.

mod arena;
mod bits;
pub mod case;
mod decode;
#[cfg(test)]
mod defects;
mod digest;
mod errors;
mod fail_closed;
mod hostile;
mod known;
mod lab;
mod law;
mod memory;
mod oracle;
mod runs;
mod shapes;
mod steps;
mod suite;
mod ties;
mod windows;

pub use bits::{Difference, Fault, Finding, Part, RowBits};
pub use decode::Decoder;
pub use digest::digest;
pub use lab::{Counts, check};
pub use oracle::{Expected, Want};
pub use suite::{Depth, Failure, Group, Options, Progress, Report, cases, run};

use suite::Case;
