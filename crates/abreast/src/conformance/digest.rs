//! Golden bits: a fixed set of problems per operation, and one number for all that they give.

use super::bits::Finding;
use super::case::{Problem, Rng, compress, index_scores, sparse_attention};
use super::lab::{Counts, Lab};
use super::shapes::{Draw, OPS};
use crate::{Compress, Device, Emit, IndexScores, Op, SparseAttention};

/// Every operation with the digest of its results: the same on every device that computes the reference order.
pub fn digest(device: &Device) -> Result<Vec<(&'static str, u64)>, Finding> {
    let lab = &mut Lab { device, counts: Counts::default(), shape: String::new() };
    OPS.into_iter().map(|op| Ok((op, operation(lab, op)?))).collect()
}

fn operation(lab: &mut Lab<'_>, op: &'static str) -> Result<u64, Finding> {
    // FNV-1a: of no strength, and everybody can write it down.
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for problem in problems(op) {
        let results = lab.joint(&*problem)?;
        for part in (0..problem.rows()).flat_map(|row| results.row(row)) {
            for &byte in &part.bytes {
                hash = (hash ^ byte as u64).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }
    Ok(hash)
}

/// Odd shapes, with good data and bad, and one of the model's.
fn problems(op: &'static str) -> Vec<Box<dyn Problem>> {
    let mut problems: Vec<Box<dyn Problem>> = Vec::new();
    for seed in 0..12 {
        let (_, mut problem) =
            Draw { op, rows: 1 + seed as usize % 5, seed: 7000 + seed, work: 1 << 17 }.make();
        if seed % 4 == 3 {
            problem.corrupt(300, &mut Rng::new(seed));
        }
        problems.push(problem);
    }
    match op {
        SparseAttention::NAME => {
            let rows = [(300, 131), (40, 17)];
            let rows = rows.map(|(kv_len, width)| sparse_attention::RowShape { kv_len, width }).to_vec();
            problems.push(Box::new(sparse_attention::Shape { heads: 64, dim: 512, rows }.generate(1)));
        }
        IndexScores::NAME => {
            let rows = [1399, 77].map(|start_pos| index_scores::RowShape { start_pos, spare: 3 }).to_vec();
            problems.push(Box::new(index_scores::Shape { heads: 64, dim: 128, ratio: 4, rows }.generate(2)));
        }
        Compress::NAME => {
            for (ratio, dim, emit) in [(4, 512, Emit::EveryToken), (128, 512, Emit::Blocks)] {
                let rows = vec![compress::RowShape { start_pos: 126, tokens: 9 }];
                problems.push(Box::new(compress::Shape { ratio, dim, ring: None, emit, rows }.generate(3)));
            }
        }
        _ => {}
    }
    problems
}
