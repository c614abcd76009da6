//! Whole numbers of the rows: one for all, a list, or an array on the host.

use crate::call::sequence;
use crate::errors::Place;
use crate::lent::Lent;
use abreast::{DType, DeviceId};
use pyo3::prelude::*;
use pyo3::types::PyInt;

/// One number for every row, or one each.
pub(crate) enum Ints {
    Same(i64),
    Each(Vec<i64>),
}

impl Ints {
    pub(crate) fn one(place: Place, value: &Bound<'_, PyAny>) -> PyResult<i64> {
        let got = || value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        number(value)?.ok_or_else(|| place.type_error("a whole number", got()))
    }

    pub(crate) fn parse(place: Place, value: &Bound<'_, PyAny>) -> PyResult<Ints> {
        if let Some(number) = number(value)? {
            return Ok(Ints::Same(number));
        }
        if let Some(list) = sequence(value)
            && let Ok(numbers) = list.extract::<Vec<i64>>()
        {
            return Ok(Ints::Each(numbers));
        }
        let must = "a whole number, a list of them, or a host array of them";
        if !value.hasattr("__dlpack__")? {
            return Err(place.type_error(must, value.get_type().name()?));
        }
        let lent = Lent::of(place, value, |device, _| match device {
            DeviceId::CPU => Ok((device, std::ptr::null_mut())),
            _ => Err(place.type_error("on the host (a device's would have to be waited for)", device)),
        })?;
        let [n] = lent.ranked::<1>(place)?;
        lent.contiguous(place, 1)?;
        macro_rules! numbers {
            ($($dtype:ident: $t:ty),*) => {
                match lent.dtype {
                    // SAFETY: host memory of so many elements of this type, kept by `lent`; read where it is, aligned or not.
                    $(DType::$dtype => (0..n).map(|i| unsafe { lent.ptr.cast::<$t>().add(i).read_unaligned() } as i64).collect(),)*
                    other => return Err(place.type_error(must, format_args!("an array of {other}"))),
                }
            };
        }
        Ok(Ints::Each(numbers!(I32: i32, I64: i64, U32: u32, U64: u64)))
    }

    /// How many there are, where that is said.
    pub(crate) fn count(&self) -> Option<usize> {
        match self {
            Ints::Same(_) => None,
            Ints::Each(numbers) => Some(numbers.len()),
        }
    }

    /// There are as many as rows.
    pub(crate) fn check(&self, place: Place, rows: usize) -> PyResult<()> {
        match self.count() {
            Some(n) if n != rows => Err(place.value(format_args!("of {rows} rows"), n)),
            _ => Ok(()),
        }
    }

    pub(crate) fn get(&self, row: usize) -> i64 {
        match self {
            Ints::Same(number) => *number,
            Ints::Each(numbers) => numbers[row],
        }
    }

    /// The number of a row, within the type that the library takes.
    pub(crate) fn at<T: TryFrom<i64>>(&self, place: Place, row: usize) -> PyResult<T> {
        let number = self.get(row);
        T::try_from(number).map_err(|_| place.row(row).value("within its range, and not negative", number))
    }
}

/// A whole number, if it is one. An array of one number is none: it may be a device's, which would be waited for.
fn number(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    let plain = value.is_instance_of::<PyInt>() || !value.hasattr(pyo3::intern!(value.py(), "__dlpack__"))?;
    Ok(if plain { value.extract().ok() } else { None })
}
