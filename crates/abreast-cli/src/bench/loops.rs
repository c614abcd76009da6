//! The loops that measure the machine: chains of fused multiply-adds, sums and copies over memory.
//!
//! Intrinsics rather than arrays that the compiler may or may not turn into vectors: on AVX-512 it does not.

use abreast::Isa;
use std::hint::black_box;

/// Floating-point operations of one step of [`fma`]: lanes, chains, and two for multiply and add.
pub(super) fn flops_per_step(isa: Isa) -> f64 {
    let (lanes, chains) = match isa {
        Isa::Avx512 => (16, X86_CHAINS),
        Isa::Avx2 => (8, X86_CHAINS),
        Isa::Neon => (4, ARM_CHAINS),
        _ => (1, ARM_CHAINS),
    };
    2.0 * (lanes * chains) as f64
}

/// Independent chains, enough to fill the units: x86 has 2 with a latency of 4 or 5, and 16 registers on AVX2.
const X86_CHAINS: usize = 12;
/// Up to 4 units with a latency of 4, and 32 registers.
const ARM_CHAINS: usize = 16;

/// `steps` steps of fused multiply-adds that do not wait for each other. They sum up one product in place, so that
/// no step needs a move.
pub(super) fn fma(isa: Isa, steps: usize) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just checked.
        Isa::Avx512 if isa.is_available() => unsafe { x86::fma_512(steps) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just checked.
        Isa::Avx2 if isa.is_available() => unsafe { x86::fma_256(steps) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => arm::fma(steps),
        _ => {
            let (a, b) = (black_box(A), black_box(B));
            black_box(chains::<f32, ARM_CHAINS>(steps, 1.0, |v| a.mul_add(b, v)));
        }
    }
}

const A: f32 = 0.999;
const B: f32 = 0.001;

#[inline(always)]
fn chains<V: Copy, const N: usize>(steps: usize, one: V, fma: impl Fn(V) -> V) -> [V; N] {
    let mut chains = [one; N];
    for _ in 0..steps {
        for v in &mut chains {
            *v = fma(*v);
        }
    }
    chains
}

/// A cache line, where cache lines begin: a load that crosses two takes twice as long.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u64; 8]);

impl Line {
    pub(super) const ONES: Line = Line([1; 8]);
}

/// Reads all of `data`.
pub(super) fn read(data: &[Line]) {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx2.is_available() {
        // SAFETY: just checked.
        return unsafe { x86::read(data) };
    }
    black_box(sum(data));
}

#[inline(always)]
fn sum(data: &[Line]) -> [Line; 4] {
    let mut sums = [Line::ONES; 4];
    for lines in data.chunks_exact(4) {
        for (sum, line) in sums.iter_mut().zip(lines) {
            for (s, x) in sum.0.iter_mut().zip(line.0) {
                *s = s.wrapping_add(x);
            }
        }
    }
    sums
}

/// Copies the first half of `data` over the second.
pub(super) fn copy(data: &mut [Line]) {
    let (from, to) = data.split_at_mut(data.len() / 2);
    black_box(&mut to[..from.len()]).copy_from_slice(black_box(from));
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{A, B, Line, X86_CHAINS, black_box, chains, sum};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn fma_512(steps: usize) {
        let (a, b) = (_mm512_set1_ps(black_box(A)), _mm512_set1_ps(black_box(B)));
        let one = _mm512_set1_ps(1.0);
        black_box(chains::<_, X86_CHAINS>(steps, one, |v| _mm512_fmadd_ps(a, b, v)));
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn fma_256(steps: usize) {
        let (a, b) = (_mm256_set1_ps(black_box(A)), _mm256_set1_ps(black_box(B)));
        let one = _mm256_set1_ps(1.0);
        black_box(chains::<_, X86_CHAINS>(steps, one, |v| _mm256_fmadd_ps(a, b, v)));
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn read(data: &[Line]) {
        black_box(sum(data));
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{A, ARM_CHAINS, B, black_box, chains};
    use std::arch::aarch64::*;

    #[allow(unused_unsafe)] // unsafe functions up to Rust 1.86
    pub(super) fn fma(steps: usize) {
        // SAFETY: every aarch64 processor has NEON.
        let [one, a, b] = [1.0, A, B].map(|x| unsafe { vdupq_n_f32(black_box(x)) });
        // SAFETY: as above.
        black_box(chains::<_, ARM_CHAINS>(steps, one, |v| unsafe { vfmaq_f32(v, a, b) }));
    }
}
