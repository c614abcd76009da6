//! What a call's memory is, so that calls which have nothing to do with each other can run at the same time.

use std::ops::Range;

/// Memory that a call reads and writes, as ranges of addresses: its arguments, of which it may touch less.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touches {
    reads: Vec<Range<usize>>,
    writes: Vec<Range<usize>>,
}

impl Touches {
    pub(crate) fn read(mut self, spans: impl IntoIterator<Item = Range<usize>>) -> Touches {
        spans.into_iter().for_each(|span| push(&mut self.reads, span));
        self
    }

    pub(crate) fn write(mut self, spans: impl IntoIterator<Item = Range<usize>>) -> Touches {
        spans.into_iter().for_each(|span| push(&mut self.writes, span));
        self
    }
}

/// For backends that order calls.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
impl Touches {
    /// Both in one.
    pub(crate) fn and(self, other: Touches) -> Touches {
        self.read(other.reads).write(other.writes)
    }

    /// In the order of addresses, none inside or right behind another: what [`Touches::clash`] needs.
    pub(crate) fn sorted(self) -> Touches {
        let sorted = |mut spans: Vec<Range<usize>>| {
            spans.sort_unstable_by_key(|span| span.start);
            let mut joined = Vec::with_capacity(spans.len());
            spans.into_iter().for_each(|span| push(&mut joined, span));
            joined
        };
        Touches { reads: sorted(self.reads), writes: sorted(self.writes) }
    }

    /// Whether one of two writes what the other reads or writes. Both are sorted.
    pub(crate) fn clash(&self, other: &Touches) -> bool {
        meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes)
    }
}

/// Appends a span, or makes the last one longer.
fn push(spans: &mut Vec<Range<usize>>, span: Range<usize>) {
    match spans.last_mut() {
        _ if span.is_empty() => {}
        Some(last) if last.start <= span.start && span.start <= last.end => last.end = last.end.max(span.end),
        _ => spans.push(span),
    }
}

/// Whether a span of one list and a span of the other share an address. Both are sorted.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn meet(a: &[Range<usize>], b: &[Range<usize>]) -> bool {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        if x.end <= y.start {
            a.next();
        } else if y.end <= x.start {
            b.next();
        } else {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touches(reads: &[Range<usize>], writes: &[Range<usize>]) -> Touches {
        Touches::default().read(reads.iter().cloned()).write(writes.iter().cloned()).sorted()
    }

    #[test]
    fn neighbours_are_one_span_and_empty_ones_none() {
        let spans = [8..12, 0..4, 4..8, 20..20, 30..40, 32..34];
        assert_eq!(touches(&spans, &[]).reads, [0..12, 30..40]);
    }

    #[test]
    fn readers_do_not_clash() {
        let reads = |span: Range<usize>| touches(&[span], &[]);
        let writes = |span: Range<usize>| touches(&[], &[span]);
        let reader = reads(0..8);
        assert!(!reader.clash(&reader));
        assert!(reader.clash(&writes(7..9)) && writes(7..9).clash(&reader));
        assert!(!reader.clash(&writes(8..9)));
        assert!(writes(3..4).clash(&writes(0..8)));
    }

    proptest! {
        /// As found address by address.
        #[test]
        fn a_clash_is_an_address_that_one_writes(
            spans in prop::collection::vec((0..4, 0..60usize, 0..6usize), 0..24)
        ) {
            let list = |kind| -> Vec<Range<usize>> {
                spans.iter().filter(|(k, ..)| *k == kind).map(|&(_, start, len)| start..start + len).collect()
            };
            let within = |kind, at: usize| list(kind).iter().any(|span| span.contains(&at));
            let clash = (0..66).any(|at| {
                let [r0, w0, r1, w1] = [0, 1, 2, 3].map(|kind| within(kind, at));
                w0 && (r1 || w1) || r0 && w1
            });
            let [a, b] = [touches(&list(0), &list(1)), touches(&list(2), &list(3))];
            prop_assert_eq!(a.clash(&b), clash);
        }
    }
}
