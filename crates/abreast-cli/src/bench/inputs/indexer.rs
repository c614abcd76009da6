//! The indexer's queries and keys; scores of all keys, or the best of them.

use super::{KEY_RATIO, Maker, Requests, Taker};
use crate::bench::cases::K;
use abreast::dims::INDEX_DIM;
use abreast::{
    Buffer, IndexScores, IndexScoresRow, Method, Result, SelectKeys, SelectKeysRow, View, ViewMut, bf16,
};
use std::ops::Range;

pub(super) struct Indexer {
    method: Method,
    heads: usize,
    /// Keys that every query sees.
    keys: usize,
    q: Buffer<bf16>,
    weights: Buffer<f32>,
    caches: Buffer<bf16>,
}

impl Indexer {
    pub(super) fn load(maker: &mut Maker<'_>, heads: usize, keys: usize) -> Result<Indexer> {
        let requests = maker.requests;
        Ok(Indexer {
            method: maker.method,
            heads,
            keys,
            q: maker.bf16s((requests, heads * INDEX_DIM), 1.0)?,
            weights: maker.f32s((requests, heads), ((heads * INDEX_DIM) as f32).sqrt().recip())?,
            caches: maker.bf16s((requests, keys * INDEX_DIM), 1.0)?,
        })
    }

    /// A position from which exactly the keys are visible.
    fn start_pos(&self) -> u32 {
        self.keys as u32 * KEY_RATIO - 1
    }

    fn keys_of(&self, r: usize) -> Result<View<'_, bf16, 2>> {
        let size = self.keys * INDEX_DIM;
        self.caches.view().slice(r * size..(r + 1) * size).reshape([self.keys, INDEX_DIM])
    }

    fn queries(&self) -> Result<(View<'_, bf16, 3>, View<'_, f32, 2>)> {
        let queries = self.weights.len() / self.heads;
        let q = self.q.shaped([queries, self.heads, INDEX_DIM])?;
        Ok((q, self.weights.shaped([queries, self.heads])?))
    }

    /// The best keys of each request, behind `offset` others of a list of `width`.
    pub(super) fn select(
        &self,
        to: &mut Taker<'_, '_>,
        (requests, status): (Range<usize>, ViewMut<'_, u32, 1>),
        (lists, width, offset): (ViewMut<'_, i32, 1>, usize, usize),
    ) -> Result<()> {
        let n = requests.len();
        let row = |r: usize| {
            let (keys, start_pos) = (self.keys_of(r)?, self.start_pos());
            Ok(SelectKeysRow { query: r, start_pos, keys, offset: offset as i32, out: r * width + offset })
        };
        let rows = requests.map(row).collect::<Result<Vec<_>>>()?;
        let (q, weights) = self.queries()?;
        to.select_keys(SelectKeys {
            q,
            weights,
            ratio: KEY_RATIO,
            method: self.method,
            k: K,
            rows: &rows,
            out: lists,
            status: Some(status.slice(0..n)),
        })
    }
}

/// Scores of all keys.
pub(super) struct Scores {
    indexer: Indexer,
    out: Buffer<f32>,
}

impl Scores {
    pub(super) fn load(maker: &mut Maker<'_>, heads: usize, keys: usize) -> Result<Scores> {
        let out = maker.device.zeros(maker.requests * keys)?;
        Ok(Scores { indexer: Indexer::load(maker, heads, keys)?, out })
    }
}

impl Requests for Scores {
    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, status): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        let (indexer, n) = (&self.indexer, requests.len());
        let row = |r: usize| {
            let (keys, start_pos) = (indexer.keys_of(r)?, indexer.start_pos());
            Ok(IndexScoresRow { query: r, start_pos, keys, out: r * indexer.keys })
        };
        let rows = requests.map(row).collect::<Result<Vec<_>>>()?;
        let (q, weights) = indexer.queries()?;
        to.index_scores(IndexScores {
            q,
            weights,
            ratio: KEY_RATIO,
            method: indexer.method,
            rows: &rows,
            out: self.out.view_mut(),
            status: Some(status.slice(0..n)),
        })
    }
}

/// The best keys alone.
pub(super) struct Selection {
    indexer: Indexer,
    out: Buffer<i32>,
}

impl Selection {
    pub(super) fn load(maker: &mut Maker<'_>, heads: usize, keys: usize) -> Result<Selection> {
        let out = maker.device.zeros(maker.requests * K)?;
        Ok(Selection { indexer: Indexer::load(maker, heads, keys)?, out })
    }
}

impl Requests for Selection {
    fn make(&mut self, to: &mut Taker<'_, '_>, which: (Range<usize>, ViewMut<'_, u32, 1>)) -> Result<()> {
        self.indexer.select(to, which, (self.out.view_mut(), K, 0))
    }
}
