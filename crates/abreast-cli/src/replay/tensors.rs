//! Tensors by name, from any number of safetensors files, and the checked way from a case to one of them.

use super::format::Case;
use abreast::bf16;
use bytemuck::Pod;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::borrow::Cow;
use std::fmt;

/// The tensors of all files that one JSON file names.
#[derive(Debug, Default)]
pub struct Tensors<'a> {
    files: Vec<SafeTensors<'a>>,
}

impl<'a> Tensors<'a> {
    /// Adds one file's bytes. Only the header is looked at.
    pub fn add(&mut self, bytes: &'a [u8]) -> Result<(), String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
        let twice = file.names().into_iter().find(|name| self.find(name).is_some());
        if let Some(name) = twice {
            return Err(format!("tensor {name} must be in one file, is in two"));
        }
        self.files.push(file);
        Ok(())
    }

    fn find(&self, name: &str) -> Option<TensorView<'a>> {
        self.files.iter().find_map(|file| file.tensor(name).ok())
    }
}

/// An element type that tensors may have.
pub(super) trait Bits: Pod {
    const DTYPE: Dtype;
    /// The element with these bits, if they are not too many.
    fn from_raw(raw: u64) -> Option<Self>;
}

macro_rules! bits {
    ($($t:ty: $dtype:ident, $raw:ty;)*) => { $(impl Bits for $t {
        const DTYPE: Dtype = Dtype::$dtype;
        fn from_raw(raw: u64) -> Option<Self> {
            <$raw>::try_from(raw).ok().map(bytemuck::cast)
        }
    })* };
}
bits! { bf16: BF16, u16; f32: F32, u32; f64: F64, u64; i32: I32, u32; }

/// A case's tensor with its patches: checked, not yet copied.
#[derive(Debug)]
pub(super) struct Data<'a, T, const N: usize> {
    /// `None` stands for zeros.
    bytes: Option<&'a [u8]>,
    shape: [usize; N],
    patches: Vec<(usize, T)>,
}

impl<'a, T: Bits, const N: usize> Data<'a, T, N> {
    pub(super) fn shape(&self) -> [usize; N] {
        self.shape
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn size(&self) -> u64 {
        (self.len() * size_of::<T>()) as u64
    }

    /// The recording says `zeros`: exactly those, not something near.
    pub(super) fn is_zeros(&self) -> bool {
        self.bytes.is_none()
    }

    /// What two cases that share an unpatched tensor have in common.
    pub(super) fn address(&self) -> Option<*const u8> {
        self.bytes.filter(|_| self.patches.is_empty()).map(<[u8]>::as_ptr)
    }

    /// The elements; a copy where they are patched, misaligned in the file, or zeros.
    pub(super) fn load(&self) -> Cow<'a, [T]> {
        let Some(bytes) = self.bytes else { return vec![T::zeroed(); self.len()].into() };
        let mut data = match bytemuck::try_cast_slice(bytes) {
            Ok(data) => Cow::Borrowed(data),
            Err(_) => bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
        };
        if !self.patches.is_empty() {
            let data = data.to_mut();
            self.patches.iter().for_each(|&(i, value)| data[i] = value);
        }
        data
    }
}

/// One dimension as the format demands it.
#[derive(Clone, Copy)]
pub(super) enum Dim {
    Is(usize),
    AtLeast(usize),
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Is(n) => write!(f, "{n}"),
            Dim::AtLeast(n) => write!(f, ">= {n}"),
        }
    }
}

/// Looks up a case's tensors. Errors name the case, the input or output, the tensor, what it must be and what it is.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a, 't> {
    pub(super) case: &'a Case,
    pub(super) tensors: &'t Tensors<'a>,
}

