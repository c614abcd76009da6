//! What a GPU can do at most: memory by the library's own gather, arithmetic by the driver's description.

use super::ceiling::{Bandwidth, Ceilings};
use abreast::{Device, GatherRow, GatherRows, Gpu, Limits, Result};
use std::collections::BTreeMap;

/// Bytes read and written, far beyond every cache.
const MEMORY: usize = 4 << 30;
/// Rows of a large copy: enough blocks for every multiprocessor.
const ROWS: usize = 128;
/// Replays of every measurement; the best counts, since a ceiling is what is possible.
const REPLAYS: usize = 20;
const SMALL_CALLS: usize = 256;

/// Takes about a second.
pub(super) fn ceilings(device: &Device, gpu: &Gpu) -> Result<Ceilings> {
    let rate = fma_gflops(gpu);
    let (major, minor) = gpu.capability;
    Ok(Ceilings {
        fma_gflops: rate.unwrap_or(f64::INFINITY),
        fma_gflops_of: rate
            .map(|rate| (format!("sm_{major}{minor}"), rate))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        fma_from: if rate.is_some() { "properties" } else { "unknown" },
        matrix_gflops: matrix_gflops(gpu),
        least_call_us: Some(gather(device, (1, 4), SMALL_CALLS)? * 1e6),
        // No more than a part of it, where host and device share memory.
        memory: vec![
            copy(device, (gpu.l2_bytes / 2).max(1 << 20))?,
            copy(device, MEMORY.min(gpu.memory_bytes / 8))?,
        ],
    })
}

/// Multiprocessors, bf16 operations of each in a cycle, clock rate: the peak of NVIDIA's tables for dense matrices.
fn matrix_gflops(gpu: &Gpu) -> Option<f64> {
    let each = match gpu.capability {
        (8, 0) => 2048,
        (8, 9) => 1024,
        (9, 0) => 4096,
        (10, 0) => 8192,
        _ => return None,
    };
    let rate = f64::from(gpu.multiprocessors * each) * f64::from(gpu.clock_khz) * 1e-6;
    (rate > 0.0).then_some(rate)
}

/// Multiprocessors, lanes of each, clock rate: the peak by NVIDIA's tables, which nobody has measured here.
fn fma_gflops(gpu: &Gpu) -> Option<f64> {
    let lanes = match gpu.capability {
        (8, 0) => 64,
        (8, _) | (9, 0) | (10, 0) | (12, 0) => 128,
        _ => return None,
    };
    let rate = 2.0 * f64::from(gpu.multiprocessors * lanes) * f64::from(gpu.clock_khz) * 1e-6;
    (rate > 0.0).then_some(rate)
}

/// Copies half of `bytes` over the other half.
fn copy(device: &Device, bytes: usize) -> Result<Bandwidth> {
    let n = bytes / 2 / ROWS / size_of::<f32>();
    let moved = (2 * n * ROWS * size_of::<f32>()) as f64;
    let seconds = gather(device, (ROWS, n), (MEMORY / bytes.max(1)).clamp(1, SMALL_CALLS))?;
    Ok(Bandwidth { bytes, read_gbs: None, copy_gbs: moved / seconds * 1e-9 })
}

/// The fewest seconds of one call that gathers `rows` rows of `n` elements, of a step with so many.
fn gather(device: &Device, (rows, n): (usize, usize), times: usize) -> Result<f64> {
    let from = device.zeros::<f32>(rows * n)?;
    let mut to = device.zeros::<f32>(rows * n)?;
    let source = |row| GatherRow { source: from.view().slice(row * n..(row + 1) * n).into() };
    let sources: Vec<_> = (0..rows).map(source).collect();
    let mut step = device.step(Limits { rows, width: 0, keys: 0 })?;
    let replays = step.time(REPLAYS, |calls| {
        (0..times).try_for_each(|_| {
            let out = to.view_mut().reshape([rows, n])?.into();
            calls.gather_rows(GatherRows { rows: &sources, out })
        })
    })?;
    let best = replays.into_iter().min().unwrap_or_default();
    Ok(best.as_secs_f64() / times as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(capability: (u32, u32)) -> Gpu {
        let (name, driver) = (String::new(), (13, 0));
        let (multiprocessors, clock_khz, l2_bytes, memory_bytes) = (132, 1_980_000, 60 << 20, 1 << 37);
        Gpu { name, capability, driver, multiprocessors, clock_khz, l2_bytes, memory_bytes }
    }

    #[test]
    fn arithmetic_peaks_are_those_of_the_tables() {
        let gflops = |capability| fma_gflops(&gpu(capability)).map(f64::round);
        assert_eq!(gflops((9, 0)), Some(66_908.0));
        assert_eq!(gflops((8, 0)), Some(33_454.0));
        assert_eq!(gflops((99, 0)), None);
        let matrix = |capability| matrix_gflops(&gpu(capability)).map(f64::round);
        assert_eq!(matrix((9, 0)), Some(1_070_531.0));
        assert_eq!(matrix((7, 5)), None);
    }

    /// The CPU runs steps too.
    #[test]
    fn a_copy_has_a_rate() {
        let level = copy(&Device::cpu().unwrap(), 1 << 20).unwrap();
        assert!(level.bytes == 1 << 20 && level.copy_gbs.is_finite() && level.copy_gbs > 0.0);
    }
}
