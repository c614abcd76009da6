//! What this machine can do at most: the roof over every figure.

use super::loops::{self, Line};
use abreast::{Cost, Isa};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// The measured ceilings, with all threads that the operations use.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ceilings {
    /// f32 fused multiply-add of the instruction set in use, the roof over arithmetic. Infinite, null in JSON, where unknown.
    pub(super) fma_gflops: f64,
    /// The same of every instruction set with vectors that this processor has, or of the GPU's architecture.
    pub(super) fma_gflops_of: BTreeMap<String, f64>,
    /// Where these are from: measured, or a GPU's properties.
    pub(super) fma_from: &'static str,
    /// bf16 products of a GPU's matrix unit, by its properties, the roof over `Method::Fast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) matrix_gflops: Option<f64>,
    /// A GPU's time for the smallest call of a step: no figure can be lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) least_call_us: Option<f64>,
    /// Memory, smallest working set first.
    pub(super) memory: Vec<Bandwidth>,
}

/// What memory gives over a working set of a size: the caches' levels, then DRAM.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Bandwidth {
    pub(super) bytes: usize,
    /// Where it is not measured, reads are held against copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_gbs: Option<f64>,
    /// Bytes read and bytes written, both counted.
    pub(super) copy_gbs: f64,
}

/// Whether an operation mostly reads, or writes as much as it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    Read,
    Copy,
}

/// What an operation computes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Vector,
    Matrix,
}

/// Which ceiling is the lower one over an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Bound {
    Compute,
    Memory,
}

/// Repeats of every measurement; the best counts, since a ceiling is what is possible.
const REPEATS: usize = 20;
const FMA_STEPS: usize = 2_000_000;
/// Far beyond every cache.
const DRAM: usize = 512 << 20;

impl Ceilings {
    /// Takes about two seconds. `isa` without vectors is held against the widest vectors.
    pub(super) fn measure(isa: Isa, threads: usize) -> Ceilings {
        let isa = if isa == Isa::Portable { Isa::best() } else { isa };
        let mut fma_gflops_of: BTreeMap<_, _> = (Isa::ALL.into_iter())
            .filter(|isa| *isa != Isa::Portable && isa.is_available())
            .map(|isa| (isa.to_string(), fma(isa, threads)))
            .collect();
        let fma_gflops = *fma_gflops_of.entry(isa.to_string()).or_insert_with(|| fma(isa, threads));
        Ceilings {
            fma_gflops,
            fma_gflops_of,
            fma_from: "measured",
            matrix_gflops: None,
            least_call_us: None,
            memory: memory(threads),
        }
    }

    /// The least seconds for `cost` over a working set of `bytes`, and what sets them. A product may have the matrix unit.
    pub(super) fn floor(&self, cost: Cost, (bytes, traffic, unit): (usize, Traffic, Unit)) -> (f64, Bound) {
        let level = self.memory.iter().find(|m| m.bytes >= bytes).or(self.memory.last());
        let gbs = level.map_or(f64::INFINITY, |m| match traffic {
            Traffic::Read => m.read_gbs.unwrap_or(m.copy_gbs),
            Traffic::Copy => m.copy_gbs,
        });
        let gflops = match unit {
            Unit::Matrix => self.matrix_gflops.unwrap_or(self.fma_gflops),
            Unit::Vector => self.fma_gflops,
        };
        let compute = cost.flops as f64 / (gflops * 1e9);
        let memory = cost.bytes as f64 / (gbs * 1e9);
        if compute >= memory { (compute, Bound::Compute) } else { (memory, Bound::Memory) }
    }
}

fn fma(isa: Isa, threads: usize) -> f64 {
    let seconds = best(&mut vec![(); threads], |()| loops::fma(isa, FMA_STEPS));
    loops::flops_per_step(isa) * (FMA_STEPS * threads) as f64 / seconds / 1e9
}

fn memory(threads: usize) -> Vec<Bandwidth> {
    // Every thread makes its own part, so that it lies close to it.
    let mut parts = vec![Vec::new(); threads];
    together(&mut parts, |part| *part = vec![Line::ONES; DRAM / size_of::<Line>() / threads]);
    // First-level caches, second-level caches, a part and the whole of a usual last level, and none of them.
    [threads * (32 << 10), threads * (512 << 10), 8 << 20, 32 << 20, DRAM]
        .into_iter()
        .map(|bytes| {
            let len = bytes / size_of::<Line>() / threads;
            let passes = (DRAM / 2 / bytes).max(1);
            let moved = (len * size_of::<Line>() * threads * passes) as f64;
            let read = best(&mut parts, |part| (0..passes).for_each(|_| loops::read(&part[..len])));
            let copy = best(&mut parts, |part| (0..passes).for_each(|_| loops::copy(&mut part[..len])));
            Bandwidth { bytes, read_gbs: Some(moved / read / 1e9), copy_gbs: moved / copy / 1e9 }
        })
        .collect()
}

/// The fewest seconds in which all threads do `work`.
fn best<S: Send>(states: &mut [S], work: impl Fn(&mut S) + Sync) -> f64 {
    (0..REPEATS).map(|_| together(states, &work).as_secs_f64()).fold(f64::INFINITY, f64::min)
}

/// How long one thread per state takes for `work`, from the first that starts to the last that ends.
fn together<S: Send>(states: &mut [S], work: impl Fn(&mut S) + Sync) -> Duration {
    let (work, barrier) = (&work, &Barrier::new(states.len()));
    std::thread::scope(|scope| {
        let timed = |state| {
            scope.spawn(move || {
                barrier.wait();
                let start = Instant::now();
                work(state);
                (start, Instant::now())
            })
        };
        let threads: Vec<_> = states.iter_mut().map(timed).collect();
        let spans: Vec<_> = threads.into_iter().map(|t| t.join().expect("the loops do not panic")).collect();
        let start = spans.iter().map(|s| s.0).min();
        let end = spans.iter().map(|s| s.1).max();
        start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings() -> Ceilings {
        let level = |bytes, gbs| Bandwidth { bytes, read_gbs: Some(gbs), copy_gbs: gbs / 2.0 };
        Ceilings {
            fma_gflops: 100.0,
            fma_gflops_of: BTreeMap::new(),
            fma_from: "measured",
            matrix_gflops: Some(1000.0),
            least_call_us: None,
            memory: vec![level(1000, 50.0), level(2000, 10.0)],
        }
    }

    #[test]
    fn the_lower_roof_is_the_bound() {
        let c = ceilings();
        let cost = Cost { flops: 1_000_000, bytes: 1000 };
        assert_eq!(c.floor(cost, (1000, Traffic::Read, Unit::Vector)), (1e-5, Bound::Compute));
        assert_eq!(c.floor(cost, (1000, Traffic::Read, Unit::Matrix)), (1e-6, Bound::Compute));
        let cost = Cost { flops: 10, bytes: 1_000_000 };
        assert_eq!(c.floor(cost, (1000, Traffic::Read, Unit::Vector)), (2e-5, Bound::Memory));
        assert_eq!(c.floor(cost, (1000, Traffic::Copy, Unit::Vector)), (4e-5, Bound::Memory));
        assert_eq!(c.floor(cost, (1001, Traffic::Read, Unit::Vector)), (1e-4, Bound::Memory));
        assert_eq!(c.floor(cost, (usize::MAX, Traffic::Read, Unit::Vector)), (1e-4, Bound::Memory));
    }

    #[test]
    fn together_runs_every_state_once() {
        let mut states = [1, 2, 3];
        together(&mut states, |s| *s *= 10);
        assert_eq!(states, [10, 20, 30]);
    }
}
