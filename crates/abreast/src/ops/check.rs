//! The vocabulary of the contracts.

use crate::dims::{MAX_FEATURES, PARTIALS};
use crate::error::{Arg, Error, Result};
use crate::view::{DeviceId, View, ViewMut};
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::Range;

/// Checks of one operation, or of one entry of its row list.
#[derive(Clone, Copy)]
pub(super) struct Check {
    op: &'static str,
    row: Option<usize>,
    device: DeviceId,
}

impl Check {
    pub(super) fn new(op: &'static str, device: DeviceId) -> Self {
        Check { op, row: None, device }
    }

    pub(super) fn row(self, row: usize) -> Self {
        Check { row: Some(row), ..self }
    }

    pub(super) fn error(self, name: &'static str, must: impl Display, got: impl Display) -> Error {
        let arg = Arg { row: self.row, name };
        Error::Argument { op: self.op, arg, must: must.to_string(), got: got.to_string() }
    }

    /// Only an argument that fails pays for its message.
    pub(super) fn that(self, holds: bool, error: impl FnOnce(Self) -> Error) -> Result<()> {
        if holds { Ok(()) } else { Err(error(self)) }
    }

    /// The memory is on this device and has this shape; `None` leaves a dimension free.
    pub(super) fn view<const N: usize>(
        self,
        name: &'static str,
        shown: impl Shown<N>,
        shape: [Option<usize>; N],
    ) -> Result<()> {
        let (got, device) = (shown.shape(), shown.device());
        self.that(device == self.device, |c| c.error(name, format_args!("on {}", c.device), device))?;
        let fits = got.iter().zip(&shape).all(|(got, want)| want.is_none_or(|want| want == *got));
        self.that(fits, |c| c.error(name, pattern(&shape), format_args!("{got:?}")))
    }

    /// `features`, a `size` of `name`, come in whole groups of `unit` times 32, and are no more than kernels count.
    pub(super) fn features(
        self,
        name: &'static str,
        size: &str,
        (features, unit): (usize, usize),
    ) -> Result<()> {
        let (divisor, most) = (unit * PARTIALS, unit * MAX_FEATURES);
        let whole = features > 0 && features % divisor == 0;
        self.that(whole, |c| c.error(name, format_args!("of a {size} divisible by {divisor}"), features))?;
        self.that(features <= most, |c| {
            c.error(name, format_args!("of a {size} of at most {most}"), features)
        })
    }

    /// The addresses start at a multiple of `bytes`, where there are any.
    pub(super) fn aligned(self, name: &'static str, span: Range<usize>, bytes: usize) -> Result<()> {
        let off = span.start % bytes;
        self.that(span.is_empty() || off == 0, |c| {
            c.error(
                name,
                format_args!("at a multiple of {bytes} bytes for Fast"),
                format_args!("{off} beyond one"),
            )
        })
    }

    /// `start..start + len` lies within `limit`.
    pub(super) fn range(self, name: &'static str, range: (usize, usize), limit: usize) -> Result<()> {
        let (start, len) = range;
        let fits = start.checked_add(len).is_some_and(|end| end <= limit);
        self.that(fits, |c| {
            c.error(name, format_args!("at most {} ({limit} - {len})", limit as i128 - len as i128), start)
        })
    }

    /// `index < limit`.
    pub(super) fn index(self, name: &'static str, index: usize, limit: usize) -> Result<()> {
        self.that(index < limit, |c| c.error(name, format_args!("below {limit}"), index))
    }

    /// No two of `spans` share a place. Empty spans share nothing. A span is of an entry's argument; the error names the later.
    pub(super) fn disjoint(
        self,
        spans: impl Iterator<Item = (usize, &'static str, Range<usize>)>,
    ) -> Result<()> {
        thread_local! {
            // Kept between calls, so that a step in steady state allocates nothing.
            static SPANS: RefCell<Vec<Span>> = const { RefCell::new(Vec::new()) };
        }
        SPANS.with_borrow_mut(|sorted| {
            sorted.clear();
            for (row, name, span) in spans.filter(|(_, _, span)| !span.is_empty()) {
                let bytes = (sorted.len() + 1) * size_of::<Span>();
                sorted.try_reserve(1).map_err(|_| Error::OutOfMemory {
                    device: DeviceId::CPU,
                    what: "the check of a call",
                    bytes,
                })?;
                sorted.push((span.start, span.end, row, name));
            }
            sorted.sort_unstable();
            let clash = sorted.windows(2).find(|pair| pair[1].0 < pair[0].1);
            let Some(&[(_, _, a, a_name), (_, _, b, b_name)]) = clash else { return Ok(()) };
            let [(first, first_name), (second, second_name)] =
                if a <= b { [(a, a_name), (b, b_name)] } else { [(b, b_name), (a, a_name)] };
            let got = format_args!("the place of rows[{first}].{first_name}").to_string();
            Err(self.row(second).error(second_name, "apart from all others", got))
        })
    }
}

/// Start, end, entry and argument.
type Span = (usize, usize, usize, &'static str);

/// What a view shows of itself to a check.
pub(super) trait Shown<const N: usize> {
    fn shape(&self) -> [usize; N];
    fn device(&self) -> DeviceId;
}

macro_rules! shown {
    ($($t:ty),*) => { $(impl<T, const N: usize> Shown<N> for $t {
        fn shape(&self) -> [usize; N] { (**self).shape() }
        fn device(&self) -> DeviceId { (**self).device() }
    })* };
}
shown!(&View<'_, T, N>, &ViewMut<'_, T, N>);

fn pattern<const N: usize>(shape: &[Option<usize>; N]) -> String {
    let dims: Vec<String> = shape.iter().map(|d| d.map_or("_".into(), |d| d.to_string())).collect();
    format!("[{}]", dims.join(", "))
}
