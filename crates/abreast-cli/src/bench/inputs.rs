//! The inputs of a case, in a device's memory, and the calls on them.
//!
//! A call includes the making of its row list, about 0.1 µs, as a step of an engine does.

mod attention;
mod compress;
mod gather;
mod indexer;
mod maker;
mod step;
mod top_k;

use super::cases::{CACHE, Case, HEADS, KEY_RATIO, PAIR};
use abreast::{
    Buffer, Calls, Compress, Cost, Device, GatherRows, IndexScores, Method, Op, Result, SelectKeys,
    SparseAttention, TopK, ViewMut,
};
use attention::Attention;
use compress::Compressors;
use gather::Gather;
use indexer::{Indexer, Scores, Selection};
use maker::Maker;
use std::ops::Range;
use step::JointStep;
pub(super) use step::WIDTH;
use top_k::Selections;

/// Runs any of a case's requests in one call.
pub(super) trait Call {
    fn run(&mut self, requests: Range<usize>) -> Result<()>;
    fn cost(&mut self, requests: Range<usize>) -> Cost;
}

/// What takes the calls of an operation: they run at once, become part of a step, or only tell what they cost.
enum Taker<'a, 'c> {
    Device(&'a Device),
    Step(&'a mut Calls<'c>),
    Cost(&'a mut Cost),
}

macro_rules! takes {
    ($($name:ident($op:ty))*) => {
        impl Taker<'_, '_> {
            $(fn $name(&mut self, call: $op) -> Result<()> {
                match self {
                    Taker::Device(device) => device.$name(call),
                    Taker::Step(calls) => calls.$name(call),
                    Taker::Cost(cost) => {
                        **cost = **cost + call.cost();
                        Ok(())
                    }
                }
            })*
        }
    };
}
takes! {
    sparse_attention(SparseAttention<'_>)
    index_scores(IndexScores<'_>)
    select_keys(SelectKeys<'_>)
    top_k(TopK<'_>)
    compress(Compress<'_, '_>)
    gather_rows(GatherRows<'_>)
}

/// The requests of a case.
trait Requests {
    /// Status words that its calls need.
    fn words(&self, requests: usize) -> usize {
        requests
    }

    /// Makes the calls for some of the requests. Two times' calls never run at the same time, since they write some of the same memory.
    fn make(&mut self, to: &mut Taker<'_, '_>, which: (Range<usize>, ViewMut<'_, u32, 1>)) -> Result<()>;
}

/// A case in a device's memory.
pub(super) struct Inputs {
    device: Device,
    requests: Box<dyn Requests>,
    status: Buffer<u32>,
}

impl Inputs {
    /// Makes the inputs of a number of requests, each with memory of its own.
    pub(super) fn load(case: Case, (device, method, requests): (&Device, Method, usize)) -> Result<Inputs> {
        let maker = &mut Maker::new(device, method, requests);
        let made: Box<dyn Requests> = match case {
            Case::SparseAttention { width, heads } => {
                Box::new(Attention::load(maker, (heads, CACHE * width), width)?)
            }
            Case::IndexScores { keys, heads } => Box::new(Scores::load(maker, heads, keys)?),
            Case::SelectKeys { keys } => Box::new(Selection::load(maker, HEADS, keys)?),
            Case::TopK { n, scores } => Box::new(Selections::load(maker, n, scores)?),
            Case::Compress { ratio, d, layout, block } => {
                Box::new(Compressors::load(maker, &[(ratio, d)], (layout, block))?)
            }
            Case::CompressPair { layout } => Box::new(Compressors::load(maker, &PAIR, (layout, true))?),
            Case::GatherRows { n } => Box::new(Gather::load(maker, n)?),
            Case::Step { tokens } => Box::new(JointStep::load(maker, tokens)?),
        };
        let status = device.zeros(made.words(requests))?;
        Ok(Inputs { device: device.clone(), requests: made, status })
    }

    pub(super) fn run_in(&mut self, calls: &mut Calls<'_>, requests: Range<usize>) -> Result<()> {
        self.requests.make(&mut Taker::Step(calls), (requests, self.status.view_mut()))
    }
}

impl Call for Inputs {
    fn run(&mut self, requests: Range<usize>) -> Result<()> {
        self.requests.make(&mut Taker::Device(&self.device), (requests, self.status.view_mut()))
    }

    fn cost(&mut self, requests: Range<usize>) -> Cost {
        let mut cost = Cost::default();
        let made = self.requests.make(&mut Taker::Cost(&mut cost), (requests, self.status.view_mut()));
        made.map_or(Cost::default(), |()| cost)
    }
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
            let words = inputs.status.read().unwrap();
            assert!(words.iter().all(|&word| word == 0), "{case:?} fails closed");
            let (joint, solo) = (inputs.cost(0..2), inputs.cost(1..2));
            assert!(joint.bytes > solo.bytes && solo.bytes > 0, "{case:?}");
        }
    }
}
