//! The check that nothing that is written is anything else, too.

use crate::errors::Place;
use pyo3::PyResult;
use std::ops::Range;

/// A borrowed place.
pub(crate) struct Borrowed {
    pub(crate) range: Range<usize>,
    pub(crate) written: bool,
    pub(crate) place: Place,
}

/// What is written shares no byte with anything else.
pub(crate) fn apart(spans: &mut [Borrowed]) -> PyResult<()> {
    if !spans.iter().any(|span| span.written) {
        return Ok(());
    }
    spans.sort_by_key(|span| span.range.start);
    // Of those before, the one that reaches furthest: of all, and of the written ones.
    let (mut any, mut written): (Option<&Borrowed>, Option<&Borrowed>) = (None, None);
    let further = |old: Option<&Borrowed>, new: &Borrowed| old.is_none_or(|o| o.range.end < new.range.end);
    for span in spans.iter() {
        let before = if span.written { any } else { written };
        if let Some(before) = before.filter(|before| span.range.start < before.range.end) {
            let (wrong, other) = if span.written { (span, before) } else { (before, span) };
            let other = match other.place.row {
                Some(row) => format!("rows[{row}].{}", other.place.name),
                None => other.place.name.to_string(),
            };
            let got = format_args!("a part of {other}").to_string();
            return Err(wrong.place.value("apart from all others", got));
        }
        if further(any, span) {
            any = Some(span);
        }
        if span.written && further(written, span) {
            written = Some(span);
        }
    }
    Ok(())
}
