//! Ragged arguments: a list of tensors, one a row; or one tensor for all rows.

use crate::call::{Call, sequence};
use crate::errors::Place;
use crate::ints::Ints;
use crate::lent::{Lent, Span};
use abreast::Element;
use pyo3::prelude::*;

/// Names of the arguments: the tensors, and the offsets and lengths of rows in a pool.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) data: &'static str,
    pub(crate) offsets: &'static str,
    pub(crate) lens: &'static str,
}

/// An argument whose rows have `N` dimensions: a list of them; a pool of `N` dimensions, of which row `r` is
/// `x[offsets[r]:][:lens[r]]`; or `N + 1` dimensions, of which it is `x[offsets[r], :lens[r]]`.
pub(crate) struct Ragged<'py, const N: usize> {
    names: Names,
    place: Place,
    data: Data<'py>,
    offsets: Option<Ints>,
    lens: Option<Ints>,
}

enum Data<'py> {
    List(Vec<Bound<'py, PyAny>>),
    One(Lent),
}

impl<'py, const N: usize> Ragged<'py, N> {
    pub(crate) fn new(call: &Call<'py>, names: Names) -> PyResult<Self> {
        let (place, value) = (call.place(names.data), call.need(names.data)?);
        let (offsets, lens) = (call.ints(names.offsets)?, call.ints(names.lens)?);
        let data = match sequence(&value) {
            Some(list) => {
                for (name, given) in [(names.offsets, &offsets), (names.lens, &lens)] {
                    if given.is_some() {
                        let must = format_args!("None where {} is a list", names.data).to_string();
                        return Err(call.place(name).value(must, "numbers"));
                    }
                }
                Data::List(list.try_iter()?.collect::<PyResult<_>>()?)
            }
            None => {
                let lent = call.lend(place, &value)?;
                if lent.shape.len() != N && lent.shape.len() != N + 1 {
                    let must = format_args!("a list, or of {N} or {} dimensions", N + 1).to_string();
                    return Err(place.value(must, format_args!("shape {:?}", lent.shape)));
                }
                Data::One(lent)
            }
        };
        Ok(Ragged { names, place, data, offsets, lens })
    }

    /// How many rows there are, where this argument says it.
    pub(crate) fn count(&self) -> Option<usize> {
        match &self.data {
            Data::List(list) => Some(list.len()),
            Data::One(lent) if lent.shape.len() == N + 1 => {
                let said = |numbers: &Option<Ints>| numbers.as_ref().and_then(Ints::count);
                Some(said(&self.offsets).or(said(&self.lens)).unwrap_or(lent.shape[0]))
            }
            Data::One(_) => match (&self.offsets, &self.lens) {
                (Some(offsets), None) => offsets.count().map(|n| n.saturating_sub(1)),
                (offsets, lens) => {
                    let said = |numbers: &Option<Ints>| numbers.as_ref().and_then(Ints::count);
                    said(offsets).or(said(lens))
                }
            },
        }
    }

    /// The rows, checked; they stay until the call is dropped.
    pub(crate) fn rows<T: Element>(
        self,
        call: &Call<'py>,
        (rows, written): (usize, bool),
    ) -> PyResult<Vec<Span<T, N>>> {
        let Ragged { names, place, data, offsets, lens } = self;
        let spans: Vec<Span<T, N>> = match data {
            Data::List(list) if list.len() != rows => {
                return Err(place.value(format_args!("a list of {rows} rows"), list.len()));
            }
            Data::List(list) => {
                let row = |(r, object): (usize, &Bound<'py, PyAny>)| {
                    let place = place.row(r);
                    let lent = call.lend(place, object)?;
                    let shape = lent.ranked::<N>(place)?;
                    lent.usable::<T>(place, (N, written))?;
                    let span = Span { ptr: lent.ptr.cast(), shape, device: lent.device };
                    call.keep(lent);
                    Ok(span)
                };
                list.iter().enumerate().map(row).collect::<PyResult<_>>()?
            }
            Data::One(lent) => {
                let parts = Parts { names, call, offsets, lens, rows };
                lent.usable::<T>(place, (N.min(lent.shape.len()), written))?;
                let spans = parts.cut(place, &lent)?;
                call.keep(lent);
                spans
            }
        };
        for (r, span) in spans.iter().enumerate() {
            call.note(place.row(r), (span.range(), written));
        }
        Ok(spans)
    }
}

