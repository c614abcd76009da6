//! The vectors: one small trait that every kernel body is written over.
//!
//! An implementation is a thin wrapper over one instruction per method; all give the same bits lane by lane. Methods
//! are inlined into the one function per instruction set of [`super::isa`] that enables the instructions.

use half::bf16;

/// `N` lanes of f32, or of 32 raw bits.
///
/// # Safety
/// An implementation is used only where [`super::Isa::is_available`] says that the processor has its instructions. `load`,
/// `store`, `widen` and `narrow` reach `N` elements from their pointer on, with no alignment needed.
pub(super) trait Lanes: Copy {
    const N: usize;

    fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `N` bf16 as f32.
    unsafe fn widen(from: *const bf16) -> Self;
    /// Rounds to `N` bf16, to nearest even; the lanes must be finite.
    unsafe fn narrow(self, to: *mut bf16);

    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn abs(self) -> Self;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// Per lane `self >= bound ? yes : no`; a NaN is not.
    fn select_ge(self, bound: Self, yes: Self, no: Self) -> Self;
    /// One bit per lane, lane 0 lowest: whether `self > bound`; a NaN is not.
    fn gt_mask(self, bound: Self) -> u32;

    /// Each lane's 32 bits hold two bf16: the one at the lower address, widened.
    fn low_half(self) -> Self;
    /// The one at the higher address, widened.
    fn high_half(self) -> Self;
    /// Adds the lowest bits of `t` to the exponent: `self * 2^t`.
    fn add_exponent(self, t: Self) -> Self;
    /// Both vectors' lanes in turn: `(a0 b0 a1 b1 .., ..)`, first half and second half.
    fn zip(self, b: Self) -> (Self, Self);

    /// The larger; of equal ones either. NaN gives either.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.select_ge(b, self, b)
    }

    /// 0 where the lane is finite, else NaN: summed up, it tells whether all were.
    #[inline(always)]
    fn poison(self, so_far: Self) -> Self {
        self.mul_add(Self::splat(0.0), so_far)
    }
}

/// The most lanes that an implementation has.
pub(super) const WIDEST: usize = 16;

/// One lane of plain Rust: what every other implementation must equal.
impl Lanes for f32 {
    const N: usize = 1;

    #[inline(always)]
    fn splat(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> f32 {
        // SAFETY: the caller's promise, see the trait.
        unsafe { from.read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise, see the trait.
        unsafe { to.write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn widen(from: *const bf16) -> f32 {
        // SAFETY: the caller's promise, see the trait.
        unsafe { *from }.to_f32()
    }
    #[inline(always)]
    unsafe fn narrow(self, to: *mut bf16) {
        // SAFETY: the caller's promise, see the trait.
        unsafe { *to = bf16::from_f32(self) }
    }
    #[inline(always)]
    fn add(self, b: f32) -> f32 {
        self + b
    }
    #[inline(always)]
    fn sub(self, b: f32) -> f32 {
        self - b
    }
    #[inline(always)]
    fn mul(self, b: f32) -> f32 {
        self * b
    }
    #[inline(always)]
    fn div(self, b: f32) -> f32 {
        self / b
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn mul_add(self, b: f32, c: f32) -> f32 {
        f32::mul_add(self, b, c)
    }
    #[inline(always)]
    fn select_ge(self, bound: f32, yes: f32, no: f32) -> f32 {
        if self >= bound { yes } else { no }
    }
    #[inline(always)]
    fn gt_mask(self, bound: f32) -> u32 {
        (self > bound) as u32
    }
    #[inline(always)]
    fn low_half(self) -> f32 {
        f32::from_bits(self.to_bits() << 16)
    }
    #[inline(always)]
    fn high_half(self) -> f32 {
        f32::from_bits(self.to_bits() & 0xffff_0000)
    }
    #[inline(always)]
    fn add_exponent(self, t: f32) -> f32 {
        f32::from_bits(self.to_bits().wrapping_add(t.to_bits() << 23))
    }
    #[inline(always)]
    fn zip(self, b: f32) -> (f32, f32) {
        (self, b)
    }
}

/// Implements [`Lanes`] for a wrapper over one vector register, from one function per method.
#[allow(unused_macros)]
macro_rules! lanes {
    ($name:ident($raw:ty), $n:literal; $($method:ident = $function:path),* $(,)?) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name($raw);

        impl Lanes for $name {
            const N: usize = $n;
            $(lanes!(@$method $name $function);)*
        }
    };
    (@splat $name:ident $f:path) => {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: the processor has the instruction, see the trait.
            $name(unsafe { $f(x) })
        }
    };
    (@load $name:ident $f:path) => {
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller's promise, see the trait.
            $name(unsafe { $f(from) })
        }
    };
    (@widen $name:ident $f:path) => {
        #[inline(always)]
        unsafe fn widen(from: *const bf16) -> Self {
            // SAFETY: the caller's promise, see the trait.
            $name(unsafe { $f(from.cast()) })
        }
    };
    (@store $name:ident $f:path) => {
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { $f(to, self.0) }
        }
    };
    (@narrow $name:ident $f:path) => {
        #[inline(always)]
        unsafe fn narrow(self, to: *mut bf16) {
            // SAFETY: the caller's promise, see the trait.
            unsafe { $f(to.cast(), self.0) }
        }
    };
    (@zip $name:ident $f:path) => {
        #[inline(always)]
        fn zip(self, b: Self) -> (Self, Self) {
            // SAFETY: the processor has the instruction, see the trait.
            let (first, second) = unsafe { $f(self.0, b.0) };
            ($name(first), $name(second))
        }
    };
    (@mul_add $name:ident $f:path) => {
        #[inline(always)]
        fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: the processor has the instruction, see the trait.
            $name(unsafe { $f(self.0, b.0, c.0) })
        }
    };
    (@select_ge $name:ident $f:path) => {
        #[inline(always)]
        fn select_ge(self, bound: Self, yes: Self, no: Self) -> Self {
            // SAFETY: the processor has the instruction, see the trait.
            $name(unsafe { $f([self.0, bound.0, yes.0, no.0]) })
        }
    };
    (@gt_mask $name:ident $f:path) => {
        #[inline(always)]
        fn gt_mask(self, bound: Self) -> u32 {
            // SAFETY: the processor has the instruction, see the trait.
            unsafe { $f(self.0, bound.0) }
        }
    };
    (@abs $name:ident $f:path) => { lanes!(@unary abs $name $f); };
    (@low_half $name:ident $f:path) => { lanes!(@unary low_half $name $f); };
    (@high_half $name:ident $f:path) => { lanes!(@unary high_half $name $f); };
    (@unary $method:ident $name:ident $f:path) => {
        #[inline(always)]
        fn $method(self) -> Self {
            // SAFETY: the processor has the instruction, see the trait.
            $name(unsafe { $f(self.0) })
        }
    };
    (@$method:ident $name:ident $f:path) => {
        #[inline(always)]
        fn $method(self, b: Self) -> Self {
            // SAFETY: the processor has the instruction, see the trait.
            $name(unsafe { $f(self.0, b.0) })
        }
    };
}
#[allow(unused_imports)]
pub(super) use lanes;
