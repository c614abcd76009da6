//! Shape and seed to data, one file per operation; the suite, the digests and the benches all draw from here.
//!
//! A `Shape` says how large a call is, `Shape::generate` fills it, [`Problem::load`] brings it to a device, and
//! [`Loaded::call`] runs any of its rows in one dispatch.

pub mod compress;
pub mod convert_state;
pub mod gather_rows;
pub mod index_scores;
mod outputs;
mod rng;
pub mod select_keys;
pub mod sparse_attention;
pub mod top_k;

pub use rng::Rng;

use super::bits::{Fault, RowBits};
use super::oracle::Expected;
use crate::{Calls, Cost, Device, Method, Result};

/// Data for any number of rows of one operation, in host memory.
pub trait Problem {
    /// The operation's name.
    fn op(&self) -> &'static str;

    /// How many rows there are.
    fn rows(&self) -> usize;

    /// Brings the data to a device, to be computed in one of the methods, with red zones around all that a kernel writes.
    fn load(&self, device: &Device, method: Method) -> Result<Box<dyn Loaded>>;

    /// What `row` must give, by the oracle, within the method's errors.
    fn expect(&self, row: usize, method: Method) -> Vec<Expected>;

    /// Makes everything hostile that no row of `keep` may look at.
    fn poison(&mut self, keep: &[usize], rng: &mut Rng);

    /// Puts hostile values anywhere, about one in `one_in`.
    fn corrupt(&mut self, one_in: usize, rng: &mut Rng);

    /// Gives the rows' results other places, in another order and with gaps; what a row reads may lie elsewhere too.
    fn scatter(&mut self, rng: &mut Rng);
}

/// A problem in a device's memory.
pub trait Loaded {
    /// Fills every output with `fill` bytes and brings states back to what they were.
    fn reset(&mut self, fill: u8) -> Result<()>;

    /// Runs the rows of `entries` in one dispatch; their status words start at `status`.
    fn call(&mut self, entries: &[usize], status: usize) -> Result<()>;

    /// Makes the same call in a step.
    fn call_in(&mut self, calls: &mut Calls<'_>, named: (&[usize], usize)) -> Result<()>;

    /// The least work that [`call`](Loaded::call) does.
    fn cost(&mut self, entries: &[usize]) -> Cost;

    /// What the rows of `order` gave since the last reset, their status words standing in that order. A fault is
    /// a broken red zone, or a change to anything that belongs to no row of `order`.
    fn results(&self, order: &[usize]) -> std::result::Result<Vec<RowBits>, Fault>;
}

/// How an operation's call is made and what it costs, by its type's `with(entries, status, |device, args| ...)`.
macro_rules! calls {
    ($op:ident) => {
        fn call(&mut self, entries: &[usize], status: usize) -> Result<()> {
            self.with(entries, status, |device, args| device.$op(args))
        }

        fn call_in(
            &mut self,
            calls: &mut $crate::Calls<'_>,
            (entries, status): (&[usize], usize),
        ) -> Result<()> {
            self.with(entries, status, |_, args| calls.$op(args))
        }

        fn cost(&mut self, entries: &[usize]) -> $crate::Cost {
            self.with(entries, 0, |_, args| Ok(args.cost())).unwrap_or_default()
        }
    };
}
use calls;

/// Places for ranges of these sizes, in a random order with gaps: their starts, and the length of it all.
pub(super) fn places(rng: &mut Rng, sizes: &[usize]) -> (Vec<usize>, usize) {
    let mut starts = vec![0; sizes.len()];
    let mut end = rng.below(3);
    for i in rng.permutation(sizes.len()) {
        starts[i] = end;
        end += sizes[i] + rng.below(3);
    }
    (starts, end)
}

/// Places for ranges of these sizes, one after the other: their starts, and the length of it all.
pub(super) fn packed(sizes: impl IntoIterator<Item = usize>) -> (Vec<usize>, usize) {
    let (mut starts, mut end) = (Vec::new(), 0);
    for size in sizes {
        starts.push(end);
        end += size;
    }
    (starts, end)
}