struct Parts<'a, 'py> {
    names: Names,
    call: &'a Call<'py>,
    offsets: Option<Ints>,
    lens: Option<Ints>,
    rows: usize,
}

impl Parts<'_, '_> {
    /// There are as many numbers as rows; returns whether the offsets say where rows end, too.
    fn checked(&self, place: Place, (pool, entries): (bool, usize)) -> PyResult<bool> {
        let (offsets_at, lens_at) = (self.call.place(self.names.offsets), self.call.place(self.names.lens));
        if let Some(lens) = &self.lens {
            lens.check(lens_at, self.rows)?;
        }
        match (&self.offsets, &self.lens) {
            // One more than rows: each row ends where the next one starts.
            (Some(Ints::Each(offsets)), None) if pool && offsets.len() == self.rows + 1 => Ok(true),
            (Some(Ints::Each(offsets)), None) if pool => {
                let must = format!("{} numbers, or {} with {}", self.rows + 1, self.rows, self.names.lens);
                Err(offsets_at.value(must, offsets.len()))
            }
            (Some(_), None) if pool => Err(lens_at.value("given with one offset for all", "None")),
            (None, Some(_)) if pool => Err(offsets_at.value("given, as the lengths are", "None")),
            (None, _) if !pool && entries != self.rows => {
                Err(place.value(format_args!("of {} rows", self.rows), entries))
            }
            (offsets, _) => {
                offsets.as_ref().map_or(Ok(()), |offsets| offsets.check(offsets_at, self.rows))?;
                Ok(false)
            }
        }
    }

    fn cut<T: Element, const N: usize>(&self, place: Place, lent: &Lent) -> PyResult<Vec<Span<T, N>>> {
        let (offsets_at, lens_at) = (self.call.place(self.names.offsets), self.call.place(self.names.lens));
        let (pool, entries) = (lent.shape.len() == N, lent.shape[0]);
        let inner: [usize; N] = lent.shape[lent.shape.len() - N..].try_into().expect("N of them");
        // From one row of a pool, or one entry of N + 1 dimensions, to the next, in elements.
        let stride = if pool { inner[1..].iter().product::<usize>() as isize } else { lent.strides[0] };
        if stride < 0 {
            return Err(place.value("of rows that follow each other", format_args!("stride {stride}")));
        }
        let ends = self.checked(place, (pool, entries))?;
        let row = |r: usize| {
            let first = match &self.offsets {
                None => {
                    if pool {
                        0
                    } else {
                        r
                    }
                }
                Some(offsets) => offsets.at::<usize>(offsets_at, r)?,
            };
            // An empty row may start where a pool ends.
            let most = if pool { Some(entries) } else { entries.checked_sub(1) };
            if most.is_none_or(|most| first > most) {
                let must = most.map_or("of no row".into(), |most| format!("at most {most}"));
                return Err(offsets_at.row(r).value(must, first));
            }
            let room = if pool { entries - first } else { inner[0] };
            let len = match (&self.lens, &self.offsets) {
                (Some(lens), _) => lens.at::<usize>(lens_at, r)?,
                (None, Some(offsets)) if ends => {
                    let end = offsets.at::<usize>(offsets_at, r + 1)?;
                    end.checked_sub(first).ok_or_else(|| {
                        offsets_at.row(r + 1).value(format_args!("at least {first}, the one before"), end)
                    })?
                }
                _ => room,
            };
            if len > room {
                let at = if ends { offsets_at.row(r + 1) } else { lens_at.row(r) };
                return Err(at.value(format_args!("within the {room} rows of {}", self.names.data), len));
            }
            let mut shape = inner;
            shape[0] = len;
            // Within the memory, unless that is empty, where strides say nothing.
            let skip = (stride as usize).wrapping_mul(first).wrapping_mul(size_of::<T>());
            Ok(Span { ptr: lent.ptr.wrapping_add(skip).cast(), shape, device: lent.device })
        };
        (0..self.rows).map(row).collect()
    }
}
