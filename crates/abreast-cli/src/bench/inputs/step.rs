//! A joint decode step: scores and selection, two compressors beside them, attention over what was selected.

use super::{Attention, Compressors, HEADS, Indexer, KEY_RATIO, Maker, PAIR, Requests, Taker};
use crate::bench::cases::K;
use abreast::{Result, StateLayout, ViewMut};
use std::ops::Range;

/// Window slots before the selected ones, in the index lists and in the caches.
const WINDOW: usize = 128;
pub(in crate::bench) const WIDTH: usize = WINDOW + K;
/// Steps of a replay at most: each has status words of its own.
const STEPS: usize = 512;

pub(super) struct JointStep {
    requests: usize,
    steps: usize,
    indexer: Indexer,
    compressors: Compressors,
    attention: Attention,
}

impl JointStep {
    pub(super) fn load(maker: &mut Maker<'_>, tokens: usize) -> Result<JointStep> {
        let (requests, keys) = (maker.requests, tokens / KEY_RATIO as usize);
        let window = |_| (0..WIDTH as i32).map(|slot| if slot < WINDOW as i32 { slot } else { -1 });
        let lists: Vec<i32> = (0..requests).flat_map(window).collect();
        let lists = maker.device.upload(&lists)?;
        Ok(JointStep {
            requests,
            steps: 0,
            indexer: Indexer::load(maker, HEADS, keys)?,
            compressors: Compressors::load(maker, &PAIR, (StateLayout::Ring, true))?,
            attention: Attention::with_lists(maker, (HEADS, WINDOW + keys), (lists, WIDTH))?,
        })
    }
}

impl Requests for JointStep {
    fn words(&self, requests: usize) -> usize {
        (STEPS + 1) * 2 * requests + requests
    }

    /// The compressors have nothing to do with the step's other calls, but come after the attention of the step before: their status
    /// words go where its went, half of them in each.
    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, status): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        let n = requests.len();
        self.steps = self.steps % STEPS + 1;
        let (selected, status) = status.split_at(self.requests);
        let (before, own) = status.split_at(self.steps * 2 * self.requests);
        let compressed = before.slice((self.steps - 1) * 2 * self.requests..self.steps * 2 * self.requests);
        let lists = (self.attention.lists.view_mut(), WIDTH, WINDOW);
        self.indexer.select(to, (requests.clone(), selected), lists)?;
        self.compressors.make(to, (requests.clone(), compressed))?;
        self.attention.make(to, (requests, own.slice(n / 2..n / 2 + n)))
    }
}
