//! How a call is timed.

use super::inputs::Call;
use abreast::{Cost, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The fewest samples of a figure, however long a call takes.
const FEWEST_SAMPLES: usize = 5;
/// The shortest sample: a shorter call is repeated within one, so that the clock's resolution does not show.
const SAMPLE: Duration = Duration::from_micros(200);

/// Microseconds of one call, over all samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    pub(super) median: f64,
    pub(super) p10: f64,
    pub(super) p90: f64,
    pub(super) samples: usize,
}

/// One joint call, and a loop of solo calls over the same rows.
pub(super) struct Measured {
    pub(super) joint: Timing,
    pub(super) solo: Timing,
    /// Of the joint call.
    pub(super) cost: Cost,
    pub(super) gpu: Option<OnGpu>,
}

/// What is known of a call on a GPU beside: its `joint` and `solo` are the device's times with cold inputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnGpu {
    /// Bytes that calls touch before inputs come back.
    pub(super) turn_bytes: usize,
    /// Whether these are enough for inputs to be in no cache.
    pub(super) cold: bool,
    /// The device's time where calls have one set of inputs.
    pub(super) warm: Timing,
    /// The host's time until a plain call returns, and until the replay of a step that holds the call does.
    pub(super) call_host: Timing,
    pub(super) replay_host: Timing,
}

/// Times calls of `rows` rows out of `requests`, for about `budget`.
///
/// Joint and solo samples take turns, so that a drift of the clock's rate hits both.
pub(super) fn measure(
    call: &mut impl Call,
    (rows, requests): (usize, usize),
    budget: Duration,
) -> Result<Measured> {
    let cost = call.cost(0..rows);
    let mut sampler = Sampler { call, rows, groups: requests / rows, turn: 0, repeats: 1 };
    sampler.warm_up()?;
    let (mut joint, mut solo) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while start.elapsed() < budget || joint.len() < FEWEST_SAMPLES {
        joint.push(sampler.joint()?);
        if rows > 1 {
            solo.push(sampler.solo()?);
        }
    }
    let joint = summary(joint);
    // A joint call of one row is its solo call.
    Ok(Measured { joint, solo: if rows > 1 { summary(solo) } else { joint }, cost, gpu: None })
}

struct Sampler<'a, C> {
    call: &'a mut C,
    rows: usize,
    groups: usize,
    turn: usize,
    /// Calls in one sample.
    repeats: u32,
}

impl<C: Call> Sampler<'_, C> {
    /// Every call takes the next requests, so that it does not find its data in the caches only because the call
    /// before left it there.
    fn next(&mut self) -> Range<usize> {
        let first = self.turn % self.groups * self.rows;
        self.turn += 1;
        first..first + self.rows
    }

    /// Touches every request once, then finds how many calls make a sample.
    fn warm_up(&mut self) -> Result<()> {
        for _ in 0..self.groups {
            let range = self.next();
            self.call.run(range)?;
        }
        while self.joint()? * f64::from(self.repeats) < SAMPLE.as_secs_f64() * 1e6 && self.repeats < 1 << 20 {
            self.repeats *= 2;
        }
        Ok(())
    }

    /// Microseconds of a joint call.
    fn joint(&mut self) -> Result<f64> {
        self.sample(|call, range| call.run(range))
    }

    /// Microseconds of solo calls of the same number of rows.
    fn solo(&mut self) -> Result<f64> {
        self.sample(|call, range| range.into_iter().try_for_each(|row| call.run(row..row + 1)))
    }

    fn sample(&mut self, run: impl Fn(&mut C, Range<usize>) -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..self.repeats {
            let range = self.next();
            run(self.call, range)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(self.repeats))
    }
}

pub(super) fn summary(mut samples: Vec<f64>) -> Timing {
    samples.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| samples[(samples.len() - 1) * percent / 100];
    Timing { median: at(50), p10: at(10), p90: at(90), samples: samples.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_orders_its_samples() {
        let samples = (0..=10).rev().map(f64::from).collect();
        assert_eq!(summary(samples), Timing { median: 5.0, p10: 1.0, p90: 9.0, samples: 11 });
        assert_eq!(summary(vec![3.0]), Timing { median: 3.0, p10: 3.0, p90: 3.0, samples: 1 });
    }

    /// Counts how often each request ran jointly, in threes, and alone.
    #[derive(Default)]
    struct Counts {
        joint: [u32; 7],
        solo: [u32; 7],
    }

    impl Call for Counts {
        fn run(&mut self, requests: Range<usize>) -> Result<()> {
            assert!(requests.len() == 1 || [0..3, 3..6].contains(&requests), "{requests:?}");
            let counts = if requests.len() == 1 { &mut self.solo } else { &mut self.joint };
            counts[requests].iter_mut().for_each(|n| *n += 1);
            Ok(())
        }

        fn cost(&mut self, requests: Range<usize>) -> Cost {
            Cost { flops: requests.len() as u64, bytes: 1 }
        }
    }

    /// Joint calls take whole groups in turn, solo calls single rows; nothing beyond the groups.
    #[test]
    fn calls_take_turns_over_the_requests() {
        let mut counts = Counts::default();
        let measured = measure(&mut counts, (3, 7), Duration::ZERO).unwrap();
        assert_eq!(measured.cost, Cost { flops: 3, bytes: 1 });
        assert_eq!(measured.joint.samples, FEWEST_SAMPLES);
        assert_eq!(measured.solo.samples, FEWEST_SAMPLES);
        for counts in [counts.joint, counts.solo] {
            assert!(counts[..6].iter().all(|n| *n > 0), "{counts:?}");
            assert_eq!(counts[6], 0);
        }
    }

    #[test]
    fn one_row_is_its_own_solo() {
        let measured = measure(&mut Counts::default(), (1, 7), Duration::ZERO).unwrap();
        assert_eq!(measured.joint, measured.solo);
    }
}
