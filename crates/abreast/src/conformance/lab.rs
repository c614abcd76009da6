//! Where cases run: a device, and the count of what was done on it.

use super::bits::{self, Finding, RowBits, Verdict};
use super::case::{Loaded, Problem};
use super::suite::Depth;
use crate::{Device, Method};

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows of joint calls that were compared byte for byte with the same row alone.
    pub rows: u64,
    /// Rows of other comparisons: other orders, splits, poisoned neighbours, repeats.
    pub compared: u64,
    /// Rows that were compared with the oracle.
    pub oracle: u64,
    /// Calls of operations.
    pub calls: u64,
    /// Buffers whose red zones were checked.
    pub red_zones: u64,
    /// Repeats of one call.
    pub repeats: u64,
    /// Hostile cases.
    pub hostile: u64,
    /// Calls with bad arguments that were refused with the right text.
    pub refused: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.rows += other.rows;
        self.compared += other.compared;
        self.oracle += other.oracle;
        self.calls += other.calls;
        self.red_zones += other.red_zones;
        self.repeats += other.repeats;
        self.hostile += other.hostile;
        self.refused += other.refused;
    }
}

/// A device that counts.
pub(super) struct Lab<'d> {
    pub(super) device: &'d Device,
    pub(super) method: Method,
    pub(super) depth: Depth,
    pub(super) counts: Counts,
    /// The shape that the case is on.
    pub(super) shape: String,
}

/// What some rows of a problem gave.
pub(super) struct Results(Vec<Option<RowBits>>);

impl<'d> Lab<'d> {
    pub(super) fn new(device: &'d Device, method: Method) -> Lab<'d> {
        Lab { device, method, depth: Depth::default(), counts: Counts::default(), shape: String::new() }
    }
}

impl Lab<'_> {
    /// A size of the model where the method has kernels made for that, else a small one.
    pub(super) fn size(&self, small: usize, model: usize) -> usize {
        if self.method == Method::Fast { model } else { small }
    }

    /// Runs every chunk of rows in a dispatch of its own, into outputs that were filled with `fill`.
    pub(super) fn run(
        &mut self,
        loaded: &mut dyn Loaded,
        chunks: &[&[usize]],
        fill: u8,
    ) -> Result<Results, Finding> {
        loaded.reset(fill)?;
        let mut status = 0;
        for chunk in chunks {
            loaded.call(chunk, status)?;
            status += chunk.len();
        }
        let order: Vec<usize> = chunks.concat();
        let results = loaded.results(&order)?;
        self.counts.calls += chunks.len() as u64;
        self.counts.red_zones += results.first().map_or(1, Vec::len) as u64;
        let mut rows = vec![None; order.iter().max().map_or(0, |most| most + 1)];
        for (row, result) in order.into_iter().zip(results) {
            rows[row] = Some(result);
        }
        Ok(Results(rows))
    }

    /// All rows of a problem in one dispatch.
    pub(super) fn joint(&mut self, problem: &dyn Problem) -> Result<Results, Finding> {
        let mut loaded = problem.load(self.device, self.method)?;
        let all: Vec<usize> = (0..problem.rows()).collect();
        self.run(&mut *loaded, &[&all], 0x5a)
    }

    /// Compares all rows that both have; `against` says what `want` is.
    pub(super) fn same(&mut self, got: &Results, want: &Results, against: &str) -> Result<u64, Finding> {
        let pairs = got.0.iter().zip(&want.0).enumerate();
        let mut rows = 0;
        for (row, (got, want)) in pairs.filter_map(|(r, (a, b))| Some((r, (a.as_ref()?, b.as_ref()?)))) {
            bits::same(row, against, got, want)?;
            rows += 1;
        }
        self.counts.compared += rows;
        Ok(rows)
    }

    /// See [`check`].
    pub(super) fn check(&mut self, problem: &dyn Problem) -> Verdict {
        let mut loaded = problem.load(self.device, self.method)?;
        let all: Vec<usize> = (0..problem.rows()).collect();
        let joint = self.run(&mut *loaded, &[&all], 0x5a)?;
        let solo = self.run(&mut *loaded, &all.chunks(1).collect::<Vec<_>>(), 0xa5)?;
        self.counts.rows += self.same(&joint, &solo, "alone")?;
        self.oracle(problem, &joint, all)
    }

    /// Compares some rows with the oracle.
    pub(super) fn oracle(
        &mut self,
        problem: &dyn Problem,
        results: &Results,
        rows: impl IntoIterator<Item = usize>,
    ) -> Verdict {
        for row in rows {
            bits::matches(row, results.row(row), &problem.expect(row, self.method))?;
            self.counts.oracle += 1;
        }
        Ok(())
    }
}

/// Whether every row of a problem has the bits in a joint call that it has alone, and those that the oracle expects,
/// with all red zones whole.
pub fn check(device: &Device, problem: &dyn Problem, method: Method) -> Result<Counts, Finding> {
    let mut lab = Lab::new(device, method);
    lab.check(problem)?;
    Ok(lab.counts)
}

impl Results {
    /// What one row gave.
    ///
    /// # Panics
    /// Where it was not run.
    pub(super) fn row(&self, row: usize) -> &RowBits {
        self.0[row].as_ref().expect("a row that was run")
    }
}
