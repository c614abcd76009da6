//! Which vectors this processor has, chosen at run time.

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
