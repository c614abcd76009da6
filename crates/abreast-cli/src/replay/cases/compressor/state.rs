//! A compressor's state in the recorded layout and in a ring.

use abreast::dims;

/// Values and scores, a row per token, `coff * d` features each.
pub(super) struct State {
    pub(super) kv: Vec<f32>,
    pub(super) score: Vec<f32>,
}

#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) ratio: usize,
    pub(super) d: usize,
}

impl Layout {
    fn features(&self) -> usize {
        dims::coff(self.ratio) * self.d
    }

    /// Positions that the next block may still read when `next` comes, each with its row of a shifted state.
    fn rows(&self, next: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Layout { ratio, .. } = *self;
        let block = next - next % ratio;
        let previous = if dims::coff(ratio) == 2 { block.saturating_sub(ratio)..block } else { block..block };
        let current = dims::window(ratio) - ratio;
        previous.map(move |p| (p, p % ratio)).chain((block..next).map(move |p| (p, current + p % ratio)))
    }

    /// The rows of a shifted state that are still to be read when position `next` comes.
    pub(super) fn live(&self, state: &[f32], next: usize) -> Vec<f32> {
        let n = self.features();
        self.rows(next).flat_map(|(_, row)| state[row * n..(row + 1) * n].to_vec()).collect()
    }

    /// Whether the block before the first one holds what a fresh state holds: values 0, scores -inf.
    pub(super) fn previous_is_fresh(&self, state: &State) -> bool {
        let n = self.features();
        let rows = 0..dims::window(self.ratio) - self.ratio;
        rows.flat_map(|row| row * n..row * n + self.d)
            .all(|i| state.kv[i] == 0.0 && state.score[i] == f32::NEG_INFINITY)
    }

    /// A ring of the window's rows and some more. A row that holds no token must never be read: it is NaN.
    pub(super) fn ring(&self, state: &State, at: (u32, usize)) -> State {
        let (next, more) = (at.0 as usize, at.1);
        let (n, rows) = (self.features(), dims::window(self.ratio) + more);
        let copy = |from: &[f32]| {
            let mut ring = vec![f32::NAN; rows * n];
            for (p, row) in self.rows(next) {
                ring[p % rows * n..][..n].copy_from_slice(&from[row * n..][..n]);
            }
            ring
        };
        State { kv: copy(&state.kv), score: copy(&state.score) }
    }

    /// The shifted state of a ring before position `next`; rows that nobody will read are zero.
    pub(super) fn shifted(&self, ring: &State, next: usize) -> State {
        let n = self.features();
        let rows = ring.kv.len() / n;
        let copy = |from: &[f32]| {
            let mut state = vec![0.0; dims::window(self.ratio) * n];
            for (p, row) in self.rows(next) {
                state[row * n..][..n].copy_from_slice(&from[p % rows * n..][..n]);
            }
            state
        };
        State { kv: copy(&ring.kv), score: copy(&ring.score) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(rows: usize, n: usize) -> State {
        let kv: Vec<f32> = (0..rows * n).map(|i| i as f32).collect();
        State { score: kv.iter().map(|v| -v).collect(), kv }
    }

    #[test]
    fn a_ring_gives_back_the_live_rows() {
        for (ratio, more) in [(4, 0), (4, 3), (128, 0), (128, 7), (1, 0), (3, 2)] {
            let layout = Layout { ratio, d: 32 };
            let state = numbered(dims::window(ratio), layout.features());
            for next in [0, 1, ratio - 1, ratio, ratio + 1, 5 * ratio + ratio / 2, 1000 * ratio] {
                let back = layout.shifted(&layout.ring(&state, (next as u32, more)), next);
                assert_eq!(
                    layout.live(&state.kv, next),
                    layout.live(&back.kv, next),
                    "{ratio} {more} {next}"
                );
                assert_eq!(layout.live(&state.score, next), layout.live(&back.score, next));
            }
        }
    }

    #[test]
    fn live_rows_are_the_previous_block_and_the_tokens_of_this_one() {
        let rows = |ratio, next| Layout { ratio, d: 32 }.rows(next).collect::<Vec<_>>();
        assert_eq!(rows(4, 0), []);
        assert_eq!(rows(4, 2), [(0, 4), (1, 5)]);
        assert_eq!(rows(4, 9), [(4, 0), (5, 1), (6, 2), (7, 3), (8, 4)]);
        assert_eq!(rows(128, 130), [(128, 0), (129, 1)]);
    }
}
