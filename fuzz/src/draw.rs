//! Arguments from the fuzzer's bytes: mostly right ones, so that calls get past the contract.

use abreast::bf16;
use arbitrary::{Result, Unstructured};

/// Shapes come from the fuzzer's bytes, contents from a seed among them: a cache would eat all bytes.
pub struct Draw<'b> {
    bytes: Unstructured<'b>,
    contents: fastrand::Rng,
    /// One element in so many is hostile; 0 for none.
    hostile: usize,
}

/// A row size that no memory has; a view of no rows may have it.
pub const HUGE: usize = usize::MAX - 31;

impl<'b> Draw<'b> {
    /// Takes the seed and the share of hostile contents.
    pub fn new(bytes: &'b [u8]) -> Result<Draw<'b>> {
        let mut bytes = Unstructured::new(bytes);
        let seed = bytes.arbitrary()?;
        let hostile = *bytes.choose(&[0, 0, 1000, 50, 3])?;
        Ok(Draw { bytes, contents: fastrand::Rng::with_seed(seed), hostile })
    }

    /// One of `these`.
    pub fn pick<T: Copy>(&mut self, these: &[T]) -> Result<T> {
        self.bytes.choose(these).copied()
    }

    /// 0 to `most`.
    pub fn upto(&mut self, most: usize) -> Result<usize> {
        self.bytes.int_in_range(0..=most)
    }

    /// Below `n`; 0 where nothing is.
    pub fn below(&mut self, n: usize) -> Result<usize> {
        self.upto(n.saturating_sub(1))
    }

    /// A coin, false once the bytes have run out.
    pub fn flag(&mut self) -> Result<bool> {
        Ok(!self.bytes.ratio(1u8, 2u8)?)
    }

    /// `right`, or seldom another number that is close to it, small, or absurd.
    pub fn mostly(&mut self, right: usize) -> Result<usize> {
        if self.bytes.ratio(61u8, 64u8)? {
            return Ok(right);
        }
        self.pick(&[right.wrapping_sub(1), right.wrapping_add(1), 0, 1, usize::MAX, 1 << 32])
    }

    /// As [`Self::mostly`] for a length that will be allocated.
    pub fn length(&mut self, right: usize) -> Result<usize> {
        Ok(self.mostly(right)?.min(right + 1))
    }

    /// As [`Self::length`], for a number of rows of `row` elements; none where such a row is too large to be had. A view
    /// of no rows may have any row size.
    pub fn rows(&mut self, right: usize, row: Option<usize>) -> Result<usize> {
        let length = self.length(right)?;
        Ok(if row.is_some_and(|n| n < 1 << 20) { length } else { 0 })
    }

    /// Any 32 bits, mostly small.
    pub fn position(&mut self, small: u32) -> Result<u32> {
        if self.bytes.ratio(15u8, 16u8)? {
            return self.bytes.int_in_range(0..=small);
        }
        self.pick(&[u32::MAX, u32::MAX - 1, u32::MAX - 5, i32::MAX as u32, 1 << 31])
    }

    fn is_hostile(&mut self) -> bool {
        self.hostile > 0 && self.contents.usize(..self.hostile) == 0
    }

    fn number(&mut self) -> f32 {
        const HOSTILE: [f32; 9] = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            1e-41,
            -0.0,
            0.0,
        ];
        if self.is_hostile() {
            let bits = self.contents.u32(..);
            return self.contents.choice(HOSTILE).filter(|_| bits & 1 == 0).unwrap_or(f32::from_bits(bits));
        }
        self.contents.f32() * 8.0 - 4.0
    }

    /// `n` numbers.
    pub fn f32s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }

    /// `n` numbers.
    pub fn bf16s(&mut self, n: usize) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.number())).collect()
    }

    /// `n` indices into a cache of `len` rows, some of them skipped.
    pub fn indices(&mut self, n: usize, len: usize) -> Vec<i32> {
        let index = |draw: &mut Self| {
            if draw.is_hostile() {
                let len = len as i32;
                return draw.contents.choice([-2, len, len + 1, i32::MIN, i32::MAX]).unwrap_or(-2);
            }
            draw.contents.i32(-1..len as i32)
        };
        (0..n).map(|_| index(self)).collect()
    }
}
