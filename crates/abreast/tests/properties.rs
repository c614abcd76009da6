//! Random shapes and contents against the oracle and against themselves alone.

use abreast::conformance::case::{Problem, Rng, compress, convert_state, gather_rows};
use abreast::conformance::case::{index_scores, select_keys, sparse_attention, top_k};
use abreast::conformance::check;
use abreast::{Device, Emit, Method};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::LazyLock;

static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::cpu().unwrap());

/// As drawn, then with bad values, then elsewhere: always the oracle's answer, and the bits of each row alone.
fn holds(mut problem: impl Problem, seed: u64) -> std::result::Result<(), TestCaseError> {
    let rng = &mut Rng::new(seed);
    for round in 0..3 {
        check(&DEVICE, &problem, Method::Reference)
            .map_err(|finding| TestCaseError::fail(format!("round {round}: {finding}")))?;
        problem.corrupt(if round == 0 { 500 } else { 20 }, rng);
        problem.scatter(rng);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn sparse_attention_is_right(
        heads in 1usize..=20, dim in 1usize..=5, rows in vec((0usize..60, 0usize..90), 0..7), seed: u64,
    ) {
        let rows = rows.into_iter().map(|(kv_len, width)| sparse_attention::RowShape { kv_len, width }).collect();
        let mut data = sparse_attention::Shape { heads, dim: 32 * dim, rows }.generate(seed);
        data.skip_and_repeat(&mut Rng::new(seed));
        data.share(&mut Rng::new(!seed));
        holds(data, seed)?;
    }

    #[test]
    fn index_scores_are_right(
        heads in 1usize..=20, dim in 1usize..=5, ratio in 1u32..9, rows in vec((0u32..300, 0usize..4), 0..7), seed: u64,
    ) {
        let rows = rows.into_iter().map(|(start_pos, spare)| index_scores::RowShape { start_pos, spare }).collect();
        let mut data = index_scores::Shape { heads, dim: 32 * dim, ratio, rows }.generate(seed);
        data.share(&mut Rng::new(!seed));
        holds(data, seed)?;
    }

    #[test]
    fn top_k_is_right(k in 1usize..=2048, rows in vec(0usize..4000, 0..7), seed: u64) {
        let mut data = top_k::Shape { k, rows }.generate(seed);
        data.tie(&mut Rng::new(seed));
        holds(data, seed)?;
    }

    #[test]
    fn select_keys_is_right(
        heads in 1usize..=9, k in 1usize..=100, ratio in 1u32..5, rows in vec(0u32..400, 0..7), seed: u64,
    ) {
        let rows = rows.into_iter().map(|start_pos| index_scores::RowShape { start_pos, spare: 1 }).collect();
        let scores = index_scores::Shape { heads, dim: 64, ratio, rows };
        holds(select_keys::Shape { scores, k }.generate(seed), seed)?;
    }

    #[test]
    fn compress_is_right(
        ratio in 1usize..=10, dim in 1usize..=4, ring in proptest::option::of(0usize..9), blocks: bool,
        rows in vec((0u32..50, 0usize..30), 0..7), seed: u64,
    ) {
        let rows = rows.into_iter().map(|(start_pos, tokens)| compress::RowShape { start_pos, tokens }).collect();
        let ring = ring.map(|more| abreast::dims::window(ratio) + more);
        let emit = if blocks { Emit::Blocks } else { Emit::EveryToken };
        let shape = compress::Shape { ratio: ratio as u32, dim: 32 * dim, ring, emit, rows };
        holds(shape.generate(seed), seed)?;
    }

    #[test]
    fn convert_state_is_right(
        ratio in 1usize..=10, from in proptest::option::of(0usize..9), to in proptest::option::of(0usize..9),
        rows in vec(0u32..60, 0..7), seed: u64,
    ) {
        let [from, to] = [from, to].map(|ring| ring.map(|more| abreast::dims::window(ratio) + more));
        holds(convert_state::Shape { ratio: ratio as u32, dim: 32, from, to, rows }.generate(seed), seed)?;
    }

    #[test]
    fn gather_rows_is_right(n in 0usize..3000, rows in 0usize..20, seed: u64) {
        holds(gather_rows::Shape { n, rows }.generate::<f32>(seed), seed)?;
        holds(gather_rows::Shape { n, rows }.generate::<u8>(seed), seed)?;
    }
}
