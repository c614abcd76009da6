//! Golden bits: a fixed set of problems per operation, and one number for all that they give.

use super::bits::Finding;
use super::case::{Problem, Rng, compress, convert_state, gather_rows};
use super::case::{index_scores, select_keys, sparse_attention, top_k};
use super::lab::Lab;
use super::shapes::{Draw, OPS};
use super::suite::Depth;
use crate::{
    Compress, ConvertState, Device, Emit, IndexScores, Method, Op, SelectKeys, SparseAttention, TopK,
};

/// Every operation with the digest of its results: the same on every device that computes the reference order.
pub fn digest(device: &Device) -> Result<Vec<(&'static str, u64)>, Finding> {
    let lab = &mut Lab::new(device, Method::Reference);
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

/// Odd shapes, with good data and bad, and some so large that they are worth several threads.
fn problems(op: &'static str) -> Vec<Box<dyn Problem>> {
    let mut problems: Vec<Box<dyn Problem>> = Vec::new();
    for seed in 0..12 {
        let (rows, method) = (1 + seed as usize % 5, Method::Reference);
        let draw = Draw { op, rows, seed: 7000 + seed, work: 1 << 17, method, depth: Depth::Quick };
        let (_, mut problem) = draw.make();
        if seed % 4 == 3 {
            problem.corrupt(300, &mut Rng::new(seed));
        }
        problems.push(problem);
    }
    let keys = [1399, 77].map(|start_pos| index_scores::RowShape { start_pos, spare: 3 }).to_vec();
    let scores = index_scores::Shape { heads: 64, dim: 128, ratio: 4, rows: keys };
    problems.push(match op {
        SparseAttention::NAME => {
            let rows = [(300, 131), (40, 17)];
            let rows = rows.map(|(kv_len, width)| sparse_attention::RowShape { kv_len, width }).to_vec();
            Box::new(sparse_attention::Shape { heads: 64, dim: 512, rows }.generate(1))
        }
        IndexScores::NAME => Box::new(scores.generate(2)),
        SelectKeys::NAME => Box::new(select_keys::Shape { scores, k: 512 }.generate(3)),
        TopK::NAME => Box::new(top_k::Shape { k: 2048, rows: vec![65_536, 1, 9999] }.generate(4)),
        Compress::NAME => {
            let rows = [126, 0, 1000].map(|start_pos| compress::RowShape { start_pos, tokens: 9 }).to_vec();
            let (dim, ring, emit) = (512, Some(11), Emit::EveryToken);
            Box::new(compress::Shape { ratio: 4, dim, ring, emit, rows }.generate(5))
        }
        ConvertState::NAME => {
            let (from, rows) = (Some(131), vec![500, 77]);
            Box::new(convert_state::Shape { ratio: 128, dim: 256, from, to: None, rows }.generate(6))
        }
        _ => Box::new(gather_rows::Shape { n: 30_000, rows: 5 }.generate::<f32>(7)),
    });
    problems
}
