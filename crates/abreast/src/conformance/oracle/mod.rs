//! Every operation in naive f64, written from the definitions alone, with what fails closed and how.
//!
//! f64 does not overflow where f32 does. Where f32 may or may not, depending on the order of a sum, the oracle
//! takes both answers; the hostile cases live there.

mod compress;
mod indexer;
mod sparse_attention;

pub(super) use compress::{compress, convert_state};
pub(super) use indexer::{index_scores, select_keys, top_k};
pub(super) use sparse_attention::sparse_attention;

use super::bits::Part;
use crate::{Element, bf16};
use std::ops::Range;

/// What one output of a row must be.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The output's name.
    pub name: &'static str,
    /// Element by element.
    pub wants: Vec<Want>,
    /// Ranges in which all but two elements must be the correctly rounded values.
    pub exact: Vec<Range<usize>>,
}

/// What one element must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Want {
    /// Anything.
    Any,
    /// These bits.
    Bits(u64),
    /// Within `bound` of `value`, or +0 where that is fine too.
    Near {
        /// The value.
        value: f64,
        /// How far from it.
        bound: f64,
        /// Whether +0 will do: the f32 arithmetic may or may not overflow.
        or_zero: bool,
    },
    /// A status word: bits that must be set, and bits that may be.
    Flags {
        /// Set.
        must: u32,
        /// Perhaps set.
        may: u32,
    },
}

/// How many elements of a range in [`Expected::exact`] may be rounded the other way.
pub(super) const MOST_INEXACT: usize = 2;

const ZERO: Want = Want::Bits(0);
const MAX: f64 = f32::MAX as f64;

fn expected(name: &'static str, wants: Vec<Want>) -> Expected {
    Expected { name, wants, exact: vec![] }
}

fn flags(must: u32, may: u32) -> Expected {
    expected("status", vec![Want::Flags { must, may: may & !must }])
}

/// A sum whose terms' sizes add up to `mass`: whether f32 overflows on it, where that is certain.
fn overflows(value: f64, mass: f64) -> Option<bool> {
    match () {
        _ if !value.is_finite() || value.abs() > 1.001 * MAX => Some(true),
        _ if mass < 0.999 * MAX => Some(false),
        _ => None,
    }
}

/// The dot product and the sum of its terms' sizes.
fn dot(a: &[bf16], b: &[bf16]) -> (f64, f64) {
    let terms = || a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64());
    (terms().sum(), terms().map(f64::abs).sum())
}

fn finite(values: &[bf16]) -> bool {
    values.iter().all(|x| x.is_finite())
}

/// Some elements of an output, and the status bits that they cause.
struct Head {
    out: Vec<Want>,
    must: u32,
    may: u32,
}

pub(super) fn gather_rows<T: Element>(row: &[T]) -> Vec<Expected> {
    let part = Part::of("out", row);
    vec![expected("out", (0..part.len()).map(|i| Want::Bits(part.bits(i))).collect())]
}

#[cfg(test)]
mod tests {
    //! The oracle against numbers worked out by hand.

    use super::super::case::{compress, index_scores, sparse_attention, top_k};
    use super::*;
    use crate::{Emit, Method};

    fn values(expected: &Expected) -> Vec<f64> {
        let value = |want: &Want| match *want {
            Want::Near { value, .. } => value,
            Want::Bits(bits) => bits as u32 as i32 as f64,
            _ => f64::NAN,
        };
        expected.wants.iter().map(value).collect()
    }

    #[test]
    fn attention_is_a_mean_with_a_sink() {
        let rows = vec![sparse_attention::RowShape { kv_len: 3, width: 0 }];
        let mut data = sparse_attention::Shape { heads: 2, dim: 32, rows }.generate(0);
        for (row, value) in [1.0, 3.0, 100.0].into_iter().enumerate() {
            data.caches[0][row * 32..(row + 1) * 32].fill(bf16::from_f32(value));
        }
        data.q.fill(bf16::ZERO);
        data.sinks = Some(vec![0.0, 3f32.ln()]);
        data.rows[0].indices = vec![-1, 0, 1, -1, 0];
        // (1 + 3 + 1) / (1 + 3) and / (3 + 3): a repeated slot counts twice, a skipped one not at all.
        let out = values(&sparse_attention(&data, 0, Method::Reference)[0]);
        assert!((out[0] - 1.25).abs() < 1e-12 && (out[32] - 5.0 / 6.0).abs() < 1e-7, "{out:?}");
        // A logit of ln 2 for value 1 in the first head: (2 + 3 + 2) / (1 + 2 + 1 + 2), whatever the sink was.
        data.q[..32].fill(bf16::from_f32(1.0));
        data.scale = 2f32.ln() / 32.0;
        data.caches[0][32..64].fill(bf16::ZERO);
        let out = values(&sparse_attention(&data, 0, Method::Reference)[0]);
        assert!((out[0] - 4.0 / 6.0).abs() < 1e-7, "{out:?}");
    }

    #[test]
    fn scores_are_weighted_and_rectified() {
        let rows = vec![index_scores::RowShape { start_pos: 5, spare: 1 }];
        let mut data = index_scores::Shape { heads: 2, dim: 32, ratio: 2, rows }.generate(0);
        data.q[..32].fill(bf16::from_f32(1.0));
        data.q[32..].fill(bf16::from_f32(-1.0));
        data.weights = vec![0.5, -2.0];
        for (key, value) in [1.0, -1.0, 0.0, 9.0].into_iter().enumerate() {
            data.caches[0][key * 32..(key + 1) * 32].fill(bf16::from_f32(value));
        }
        // (5 + 1) / 2 = 3 keys; one head sees each sign.
        assert_eq!(values(&index_scores(&data, 0, Method::Reference)[0]), [16.0, -64.0, 0.0]);
    }

    #[test]
    fn selection_is_in_total_order() {
        let mut data = top_k::Shape { k: 6, rows: vec![0] }.generate(0);
        data.rows[0].scores = vec![-0.0, 2.0, 0.0, f32::INFINITY, 2.0];
        data.rows[0].offset = 10;
        assert_eq!(values(&top_k(&data, 0)[0]), [11.0, 14.0, 10.0, 12.0, -1.0, -1.0]);
    }

    #[test]
    fn entries_pool_two_blocks() {
        let rows = vec![compress::RowShape { start_pos: 0, tokens: 8 }];
        let shape = compress::Shape { ratio: 4, dim: 32, ring: None, emit: Emit::Blocks, rows };
        let mut data = shape.generate(0);
        data.ape.fill(0.0);
        data.norm.fill(1.0);
        let row = &mut data.rows[0];
        row.score.fill(0.0);
        // Halves of the features: 1 and 2 in the first block, 3 and 4 in the second, but for one feature.
        for (i, x) in row.kv.iter_mut().enumerate() {
            *x = (1 + 2 * (i / 256) + i / 32 % 2) as f32;
            *x = if i % 32 == 0 { 0.0 } else { *x };
        }
        // First entry: the own half, 2; second: the mean of 1 and 4. Both the same after the norm.
        let rms = (31.0f64 / 32.0).sqrt();
        let out = values(&compress(&data, 0)[0]);
        assert!(out.iter().enumerate().all(|(i, x)| if i % 32 == 0 {
            *x == 0.0
        } else {
            (x - 1.0 / rms).abs() < 1e-6
        }));
    }
}
