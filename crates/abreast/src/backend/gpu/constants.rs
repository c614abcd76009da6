//! The numbers of `dims` for a kernel language.

use crate::dims::{self, exp, status};

/// `#define` lines; `bits` says how the language writes a float by its bits.
pub(in crate::backend) fn defines(bits: impl Fn(u32) -> String) -> String {
    let mut text = String::new();
    let mut define = |name: &str, value: String| text.push_str(&format!("#define {name} {value}\n"));
    let sizes = [
        ("PARTIALS", dims::PARTIALS),
        ("HEAD_DIM", dims::HEAD_DIM),
        ("MAX_HEADS", dims::MAX_HEADS),
        ("INDEX_DIM", dims::INDEX_DIM),
    ];
    sizes.into_iter().for_each(|(name, size)| define(name, size.to_string()));
    define("NO_INDEX", format!("({})", dims::NO_INDEX));
    let floats = [
        ("F32_MAX", f32::MAX),
        ("F32_INF", f32::INFINITY),
        ("F32_NAN", f32::NAN),
        ("EXP_LOG2_E", exp::LOG2_E),
        ("EXP_ROUND", exp::ROUND),
        ("EXP_LN2_HIGH", exp::LN2_HIGH),
        ("EXP_LN2_LOW", exp::LN2_LOW),
        ("EXP_LOWEST", exp::LOWEST),
    ];
    floats.into_iter().for_each(|(name, x)| define(name, bits(x.to_bits())));
    for (n, c) in exp::COEFFICIENTS.iter().enumerate() {
        define(&format!("EXP_C{n}"), bits(c.to_bits()));
    }
    for (bit, name) in status::ALL {
        define(name, format!("{bit}u"));
    }
    text
}
