//! NEON.

use super::lanes::{Lanes, lanes};
use half::bf16;
use std::arch::aarch64::*;

lanes!(Neon(float32x4_t), 4;
    splat = vdupq_n_f32, load = vld1q_f32, store = vst1q_f32, widen = widen, narrow = narrow,
    add = vaddq_f32, sub = vsubq_f32, mul = vmulq_f32, div = vdivq_f32,
    abs = vabsq_f32, mul_add = mul_add, select_ge = select_ge, gt_mask = gt_mask,
    low_half = low_half,
    high_half = high_half, add_exponent = add_exponent, zip = zip,
);

/// Functions of several instructions.
macro_rules! functions {
    ($(fn $name:ident($($arg:pat => $t:ty),*) $(-> $out:ty)? $body:block)*) => { $(
        #[inline(always)]
        unsafe fn $name($($arg: $t),*) $(-> $out)? {
            // SAFETY: every aarch64 processor that this builds for has NEON; the caller promises the pointers.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )* };
}

functions! {
    fn widen(from => *const u16) -> float32x4_t {
        vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from)))
    }
    fn narrow(to => *mut u16, x => float32x4_t) {
        let bits = vreinterpretq_u32_f32(x);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        vst1_u16(to, vshrn_n_u32::<16>(rounded))
    }
    fn mul_add(a => float32x4_t, b => float32x4_t, c => float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }
    fn select_ge([x, bound, yes, no] => [float32x4_t; 4]) -> float32x4_t {
        vbslq_f32(vcgeq_f32(x, bound), yes, no)
    }
    fn gt_mask(x => float32x4_t, bound => float32x4_t) -> u32 {
        let bits = [1u32, 2, 4, 8];
        vaddvq_u32(vandq_u32(vcgtq_f32(x, bound), vld1q_u32(bits.as_ptr())))
    }
    fn low_half(x => float32x4_t) -> float32x4_t {
        vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_f32(x)))
    }
    fn high_half(x => float32x4_t) -> float32x4_t {
        vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff_0000)))
    }
    fn add_exponent(x => float32x4_t, t => float32x4_t) -> float32x4_t {
        let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(t));
        vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(x), shifted))
    }
    fn zip(a => float32x4_t, b => float32x4_t) -> (float32x4_t, float32x4_t) {
        (vzip1q_f32(a, b), vzip2q_f32(a, b))
    }
}
