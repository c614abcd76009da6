//! Random data for any number of requests. A host draws slowly: of large buffers it draws a part, and the device copies that.

use abreast::conformance::case::Rng;
use abreast::{Buffer, Device, Element, GatherRow, GatherRows, Method, Result, bf16};

/// Elements that the device copies at a time, and how many of these pieces are drawn: as many as a request has, so that none of its keys
/// or scores stands in it twice, but no fewer and no more than these.
const PIECE: usize = 1 << 16;
const FEWEST_PIECES: usize = 61;
const MOST_PIECES: usize = 521;
const SEED: u64 = 1;

pub(super) struct Maker<'a> {
    pub(super) device: &'a Device,
    pub(super) method: Method,
    pub(super) requests: usize,
    rng: Rng,
}

impl<'a> Maker<'a> {
    pub(super) fn new(device: &'a Device, method: Method, requests: usize) -> Maker<'a> {
        Maker { device, method, requests, rng: Rng::new(SEED) }
    }

    /// So many times so many values of mean 0 and this standard deviation.
    pub(super) fn bf16s(&mut self, (times, each): (usize, usize), deviation: f32) -> Result<Buffer<bf16>> {
        let drawn = self.rng.bf16s(drawn(times, each), deviation);
        self.spread(&drawn, times * each)
    }

    /// The same in f32.
    pub(super) fn f32s(&mut self, (times, each): (usize, usize), deviation: f32) -> Result<Buffer<f32>> {
        let drawn = self.rng.f32s(drawn(times, each), deviation);
        self.spread(&drawn, times * each)
    }

    /// For each request `width` distinct slots of `len`, in a random order.
    pub(super) fn lists(&mut self, width: usize, len: usize) -> Result<Buffer<i32>> {
        let list = |_| self.rng.permutation(len).into_iter().take(width).map(|slot| slot as i32);
        let lists: Vec<i32> = (0..self.requests).flat_map(list).collect();
        self.device.upload(&lists)
    }

    /// So many elements: what is handed in, as often as there is room.
    pub(super) fn spread<T: Element>(&self, drawn: &[T], len: usize) -> Result<Buffer<T>> {
        if drawn.len() >= len {
            return self.device.upload(&drawn[..len]);
        }
        let pool = self.device.upload(drawn)?;
        let piece = PIECE.min(drawn.len());
        let mut all = self.device.zeros(len)?;
        let (pieces, whole, rest) = (drawn.len() / piece, len / piece, len % piece);
        let source = |i: usize, len: usize| {
            let start = i % pieces * piece;
            GatherRow { source: pool.view().slice(start..start + len).into() }
        };
        let (filled, tail) = all.view_mut().split_at(whole * piece);
        let rows: Vec<_> = (0..whole).map(|i| source(i, piece)).collect();
        self.device.gather_rows(GatherRows { rows: &rows, out: filled.reshape([whole, piece])?.into() })?;
        let rows = [source(whole, rest)];
        self.device.gather_rows(GatherRows { rows: &rows, out: tail.reshape([1, rest])?.into() })?;
        Ok(all)
    }
}

/// How many elements the host draws.
fn drawn(times: usize, each: usize) -> usize {
    (times * each).min(each.div_ceil(PIECE).clamp(FEWEST_PIECES, MOST_PIECES) * PIECE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces in turn, and what is left of one.
    #[test]
    fn a_buffer_is_filled_to_its_end() {
        let device = Device::cpu().unwrap();
        let maker = Maker::new(&device, Method::Fast, 1);
        assert_eq!(maker.spread(&[1, 2, 3], 8).unwrap().read().unwrap(), [1, 2, 3, 1, 2, 3, 1, 2]);
        let drawn: Vec<i32> = (0..2 * PIECE as i32).collect();
        let all = maker.spread(&drawn, 2 * PIECE + 5).unwrap().read().unwrap();
        assert!(all.iter().zip(drawn.iter().cycle()).all(|(a, b)| a == b));
        assert_eq!(maker.spread(&drawn, 5).unwrap().read().unwrap(), [0, 1, 2, 3, 4]);
    }
}
