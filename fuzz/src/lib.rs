//! What the fuzz targets draw and check: for `arguments` one file per operation, named as in the library; for `traces`
//! the module [`recording`].

mod compress;
mod convert_state;
mod draw;
mod gather_rows;
mod index_scores;
pub mod recording;
mod select_keys;
mod sparse_attention;
mod top_k;
mod view;

pub use draw::{Draw, HUGE};

use abreast::{CpuOptions, Device, Error, Isa, bf16};
use std::fmt::Debug;

/// Draws one call of an operation and checks what became of it.
pub type Operation = fn(&mut Draw<'_>, &Devices) -> arbitrary::Result<()>;

/// All that the target `arguments` chooses from.
pub const OPERATIONS: [Operation; 8] = [
    compress::check,
    convert_state::check,
    gather_rows::check,
    index_scores::check,
    select_keys::check,
    sparse_attention::check,
    top_k::check,
    view::check,
];

/// Devices that must give the same bits.
pub struct Devices {
    /// One per instruction set that this processor has, with two threads.
    joint: Vec<Device>,
    /// Plain Rust on one thread.
    pub solo: Device,
}

impl Devices {
    /// Opens all of them.
    pub fn open() -> Devices {
        let open = |isa, threads| {
            Device::cpu_with(CpuOptions { isa: Some(isa), threads: Some(threads) }).expect("an available CPU")
        };
        // The widest first: it is the one that is drawn once the bytes have run out.
        let isas = Isa::ALL.into_iter().rev().filter(|isa| isa.is_available());
        Devices { joint: isas.map(|isa| open(isa, 2)).collect(), solo: open(Isa::Portable, 1) }
    }

    /// The device for the joint call.
    pub fn joint(&self, draw: &mut Draw<'_>) -> arbitrary::Result<&Device> {
        let i = draw.below(self.joint.len())?;
        Ok(&self.joint[i])
    }
}

/// Whether a call went through. The one right way to refuse is to name an argument.
pub fn went_through(result: abreast::Result<()>) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::Argument { .. }) => false,
        Err(other) => panic!("the arguments alone were bad or good, got: {other}"),
    }
}

/// What a status word holds before a call.
const STALE_WORD: u32 = 0xdead_beef;

/// The status words of a call: as they were, and what its rows should leave there.
pub struct Words {
    /// To be handed in.
    pub joint: Vec<u32>,
    want: Vec<u32>,
}

impl Words {
    /// One for each of `count` rows, with what an earlier call left.
    pub fn draw(draw: &mut Draw<'_>, count: usize) -> arbitrary::Result<Words> {
        let words = vec![STALE_WORD; draw.length(count)?];
        Ok(Words { joint: words.clone(), want: words })
    }

    /// Hands the status word of row `e` to its own call.
    pub fn alone(&mut self, e: usize, call: impl FnOnce(&mut [u32]) -> abreast::Result<()>) {
        let mut word = [!STALE_WORD];
        call(&mut word).expect("a row of a legal call is legal");
        self.want[e] = word[0];
    }

    /// Panics where the joint call left others.
    pub fn check(&self) {
        assert_bits("status", &self.joint, &self.want);
    }
}

/// Values compared by their bits.
pub trait Bits: Copy {
    /// The bits.
    fn bits(self) -> u32;
}

macro_rules! bits {
    ($($t:ty: $bits:expr),*) => { $(impl Bits for $t { fn bits(self) -> u32 { $bits(self) } })* };
}
bits!(f32: f32::to_bits, bf16: |v: bf16| v.to_bits() as u32, i32: |v: i32| v as u32, u32: |v: u32| v);

/// Panics where the two differ in a bit.
pub fn assert_bits<T: Bits + Debug>(what: &str, joint: &[T], solo: &[T]) {
    assert_eq!(joint.len(), solo.len(), "{what}: lengths");
    for (i, (j, s)) in joint.iter().zip(solo).enumerate() {
        assert!(
            j.bits() == s.bits(),
            "{what}[{i}]: {j:?} ({:#010x}), alone {s:?} ({:#010x})",
            j.bits(),
            s.bits()
        );
    }
}
