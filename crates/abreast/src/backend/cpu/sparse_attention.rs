//! A task is some heads of one row: all of a row's heads where there are enough rows for the threads, else a share.
//! It never materialises a gathered cache. Three passes over the attended slots:
//!
//! 1. logits, by tiles of cache rows packed for [`Dots`], all heads against one tile;
//! 2. softmax weights in place of the logits, head by head;
//! 3. weighted values, by tiles of widened cache rows, some heads' sums in registers.
//!
//! Each logit, weight and output element has its own chain of operations, so the shares do not show in the bits.

use super::attention_scratch::{Layout, Scratch};
use super::dots::{Dots, Emit, Packed, Source, Stacked, TILE};
use super::isa::Kernel;
use super::lanes::Lanes;
use super::softmax::Logits;
use super::values::{WeightedSum, divide};
use super::{Cpu, Shared, StatusWords, Work};
use crate::dims::{MAX_HEADS, NO_INDEX, status};
use crate::error::Result;
use crate::ops::{Checked, Op, SparseAttention};
use half::bf16;

pub(super) fn launch(cpu: &Cpu, mut op: Checked<SparseAttention<'_>>) -> Result<()> {
    let words = StatusWords::of(op.status.as_mut());
    if op.rows.is_empty() {
        return Ok(());
    }
    let out = Shared(op.out.as_mut_ptr());
    let [_, heads, dim] = op.q.shape();
    let share = heads.div_ceil(shares(op.rows.len(), heads, cpu.threads()));
    let parts = heads.div_ceil(share);
    let width = op.rows.iter().map(|row| row.indices.len()).max().unwrap_or(0);
    let layout = Layout { heads: share, dim, width };
    let work =
        Work { parts: op.rows.len() * parts, scratch: layout.bytes(), nanoseconds: op.cost().flops / 130 };
    let prepared = cpu.prepare(work)?;
    words.clear();
    prepared.run(|task| {
        let (e, part) = (task.part / parts, task.part % parts);
        let row = &op.rows[e];
        let range = part * share..heads.min((part + 1) * share);
        // SAFETY: the contract checked the row's query and output; `range` lies within the heads.
        let (q, out) = unsafe {
            let first = |row: usize| (row * heads + range.start) * dim;
            (
                op.q.as_ptr().add(first(row.query)),
                std::slice::from_raw_parts_mut(out.at(first(row.out)), range.len() * dim),
            )
        };
        let sinks = op.sinks.as_ref().map(|sinks| &sinks.as_slice().expect("a CPU view")[range.clone()]);
        let indices = row.indices.as_slice().expect("a CPU view");
        let cache = Cache { kv: row.kv.as_ptr(), len: row.kv.shape()[0], dim };
        let layout = Layout { heads: range.len(), dim, width: indices.len() };
        let mut found = 0;
        let scratch = task.scratch;
        cpu.isa.run(Attend {
            q,
            sinks,
            scale: op.scale,
            cache,
            indices,
            layout,
            scratch,
            out,
            found: &mut found,
        });
        words.add(e, found);
    });
    Ok(())
}

/// Into how many parts a row's heads go. It decides where work runs and never how it is rounded.
fn shares(rows: usize, heads: usize, threads: usize) -> usize {
    // Every part packs the row's cache for itself: parts cost, idle threads cost more.
    let idle = |parts: usize| {
        let tasks = rows * parts;
        (tasks.next_multiple_of(threads) - tasks) as f64 / tasks as f64
    };
    [1, 2, 4, 8]
        .into_iter()
        .find(|&parts| heads / (2 * parts) < 16 || rows == 0 || idle(parts) < 0.15)
        .unwrap_or(8)
}

/// A request's cache.
#[derive(Clone, Copy)]
struct Cache {
    kv: *const bf16,
    len: usize,
    dim: usize,
}

impl Cache {
    /// # Safety
    /// `row < len`.
    #[inline(always)]
    unsafe fn row(self, row: u32) -> *const bf16 {
        // SAFETY: the view has `len` rows of `dim`, and its size fits the address space.
        unsafe { self.kv.add(row as usize * self.dim) }
    }
}

