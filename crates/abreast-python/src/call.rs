//! One call: its arguments by name, the memory that it borrows, and the way to the device.

use crate::errors::{Place, to_python};
use crate::family::Family;
use crate::lent::{Lent, Span};
use crate::spans::{self, Borrowed};
use crate::tensor::Tensor;
use crate::{devices, ints::Ints};
use abreast::{Device, DeviceId, Element, Kind, Method, Result, View, ViewMut};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::cell::{OnceCell, RefCell};
use std::ffi::c_void;
use std::ops::Range;

/// The arguments of one call, and all that it borrows until it is dropped.
pub(crate) struct Call<'py> {
    op: &'static str,
    args: Bound<'py, PyDict>,
    /// The tensor whose device and library the others, and results, follow.
    first: Bound<'py, PyAny>,
    first_place: Place,
    family: OnceCell<Family>,
    target: OnceCell<(DeviceId, *mut c_void)>,
    kept: RefCell<Vec<Lent>>,
    spans: RefCell<Vec<Borrowed>>,
}

impl<'py> Call<'py> {
    /// `first`: the argument that decides about the device; of a list, its first tensor.
    pub(crate) fn open(op: &'static str, args: &Bound<'py, PyDict>, first: &'static str) -> PyResult<Self> {
        let place = Place { op, row: None, name: first };
        let object = args.get_item(first)?.ok_or_else(|| place.type_error("given", "nothing"))?;
        let object = match sequence(&object) {
            Some(list) if list.len()? > 0 => list.get_item(0)?,
            // Without rows: the result says where they would be.
            Some(_) => match ["out", "out_kv"].iter().find_map(|name| given(args, name).transpose()) {
                Some(out) => out?,
                None => return Err(place.value("of at least one row, or out given", "an empty list")),
            },
            None => object,
        };
        Ok(Call {
            op,
            args: args.clone(),
            first: object,
            first_place: place,
            family: OnceCell::new(),
            target: OnceCell::new(),
            kept: RefCell::default(),
            spans: RefCell::default(),
        })
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.args.py()
    }

