//! The exponential and the reduction tree of the reference order: the same bits from all lanes.

use super::lanes::Lanes;
use crate::dims::{PARTIALS, exp as e};

/// `exp(x)` for `x <= 0`, as [`crate::dims::exp`] says; 0 for NaN.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: L) -> L {
    let t = x.mul_add(L::splat(e::LOG2_E), L::splat(e::ROUND));
    let n = t.sub(L::splat(e::ROUND));
    let r = n.mul_add(L::splat(-e::LN2_HIGH), x);
    let r = n.mul_add(L::splat(-e::LN2_LOW), r);
    let mut p = L::splat(e::COEFFICIENTS[0]);
    for c in &e::COEFFICIENTS[1..] {
        p = p.mul_add(r, L::splat(*c));
    }
    x.select_ge(L::splat(e::LOWEST), p.add_exponent(t), L::splat(0.0))
}

/// Adds up partial sums: `p[l] += p[l + s]` for s = 16, 8, 4, 2, 1.
pub(super) fn tree(mut p: [f32; PARTIALS]) -> f32 {
    let mut s = PARTIALS / 2;
    while s > 0 {
        for l in 0..s {
            p[l] += p[l + s];
        }
        s /= 2;
    }
    p[0]
}

#[cfg(test)]
mod tests {
    use super::exp;
    use crate::dims::exp::LOWEST;

    fn ulps_off(x: f32) -> f64 {
        let want = (x as f64).exp();
        let ulp = (2f64).powi(want.log2().floor() as i32 - 23);
        (exp::<f32>(x) as f64 - want).abs() / ulp
    }

    #[test]
    fn exp_is_within_one_ulp() {
        // Every 251st of the 1.1 billion values; all of them with `--ignored`.
        assert!((0x8000_0000..LOWEST.to_bits()).step_by(251).all(|u| ulps_off(f32::from_bits(u)) < 1.0));
    }

    #[test]
    #[ignore = "all 1.1 billion values: minutes"]
    fn exp_is_within_one_ulp_everywhere() {
        assert!((0x8000_0000..=LOWEST.to_bits()).all(|u| ulps_off(f32::from_bits(u)) < 1.0));
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp::<f32>(0.0), 1.0);
        assert_eq!(exp::<f32>(-0.0), 1.0);
        assert!(exp::<f32>(LOWEST) >= f32::MIN_POSITIVE);
        for x in [f32::from_bits(LOWEST.to_bits() + 1), -1000.0, f32::MIN, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(exp::<f32>(x).to_bits(), 0, "exp({x})");
        }
    }
}
