//! AVX2 with FMA, and AVX-512 F.

use super::lanes::{Lanes, lanes};
use half::bf16;
use std::arch::x86_64::*;

lanes!(Avx2(__m256), 8;
    splat = _mm256_set1_ps, load = _mm256_loadu_ps, store = _mm256_storeu_ps, widen = avx2::widen, narrow = avx2::narrow,
    add = _mm256_add_ps, sub = _mm256_sub_ps, mul = _mm256_mul_ps, div = _mm256_div_ps,
    abs = avx2::abs, mul_add = _mm256_fmadd_ps, select_ge = avx2::select_ge, gt_mask = avx2::gt_mask,
    low_half = avx2::low_half,
    high_half = avx2::high_half, add_exponent = avx2::add_exponent, zip = avx2::zip,
);

lanes!(Avx512(__m512), 16;
    splat = _mm512_set1_ps, load = _mm512_loadu_ps, store = _mm512_storeu_ps, widen = avx512::widen, narrow = avx512::narrow,
    add = _mm512_add_ps, sub = _mm512_sub_ps, mul = _mm512_mul_ps, div = _mm512_div_ps,
    abs = _mm512_abs_ps, mul_add = _mm512_fmadd_ps, select_ge = avx512::select_ge, gt_mask = avx512::gt_mask,
    low_half = avx512::low_half,
    high_half = avx512::high_half, add_exponent = avx512::add_exponent, zip = avx512::zip,
);

/// Functions of several instructions. Each is inlined where its set is enabled; a processor without it is never there.
macro_rules! functions {
    ($(fn $name:ident($($arg:pat => $t:ty),*) $(-> $out:ty)? $body:block)*) => { $(
        #[inline(always)]
        pub(super) unsafe fn $name($($arg: $t),*) $(-> $out)? {
            // SAFETY: the caller promises the processor's instructions and the pointers, see `Lanes`.
            unsafe { $body }
        }
    )* };
}

mod avx2 {
    use super::*;

    functions! {
        fn widen(from => *const __m128i) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from))))
        }
        fn narrow(to => *mut __m128i, x => __m256) {
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let high = _mm256_srli_epi32::<16>(rounded);
            let halves = (_mm256_castsi256_si128(high), _mm256_extracti128_si256::<1>(high));
            _mm_storeu_si128(to, _mm_packus_epi32(halves.0, halves.1))
        }
        fn abs(x => __m256) -> __m256 {
            _mm256_andnot_ps(_mm256_set1_ps(-0.0), x)
        }
        fn select_ge([x, bound, yes, no] => [__m256; 4]) -> __m256 {
            _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GE_OQ>(x, bound))
        }
        fn gt_mask(x => __m256, bound => __m256) -> u32 {
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x, bound)) as u32
        }
        fn low_half(x => __m256) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(x)))
        }
        fn high_half(x => __m256) -> __m256 {
            _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32)))
        }
        fn add_exponent(x => __m256, t => __m256) -> __m256 {
            let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(t));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shifted))
        }
        fn zip(a => __m256, b => __m256) -> (__m256, __m256) {
            // Within each half first; then the halves find their place.
            let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        }
    }
}

mod avx512 {
    use super::*;

    functions! {
        fn widen(from => *const __m256i) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from))))
        }
        fn narrow(to => *mut __m256i, x => __m512) {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded)))
        }
        fn select_ge([x, bound, yes, no] => [__m512; 4]) -> __m512 {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, bound), no, yes)
        }
        fn gt_mask(x => __m512, bound => __m512) -> u32 {
            _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, bound) as u32
        }
        fn low_half(x => __m512) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(x)))
        }
        fn high_half(x => __m512) -> __m512 {
            let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), mask))
        }
        fn add_exponent(x => __m512, t => __m512) -> __m512 {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(t));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shifted))
        }
        fn zip(a => __m512, b => __m512) -> (__m512, __m512) {
            let first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(a, first, b), _mm512_permutex2var_ps(a, second, b))
        }
    }
}
