//! A compressor's state in the recorded layout: what of it still counts.

use abreast::dims;
use std::ops::Range;

/// Values and scores, a row per token, `coff * d` features each.
pub(super) struct State {
    pub(super) kv: Vec<f32>,
    pub(super) score: Vec<f32>,
}

/// The shape of a shifted state.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) ratio: usize,
    pub(super) d: usize,
}

impl Layout {
    pub(super) fn features(&self) -> usize {
        dims::coff(self.ratio) * self.d
    }

    /// Rows of the block before, where blocks overlap.
    fn previous(&self) -> Range<usize> {
        0..dims::window(self.ratio) - self.ratio
    }

    /// The rows that are still to be read when position `next` comes: the block before, if there is one, and the
    /// tokens of this one. The others wait to be overwritten.
    pub(super) fn live(&self, state: &[f32], next: usize) -> Vec<f32> {
        let (n, current) = (self.features(), self.previous().end);
        let previous = if next < self.ratio { 0..0 } else { self.previous() };
        let rows = previous.chain(current..current + next % self.ratio);
        rows.flat_map(|row| state[row * n..(row + 1) * n].to_vec()).collect()
    }

    /// Whether the rows of the block before hold what a fresh state holds, as far as they are read: values 0, scores
    /// -inf.
    pub(super) fn previous_is_fresh(&self, state: &State) -> bool {
        let n = self.features();
        self.previous()
            .flat_map(|row| row * n..row * n + self.d)
            .all(|i| state.kv[i] == 0.0 && state.score[i] == f32::NEG_INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_rows_are_the_previous_block_and_the_tokens_of_this_one() {
        let rows = |ratio: usize, next| {
            let layout = Layout { ratio, d: 1 };
            let n = layout.features();
            let state: Vec<f32> = (0..dims::window(ratio) * n).map(|i| (i / n) as f32).collect();
            layout.live(&state, next).into_iter().step_by(n).map(|row| row as usize).collect::<Vec<_>>()
        };
        assert!(rows(4, 0).is_empty());
        assert_eq!(rows(4, 2), [4, 5]);
        assert_eq!(rows(4, 4), [0, 1, 2, 3]);
        assert_eq!(rows(4, 9), [0, 1, 2, 3, 4]);
        assert_eq!(rows(128, 130), [0, 1]);
    }
}
