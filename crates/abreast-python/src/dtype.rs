//! Element types by their names in Python and in DLPack.

use abreast::DType;
use dlpark::ffi::{DLDataType, DLDataTypeCode};

const ALL: [(DType, &str, DLDataTypeCode); 12] = [
    (DType::Bf16, "bfloat16", DLDataTypeCode::BFLOAT),
    (DType::F16, "float16", DLDataTypeCode::FLOAT),
    (DType::F32, "float32", DLDataTypeCode::FLOAT),
    (DType::F64, "float64", DLDataTypeCode::FLOAT),
    (DType::I8, "int8", DLDataTypeCode::INT),
    (DType::I16, "int16", DLDataTypeCode::INT),
    (DType::I32, "int32", DLDataTypeCode::INT),
    (DType::I64, "int64", DLDataTypeCode::INT),
    (DType::U8, "uint8", DLDataTypeCode::UINT),
    (DType::U16, "uint16", DLDataTypeCode::UINT),
    (DType::U32, "uint32", DLDataTypeCode::UINT),
    (DType::U64, "uint64", DLDataTypeCode::UINT),
];

fn entry(dtype: DType) -> (DType, &'static str, DLDataTypeCode) {
    *ALL.iter().find(|(d, ..)| *d == dtype).expect("every element type is listed")
}

/// NumPy's and PyTorch's name.
pub(crate) fn name(dtype: DType) -> &'static str {
    entry(dtype).1
}

pub(crate) fn from_name(name: &str) -> Option<DType> {
    ALL.iter().find(|(_, n, _)| *n == name).map(|(d, ..)| *d)
}

/// NumPy's code of a type in this machine's byte order, such as "<f4".
pub(crate) fn from_numpy(code: &str) -> Option<DType> {
    let (order, kind) = code.split_at_checked(1)?;
    let (kind, size) = kind.split_at_checked(1)?;
    let size: usize = size.parse().ok()?;
    let native = if size == 1 {
        "|"
    } else if cfg!(target_endian = "little") {
        "<"
    } else {
        ">"
    };
    let code = match kind {
        "f" => DLDataTypeCode::FLOAT,
        "i" => DLDataTypeCode::INT,
        "u" => DLDataTypeCode::UINT,
        _ => return None,
    };
    let fits = |(d, _, c): &&(DType, &str, DLDataTypeCode)| *c == code && d.size() == size;
    ALL.iter().find(fits).map(|(d, ..)| *d).filter(|_| order == native)
}

pub(crate) fn to_dlpack(dtype: DType) -> DLDataType {
    DLDataType::scalar(entry(dtype).2, 8 * dtype.size() as u8)
}

pub(crate) fn from_dlpack(dtype: DLDataType) -> Option<DType> {
    ALL.iter().map(|(d, ..)| *d).find(|d| to_dlpack(*d).matches(dtype))
}

/// A type that we have no name for.
pub(crate) fn describe(dtype: DLDataType) -> String {
    match dtype.code {
        DLDataTypeCode::BOOL => "bool".into(),
        DLDataTypeCode::COMPLEX => format!("complex{}", dtype.bits),
        code => format!("DLPack type {} of {} bits x {}", code.0, dtype.bits, dtype.lanes),
    }
}
