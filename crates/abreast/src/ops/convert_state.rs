//! A compressor's state from one layout to the other.

use super::check::Check;
use super::compress::{StateLayout, state_contract};
use super::{Cost, Op, Touches};
use crate::dims::{OVERLAP_RATIO, coff};
use crate::error::Result;
use crate::view::{DeviceId, View, ViewMut};

/// Copies the states of any number of requests from one layout to another, or to a ring of another size.
///
/// The result is the state as if all tokens had been fed in the new layout, as far as the old one still has them: every
/// other row is fresh (kv 0, score -inf). Outputs go on with the same bits.
///
/// # Errors
/// An argument of another shape or device; a ratio of 0; features not a multiple of 32 from 32 to 2^20 (twice that where blocks
/// overlap); a ring of fewer rows than the window; new states that overlap.
#[derive(Debug)]
pub struct ConvertState<'a, 'r> {
    /// Tokens per entry, at least 1.
    pub ratio: u32,
    /// Layout of the states that are read.
    pub from: StateLayout,
    /// Layout of the states that are written.
    pub to: StateLayout,
    /// One entry per request, any number.
    pub rows: &'r mut [ConvertStateRow<'a>],
}

/// One request's state, before and after.
#[derive(Debug)]
pub struct ConvertStateRow<'a> {
    /// Absolute position of the next token: those before it have been fed.
    pub position: u32,
    /// Values, `[from rows, coff * d]`.
    pub kv_from: View<'a, f32, 2>,
    /// Scores, `[from rows, coff * d]`.
    pub score_from: View<'a, f32, 2>,
    /// Values, `[to rows, coff * d]`.
    pub kv_to: ViewMut<'a, f32, 2>,
    /// Scores, `[to rows, coff * d]`.
    pub score_to: ViewMut<'a, f32, 2>,
}

impl StateLayout {
    /// The position whose token row `row` of `rows` holds when `next` is the next position; `None` for a fresh row.
    fn position_of(self, row: usize, (ratio, rows, next): (usize, usize, usize)) -> Option<usize> {
        let block = next / ratio * ratio;
        let position = match self {
            // The last position below `next` that falls on the row.
            StateLayout::Ring => (next + rows - 1 - row) / rows * rows + row,
            // Rows of the block before; then the current block, over what it has not reached yet.
            StateLayout::Shifted if ratio == OVERLAP_RATIO && row < ratio => block + row,
            StateLayout::Shifted => block + row % ratio + if block + row % ratio < next { ratio } else { 0 },
        };
        let back = if self == StateLayout::Ring { rows } else { ratio };
        position.checked_sub(back)
    }
}

impl StateLayout {
    /// Where a position's token was stored last, whether or not it is there still.
    fn row_of(self, position: usize, (ratio, rows, next): (usize, usize, usize)) -> usize {
        match self {
            StateLayout::Ring => position % rows,
            StateLayout::Shifted if ratio == OVERLAP_RATIO && position < next / ratio * ratio => {
                position % ratio
            }
            StateLayout::Shifted => rows - ratio + position % ratio,
        }
    }
}

impl ConvertState<'_, '_> {
    /// For every row of entry `e`'s new state, the old row that it copies; `None` for a fresh one.
    pub(crate) fn sources(&self, e: usize) -> impl Iterator<Item = Option<usize>> + '_ {
        let row = &self.rows[e];
        let (ratio, next) = (self.ratio as usize, row.position as usize);
        let old = (ratio, row.kv_from.shape()[0], next);
        let new = (ratio, row.kv_to.shape()[0], next);
        (0..new.1).map(move |r| {
            let position = self.to.position_of(r, new)?;
            Some(self.from.row_of(position, old)).filter(|&r| self.from.position_of(r, old) == Some(position))
        })
    }
}

impl Op for ConvertState<'_, '_> {
    const NAME: &'static str = "convert_state";

    fn contract(&self, device: DeviceId) -> Result<()> {
        let c = Check::new(Self::NAME, device);
        c.that(self.ratio > 0, |c| c.error("ratio", "at least 1", self.ratio))?;
        let ratio = self.ratio as usize;
        for (e, row) in self.rows.iter().enumerate() {
            let c = c.row(e);
            let [from_rows, features] = row.kv_from.shape();
            c.features("kv_from", "row size", (features, coff(ratio)))?;
            state_contract(c, ("kv_from", &row.kv_from), (self.from, ratio, features))?;
            c.view("score_from", &row.score_from, [Some(from_rows), Some(features)])?;
            state_contract(c, ("kv_to", &row.kv_to), (self.to, ratio, features))?;
            c.view("score_to", &row.score_to, [Some(row.kv_to.shape()[0]), Some(features)])?;
        }
        let rows = || self.rows.iter().enumerate();
        c.disjoint(
            rows()
                .flat_map(|(e, row)| [(e, "kv_to", row.kv_to.span()), (e, "score_to", row.score_to.span())]),
        )
    }

    fn cost(&self) -> Cost {
        let row = |row: &ConvertStateRow<'_>| {
            let moved = row.kv_to.len() + row.kv_from.len().min(row.kv_to.len());
            Cost { flops: 0, bytes: 8 * moved as u64 }
        };
        self.rows.iter().map(row).sum()
    }

    fn touches(&self) -> Touches {
        Touches::default()
            .read(self.rows.iter().map(|row| row.kv_from.span()))
            .read(self.rows.iter().map(|row| row.score_from.span()))
            .write(self.rows.iter().map(|row| row.kv_to.span()))
            .write(self.rows.iter().map(|row| row.score_to.span()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dims::window;

    /// Feeds positions one by one, as the compressor stores them.
    fn fed(layout: StateLayout, ratio: usize, (rows, next): (usize, usize)) -> Vec<Option<usize>> {
        let mut state = vec![None; rows];
        for p in 0..next {
            match layout {
                StateLayout::Ring => state[p % rows] = Some(p),
                StateLayout::Shifted if ratio == OVERLAP_RATIO => {
                    state[ratio + p % ratio] = Some(p);
                    if (p + 1) % ratio == 0 {
                        state.copy_within(ratio.., 0);
                    }
                }
                StateLayout::Shifted => state[p % ratio] = Some(p),
            }
        }
        state
    }

    #[test]
    fn positions_are_where_feeding_puts_them() {
        for (ratio, ring) in [(4, 8), (4, 11), (1, 1), (3, 3), (3, 7), (128, 128)] {
            for next in 0..3 * ratio + 20 {
                let shifted = window(ratio);
                for (layout, rows) in [(StateLayout::Shifted, shifted), (StateLayout::Ring, ring)] {
                    let want = fed(layout, ratio, (rows, next));
                    let got: Vec<_> =
                        (0..rows).map(|row| layout.position_of(row, (ratio, rows, next))).collect();
                    assert_eq!(got, want, "{layout:?}, ratio {ratio}, {rows} rows, next {next}");
                    for position in want.into_iter().flatten() {
                        let row = layout.row_of(position, (ratio, rows, next));
                        assert_eq!(
                            got[row],
                            Some(position),
                            "{layout:?}, ratio {ratio}, {rows} rows, next {next}"
                        );
                    }
                }
            }
        }
    }
}
