//! Sparse attention: queries, caches, index lists.

use super::{Maker, Requests, Taker};
use abreast::dims::HEAD_DIM;
use abreast::{AttentionRow, Buffer, Method, Result, SparseAttention, ViewMut, bf16};
use std::ops::Range;

/// The most memory for caches. Where it holds fewer than there are requests, these share them: a selection is a small part of one.
const MOST_CACHES: usize = 6 << 30;

pub(super) struct Attention {
    method: Method,
    heads: usize,
    /// Elements of a cache, and how many there are.
    cache: usize,
    caches: usize,
    width: usize,
    q: Buffer<bf16>,
    kv: Buffer<bf16>,
    pub(super) lists: Buffer<i32>,
    sinks: Buffer<f32>,
    out: Buffer<bf16>,
}

impl Attention {
    pub(super) fn load(
        maker: &mut Maker<'_>,
        (heads, kv_len): (usize, usize),
        width: usize,
    ) -> Result<Attention> {
        let lists = maker.lists(width, kv_len)?;
        Attention::with_lists(maker, (heads, kv_len), (lists, width))
    }

    pub(super) fn with_lists(
        maker: &mut Maker<'_>,
        (heads, kv_len): (usize, usize),
        (lists, width): (Buffer<i32>, usize),
    ) -> Result<Attention> {
        let (requests, cache) = (maker.requests, kv_len * HEAD_DIM);
        let caches = (MOST_CACHES / (cache * size_of::<bf16>())).clamp(1, requests);
        Ok(Attention {
            method: maker.method,
            heads,
            cache,
            caches,
            width,
            q: maker.bf16s((requests, heads * HEAD_DIM), 1.0)?,
            kv: maker.bf16s((caches, cache), 1.0)?,
            lists,
            sinks: maker.f32s((1, heads), 1.5)?,
            out: maker.device.zeros(requests * heads * HEAD_DIM)?,
        })
    }
}

impl Requests for Attention {
    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, status): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        let (n, width, cache) = (requests.len(), self.width, self.cache);
        let (kv, lists) = (self.kv.view(), self.lists.view());
        let row = |r: usize| {
            let at = r % self.caches * cache;
            let kv = kv.slice(at..at + cache).reshape([cache / HEAD_DIM, HEAD_DIM])?;
            Ok(AttentionRow { query: r, out: r, kv, indices: lists.slice(r * width..(r + 1) * width) })
        };
        let rows = requests.map(row).collect::<Result<Vec<_>>>()?;
        let shape = [self.q.len() / (self.heads * HEAD_DIM), self.heads, HEAD_DIM];
        to.sparse_attention(SparseAttention {
            q: self.q.shaped(shape)?,
            sinks: Some(self.sinks.view()),
            scale: (HEAD_DIM as f32).sqrt().recip(),
            method: self.method,
            rows: &rows,
            out: self.out.shaped_mut(shape)?,
            status: Some(status.slice(0..n)),
        })
    }
}
