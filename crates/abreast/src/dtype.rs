//! Element types, as Rust types and as values.

use half::{bf16, f16};
use std::fmt;

/// The element types that views hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    Bf16,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::Bf16 | DType::F16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        })
    }
}

/// A Rust type that a view can hold: plain bits, any pattern valid. Those of [`DType`], and no others: copies rely on the
/// size that the name says.
///
/// ```compile_fail
/// impl abreast::Element for bool {
///     const DTYPE: abreast::DType = abreast::DType::F64;
/// }
/// ```
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// Its name among element types.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty = $d:ident),*) => { $(impl sealed::Sealed for $t {} impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements!(
    bf16 = Bf16,
    f16 = F16,
    f32 = F32,
    f64 = F64,
    i8 = I8,
    i16 = I16,
    i32 = I32,
    i64 = I64,
    u8 = U8,
    u16 = U16,
    u32 = U32,
    u64 = U64
);