/// Some heads of one row.
struct Attend<'a> {
    q: *const bf16,
    sinks: Option<&'a [f32]>,
    scale: f32,
    cache: Cache,
    indices: &'a [i32],
    layout: Layout,
    scratch: *mut u8,
    out: &'a mut [bf16],
    /// Status bits.
    found: &'a mut u32,
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Layout { heads, dim, .. } = self.layout;
        let scratch = self.layout.place(self.scratch);
        // SAFETY: the lists have a place for every slot, which `attend` fills in order.
        let (rows, slots) = unsafe {
            let Some(n) = self.attend(&scratch) else {
                *self.found = status::INVALID_INDEX;
                return self.out.fill(bf16::ZERO);
            };
            (std::slice::from_raw_parts(scratch.rows, n), std::slice::from_raw_parts(scratch.slots, n))
        };
        if rows.is_empty() {
            return self.out.fill(bf16::ZERO);
        }
        let attended = Attended { cache: self.cache, rows };
        let slots = (rows.len() < self.indices.len()).then_some(slots);
        let mut denominators = [0.0f32; MAX_HEADS];
        // SAFETY: the scratch has its parts' places.
        let denominators = unsafe {
            self.logits::<L>(&scratch, &attended);
            for (h, denominator) in denominators.iter_mut().enumerate().take(heads) {
                let logits = Logits { first: scratch.logits.add(h * scratch.padded), n: rows.len(), slots };
                *denominator = logits.softmax::<L>(self.sinks.map(|sinks| sinks[h]));
            }
            &denominators[..heads]
        };
        // A non-finite cache row makes every head's logit non-finite: only then is it worth another look.
        if denominators.iter().any(|d| d.is_nan()) && !attended.is_finite() {
            *self.found = (0..heads).fold(status::NONFINITE_KV, |found, h| found | self.input_faults(h));
            return self.out.fill(bf16::ZERO);
        }
        let Scratch { logits, padded, tile, sums, .. } = scratch;
        let weighted = WeightedSum { weights: logits, stride: padded, heads, dim, tile, sums };
        // SAFETY: as above; `rows` were checked against the cache's length.
        unsafe { weighted.run::<L>(rows.len(), |a| self.cache.row(rows[a])) };
        for (h, denominator) in denominators.iter().enumerate() {
            let out = &mut self.out[h * dim..(h + 1) * dim];
            // SAFETY: `sums` has `dim` places a head.
            if !unsafe { divide::<L>(sums.add(h * dim), *denominator, out) } {
                out.fill(bf16::ZERO);
                let faults = self.input_faults(h);
                *self.found |= if faults == 0 { status::OVERFLOW } else { faults };
            }
        }
    }
}

impl Attend<'_> {
    /// Lists the slots that are not skipped; their number, or `None` where an index is invalid.
    #[inline(always)]
    unsafe fn attend(&self, scratch: &Scratch) -> Option<usize> {
        let mut n = 0;
        for (slot, &index) in self.indices.iter().enumerate() {
            if index == NO_INDEX {
                continue;
            }
            let row = u32::try_from(index).ok().filter(|&row| (row as usize) < self.cache.len)?;
            // SAFETY: n <= slot < width.
            unsafe {
                scratch.rows.add(n).write(row);
                scratch.slots.add(n).write(slot as u32);
            }
            n += 1;
        }
        Some(n)
    }

    #[inline(always)]
    unsafe fn logits<L: Lanes>(&self, scratch: &Scratch, attended: &Attended<'_>) {
        let Layout { heads, dim, .. } = self.layout;
        let queries = Packed { data: scratch.queries, dim, stride: heads.next_multiple_of(L::N) };
        // SAFETY: the scratch has its parts' places; `q` has `heads` rows.
        unsafe { queries.fill::<L>(&Stacked { first: self.q, rows: heads, dim }) };
        let mut tile = 0;
        while tile < attended.rows.len() {
            let rows = &attended.rows[tile..];
            let stride = if rows.len() <= L::N { L::N } else { TILE * L::N };
            let keys = Packed { data: scratch.tile, dim, stride };
            // SAFETY: as above.
            unsafe {
                keys.fill::<L>(&Attended { rows, ..*attended });
                let next = &Attended { rows: rows.get(stride..).unwrap_or_default(), ..*attended };
                let dots = Dots { a: queries, a_rows: heads, b: keys, stack: scratch.stack, next };
                let to = scratch.logits.add(tile);
                dots.run::<L>(&Scaled { to, stride: scratch.padded, scale: self.scale });
            }
            tile += stride;
        }
    }

    /// What is wrong with a head's query and sink.
    fn input_faults(&self, h: usize) -> u32 {
        let dim = self.layout.dim;
        // SAFETY: `q` has `dim` elements a head.
        let q = unsafe { std::slice::from_raw_parts(self.q.add(h * dim), dim) };
        let query = if q.iter().all(|x| x.is_finite()) { 0 } else { status::NONFINITE_QUERY };
        let sink = self.sinks.is_none_or(|sinks| sinks[h].is_finite());
        query | if sink { 0 } else { status::NONFINITE_SINK }
    }
}

/// The attended cache rows, in order; each is below the cache's length.
#[derive(Clone, Copy)]
struct Attended<'a> {
    cache: Cache,
    rows: &'a [u32],
}

impl Attended<'_> {
    fn is_finite(&self) -> bool {
        self.rows.iter().all(|&row| {
            // SAFETY: `row` is below the cache's length.
            let row = unsafe { std::slice::from_raw_parts(self.cache.row(row), self.cache.dim) };
            row.iter().all(|x| x.is_finite())
        })
    }
}

impl Source for Attended<'_> {
    #[inline(always)]
    fn get(&self, r: usize) -> Option<*const bf16> {
        // SAFETY: every row is below the cache's length.
        self.rows.get(r).map(|&row| unsafe { self.cache.row(row) })
    }
}

/// Dot products times the scale, to the logits.
struct Scaled {
    to: *mut f32,
    stride: usize,
    scale: f32,
}

impl Emit for Scaled {
    #[inline(always)]
    fn emit<L: Lanes>(&self, head: usize, slot: usize, dots: L) {
        // SAFETY: the logits have a place for every head and slot of the tile.
        unsafe { dots.mul(L::splat(self.scale)).store(self.to.add(head * self.stride + slot)) };
    }
}
