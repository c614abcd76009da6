//! Selection from scores that lie one way or another.

use super::{Maker, Requests, Taker};
use crate::bench::cases::{K, Spread};
use abreast::{Buffer, Result, TopK, TopKRow, ViewMut};
use std::ops::Range;

pub(super) struct Selections {
    n: usize,
    scores: Buffer<f32>,
    out: Buffer<i32>,
}

impl Selections {
    pub(super) fn load(maker: &mut Maker<'_>, n: usize, spread: Spread) -> Result<Selections> {
        let len = maker.requests * n;
        let alike = |score: &dyn Fn(usize) -> f32| (0..n).map(score).collect::<Vec<f32>>();
        let scores = match spread {
            Spread::Random => maker.f32s((maker.requests, n), 1.0)?,
            Spread::Equal => maker.spread(&alike(&|_| 1.0), len)?,
            Spread::Ascending => maker.spread(&alike(&|i| i as f32), len)?,
            Spread::Five => {
                let row = maker.f32s((1, n), 1.0)?.read()?;
                maker.spread(&alike(&|i| row[i].round().clamp(-2.0, 2.0)), len)?
            }
            Spread::Border => {
                let apart = (n / (K / 2)).max(1);
                maker.spread(&alike(&|i| if i % apart == 0 { i as f32 } else { -1.0 }), len)?
            }
        };
        Ok(Selections { n, scores, out: maker.device.zeros(maker.requests * K)? })
    }
}

impl Requests for Selections {
    fn make(
        &mut self,
        to: &mut Taker<'_, '_>,
        (requests, status): (Range<usize>, ViewMut<'_, u32, 1>),
    ) -> Result<()> {
        let (calls, n) = (requests.len(), self.n);
        let scores = self.scores.view();
        let row = |r: usize| TopKRow { scores: scores.slice(r * n..(r + 1) * n), offset: 0, out: r * K };
        let rows: Vec<_> = requests.map(row).collect();
        to.top_k(TopK { k: K, rows: &rows, out: self.out.view_mut(), status: Some(status.slice(0..calls)) })
    }
}
