//! One file an operation: which argument is what.

pub(crate) mod compress;
pub(crate) mod convert_state;
pub(crate) mod gather_rows;
pub(crate) mod index_scores;
pub(crate) mod select_keys;
pub(crate) mod sparse_attention;
pub(crate) mod top_k;

use crate::call::Call;
use crate::ints::Ints;
use pyo3::PyResult;
use pyo3::exceptions::PyMemoryError;

/// What is noted about a row, at least.
const ROW_WORDS: usize = 32;

/// Numbers that default to the row's own.
fn numbers(call: &Call<'_>, name: &'static str, rows: usize) -> PyResult<Vec<usize>> {
    match call.ints(name)? {
        None => Ok((0..rows).collect()),
        Some(ints) => at(call, name, (&ints, rows)),
    }
}

/// One number for each row.
fn at<T: TryFrom<i64>>(
    call: &Call<'_>,
    name: &'static str,
    (ints, rows): (&Ints, usize),
) -> PyResult<Vec<T>> {
    let place = call.place(name);
    ints.check(place, rows)?;
    (0..rows).map(|row| ints.at(place, row)).collect()
}

/// One number for each row, of an argument that must be there.
fn each<T: TryFrom<i64>>(call: &Call<'_>, name: &'static str, rows: usize) -> PyResult<Vec<T>> {
    let ints = Ints::parse(call.place(name), &call.need(name)?)?;
    at(call, name, (&ints, rows))
}

/// How many rows a call has: what the first of these says that says anything.
fn rows(call: &Call<'_>, said: impl IntoIterator<Item = Option<usize>>) -> PyResult<usize> {
    let rows = said.into_iter().flatten().next().unwrap_or(1);
    // An array can have more rows than there is memory to name them, where they are empty or all the same.
    match Vec::<[usize; ROW_WORDS]>::new().try_reserve_exact(rows) {
        Ok(()) => Ok(rows),
        Err(_) => {
            Err(PyMemoryError::new_err(format!("{}: out of memory for a list of {rows} rows", call.name())))
        }
    }
}
