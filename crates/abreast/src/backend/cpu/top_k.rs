//! A task is a row. Candidates stream past a bound into a small buffer; a full buffer is cut to its k best, and the
//! last of them becomes the bound. The order is total, so the way to the answer does not show in it.

use super::isa::Kernel;
use super::lanes::{Lanes, WIDEST};
use super::{Cpu, Prepared, Shared, StatusWords, Work};
use crate::dims::{NO_INDEX, status};
use crate::error::Result;
use crate::ops::{Checked, TopK};

/// Candidates that the buffer holds, in units of k: larger means fewer cuts and a later bound.
const BUFFER: usize = 4;

pub(super) fn launch(cpu: &Cpu, mut op: Checked<TopK<'_>>) -> Result<()> {
    let words = StatusWords::of(op.status.as_mut());
    let out = Shared(op.out.as_mut_ptr());
    let row = |e: usize| {
        let row = &op.rows[e];
        // SAFETY: the contract put every row's slots within `out`.
        let out = Shared(unsafe { out.at(row.out) });
        Selected {
            scores: Shared(row.scores.as_ptr().cast_mut()),
            n: row.scores.len(),
            offset: row.offset,
            out,
        }
    };
    let prepared = prepare(cpu, op.k, (op.rows.len(), op.rows.iter().map(|row| row.scores.len()).sum()))?;
    words.clear();
    select_all((prepared, op.k), row, &words);
    Ok(())
}

/// One selection.
#[derive(Clone, Copy)]
pub(super) struct Selected {
    /// Only read.
    pub(super) scores: Shared<f32>,
    pub(super) n: usize,
    pub(super) offset: i32,
    pub(super) out: Shared<i32>,
}

/// Candidates that the buffer of a task holds: room for one vector of them beyond the k best.
fn places(k: usize) -> usize {
    BUFFER * k.max(WIDEST)
}

/// Takes what the selections of some rows need, from so many scores altogether.
pub(super) fn prepare(cpu: &Cpu, k: usize, (parts, scores): (usize, usize)) -> Result<Prepared<'_>> {
    // A score takes most of a nanosecond: where the bound is low, it goes into the buffer.
    cpu.prepare(Work { parts, scratch: places(k) * size_of::<Candidate>(), nanoseconds: scores as u64 })
}

pub(super) fn select_all(
    (prepared, k): (Prepared<'_>, usize),
    row: impl Fn(usize) -> Selected + Sync,
    words: &StatusWords,
) {
    let isa = prepared.cpu.isa;
    prepared.run(|task| {
        let row = row(task.part);
        // SAFETY: the contract gave `n` scores and k slots to this row alone; the scratch has the buffer's places, and is
        // of plain integers.
        let (scores, out, buffer) = unsafe {
            (
                std::slice::from_raw_parts(row.scores.at(0), row.n),
                std::slice::from_raw_parts_mut(row.out.at(0), k),
                std::slice::from_raw_parts_mut(task.scratch.cast::<Candidate>(), places(k)),
            )
        };
        let mut best = Best { k, buffer, len: 0, bound: f32::NEG_INFINITY };
        let mut all_finite = true;
        isa.run(Stream { scores, best: &mut best, all_finite: &mut all_finite });
        best.cut();
        let chosen = &mut best.buffer[..best.len];
        chosen.sort_unstable_by(|a, b| b.cmp(a));
        for (slot, candidate) in out.iter_mut().zip(chosen.iter()) {
            *slot = index(*candidate) as i32 + row.offset;
        }
        out[best.len..].fill(NO_INDEX);
        if !all_finite {
            words.add(task.part, status::NONFINITE_SCORE);
        }
    });
}

/// A score and its index in one integer that is larger for the better: first the score, then the smaller index.
type Candidate = u64;

#[inline(always)]
fn candidate(score: f32, index: usize) -> Candidate {
    // Adding 0 makes one zero of the two. Negative numbers count down as their bits count up.
    let bits = (score + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    (ordered as u64) << 32 | !(index as u32) as u64
}

#[inline(always)]
fn index(candidate: Candidate) -> u32 {
    !(candidate as u32)
}

/// The k best candidates so far, among others.
struct Best<'a> {
    k: usize,
    buffer: &'a mut [Candidate],
    len: usize,
    /// Only a larger score can still be among the k best: an equal one comes later.
    bound: f32,
}

impl Best<'_> {
    #[inline(always)]
    fn push(&mut self, candidate: Candidate) {
        self.buffer[self.len] = candidate;
        self.len += 1;
    }

    /// Keeps the k best and raises the bound to the last of them.
    #[inline(never)]
    fn cut(&mut self) {
        if self.len <= self.k {
            return;
        }
        let (_, last, _) = self.buffer[..self.len].select_nth_unstable_by(self.k - 1, |a, b| b.cmp(a));
        let ordered = (*last >> 32) as u32;
        let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
        self.bound = f32::from_bits(bits);
        self.len = self.k;
    }
}

/// All scores past the bound.
struct Stream<'a, 'b> {
    scores: &'a [f32],
    best: &'a mut Best<'b>,
    all_finite: &'a mut bool,
}

impl Kernel for Stream<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let whole = self.scores.len() / L::N * L::N;
        let mut poison = L::splat(0.0);
        let mut bound = L::splat(self.best.bound);
        for first in (0..whole).step_by(L::N) {
            // SAFETY: N scores from `first` on.
            let scores = unsafe { L::load(self.scores.as_ptr().add(first)) };
            poison = scores.poison(poison);
            let mut hits = scores.gt_mask(bound);
            if hits == 0 {
                continue;
            }
            if self.best.len + L::N > self.best.buffer.len() {
                self.best.cut();
                bound = L::splat(self.best.bound);
                hits = scores.gt_mask(bound);
            }
            while hits != 0 {
                let at = first + hits.trailing_zeros() as usize;
                hits &= hits - 1;
                if self.scores[at].is_finite() {
                    self.best.push(candidate(self.scores[at], at));
                }
            }
        }
        let mut sums = [0.0f32; WIDEST];
        // SAFETY: there are no more lanes.
        unsafe { poison.store(sums.as_mut_ptr()) };
        *self.all_finite = sums.iter().all(|s| !s.is_nan());
        for at in whole..self.scores.len() {
            let score = self.scores[at];
            *self.all_finite &= score.is_finite();
            if score.is_finite() && score > self.best.bound {
                if self.best.len == self.best.buffer.len() {
                    self.best.cut();
                }
                self.best.push(candidate(score, at));
            }
        }
    }
}
