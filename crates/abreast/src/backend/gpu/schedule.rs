//! The calls of a recorded step, put together: which of them may run at the same time, and which are one launch.
//!
//! Two calls stay in the order in which they were made where one writes what the other reads or writes. Scratch counts as written.

use super::plan::{Launch, Plan};
use crate::ops::Touches;
use std::ops::Range;

/// Chains of calls that run beside each other.
pub(in crate::backend) const LANES: usize = 2;

/// Blocks from which on a launch does not mind what it runs beside.
const LARGE: u32 = 128;

/// Where no argument is: it stands for the scratch, which all calls of a step share.
const SCRATCH: Range<usize> = 0..1;

/// All calls of a step.
#[derive(Debug, Default)]
pub(in crate::backend) struct Schedule {
    pub(in crate::backend) plan: Plan,
    pub(in crate::backend) order: Vec<Placed>,
    calls: Vec<Call>,
    /// The last call of each lane.
    tails: [Option<usize>; LANES],
}

/// Where a call runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) struct Placed {
    /// Behind all earlier calls of this lane.
    pub(in crate::backend) lane: usize,
    /// Behind these calls of other lanes too; earlier calls, by their places in the order.
    pub(in crate::backend) after: Vec<usize>,
    /// Its launches among the plan's.
    pub(in crate::backend) launches: Range<usize>,
}

#[derive(Debug)]
struct Call {
    touches: Touches,
    done: Done,
}

/// How many calls of each lane are done when a call is, itself among them.
type Done = [usize; LANES];

impl Schedule {
    /// Takes the next call.
    pub(in crate::backend) fn take(&mut self, plan: Plan, touches: Touches) {
        if plan.launches.is_empty() {
            return;
        }
        let scratch = (plan.scratch > 0).then_some(SCRATCH);
        let touches = touches.write(scratch).sorted();
        let (mut done, mut after) = (Done::default(), vec![]);
        for (i, call) in self.calls.iter().enumerate().rev() {
            let lane = self.order[i].lane;
            if done[lane] < call.done[lane] && call.touches.clash(&touches) {
                after.push(i);
                done = later(done, call.done);
            }
        }
        // The call before must wait for no more calls than it does, were they one.
        let last = self.calls.last_mut().filter(|last| later(done, last.done) == last.done);
        if let Some(last) = last
            && !after.contains(&(self.order.len() - 1))
            && self.plan.join(&plan)
        {
            last.touches = std::mem::take(&mut last.touches).and(touches).sorted();
            return;
        }
        // In the lane that ends with a call to wait for, else in the emptiest.
        let ends =
            after.iter().map(|&i| (i, self.order[i].lane)).find(|&(i, lane)| self.tails[lane] == Some(i));
        let length = |lane: &usize| self.tails[*lane].map_or(0, |i| self.calls[i].done[*lane]);
        let lane = ends.map_or_else(|| (0..LANES).min_by_key(length).unwrap_or(0), |(_, lane)| lane);
        // Not beside a selection, whose launches follow so closely that each of its blocks counts, but beside what comes next: attention of few
        // rows leaves room. Measured on an H200.
        if let (Some(call), Some(placed)) = (self.calls.last(), self.order.last())
            && placed.lane != lane
            && later(done, call.done) != done
            && closely(&self.plan.launches[placed.launches.clone()])
            && plan.launches.iter().all(|launch| launch.grid[0].saturating_mul(launch.grid[1]) < LARGE)
        {
            after.push(self.order.len() - 1);
            done = later(done, call.done);
        }
        if let Some(tail) = self.tails[lane] {
            done = later(done, self.calls[tail].done);
        }
        done[lane] += 1;
        after.retain(|&i| self.order[i].lane != lane);
        self.tails[lane] = Some(self.calls.len());
        let first = self.plan.launches.len();
        self.plan.append(plan);
        self.order.push(Placed { lane, after, launches: first..self.plan.launches.len() });
        self.calls.push(Call { touches, done });
    }
}

/// Several launches that overlap.
fn closely(launches: &[Launch]) -> bool {
    launches.len() > 1 && launches.iter().all(|launch| launch.overlaps)
}

