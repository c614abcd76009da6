//! What is measured. The CPU is timed by the clock on the wall, call by call; a GPU by itself, over replayed steps.

use super::ceiling::Ceilings;
use super::inputs::{Call, Inputs};
use super::machine::{self, Machine};
use super::measure::{self, Measured};
use super::{Args, Case, gpu, steps};
use crate::backend::BackendName;
use abreast::{CpuOptions, Device, Gpu, Isa, Method, Result};
use std::time::Duration;

/// Where the driver does not tell the size of the last cache: no chip's is larger.
const LARGEST_CACHE: usize = 96 << 20;

pub(super) struct Target {
    device: Device,
    method: Method,
    kind: Kind,
}

enum Kind {
    Cpu { isa: Isa, threads: usize },
    Gpu(Gpu),
}

impl Target {
    pub(super) fn open(args: &Args) -> std::result::Result<Target, String> {
        if args.backend != BackendName::Cpu && (args.isa.is_some() || args.threads.is_some()) {
            return Err("bench: --isa and --threads are for the CPU".into());
        }
        if args.backend == BackendName::Cpu {
            let isa = args.isa.unwrap_or_else(Isa::best);
            let threads = args.threads.unwrap_or_else(machine::cores);
            let options = CpuOptions { isa: Some(isa), threads: Some(threads) };
            let device = Device::cpu_with(options).map_err(|e| e.to_string())?;
            let kind = Kind::Cpu { isa, threads };
            return Ok(Target { device, method: args.method.into(), kind });
        }
        let device = args.backend.open()?;
        let mut gpu = device.gpu().ok_or("bench: the driver describes no GPU")?;
        if gpu.l2_bytes == 0 {
            gpu.l2_bytes = LARGEST_CACHE;
        }
        Ok(Target { device, method: args.method.into(), kind: Kind::Gpu(gpu) })
    }

    pub(super) fn machine(&self) -> Machine {
        match self.kind {
            Kind::Cpu { isa, threads } => Machine::new(&self.device, Some((isa, threads))),
            Kind::Gpu(_) => Machine::new(&self.device, None),
        }
    }

    pub(super) fn ceilings(&self) -> Result<Ceilings> {
        match &self.kind {
            Kind::Cpu { isa, threads } => Ok(Ceilings::measure(*isa, *threads)),
            Kind::Gpu(gpu) => gpu::ceilings(&self.device, gpu),
        }
    }

    /// The inputs of a case for calls of so many rows.
    pub(super) fn load(&self, case: Case, rows: &[usize]) -> Result<Loaded<'_>> {
        let load = |requests| Inputs::load(case, (&self.device, self.method, requests));
        let (touched, requests) = match &self.kind {
            // As many requests for few rows as for many, so that a figure does not depend on the others asked for.
            Kind::Cpu { .. } => (0, rows.iter().copied().chain(case.rows(false)).max()),
            Kind::Gpu(gpu) => {
                let touched = load(1)?.cost(0..1).bytes as usize;
                let requests = |rows: &usize| rows * steps::sets(case, *rows, (touched, gpu.l2_bytes));
                (touched, rows.iter().map(requests).max())
            }
        };
        let requests = requests.unwrap_or(1);
        Ok(Loaded { target: self, case, inputs: load(requests)?, requests, touched })
    }
}

/// A case in the device's memory.
pub(super) struct Loaded<'a> {
    target: &'a Target,
    case: Case,
    inputs: Inputs,
    pub(super) requests: usize,
    /// Bytes that a call of one row touches.
    touched: usize,
}

impl Loaded<'_> {
    /// Times calls of `rows` rows for about `budget`.
    pub(super) fn measure(&mut self, rows: usize, budget: Duration) -> Result<Measured> {
        match &self.target.kind {
            Kind::Cpu { .. } => measure::measure(&mut self.inputs, (rows, self.requests), budget),
            Kind::Gpu(gpu) => {
                let cache = (self.touched, gpu.l2_bytes);
                steps::measure((&self.target.device, &mut self.inputs), (self.case, rows, cache), budget)
            }
        }
    }
}
