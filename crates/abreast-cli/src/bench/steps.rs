//! How calls are timed on a GPU: by the device, over replays of recorded steps, each of many calls.

use super::cases::Case;
use super::inputs::{Call, Inputs};
use super::measure::{Measured, OnGpu, Timing, summary};
use abreast::{Device, Result, Step};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Inputs are cold where calls touch this many times the second-level cache before they come back.
const COLD: usize = 3;
/// The most calls of a step. Calls that touch little are cold no longer then, and the report says so.
const MOST_CALLS: usize = 512;
/// The fewest calls of a step, which may be of the same inputs again: what a replay takes besides them must not show.
const FEWEST_CALLS: usize = 24;
/// About the longest replay. Kernels that nobody has tuned take milliseconds, and caches matter little to them.
const LONGEST_REPLAY: Duration = Duration::from_millis(20);
/// Replays of a step in one turn.
const REPLAYS: usize = 5;
const HOST_SAMPLES: usize = 11;

/// How many sets of inputs of `rows` rows take turns: enough for cold ones, if calls and memory allow. A row touches so many
/// bytes, and the second-level cache has so many.
pub(super) fn sets(case: Case, rows: usize, (touched, l2): (usize, usize)) -> usize {
    let cold = 1 + (COLD * l2).div_ceil((rows * touched).max(1));
    // Not more than half of the most memory, unless two sets need more.
    cold.min(MOST_CALLS).min(case.most_bytes() / 2 / (rows * case.request_bytes())).max(2)
}

/// Times calls of `rows` rows for about `budget`; `cache` is what [`sets`] needs.
///
/// Joint, solo and warm replays take turns, so that a drift of the clock's rate hits all.
pub(super) fn measure(
    (device, inputs): (&Device, &mut Inputs),
    (case, rows, cache): (Case, usize, (usize, usize)),
    budget: Duration,
) -> Result<Measured> {
    let cost = inputs.cost(0..rows);
    let sets = sets(case, rows, cache);
    let turn = (0..sets).map(|set| set * rows..(set + 1) * rows);
    let calls: Vec<_> = turn.cycle().take(sets * FEWEST_CALLS.div_ceil(sets)).collect();
    let alone = (0..(sets * rows).min(MOST_CALLS)).map(|row| row..row + 1).collect();
    let mut joint = Timed::new(device.step(case.limits(rows))?, calls.clone(), inputs)?;
    let mut solo = Timed::new(device.step(case.limits(1))?, alone, inputs)?;
    let mut warm = Timed::new(device.step(case.limits(rows))?, vec![0..rows; FEWEST_CALLS], inputs)?;
    let turn_bytes = (sets.min(joint.calls.len()) - 1) * cost.bytes as usize;
    let start = Instant::now();
    while joint.samples.is_empty() || start.elapsed() < budget {
        joint.sample(inputs)?;
        warm.sample(inputs)?;
        if rows > 1 {
            solo.sample(inputs)?;
        }
    }
    let mut step = device.step(case.limits(rows))?;
    let call_host = host(device, &calls, |call| inputs.run(call))?;
    let replay_host = host(device, &calls, |call| step.run(|calls| inputs.run_in(calls, call)))?;
    let joint = joint.timing(1);
    Ok(Measured {
        joint,
        // A joint call of one row is its solo call.
        solo: if rows > 1 { solo.timing(rows) } else { joint },
        cost,
        gpu: Some(OnGpu {
            turn_bytes,
            cold: turn_bytes >= COLD * cache.1,
            warm: warm.timing(1),
            call_host,
            replay_host,
        }),
    })
}

/// A step of calls, and how long one of them took in each replay.
struct Timed {
    step: Step,
    calls: Vec<Range<usize>>,
    samples: Vec<f64>,
}

impl Timed {
    /// Of these calls, as many as a replay has time for.
    fn new(mut step: Step, mut calls: Vec<Range<usize>>, inputs: &mut Inputs) -> Result<Timed> {
        let once = step.time(1, |step| inputs.run_in(step, calls[0].clone()))?[0];
        let most = LONGEST_REPLAY.as_nanos() / once.as_nanos().max(1);
        calls.truncate(most.clamp(2, MOST_CALLS as u128) as usize);
        Ok(Timed { step, calls, samples: vec![] })
    }

    fn sample(&mut self, inputs: &mut Inputs) -> Result<()> {
        let all = &self.calls;
        let times = self
            .step
            .time(REPLAYS, |calls| all.iter().try_for_each(|call| inputs.run_in(calls, call.clone())))?;
        self.samples.extend(times.iter().map(|time| time.as_secs_f64() * 1e6 / all.len() as f64));
        Ok(())
    }

    /// Microseconds of so many calls.
    fn timing(self, calls: usize) -> Timing {
        summary(self.samples.into_iter().map(|us| us * calls as f64).collect())
    }
}

/// The host's microseconds for `run`, whenever the device has nothing to do.
fn host(
    device: &Device,
    calls: &[Range<usize>],
    mut run: impl FnMut(Range<usize>) -> Result<()>,
) -> Result<Timing> {
    let mut samples = Vec::with_capacity(HOST_SAMPLES);
    for call in calls.iter().cycle().take(HOST_SAMPLES) {
        device.synchronize()?;
        let start = Instant::now();
        run(call.clone())?;
        samples.push(start.elapsed().as_secs_f64() * 1e6);
    }
    device.synchronize()?;
    Ok(summary(samples))
}

#[cfg(test)]
mod tests {
    use super::*;
    use abreast::Method;

    const L2: usize = 60 << 20;

    /// Calls of the largest and of the smallest shapes, and of one whose requests hold far more than a call touches.
    #[test]
    fn sets_are_cold_where_calls_and_memory_allow() {
        let attention = Case::SparseAttention { width: 640, heads: 64 };
        let touched = 786_432;
        let sets_of = |rows| sets(attention, rows, (touched, L2));
        assert!((sets_of(1) - 1) * touched >= COLD * L2 && sets_of(1) * attention.request_bytes() <= 3 << 29);
        assert_eq!(sets_of(128), 3);
        assert_eq!(sets_of(1024), 2);
        assert_eq!(sets(Case::GatherRows { n: 512 }, 1, (4096, L2)), MOST_CALLS);
        let layout = abreast::StateLayout::Ring;
        let compress = Case::Compress { ratio: 128, d: 512, layout, block: false };
        let held = sets(compress, 128, (8192, L2)) * 128 * compress.request_bytes();
        assert!(held <= 3 << 29 && held > 1 << 30);
    }

    /// The CPU runs steps too: every case fits its limits, and every figure is there.
    #[test]
    fn every_case_is_timed_in_steps() {
        let device = Device::cpu().unwrap();
        let small = |case: &Case| case.request_bytes() < 1 << 20;
        for case in Case::all().into_iter().filter(small) {
            let mut inputs = Inputs::load(case, (&device, Method::Reference, 4)).unwrap();
            let m = measure((&device, &mut inputs), (case, 2, (0, 0)), Duration::ZERO).unwrap();
            let gpu = m.gpu.unwrap();
            assert_eq!((m.joint.samples, m.solo.samples, gpu.warm.samples), (REPLAYS, REPLAYS, REPLAYS));
            assert_eq!(gpu.call_host.samples, HOST_SAMPLES);
            assert_eq!(gpu.turn_bytes as u64, m.cost.bytes, "{case:?}");
        }
    }
}
