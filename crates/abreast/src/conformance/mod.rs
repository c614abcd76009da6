//! The law and the oracle as a suite that tests, CI and `abreast verify` all call.

mod arena;
mod bits;
pub mod case;
mod oracle;

pub use bits::{Difference, Fault, Finding, Part, RowBits};
pub use oracle::{Expected, Want};
