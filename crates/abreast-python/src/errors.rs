//! The library's errors as Python's, with the library's text.

use abreast::{Arg, Error};
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use std::fmt::Display;

/// A bad argument is a ValueError; what a machine lacks or breaks is none of the caller's.
pub(crate) fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Argument { .. } => PyValueError::new_err(text),
        Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

/// An argument of a call, for messages.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) op: &'static str,
    pub(crate) row: Option<usize>,
    pub(crate) name: &'static str,
}

impl Place {
    pub(crate) fn row(self, row: usize) -> Place {
        Place { row: Some(row), ..self }
    }

    fn text(self, must: impl Display, got: impl Display) -> String {
        let arg = Arg { row: self.row, name: self.name };
        Error::Argument { op: self.op, arg, must: must.to_string(), got: got.to_string() }.to_string()
    }

    /// Of the right type, and yet wrong.
    pub(crate) fn value(self, must: impl Display, got: impl Display) -> PyErr {
        PyValueError::new_err(self.text(must, got))
    }

    /// Of a wrong type.
    pub(crate) fn type_error(self, must: impl Display, got: impl Display) -> PyErr {
        PyTypeError::new_err(self.text(must, got))
    }
}