impl<'a> Lookup<'a, '_> {
    pub(super) fn error(&self, what: &str, must: impl fmt::Display, got: impl fmt::Display) -> String {
        format!("case {}: {what} must be {must}, got {got}", self.case.id)
    }

    /// An input that has to be there.
    pub(super) fn input<T: Bits, const N: usize>(
        &self,
        name: &str,
        shape: [Dim; N],
    ) -> Result<Data<'a, T, N>, String> {
        let missing = || self.error(&format!("input {name}"), "there", "none");
        self.optional_input(name, shape)?.ok_or_else(missing)
    }

    pub(super) fn optional_input<T: Bits, const N: usize>(
        &self,
        name: &str,
        shape: [Dim; N],
    ) -> Result<Option<Data<'a, T, N>>, String> {
        let Some(tensor) = self.case.inputs.get(name) else { return Ok(None) };
        let mut data = self.tensor(&format!("input {name}"), tensor, shape)?;
        data.patches = self.patches(name, data.len())?;
        Ok(Some(data))
    }

    /// An output that has to be there.
    pub(super) fn output<T: Bits, const N: usize>(
        &self,
        name: &str,
        shape: [usize; N],
    ) -> Result<Data<'a, T, N>, String> {
        let missing = || self.error(&format!("output {name}"), "there", "none");
        self.optional_output(name, shape)?.ok_or_else(missing)
    }

    /// An output, where one was recorded; `zeros` are as many as the shape says.
    pub(super) fn optional_output<T: Bits, const N: usize>(
        &self,
        name: &str,
        shape: [usize; N],
    ) -> Result<Option<Data<'a, T, N>>, String> {
        let Some(tensor) = self.case.outputs.get(name) else { return Ok(None) };
        if tensor == "zeros" {
            return Ok(Some(Data { bytes: None, shape, patches: Vec::new() }));
        }
        self.tensor(&format!("output {name}"), tensor, shape.map(Dim::Is)).map(Some)
    }

    /// Patches must name inputs of the case.
    pub(super) fn check_patch_names(&self) -> Result<(), String> {
        let unknown = self.case.patches.keys().find(|name| !self.case.inputs.contains_key(*name));
        match unknown {
            Some(name) => Err(self.error("patches", "of inputs of the case", format_args!("{name}"))),
            None => Ok(()),
        }
    }

    fn tensor<T: Bits, const N: usize>(
        &self,
        what: &str,
        name: &str,
        shape: [Dim; N],
    ) -> Result<Data<'a, T, N>, String> {
        let what = format!("{what} (tensor {name})");
        let view = self.tensors.find(name);
        let view = view.ok_or_else(|| self.error(&what, "in the safetensors", "no such tensor"))?;
        let fits = |(got, want): (&usize, &Dim)| match *want {
            Dim::Is(n) => *got == n,
            Dim::AtLeast(n) => *got >= n,
        };
        match <[usize; N]>::try_from(view.shape()) {
            Ok(got) if view.dtype() == T::DTYPE && got.iter().zip(&shape).all(fits) => {
                Ok(Data { bytes: Some(view.data()), shape: got, patches: Vec::new() })
            }
            _ => {
                let must = format!("{} [{}]", T::DTYPE, shape.map(|dim| dim.to_string()).join(", "));
                Err(self.error(&what, must, format_args!("{} {:?}", view.dtype(), view.shape())))
            }
        }
    }

    fn patches<T: Bits>(&self, name: &str, len: usize) -> Result<Vec<(usize, T)>, String> {
        let what = format!("patches of {name}");
        let patch = |&(index, raw): &(u64, u64)| {
            let at = usize::try_from(index).ok().filter(|&at| at < len);
            let at = at.ok_or_else(|| self.error(&what, format_args!("at indices below {len}"), index))?;
            let must = format_args!("of {} bits", 8 * size_of::<T>()).to_string();
            Ok((at, T::from_raw(raw).ok_or_else(|| self.error(&what, must, raw))?))
        };
        self.case.patches.get(name).into_iter().flatten().map(patch).collect()
    }
}
