//! Results as bits, and what is said about the first that is wrong.

use super::oracle::{Expected, MOST_INEXACT, Want};
use crate::{DType, Element, Error, bf16, f16};
use std::fmt;

/// One row's share of one output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The output's name.
    pub name: &'static str,
    /// Its element type.
    pub dtype: DType,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// All that one row gave.
pub type RowBits = Vec<Part>;

impl Part {
    pub(super) fn of<T: Element>(name: &'static str, data: &[T]) -> Part {
        Part { name, dtype: T::DTYPE, bytes: bytemuck::cast_slice(data).to_vec() }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// The bit pattern of an element.
    pub(super) fn bits(&self, at: usize) -> u64 {
        let size = self.dtype.size();
        let mut word = [0; 8];
        word[..size].copy_from_slice(&self.bytes[at * size..(at + 1) * size]);
        u64::from_le_bytes(word)
    }

    /// The elements of an f32 output.
    pub(super) fn floats(&self) -> Vec<f32> {
        (0..self.len()).map(|i| f32::from_bits(self.bits(i) as u32)).collect()
    }

    /// The value of an element.
    fn value(&self, at: usize) -> f64 {
        let bits = self.bits(at);
        match self.dtype {
            DType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            DType::F16 => f16::from_bits(bits as u16).to_f64(),
            DType::F32 => f32::from_bits(bits as u32) as f64,
            DType::I32 => bits as i32 as f64,
            _ => bits as f64,
        }
    }
}

/// What went wrong while rows ran, other than their results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The device refused or failed.
    Device(Error),
    /// Memory beside a buffer changed.
    RedZone {
        /// The buffer's name.
        buffer: &'static str,
        /// First changed element, counted from the red zone's start.
        at: usize,
    },
    /// A place of an output that no row names changed.
    Touched {
        /// The buffer's name.
        buffer: &'static str,
        /// First changed element.
        at: usize,
    },
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Fault::Device(e)
    }
}

/// The first thing that is wrong in a case.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// An element has other bits than it must.
    Bits(Box<Difference>),
    /// Anything else: what it is about, what was expected, what was got.
    Text {
        /// What it is about.
        what: String,
        /// What was expected.
        want: String,
        /// What was got.
        got: String,
    },
}

/// An element that has other bits than it must.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// What it was compared with.
    pub against: String,
    /// The row.
    pub row: usize,
    /// The output.
    pub part: &'static str,
    /// The element within the row's share of the output.
    pub position: usize,
    /// Hexadecimal digits of one element.
    pub digits: usize,
    /// The bits it has.
    pub got: u64,
    /// The bits it must have (or be near to, then `note` says how near).
    pub want: u64,
    /// More, where there is more to say.
    pub note: String,
}

/// What a check says: nothing, or the first thing that is wrong.
pub(super) type Verdict = Result<(), Finding>;

impl Finding {
    pub(super) fn text(what: impl fmt::Display, want: impl fmt::Display, got: impl fmt::Display) -> Finding {
        Finding::Text { what: what.to_string(), want: want.to_string(), got: got.to_string() }
    }
}

impl From<Fault> for Finding {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Device(e) => Finding::text("the call", "no error", e),
            Fault::RedZone { buffer, at } => Finding::text(
                format_args!("the red zone of {buffer}"),
                "intact",
                format_args!("changed at {at}"),
            ),
            Fault::Touched { buffer, at } => Finding::text(
                format_args!("places of {buffer} that no row names"),
                "untouched",
                format_args!("changed at {at}"),
            ),
        }
    }
}

impl From<Error> for Finding {
    fn from(e: Error) -> Self {
        Fault::from(e).into()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Bits(d) => {
                let (row, part, position, digits) = (d.row, d.part, d.position, d.digits);
                let (got, want, against, note) = (d.got, d.want, &d.against, &d.note);
                write!(
                    f,
                    "row {row}, {part}[{position}]: got 0x{got:0digits$x}, {against} 0x{want:0digits$x}{note}"
                )
            }
            Finding::Text { what, want, got } => write!(f, "{what}: expected {want}, got {got}"),
        }
    }
}

/// Whether `got` has the bits of `want`, for one row.
pub(super) fn same(row: usize, against: &str, got: &RowBits, want: &RowBits) -> Verdict {
    for (g, w) in got.iter().zip(want) {
        if g.bytes != w.bytes {
            let position = (0..g.len()).find(|&i| g.bits(i) != w.bits(i)).unwrap_or(0);
            return Err(difference((row, against), (g, position), (w.bits(position), String::new())));
        }
    }
    Ok(())
}

/// Whether `got` is what the oracle expects, for one row.
pub(super) fn matches(row: usize, got: &RowBits, want: &[Expected]) -> Verdict {
    let against = (row, "the oracle says");
    for (part, expected) in got.iter().zip(want) {
        if part.name != expected.name || part.len() != expected.wants.len() {
            let shown = |name: &str, len: usize| format!("{name}[{len}]");
            let (w, g) = (shown(expected.name, expected.wants.len()), shown(part.name, part.len()));
            return Err(Finding::text(format_args!("row {row}"), w, g));
        }
        for (position, want) in expected.wants.iter().enumerate() {
            let bits = part.bits(position);
            let wrong = match *want {
                Want::Any => None,
                Want::Bits(w) => (bits != w).then(|| (w, String::new())),
                Want::Flags { must, may } => {
                    let set = bits as u32;
                    let fits = set & must == must && set & !(must | may) == 0;
                    (!fits).then(|| (must as u64, flags_note(set, must, may)))
                }
                Want::Near { value, bound, or_zero } => {
                    let got = part.value(position);
                    let fits = (got - value).abs() <= bound || (or_zero && bits == 0);
                    (!fits).then(|| {
                        (rounded(part.dtype, value), format!(" ({got} for {value} within {bound:e})"))
                    })
                }
            };
            if let Some(wrong) = wrong {
                return Err(difference(against, (part, position), wrong));
            }
        }
        for range in &expected.exact {
            count_inexact(against, part, (expected, range.clone()))?;
        }
    }
    Ok(())
}

/// At most a few elements of a range differ from the oracle's value, correctly rounded.
fn count_inexact(
    against: (usize, &str),
    part: &Part,
    (expected, range): (&Expected, std::ops::Range<usize>),
) -> Verdict {
    let exact = |i: usize| match expected.wants[i] {
        Want::Near { value, .. } => rounded(part.dtype, value),
        _ => part.bits(i),
    };
    match range.filter(|&i| part.bits(i) != exact(i)).nth(MOST_INEXACT) {
        None => Ok(()),
        Some(i) => {
            let note = format!(" (more than {MOST_INEXACT} such in one row)");
            Err(difference(against, (part, i), (exact(i), note)))
        }
    }
}

fn difference(
    (row, against): (usize, &str),
    (part, position): (&Part, usize),
    (want, note): (u64, String),
) -> Finding {
    let (digits, got) = (2 * part.dtype.size(), part.bits(position));
    let against = against.to_string();
    Finding::Bits(Box::new(Difference { against, row, part: part.name, position, digits, got, want, note }))
}

fn rounded(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::Bf16 => bf16::from_f64(value).to_bits() as u64,
        _ => (value as f32).to_bits() as u64,
    }
}

fn flags_note(set: u32, must: u32, may: u32) -> String {
    let names = crate::dims::status::names;
    format!(" (got {}, must be {}, may be {} too)", names(set), names(must), names(may))
}
