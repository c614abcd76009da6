//! Typed, ranked, borrowed memory on one device.
//!
//! A view is contiguous and row-major. [`View`] reads and [`ViewMut`] writes, so the borrow checker is the
//! hazard list. `from_raw` is the door for foreign memory.

use crate::dtype::Element;
use crate::error::{Arg, Error, Result};
use std::{fmt, marker::PhantomData, ops::Range, ptr::NonNull};

/// Which kind of device holds memory or runs work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An Apple GPU.
    Metal,
}

/// One device: its kind and its number among its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// Kind of device.
    pub kind: Kind,
    /// Number among its kind, from 0.
    pub ordinal: u32,
}

impl DeviceId {
    /// The host's processor and its memory.
    pub const CPU: DeviceId = DeviceId { kind: Kind::Cpu, ordinal: 0 };
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Cpu => f.write_str("cpu"),
            Kind::Cuda => write!(f, "cuda:{}", self.ordinal),
            Kind::Metal => write!(f, "metal:{}", self.ordinal),
        }
    }
}

/// The product of `shape`, or an error where it does not fit the address space.
pub(crate) fn elements<const N: usize>(shape: [usize; N], size: usize) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n))
        .filter(|n| n.checked_mul(size).is_some_and(|bytes| bytes <= isize::MAX as usize))
        .ok_or_else(|| Error::Argument {
            op: "view",
            arg: Arg { row: None, name: "shape" },
            must: "within the address space".into(),
            got: format!("{shape:?}"),
        })
}

/// The elements of a shape that has memory, or that has none because a dimension is 0, whatever the others are.
fn count<const N: usize>(shape: [usize; N]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

fn check_len<const N: usize>(shape: [usize; N], len: usize, size: usize) -> Result<()> {
    let want = elements(shape, size)?;
    if want == len {
        return Ok(());
    }
    Err(Error::Argument {
        op: "view",
        arg: Arg { row: None, name: "shape" },
        must: format!("of {len} elements, as the data is"),
        got: format!("{shape:?}"),
    })
}

/// Memory that is read: `N` dimensions of `T`, contiguous, row-major, on one device.
pub struct View<'a, T, const N: usize> {
    ptr: NonNull<T>,
    shape: [usize; N],
    device: DeviceId,
    life: PhantomData<&'a [T]>,
}

/// Memory that is written: as [`View`], and nobody else looks at it meanwhile.
pub struct ViewMut<'a, T, const N: usize> {
    ptr: NonNull<T>,
    shape: [usize; N],
    device: DeviceId,
    life: PhantomData<&'a mut [T]>,
}

impl<T, const N: usize> Clone for View<'_, T, N> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const N: usize> Copy for View<'_, T, N> {}

// SAFETY: a view is a `&[T]` or `&mut [T]` with a shape; it may cross threads exactly where those may.
unsafe impl<T: Sync, const N: usize> Send for View<'_, T, N> {}
// SAFETY: as above.
unsafe impl<T: Sync, const N: usize> Sync for View<'_, T, N> {}
// SAFETY: as above.
unsafe impl<T: Send, const N: usize> Send for ViewMut<'_, T, N> {}
// SAFETY: as above; a shared `ViewMut` gives no access to its elements.
unsafe impl<T: Sync, const N: usize> Sync for ViewMut<'_, T, N> {}

impl<T, const N: usize> fmt::Debug for View<'_, T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View<{}>{:?} on {}", std::any::type_name::<T>(), self.shape, self.device)
    }
}
impl<T, const N: usize> fmt::Debug for ViewMut<'_, T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ViewMut<{}>{:?} on {}", std::any::type_name::<T>(), self.shape, self.device)
    }
}

impl<'a, T: Element, const N: usize> View<'a, T, N> {
    /// Host memory, read as `shape`; an error where the numbers of elements differ.
    pub fn new(data: &'a [T], shape: [usize; N]) -> Result<Self> {
        check_len(shape, data.len(), size_of::<T>())?;
        Ok(View { ptr: NonNull::from(data).cast(), shape, device: DeviceId::CPU, life: PhantomData })
    }

    /// Foreign memory.
    ///
    /// # Safety
    /// `ptr` is aligned for `T`, not null, and for all of `'a` points to `shape` initialised elements on
    /// `device` that nobody writes.
    pub unsafe fn from_raw(ptr: *const T, shape: [usize; N], device: DeviceId) -> Self {
        // SAFETY: the caller says that `ptr` is not null.
        View { ptr: unsafe { NonNull::new_unchecked(ptr.cast_mut()) }, shape, device, life: PhantomData }
    }

    /// The elements of `range` along the first dimension.
    ///
    /// # Panics
    /// Where `range` does not lie within the first dimension, as slicing a slice does.
    pub fn slice(&self, range: Range<usize>) -> Self {
        const { assert!(N > 0) };
        let (offset, shape) = cut(self.shape, range);
        // SAFETY: `cut` checked the range, so the offset stays within the memory of this view.
        View { ptr: unsafe { self.ptr.add(offset) }, shape, ..*self }
    }

    /// The same elements under another shape; an error where the numbers of elements differ.
    pub fn reshape<const M: usize>(&self, shape: [usize; M]) -> Result<View<'a, T, M>> {
        check_len(shape, self.len(), size_of::<T>())?;
        Ok(View { ptr: self.ptr, shape, device: self.device, life: PhantomData })
    }

    /// The elements as a slice, where they are in host memory.
    pub fn as_slice(&self) -> Option<&'a [T]> {
        // SAFETY: the constructors promise `len` initialised elements that live for 'a.
        (self.device.kind == Kind::Cpu)
            .then(|| unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len()) })
    }
}

