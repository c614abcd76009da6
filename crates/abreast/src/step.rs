//! A whole step, recorded once and replayed with new positions and lengths.

use crate::backend::{Backend, Recording};
use crate::dims::causal_count;
use crate::error::{Arg, Error, Result};
use crate::ops::{
    Checked, Compress, ConvertState, GatherRows, IndexScores, Op, SelectKeys, SparseAttention, TopK,
};
use crate::view::DeviceId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most that any later run of a step may ask for. Larger limits cost scratch memory and idle blocks, never bits. None is above 2^30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one operation.
    pub rows: usize,
    /// Indices of an attention row.
    pub width: usize,
    /// Keys of a row that are scored or selected from.
    pub keys: usize,
}

/// Above it, sizes of scratch and grids would not fit the numbers that a device has for them.
const MOST: usize = 1 << 30;

impl Limits {
    fn contract(&self) -> Result<()> {
        let Limits { rows, width, keys } = *self;
        match [("rows", rows), ("width", width), ("keys", keys)].into_iter().find(|&(_, n)| n > MOST) {
            None => Ok(()),
            Some((name, n)) => {
                let (arg, must) = (Arg { row: None, name }, format!("at most {MOST}"));
                Err(Error::Argument { op: "step", arg, must, got: n.to_string() })
            }
        }
    }
}

/// A sequence of operations that is run again and again: the calls of one decode step, say.
///
/// [`Step::run`] takes the same operations as [`Device`](crate::Device) with the same arguments, and gives the same bits. On a
/// GPU the first run records them as one graph; a later run with the same operations and shapes copies one small
/// table to the device and replays the graph. Rows, positions, lengths, widths, caches, outputs and
/// all other addresses may differ from run to run, up to the [`Limits`]; where an operation or a shape differs, the step
/// is recorded anew.
pub struct Step {
    recording: Box<dyn Recording>,
    limits: Limits,
    device: DeviceId,
}

impl Step {
    pub(crate) fn new(backend: Arc<dyn Backend>, limits: Limits) -> Result<Step> {
        limits.contract()?;
        let device = backend.id();
        Ok(Step { recording: backend.record(limits)?, limits, device })
    }

    /// Runs the operations that `calls` makes. Arguments are checked call by call; where one is refused, or `calls` returns an
    /// error, nothing of the step runs on a GPU (on the CPU the calls before it have run).
    ///
    /// Where one operation writes what another reads or writes, the two run in the order in which they were made. Others may run at
    /// the same time.
    ///
    /// A GPU runs the operations when `calls` has returned; buffers that are dropped within it are kept until then. What
    /// `calls` itself copies to or from the host is copied before.
    pub fn run(&mut self, calls: impl FnOnce(&mut Calls<'_>) -> Result<()>) -> Result<()> {
        self.run_open(calls).map(drop)
    }

    /// As `run`; buffers that `calls` dropped are kept as long as what this returns.
    fn run_open(&mut self, calls: impl FnOnce(&mut Calls<'_>) -> Result<()>) -> Result<Box<dyn Send>> {
        let open = self.recording.start();
        calls(&mut Calls { run: &*self.recording, limits: self.limits, device: self.device })?;
        self.recording.submit().map(|()| open)
    }

    /// Runs the operations that `calls` makes as [`Step::run`] does, then `runs` times more, one after the other, and tells how
    /// long each of these took. A GPU replays its graph, timed by the device: host work is not in the times, nor recording.
    pub fn time(
        &mut self,
        runs: usize,
        mut calls: impl FnMut(&mut Calls<'_>) -> Result<()>,
    ) -> Result<Vec<Duration>> {
        let open = self.run_open(&mut calls)?;
        if let Some(times) = self.recording.repeat(runs)? {
            return Ok(times);
        }
        drop(open);
        let timed = |_| {
            let start = Instant::now();
            self.run(&mut calls).map(|()| start.elapsed())
        };
        (0..runs).map(timed).collect()
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Step(on {}, {:?})", self.device, self.limits)
    }
}

/// The operations of a step: those of [`Device`](crate::Device).
pub struct Calls<'a> {
    run: &'a dyn Recording,
    limits: Limits,
    device: DeviceId,
}

impl Calls<'_> {
    /// See [`SparseAttention`].
    pub fn sparse_attention(&mut self, args: SparseAttention<'_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        let widths = args.rows.iter().map(|row| row.indices.len());
        self.limit((SparseAttention::NAME, "indices", "indices"), (widths, self.limits.width))?;
        self.run.sparse_attention(args)
    }

    /// See [`IndexScores`].
    pub fn index_scores(&mut self, args: IndexScores<'_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        let keys = args.rows.iter().map(|row| causal_count(row.start_pos, args.ratio));
        self.limit((IndexScores::NAME, "start_pos", "visible keys"), (keys, self.limits.keys))?;
        self.run.index_scores(args)
    }

    /// See [`TopK`].
    pub fn top_k(&mut self, args: TopK<'_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        let scores = args.rows.iter().map(|row| row.scores.len());
        self.limit((TopK::NAME, "scores", "scores"), (scores, self.limits.keys))?;
        self.run.top_k(args)
    }

    /// See [`SelectKeys`].
    pub fn select_keys(&mut self, args: SelectKeys<'_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        let keys = args.rows.iter().map(|row| causal_count(row.start_pos, args.ratio));
        self.limit((SelectKeys::NAME, "start_pos", "visible keys"), (keys, self.limits.keys))?;
        self.run.select_keys(args)
    }

    /// See [`Compress`].
    pub fn compress(&mut self, args: Compress<'_, '_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        self.run.compress(args)
    }

    /// See [`ConvertState`].
    pub fn convert_state(&mut self, args: ConvertState<'_, '_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        self.run.convert_state(args)
    }

    /// See [`GatherRows`].
    pub fn gather_rows(&mut self, args: GatherRows<'_>) -> Result<()> {
        let args = self.check(args, |args| args.rows.len())?;
        self.run.gather_rows(args)
    }

    /// The operation's contract, then the step's limit of rows.
    fn check<T: Op>(&self, args: T, rows: impl FnOnce(&T) -> usize) -> Result<Checked<T>> {
        let args = args.check(self.device)?;
        let (rows, most) = (rows(&args), self.limits.rows);
        if rows <= most {
            return Ok(args);
        }
        let arg = Arg { row: None, name: "rows" };
        let must = format!("within the step's limit of {most}");
        Err(Error::Argument { op: T::NAME, arg, must, got: rows.to_string() })
    }

    /// Every row has at most so many of something.
    fn limit(
        &self,
        (op, name, what): (&'static str, &'static str, &'static str),
        (mut rows, most): (impl Iterator<Item = usize>, usize),
    ) -> Result<()> {
        let too_many = |got: &usize| *got > most;
        let Some((row, got)) = rows.by_ref().enumerate().find(|(_, got)| too_many(got)) else {
            return Ok(());
        };
        let arg = Arg { row: Some(row), name };
        let must = format!("within the step's limit of {most} {what}");
        Err(Error::Argument { op, arg, must, got: format!("{got} {what}") })
    }
}
