//! Views whose element type is a value: for operations that take any.

use crate::dtype::{DType, Element};
use crate::view::{DeviceId, View, ViewMut};
use std::ops::Range;

/// A view whose element type is a value: for operations that take any.
#[derive(Debug, Clone, Copy)]
pub struct AnyView<'a, const N: usize> {
    bytes: View<'a, u8, 1>,
    shape: [usize; N],
    dtype: DType,
}

/// A [`ViewMut`] whose element type is a value.
#[derive(Debug)]
pub struct AnyViewMut<'a, const N: usize> {
    bytes: ViewMut<'a, u8, 1>,
    shape: [usize; N],
    dtype: DType,
}

impl<'a, T: Element, const N: usize> From<View<'a, T, N>> for AnyView<'a, N> {
    fn from(view: View<'a, T, N>) -> Self {
        AnyView { shape: view.shape(), dtype: T::DTYPE, bytes: view.into_bytes() }
    }
}
impl<'a, T: Element, const N: usize> From<ViewMut<'a, T, N>> for AnyViewMut<'a, N> {
    fn from(view: ViewMut<'a, T, N>) -> Self {
        AnyViewMut { shape: view.shape(), dtype: T::DTYPE, bytes: view.into_bytes() }
    }
}

macro_rules! common_any {
    ($any:ident, $view:ident) => {
        impl<'a, const N: usize> $any<'a, N> {
            /// Elements along each dimension.
            pub fn shape(&self) -> [usize; N] {
                self.shape
            }
            /// The element type.
            pub fn dtype(&self) -> DType {
                self.dtype
            }
            /// The device whose memory this is.
            pub fn device(&self) -> DeviceId {
                self.bytes.device()
            }
            /// Address of the first byte, on the view's device.
            pub fn as_ptr(&self) -> *const u8 {
                self.bytes.as_ptr()
            }
            pub(crate) fn span(&self) -> Range<usize> {
                self.bytes.span()
            }
        }
    };
}
common_any!(AnyView, View);
common_any!(AnyViewMut, ViewMut);

impl<const N: usize> AnyViewMut<'_, N> {
    /// Address of the first byte, on the view's device.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}
