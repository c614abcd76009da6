//! A whole step, recorded once and replayed with new positions and lengths.

use crate::backend::{Backend, Recording};
use crate::dims::causal_count;
use crate::error::{Arg, Error, Result};
use crate::ops::{Compress, ConvertState, GatherRows, IndexScores, Op, SelectKeys, SparseAttention, TopK};
use crate::view::DeviceId;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most that any later run of a step may ask for. Larger limits cost scratch memory and idle blocks, never bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one operation.
    pub rows: usize,
    /// Indices of an attention row.
    pub width: usize,
    /// Keys of a row that are scored or selected from.
    pub keys: usize,
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
        let device = backend.id();
        Ok(Step { recording: backend.record(limits)?, limits, device })
    }

    /// Runs the operations that `calls` makes. Arguments are checked call by call; where one is refused, or `calls` returns an
    /// error, nothing of the step runs on a GPU (on the CPU the calls before it have run).
    ///
    /// A GPU runs the operations when `calls` has returned: memory that they use must not be dropped or copied to or from
    /// the host within it.
    pub fn run(&mut self, calls: impl FnOnce(&mut Calls<'_>) -> Result<()>) -> Result<()> {
        self.recording.start();
        calls(&mut Calls { run: &*self.recording, limits: self.limits, device: self.device })?;
        self.recording.submit()
    }

    /// Runs the operations that `calls` makes as [`Step::run`] does, then `runs` times more, one after the other, and tells how
    /// long each of these took. A GPU replays its graph, timed by the device: host work is not in the times, nor recording.
    pub fn time(
        &mut self,
        runs: usize,
        mut calls: impl FnMut(&mut Calls<'_>) -> Result<()>,
    ) -> Result<Vec<Duration>> {
        self.run(&mut calls)?;
        if let Some(times) = self.recording.repeat(runs)? {
            return Ok(times);
        }
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
        self.rows(SparseAttention::NAME, args.rows.len())?;
        for (e, row) in args.rows.iter().enumerate() {
            self.limit(SparseAttention::NAME, (Some(e), "indices"), (row.indices.len(), self.limits.width))?;
        }
        self.run.sparse_attention(args.check(self.device)?)
    }

    /// See [`IndexScores`].
    pub fn index_scores(&mut self, args: IndexScores<'_>) -> Result<()> {
        self.rows(IndexScores::NAME, args.rows.len())?;
        for (e, row) in args.rows.iter().enumerate() {
            let keys = causal_count(row.start_pos, args.ratio.max(1));
            self.limit(IndexScores::NAME, (Some(e), "start_pos"), (keys, self.limits.keys))?;
        }
        self.run.index_scores(args.check(self.device)?)
    }

    /// See [`TopK`].
    pub fn top_k(&mut self, args: TopK<'_>) -> Result<()> {
        self.rows(TopK::NAME, args.rows.len())?;
        for (e, row) in args.rows.iter().enumerate() {
            self.limit(TopK::NAME, (Some(e), "scores"), (row.scores.len(), self.limits.keys))?;
        }
        self.run.top_k(args.check(self.device)?)
    }

    /// See [`SelectKeys`].
    pub fn select_keys(&mut self, args: SelectKeys<'_>) -> Result<()> {
        self.rows(SelectKeys::NAME, args.rows.len())?;
        for (e, row) in args.rows.iter().enumerate() {
            let keys = causal_count(row.start_pos, args.ratio.max(1));
            self.limit(SelectKeys::NAME, (Some(e), "start_pos"), (keys, self.limits.keys))?;
        }
        self.run.select_keys(args.check(self.device)?)
    }

    /// See [`Compress`].
    pub fn compress(&mut self, args: Compress<'_, '_>) -> Result<()> {
        self.rows(Compress::NAME, args.rows.len())?;
        self.run.compress(args.check(self.device)?)
    }

    /// See [`ConvertState`].
    pub fn convert_state(&mut self, args: ConvertState<'_, '_>) -> Result<()> {
        self.rows(ConvertState::NAME, args.rows.len())?;
        self.run.convert_state(args.check(self.device)?)
    }

    /// See [`GatherRows`].
    pub fn gather_rows(&mut self, args: GatherRows<'_>) -> Result<()> {
        self.rows(GatherRows::NAME, args.rows.len())?;
        self.run.gather_rows(args.check(self.device)?)
    }

    fn rows(&self, op: &'static str, rows: usize) -> Result<()> {
        self.limit(op, (None, "rows"), (rows, self.limits.rows))
    }

    fn limit(
        &self,
        op: &'static str,
        (row, name): (Option<usize>, &'static str),
        (got, most): (usize, usize),
    ) -> Result<()> {
        if got <= most {
            return Ok(());
        }
        let must = format!("within the step's limit of {most}");
        Err(Error::Argument { op, arg: Arg { row, name }, must, got: got.to_string() })
    }
}
