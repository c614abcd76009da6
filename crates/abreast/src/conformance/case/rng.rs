//! A small generator of our own (splitmix64): the same data from the same seed for ever.

use half::bf16;

/// A stream of numbers that its seed decides.
#[derive(Debug, Clone)]
pub struct Rng(u64);

/// Float bit patterns (of f32; the upper half is bf16's) that break careless kernels.
const HOSTILE: [u32; 12] = [
    0x7fc0_0000, // NaN
    0xffc0_0000, // NaN with the sign set
    0x7f81_0000, // a signalling NaN
    0xffff_0000, // NaN, all payload bits of a bf16
    0x7f80_0000, // inf
    0xff80_0000, // -inf
    0x7f7f_0000, // the largest bf16
    0xff7f_0000, // the smallest bf16
    0x0001_0000, // subnormal
    0x8001_0000, // subnormal, negative
    0x8000_0000, // -0
    0x0000_0000, // 0
];

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6a09_e667_f3bc_c909)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 where `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.bits() as u128 * n as u128) >> 64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `options`.
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }

    /// Uniform with mean 0 and variance 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() as i32) as f32 * (3f32.sqrt() / (1u32 << 31) as f32)
    }

    /// `len` values of mean 0 and this standard deviation.
    pub fn f32s(&mut self, len: usize, deviation: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * deviation).collect()
    }

    /// `len` values of mean 0 and this standard deviation, four from one draw.
    pub fn bf16s(&mut self, len: usize, deviation: f32) -> Vec<bf16> {
        let unit = 3f32.sqrt() / (1u32 << 15) as f32 * deviation;
        let mut values = Vec::with_capacity(len + 3);
        while values.len() < len {
            let bits = self.bits();
            values.extend((0..4).map(|i| bf16::from_f32((bits >> (16 * i)) as i16 as f32 * unit)));
        }
        values.truncate(len);
        values
    }

    /// The numbers below `n` in a random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// NaN of both signs, infinities, the largest values, subnormals, both zeros.
    pub fn hostile_f32(&mut self) -> f32 {
        // The lower half: also NaNs with a long payload, and the very largest and smallest of f32.
        let low = self.pick(&[0, 1, 0xffff]);
        let bits = self.pick(&HOSTILE);
        f32::from_bits(if bits & 0x7fff_ffff == 0x7f80_0000 { bits } else { bits | low })
    }

    /// As [`hostile_f32`](Rng::hostile_f32).
    pub fn hostile_bf16(&mut self) -> bf16 {
        bf16::from_bits((self.pick(&HOSTILE) >> 16) as u16)
    }

    /// Makes about one in `one_in` values hostile.
    pub fn spoil_f32(&mut self, values: &mut [f32], one_in: usize) {
        for value in values {
            if self.one_in(one_in) {
                *value = self.hostile_f32();
            }
        }
    }

    /// Makes about one in `one_in` values hostile.
    pub fn spoil_bf16(&mut self, values: &mut [bf16], one_in: usize) {
        for value in values {
            if self.one_in(one_in) {
                *value = self.hostile_bf16();
            }
        }
    }

    /// An index that a cache of `len` rows does not have.
    pub fn hostile_index(&mut self, len: usize) -> i32 {
        let len = len as i32;
        self.pick(&[-2, -3, i32::MIN, i32::MIN + 1, i32::MAX, i32::MAX - 1, len, len + 1, 0x4000_0000])
    }
}