impl<'a, T: Element, const N: usize> ViewMut<'a, T, N> {
    /// Host memory, written as `shape`; an error where the numbers of elements differ.
    pub fn new(data: &'a mut [T], shape: [usize; N]) -> Result<Self> {
        check_len(shape, data.len(), size_of::<T>())?;
        Ok(ViewMut { ptr: NonNull::from(data).cast(), shape, device: DeviceId::CPU, life: PhantomData })
    }

    /// Foreign memory.
    ///
    /// # Safety
    /// `ptr` is aligned for `T`, not null, and for all of `'a` points to `shape` initialised elements on
    /// `device` that nobody else reads or writes.
    pub unsafe fn from_raw(ptr: *mut T, shape: [usize; N], device: DeviceId) -> Self {
        // SAFETY: the caller says that `ptr` is not null.
        ViewMut { ptr: unsafe { NonNull::new_unchecked(ptr) }, shape, device, life: PhantomData }
    }

    /// This memory for a shorter while, so that one view serves several calls.
    pub fn reborrow(&mut self) -> ViewMut<'_, T, N> {
        ViewMut { ptr: self.ptr, shape: self.shape, device: self.device, life: PhantomData }
    }

    /// The memory, read.
    pub fn as_view(&self) -> View<'_, T, N> {
        View { ptr: self.ptr, shape: self.shape, device: self.device, life: PhantomData }
    }

    /// The elements of `range` along the first dimension.
    ///
    /// # Panics
    /// Where `range` does not lie within the first dimension, as slicing a slice does.
    pub fn slice(self, range: Range<usize>) -> Self {
        const { assert!(N > 0) };
        let (offset, shape) = cut(self.shape, range);
        // SAFETY: `cut` checked the range, so the offset stays within the memory of this view.
        ViewMut { ptr: unsafe { self.ptr.add(offset) }, shape, device: self.device, life: PhantomData }
    }

    /// Two views that meet at `at` of the first dimension.
    ///
    /// # Panics
    /// Where `at` is beyond the first dimension.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let n = self.shape[0];
        let second = ViewMut { ptr: self.ptr, shape: self.shape, device: self.device, life: PhantomData };
        assert!(at <= n, "view: split_at must be at most {n}, got {at}");
        (self.slice(0..at), second.slice(at..n))
    }

    /// The same elements under another shape; an error where the numbers of elements differ.
    pub fn reshape<const M: usize>(self, shape: [usize; M]) -> Result<ViewMut<'a, T, M>> {
        check_len(shape, self.len(), size_of::<T>())?;
        Ok(ViewMut { ptr: self.ptr, shape, device: self.device, life: PhantomData })
    }

    /// The elements as a slice, where they are in host memory.
    pub fn as_slice_mut(&mut self) -> Option<&mut [T]> {
        // SAFETY: the constructors promise `len` initialised elements that only this view reaches.
        (self.device.kind == Kind::Cpu)
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len()) })
    }

    /// Address of the first element, on the view's device.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.ptr.as_ptr()
    }
}

macro_rules! common {
    ($view:ident) => {
        impl<'a, T, const N: usize> $view<'a, T, N> {
            /// The same memory, byte by byte.
            pub(crate) fn into_bytes(self) -> $view<'a, u8, 1> {
                let shape = [self.len() * size_of::<T>()];
                $view { ptr: self.ptr.cast(), shape, device: self.device, life: PhantomData }
            }
            /// Elements along each dimension.
            pub fn shape(&self) -> [usize; N] {
                self.shape
            }
            /// All elements.
            pub fn len(&self) -> usize {
                count(self.shape)
            }
            /// Whether there is no element.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
            /// The device whose memory this is.
            pub fn device(&self) -> DeviceId {
                self.device
            }
            /// Address of the first element, on the view's device.
            pub fn as_ptr(&self) -> *const T {
                self.ptr.as_ptr()
            }
            /// First and last-plus-one address, for overlap checks.
            pub(crate) fn span(&self) -> Range<usize> {
                let start = self.ptr.as_ptr() as usize;
                start..start + self.len() * size_of::<T>()
            }
        }
    };
}
common!(View);
common!(ViewMut);

/// Offset in elements and shape of `range` along the first dimension.
fn cut<const N: usize>(mut shape: [usize; N], range: Range<usize>) -> (usize, [usize; N]) {
    assert!(
        range.start <= range.end && range.end <= shape[0],
        "view: range must lie within 0..{}, got {range:?}",
        shape[0]
    );
    let offset = if count(shape) == 0 { 0 } else { range.start * shape[1..].iter().product::<usize>() };
    shape[0] = range.end - range.start;
    (offset, shape)
}

impl<'a, T: Element> From<&'a [T]> for View<'a, T, 1> {
    fn from(data: &'a [T]) -> Self {
        View {
            ptr: NonNull::from(data).cast(),
            shape: [data.len()],
            device: DeviceId::CPU,
            life: PhantomData,
        }
    }
}
impl<'a, T: Element> From<&'a mut [T]> for ViewMut<'a, T, 1> {
    fn from(data: &'a mut [T]) -> Self {
        let shape = [data.len()];
        ViewMut { ptr: NonNull::from(data).cast(), shape, device: DeviceId::CPU, life: PhantomData }
    }
}
