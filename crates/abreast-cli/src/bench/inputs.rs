//! The inputs of a case: those of the conformance suite, so that what is measured is what is verified.
//!
//! A call includes the making of its row list, about 0.1 µs, as a step of an engine does.

use super::cases::{CACHE, Case, HEADS, K, KEY_RATIO, Scores};
use super::joint::JointStep;
use abreast::conformance::case::{
    Loaded, Problem, compress, gather_rows, index_scores, select_keys, sparse_attention, top_k,
};
use abreast::dims::{HEAD_DIM, INDEX_DIM, window};
use abreast::{Calls, Cost, Device, Emit, Method, Result, StateLayout};
use std::ops::Range;

const SEED: u64 = 1;

/// Runs any of a case's requests in one call.
pub(super) trait Call {
    fn run(&mut self, requests: Range<usize>) -> Result<()>;
    fn cost(&mut self, requests: Range<usize>) -> Cost;
}

/// The requests of a case in a device's memory.
pub(super) trait Requests {
    fn run(&mut self, requests: Range<usize>) -> Result<()>;
    /// Makes the call in a step. Two calls never run at the same time, since they write some of the same memory.
    fn run_in(&mut self, calls: &mut Calls<'_>, requests: Range<usize>) -> Result<()>;
    fn cost(&mut self, requests: Range<usize>) -> Cost;
    /// Whether no row failed closed: that would be fast, and no measure of anything.
    #[cfg(test)]
    fn is_good(&self) -> bool;
}

/// A case in a device's memory.
pub(super) struct Inputs(Box<dyn Requests>);

impl Inputs {
    /// Makes the inputs of a number of requests, each with a cache of its own.
    pub(super) fn load(case: Case, (device, method, requests): (&Device, Method, usize)) -> Result<Inputs> {
        if let Case::Step { tokens } = case {
            return Ok(Inputs(Box::new(JointStep::load((device, method), (tokens, requests))?)));
        }
        let loaded = problem(case, requests).load(device, method)?;
        Ok(Inputs(Box::new(Operation { loaded, requests: (0..requests).collect() })))
    }

    pub(super) fn run_in(&mut self, calls: &mut Calls<'_>, requests: Range<usize>) -> Result<()> {
        self.0.run_in(calls, requests)
    }
}

impl Call for Inputs {
    fn run(&mut self, requests: Range<usize>) -> Result<()> {
        self.0.run(requests)
    }

    fn cost(&mut self, requests: Range<usize>) -> Cost {
        self.0.cost(requests)
    }
}

/// One operation's inputs.
struct Operation {
    loaded: Box<dyn Loaded>,
    /// All requests by number; a call names a part of them.
    requests: Vec<usize>,
}

impl Requests for Operation {
    fn run(&mut self, requests: Range<usize>) -> Result<()> {
        self.loaded.call(&self.requests[requests], 0)
    }

    fn run_in(&mut self, calls: &mut Calls<'_>, requests: Range<usize>) -> Result<()> {
        // Status words, and the rows that are gathered, go where those of the last call went.
        self.loaded.call_in(calls, (&self.requests[requests], 0))
    }

    fn cost(&mut self, requests: Range<usize>) -> Cost {
        self.loaded.cost(&self.requests[requests])
    }

    #[cfg(test)]
    fn is_good(&self) -> bool {
        let rows = self.loaded.results(&[0, 1]).unwrap();
        rows.iter().flatten().filter(|part| part.name == "status").all(|part| part.bytes == [0; 4])
    }
}

fn problem(case: Case, requests: usize) -> Box<dyn Problem> {
    match case {
        Case::SparseAttention { width } => {
            let row = sparse_attention::RowShape { kv_len: CACHE * width, width };
            let shape = sparse_attention::Shape { heads: HEADS, dim: HEAD_DIM, rows: vec![row; requests] };
            Box::new(shape.generate(SEED))
        }
        Case::IndexScores { keys } => Box::new(scores(keys, requests).generate(SEED)),
        Case::SelectKeys { keys } => {
            Box::new(select_keys::Shape { scores: scores(keys, requests), k: K }.generate(SEED))
        }
        Case::TopK { n, scores } => {
            let mut data = top_k::Shape { k: K, rows: vec![n; requests] }.generate(SEED);
            for row in &mut data.rows {
                match scores {
                    Scores::Random => {}
                    Scores::Equal => row.scores.fill(1.0),
                    Scores::Ascending => row.scores = (0..n).map(|i| i as f32).collect(),
                    Scores::Five => row.scores.iter_mut().for_each(|x| *x = x.round().clamp(-2.0, 2.0)),
                    Scores::Border => {
                        row.scores = (0..n)
                            .map(|i| if i % (n / (K / 2)).max(1) == 0 { i as f32 } else { -1.0 })
                            .collect();
                    }
                }
            }
            Box::new(data)
        }
        Case::Compress { ratio, d, layout, block } => {
            // The last token of the ninth block, or the token before it.
            let start_pos = (9 * ratio - if block { 1 } else { 2 }) as u32;
            let shape = compress::Shape {
                ratio: ratio as u32,
                dim: d,
                ring: (layout == StateLayout::Ring).then_some(window(ratio)),
                emit: Emit::EveryToken,
                rows: vec![compress::RowShape { start_pos, tokens: 1 }; requests],
            };
            Box::new(shape.generate(SEED))
        }
        Case::Step { .. } => unreachable!("not one operation"),
        Case::GatherRows { n } => Box::new(gather_rows::Shape { n, rows: requests }.generate::<f32>(SEED)),
    }
}

/// A position from which exactly `keys` keys are visible.
fn scores(keys: usize, requests: usize) -> index_scores::Shape {
    let row = index_scores::RowShape { start_pos: keys as u32 * KEY_RATIO - 1, spare: 0 };
    index_scores::Shape { heads: HEADS, dim: INDEX_DIM, ratio: KEY_RATIO, rows: vec![row; requests] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every case is a legal call over good data: a row that fails closed would be fast, and no measure of anything.
    #[test]
    fn every_case_runs_on_good_data() {
        let device = Device::cpu().unwrap();
        for case in Case::all() {
            let mut inputs = Inputs::load(case, (&device, Method::Fast, 2)).unwrap();
            inputs.run(0..2).unwrap();
            assert!(inputs.0.is_good(), "{case:?} fails closed");
            let (joint, solo) = (inputs.cost(0..2), inputs.cost(1..2));
            assert!(joint.bytes > solo.bytes && solo.bytes > 0, "{case:?}");
        }
    }
}
