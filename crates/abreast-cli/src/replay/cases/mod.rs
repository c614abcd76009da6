//! A recording's cases with their tensors looked up and every shape checked: how to read, run and judge each kind.

pub(super) mod compressor;
pub(super) mod indexer;
pub(super) mod sparse_attention;

use super::format::{Case as Recorded, Core as Numbers};
use super::judge::Verdict;
use super::tensors::{Lookup, Tensors};
use abreast::{Device, Error, Method};
use std::time::Duration;

/// Where calls run, and in which arithmetic.
#[derive(Clone, Copy)]
pub(super) struct On<'a> {
    pub(super) device: &'a Device,
    pub(super) method: Method,
}

/// One kind of case.
pub(super) trait Core: Sized {
    /// All bits that one request gets.
    type Answer;

    /// Whether two cases can be rows of one call: whatever a call shares between rows is the same.
    fn joins(&self, other: &Self) -> bool;

    /// Bytes of the inputs and outputs that a joint call copies for this case.
    fn size(&self) -> u64;

    /// The argument that a call must refuse, where the specification makes this case an error.
    fn refused(&self) -> Option<&'static str> {
        None
    }

    /// One call for all `cases`, and the time that the device took.
    fn run(on: On<'_>, cases: &[&Self]) -> Result<(Vec<Self::Answer>, Duration), Error>;

    /// An answer against what was recorded, within the errors of the method.
    fn judge(&self, answer: &Self::Answer, method: Method) -> Verdict;

    /// The first bit in which the answers of a joint call and of a call alone differ.
    fn difference(joint: &Self::Answer, alone: &Self::Answer) -> Option<String>;
}

/// A case of any kind.
#[derive(Debug)]
pub(super) enum Case<'a> {
    SparseAttention(Box<sparse_attention::Case<'a>>),
    Indexer(Box<indexer::Case<'a>>),
    Compressor(Box<compressor::Case<'a>>),
}

/// The same expression for a case of any kind.
macro_rules! each {
    ($case:expr, $c:ident => $body:expr) => {
        match $case {
            Case::SparseAttention($c) => $body,
            Case::Indexer($c) => $body,
            Case::Compressor($c) => $body,
        }
    };
}

impl<'a> Case<'a> {
    pub(super) fn resolve(recorded: &'a Recorded, tensors: &Tensors<'a>) -> Result<Self, String> {
        let look = Lookup { case: recorded, tensors };
        look.check_patch_names()?;
        Ok(match &recorded.core {
            Numbers::SparseAttention(n) => {
                Case::SparseAttention(Box::new(sparse_attention::Case::resolve(look, n)?))
            }
            Numbers::Indexer(n) => Case::Indexer(Box::new(indexer::Case::resolve(look, n)?)),
            Numbers::Compressor(n) => Case::Compressor(Box::new(compressor::Case::resolve(look, n)?)),
        })
    }

    pub(super) fn core(&self) -> &'static str {
        match self {
            Case::SparseAttention(_) => "sparse_attention",
            Case::Indexer(_) => "indexer",
            Case::Compressor(_) => "compressor",
        }
    }

    pub(super) fn joins(&self, other: &Self) -> bool {
        match (self, other) {
            (Case::SparseAttention(a), Case::SparseAttention(b)) => a.joins(b),
            (Case::Indexer(a), Case::Indexer(b)) => a.joins(b),
            (Case::Compressor(a), Case::Compressor(b)) => a.joins(b),
            _ => false,
        }
    }

    pub(super) fn size(&self) -> u64 {
        each!(self, c => c.size())
    }

    pub(super) fn refused(&self) -> Option<&'static str> {
        each!(self, c => c.refused())
    }
}