    pub(crate) fn name(&self) -> &'static str {
        self.op
    }

    pub(crate) fn place(&self, name: &'static str) -> Place {
        Place { op: self.op, row: None, name }
    }

    /// An argument; `None` where it is None.
    pub(crate) fn get(&self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        given(&self.args, name)
    }

    pub(crate) fn need(&self, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        self.get(name)?.ok_or_else(|| self.place(name).type_error("given", "None"))
    }

    pub(crate) fn number(&self, name: &'static str) -> PyResult<Option<f32>> {
        let Some(value) = self.get(name)? else { return Ok(None) };
        let number: f64 = value.extract().map_err(|_| {
            let got = value.get_type().name().map(|n| n.to_string()).unwrap_or_default();
            self.place(name).type_error("a number", got)
        })?;
        Ok(Some(number as f32))
    }

    /// A non-negative number within `T`.
    pub(crate) fn count<T: TryFrom<i64>>(&self, name: &'static str) -> PyResult<T> {
        let value = Ints::one(self.place(name), &self.need(name)?)?;
        T::try_from(value).map_err(|_| self.place(name).value("a count", value))
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(&self, name: &'static str, choices: &[(&str, T)]) -> PyResult<T> {
        let value = self.need(name)?;
        let word: Option<String> = value.extract().ok();
        let found = word.as_ref().and_then(|word| choices.iter().find(|(w, _)| w == word));
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let words: Vec<_> = choices.iter().map(|(w, _)| format!("{w:?}")).collect();
            let got = word.map_or_else(|| value.to_string(), |word| format!("{word:?}"));
            self.place(name).value(words.join(" or "), got)
        })
    }

    pub(crate) fn method(&self) -> PyResult<Method> {
        self.choice("method", &[("reference", Method::Reference), ("fast", Method::Fast)])
    }

    /// Numbers of the rows.
    pub(crate) fn ints(&self, name: &'static str) -> PyResult<Option<Ints>> {
        self.get(name)?.map(|value| Ints::parse(self.place(name), &value)).transpose()
    }

    /// Device and stream; the first tensor decides, and every other must be on that device.
    fn target(
        &self,
        (place, family): (Place, Family),
        device: DeviceId,
    ) -> PyResult<(DeviceId, *mut c_void)> {
        let Some(&(expected, stream)) = self.target.get() else {
            self.family.get_or_init(|| family);
            let stream = match (device.kind, self.get("stream")?) {
                (Kind::Cuda, Some(stream)) => stream_address(self.place("stream"), &stream)?,
                (Kind::Cuda, None) => family.stream(&self.first, device.ordinal)?,
                _ => std::ptr::null_mut(),
            };
            return Ok(*self.target.get_or_init(|| (device, stream)));
        };
        if device == expected {
            return Ok((device, stream));
        }
        Err(place.value(format_args!("on {expected}"), device))
    }

    /// Borrows a tensor; it is kept until the call is dropped.
    pub(crate) fn lend(&self, place: Place, object: &Bound<'py, PyAny>) -> PyResult<Lent> {
        if self.target.get().is_none() && !object.is(&self.first) {
            let place = self.first_place;
            let first = Lent::of(place, &self.first, |device, family| self.target((place, family), device))?;
            self.kept.borrow_mut().push(first);
        }
        Lent::of(place, object, |device, family| self.target((place, family), device))
    }

    pub(crate) fn keep(&self, lent: Lent) {
        self.kept.borrow_mut().push(lent);
    }

    /// Notes where memory is, and whether it is written.
    pub(crate) fn note(&self, place: Place, (range, written): (Range<usize>, bool)) {
        if !range.is_empty() {
            self.spans.borrow_mut().push(Borrowed { range, written, place });
        }
    }

    fn whole<T: Element, const N: usize>(
        &self,
        (place, written): (Place, bool),
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Span<T, N>> {
        let lent = self.lend(place, object)?;
        let shape = lent.ranked::<N>(place)?;
        lent.usable::<T>(place, (N, written))?;
        let span = Span { ptr: lent.ptr.cast(), shape, device: lent.device };
        self.note(place, (span.range(), written));
        self.keep(lent);
        Ok(span)
    }

    /// A tensor that is read.
    pub(crate) fn view<T: Element, const N: usize>(&self, name: &'static str) -> PyResult<View<'_, T, N>> {
        let span = self.whole::<T, N>((self.place(name), false), &self.need(name)?)?;
        // SAFETY: kept by this call; that nobody writes it meanwhile is the caller's part, as with every library of arrays.
        Ok(unsafe { span.view() })
    }

    /// A tensor that is read, if there is one.
    pub(crate) fn view_of<T: Element, const N: usize>(
        &self,
        name: &'static str,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<View<'_, T, N>> {
        let span = self.whole::<T, N>((self.place(name), false), object)?;
        // SAFETY: as in `view`.
        Ok(unsafe { span.view() })
    }

    /// What the first tensor holds.
    pub(crate) fn first_dtype(&self) -> PyResult<abreast::DType> {
        let lent = self.lend(self.first_place, &self.first.clone())?;
        let dtype = lent.dtype;
        self.keep(lent);
        Ok(dtype)
    }

    /// The status words, if they are wanted.
    pub(crate) fn status(&self) -> PyResult<Option<ViewMut<'_, u32, 1>>> {
        let Some(object) = self.get("status")? else { return Ok(None) };
        let span = self.whole::<u32, 1>((self.place("status"), true), &object)?;
        // SAFETY: kept by this call; apart from all else, which `run` checks.
        Ok(Some(unsafe { span.view_mut() }))
    }

    /// The result: the argument `out`, or a new array like the first tensor.
    pub(crate) fn out<T: Element, const N: usize>(
        &self,
        shape: [usize; N],
    ) -> PyResult<(Bound<'py, PyAny>, ViewMut<'_, T, N>)> {
        let object = match self.get("out")? {
            Some(out) => out,
            None => self.empty::<T>(&shape)?,
        };
        let span = self.whole::<T, N>((self.place("out"), true), &object)?;
        // SAFETY: as in `status`.
        Ok((object, unsafe { span.view_mut() }))
    }

    /// As `out`, but of any shape, seen as one row of elements; and, of several dimensions, the elements of one entry along the first.
    pub(crate) fn flat_out<T: Element>(
        &self,
        shape: &[usize],
    ) -> PyResult<(Bound<'py, PyAny>, ViewMut<'_, T, 1>, Option<usize>)> {
        let object = match self.get("out")? {
            Some(out) => out,
            None => self.empty::<T>(shape)?,
        };
        let place = self.place("out");
        let lent = self.lend(place, &object)?;
        lent.usable::<T>(place, (lent.shape.len(), true))?;
        let stride = (lent.shape.len() > 1).then(|| lent.shape[1..].iter().product());
        let span = Span::<T, 1> { ptr: lent.ptr.cast(), shape: [lent.len()], device: lent.device };
        self.note(place, (span.range(), true));
        self.keep(lent);
        // SAFETY: as in `status`.
        Ok((object, unsafe { span.view_mut() }, stride))
    }

    /// An array of the first tensor's library, or a tensor of our own.
    pub(crate) fn empty<T: Element>(&self, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
        let (device, stream) = *self.target.get().expect("the first tensor was borrowed");
        let family = *self.family.get().expect("as above");
        // Like a tensor of our own, also where it is a view of another's.
        let family = if self.first.is_instance_of::<Tensor>() { Family::Other } else { family };
        if let Some(array) = family.empty(&self.first, (T::DTYPE, shape, device))? {
            return Ok(array);
        }
        let tensor = Tensor::zeros(self.py(), (device, stream), (shape.to_vec(), T::DTYPE))?;
        Ok(Bound::new(self.py(), tensor)?.into_any())
    }

    fn makes_jax(&self, result: &Bound<'py, PyAny>) -> PyResult<bool> {
        let fresh = result.is_instance_of::<Tensor>() && self.get("out")?.is_none();
        Ok(fresh && !self.first.is_instance_of::<Tensor>())
    }

    /// Runs the call without holding the interpreter.
    pub(crate) fn run(&self, call: impl FnOnce(&Device) -> Result<()> + Send) -> PyResult<()> {
        spans::apart(&mut self.spans.borrow_mut())?;
        let Some(&(device, stream)) = self.target.get() else {
            // A list without rows: nothing to do, and nothing to do it on.
            return Ok(());
        };
        // A stream that the caller named is his to wait for.
        let wait = self.kept.borrow().iter().any(|lent| lent.hurried) && self.get("stream")?.is_none();
        let device = devices::open(self.py(), device, stream).map_err(to_python)?;
        let work = || {
            call(&device)?;
            if wait { device.synchronize() } else { Ok(()) }
        };
        self.py().detach(work).map_err(to_python)
    }

    /// A result as its library's own: JAX takes ours over.
    pub(crate) fn finish(&self, result: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.family.get() {
            Some(Family::Jax) if self.makes_jax(&result)? => {
                self.py().import("jax.dlpack")?.call_method1("from_dlpack", (result,))
            }
            _ => Ok(result),
        }
    }
}

/// An argument; `None` where it is None.
fn given<'py>(args: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(args.get_item(name)?.filter(|value| !value.is_none()))
}

/// A list or a tuple.
pub(crate) fn sequence<'py>(object: &Bound<'py, PyAny>) -> Option<Bound<'py, pyo3::types::PySequence>> {
    let is = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
    if is { object.cast::<pyo3::types::PySequence>().ok().cloned() } else { None }
}

/// The address that a stream of PyTorch or CuPy has, or the number itself.
pub(crate) fn stream_address(place: Place, stream: &Bound<'_, PyAny>) -> PyResult<*mut c_void> {
    let address = ["cuda_stream", "ptr"].iter().find_map(|name| stream.getattr(*name).ok());
    let address = address.as_ref().unwrap_or(stream).extract::<usize>();
    address.map(|address| address as *mut c_void).map_err(|_| {
        let got = stream.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        place.type_error("the address of a CUDA stream, or a stream of PyTorch or CuPy", got)
    })
}
