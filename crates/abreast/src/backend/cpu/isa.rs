//! Which vectors this processor has, chosen at run time.

use super::lanes::Lanes;
use std::fmt;

/// Instruction sets that the CPU backend has bodies for. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// One lane of plain Rust, anywhere.
    Portable,
    /// 4 lanes on aarch64.
    Neon,
    /// 8 lanes on x86-64 with AVX2 and FMA.
    Avx2,
    /// 16 lanes on x86-64 with AVX-512 F.
    Avx512,
}

impl Isa {
    /// All of them, narrowest first.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];

    /// Whether this build on this processor can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => false,
        }
    }

    /// The widest that this processor has.
    pub fn best() -> Isa {
        *Isa::ALL.iter().rev().find(|isa| isa.is_available()).unwrap_or(&Isa::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

/// A kernel body: written once over lanes, run by [`Isa::run`].
pub(super) trait Kernel {
    /// Must be `#[inline(always)]`, as everything hot that it calls: only so do the instructions of the caller apply.
    fn run<L: Lanes>(self);
}

impl Isa {
    /// Runs a kernel with these lanes, under IEEE rules whatever the calling thread's mode is.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        let _mode = Ieee::enter();
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a device opens only with an instruction set that the processor has.
            Isa::Avx2 => unsafe { avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx512 => unsafe { avx512(kernel) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run::<super::arm::Neon>(),
            _ => kernel.run::<f32>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<K: Kernel>(kernel: K) {
    kernel.run::<super::x86::Avx2>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<K: Kernel>(kernel: K) {
    kernel.run::<super::x86::Avx512>();
}

/// Asks for the cache line of an address, which need not be valid.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; every x86-64 processor has it, and no address faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint; no address faults.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// While it lives, the thread rounds to nearest even and keeps subnormals: a host program (PyTorch's
/// `set_flush_denormal`, a plug-in built with fast-math) may have switched that off.
struct Ieee {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    before: Control,
}

#[cfg(target_arch = "x86_64")]
type Control = u32;
#[cfg(target_arch = "aarch64")]
type Control = u64;

impl Ieee {
    /// All exceptions masked, nearest even, no flush to zero, no denormals-are-zero.
    #[cfg(target_arch = "x86_64")]
    const DEFAULT: Control = 0x1f80;
    #[cfg(target_arch = "aarch64")]
    const DEFAULT: Control = 0;

    fn enter() -> Ieee {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let before = control();
            set_control(Self::DEFAULT);
            Ieee { before }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Ieee {}
    }
}

impl Drop for Ieee {
    fn drop(&mut self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        set_control(self.before);
    }
}

#[cfg(target_arch = "x86_64")]
fn control() -> Control {
    let mut mxcsr = 0;
    // SAFETY: stores the floating-point control register into a local.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut mxcsr, options(nostack, preserves_flags)) };
    mxcsr
}

#[cfg(target_arch = "x86_64")]
fn set_control(mxcsr: Control) {
    // SAFETY: loads the default, which Rust assumes, or what the thread had before.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &mxcsr, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn control() -> Control {
    let fpcr;
    // SAFETY: reads the floating-point control register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
    fpcr
}

#[cfg(target_arch = "aarch64")]
fn set_control(fpcr: Control) {
    // SAFETY: loads the default, which Rust assumes, or what the thread had before.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) fpcr, options(nostack, preserves_flags)) };
}
