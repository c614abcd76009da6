//! Inputs: small, deterministic, the same on every machine.

use abreast::bf16;

/// A stream of random numbers (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1 to 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn f32s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform()).collect()
    }

    pub(super) fn bf16s(&mut self, n: usize) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.uniform())).collect()
    }

    /// `n` different numbers below `limit`, in random order.
    pub(super) fn distinct(&mut self, n: usize, limit: usize) -> Vec<i32> {
        let mut all: Vec<i32> = (0..limit as i32).collect();
        for i in 0..n {
            all.swap(i, i + (self.next() % (limit - i) as u64) as usize);
        }
        all.truncate(n);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_range_and_repeat() {
        let values = Random::new(1).f32s(10_000);
        assert!(values.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = values.iter().sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.03, "{mean}");
        assert_eq!(values, Random::new(1).f32s(10_000));
        assert_ne!(values, Random::new(2).f32s(10_000));
    }

    #[test]
    fn distinct_numbers_are_distinct() {
        let mut picked = Random::new(3).distinct(640, 2560);
        assert!(picked.iter().all(|i| (0..2560).contains(i)));
        picked.sort_unstable();
        picked.dedup();
        assert_eq!(picked.len(), 640);
    }
}