fn later(a: Done, b: Done) -> Done {
    std::array::from_fn(|lane| a[lane].max(b[lane]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A call of one launch; with an entry's size, one that can be joined.
    fn plan(name: &'static str, (entry, scratch): (usize, usize)) -> Plan {
        let mut plan = Plan { scratch, ..Plan::default() };
        let table = plan.push(&(), ([1u32; 8].into_iter(), 0, 8));
        let grid = [1, 32usize.checked_div(entry).unwrap_or(1) as u32];
        plan.launch(Launch { kernel: (name, name), grid, threads: 32, table, entry, ..Launch::PLAIN });
        plan
    }

    fn touches(reads: Option<Range<usize>>, writes: Range<usize>) -> Touches {
        Touches::default().read(reads).write([writes])
    }

    fn places(schedule: &Schedule) -> Vec<(usize, Vec<usize>)> {
        schedule.order.iter().map(|placed| (placed.lane, placed.after.clone())).collect()
    }

    /// Scores, selection and attention wait for each other; two compressors are one launch beside them, and what reads all comes last.
    #[test]
    fn a_decode_step_has_two_lanes() {
        let mut step = Schedule::default();
        step.take(plan("scores", (0, 4)), touches(None, 10..20));
        step.take(plan("top_k", (0, 4)), touches(Some(10..20), 20..30));
        step.take(plan("compress", (16, 0)), touches(None, 40..50));
        step.take(plan("compress", (16, 0)), touches(None, 50..60));
        step.take(plan("attention", (0, 0)), touches(Some(20..30), 70..80));
        step.take(plan("gather", (0, 0)), touches(Some(40..80), 80..90));
        assert_eq!(places(&step), [(0, vec![]), (0, vec![]), (1, vec![]), (0, vec![]), (0, vec![2])]);
        let joined = &step.plan.launches[step.order[2].launches.clone()];
        assert_eq!((joined.len(), joined[0].grid), (1, [1, 4]));
    }

    /// A few blocks run beside attention, many beside the selection before it.
    #[test]
    fn a_small_call_does_not_run_beside_a_selection() {
        for (rows, after) in [(1, vec![0]), (LARGE, vec![])] {
            let mut step = Schedule::default();
            let mut selection = plan("scores", (0, 4));
            selection.append(plan("top_k", (0, 4)));
            selection.launches.iter_mut().for_each(|launch| launch.overlaps = true);
            step.take(selection, touches(None, 10..20));
            let mut compressor = plan("compress", (0, 0));
            compressor.launches[0].grid[1] = rows;
            step.take(compressor, touches(None, 40..50));
            step.take(plan("attention", (0, 0)), touches(Some(10..20), 70..80));
            assert_eq!(places(&step), [(0, vec![]), (1, after), (0, vec![])]);
        }
    }

    #[test]
    fn calls_of_one_state_are_not_joined() {
        let mut step = Schedule::default();
        step.take(plan("compress", (16, 0)), touches(None, 40..50));
        step.take(plan("compress", (16, 0)), touches(Some(48..52), 60..70));
        assert_eq!(places(&step), [(0, vec![]), (0, vec![])]);
    }

    /// The second would make the first wait for the scores.
    #[test]
    fn joining_makes_nobody_wait() {
        let mut step = Schedule::default();
        step.take(plan("scores", (0, 0)), touches(None, 10..20));
        step.take(plan("compress", (16, 0)), touches(None, 40..50));
        step.take(plan("compress", (16, 0)), touches(Some(10..12), 60..70));
        assert_eq!(places(&step), [(0, vec![]), (1, vec![]), (0, vec![])]);
    }

    /// A recording is used again where launches and order are the same: other addresses that clash otherwise must differ in one.
    #[test]
    fn other_addresses_are_another_order() {
        let recorded = |entry, read: Range<usize>| {
            let mut step = Schedule::default();
            step.take(plan("compress", (entry, 0)), touches(None, 10..20));
            step.take(plan("compress", (entry, 0)), touches(Some(read), 30..40));
            (step.plan.launches.clone(), step.order.clone())
        };
        for entry in [0, 16] {
            assert_eq!(recorded(entry, 20..30), recorded(entry, 50..60));
            assert_ne!(recorded(entry, 20..30), recorded(entry, 19..21));
        }
    }

    proptest! {
        /// Whatever clashes is ordered by lanes and waits alone.
        #[test]
        fn what_clashes_is_ordered(
            calls in prop::collection::vec((0..40usize, 0..6usize, 0..40usize, 1..6usize, any::<bool>(), any::<bool>()), 1..24)
        ) {
            let mut step = Schedule::default();
            // The place of each call; joined calls have the same.
            let mut made: Vec<(Touches, usize)> = vec![];
            for (read, reads, write, writes, joins, scratch) in calls {
                let touches = touches(Some(100 + read..100 + read + reads), 100 + write..100 + write + writes);
                let (entry, scratch) = (if joins { 16 } else { 0 }, usize::from(scratch));
                step.take(plan("call", (entry, scratch)), touches.clone());
                made.push((touches.write((scratch > 0).then_some(SCRATCH)).sorted(), step.order.len() - 1));
            }
            // Which calls come before which, by following lanes and waits.
            let n = step.order.len();
            let mut before = vec![vec![false; n]; n];
            for j in 0..n {
                let Placed { lane, after, .. } = &step.order[j];
                let tail = (0..j).rev().find(|&i| step.order[i].lane == *lane);
                for i in after.iter().copied().chain(tail) {
                    prop_assert!(i < j);
                    before[j][i] = true;
                    for k in 0..i {
                        before[j][k] |= before[i][k];
                    }
                }
            }
            for (b, (second, j)) in made.iter().enumerate() {
                for (first, i) in &made[..b] {
                    prop_assert!(!first.clash(second) || before[*j][*i], "{i} and {j}: {:?}", step.order);
                }
            }
        }
    }
}
