//! Bad data: every row of the tables, and no neighbour the worse for it.

use super::Case;
use super::bits::{self, Finding, Verdict};
use super::case::{Problem, compress, index_scores, select_keys, sparse_attention, top_k};
use super::lab::Lab;
use crate::dims::status::{self, *};
use crate::{Compress, Emit, IndexScores, Method, Op, SelectKeys, SparseAttention, TopK, bf16};

/// The row whose data are bad.
const ROW: usize = 1;
const NAN: bf16 = bf16::NAN;
const INF: bf16 = bf16::INFINITY;

/// What is done to the data, the status that the row must have then, and whether other rows share the damage.
struct Damage<D> {
    name: &'static str,
    make: fn(&mut D),
    status: u32,
    shared: bool,
}

/// Damage to one row's own data.
fn own<D>(name: &'static str, status: u32, make: fn(&mut D)) -> Damage<D> {
    Damage { name, make, status, shared: false }
}

/// Damage to what all rows share.
fn all<D>(name: &'static str, status: u32, make: fn(&mut D)) -> Damage<D> {
    Damage { name, make, status, shared: true }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    table(&mut cases, (SparseAttention::NAME, attention_data, attention()), check);
    table(&mut cases, (IndexScores::NAME, scores_data, scores()), check);
    table(&mut cases, (SelectKeys::NAME, scores_data, scores()), select);
    table(&mut cases, (TopK::NAME, selection_data, selection()), check);
    table(&mut cases, (Compress::NAME, states_data, states()), check);
    cases
}

/// An operation's name, its good data, and what may be done to them.
type Table<D> = (&'static str, fn(&Lab<'_>) -> D, Vec<Damage<D>>);
type Check<D> = fn(&mut Lab<'_>, D, &Damage<D>) -> Verdict;

fn table<D: 'static>(cases: &mut Vec<Case>, (op, data, damages): Table<D>, check: Check<D>) {
    for damage in damages {
        let name = format!("{op}/fail_closed/{}", damage.name);
        cases.push(Case::new(name, move |lab| {
            let data = data(lab);
            check(lab, data, &damage)
        }));
    }
}

/// The damaged row gives what the oracle says, with that very status; all others what they gave before.
fn check<D: Problem>(lab: &mut Lab<'_>, mut data: D, damage: &Damage<D>) -> Verdict {
    let before = lab.joint(&data)?;
    (damage.make)(&mut data);
    let after = lab.joint(&data)?;
    lab.oracle(&data, &after, 0..data.rows())?;
    let got =
        after.row(ROW).iter().find(|part| part.name == "status").expect("every row has one").bits(0) as u32;
    // Where Fast may overflow in a sum, the oracle has had its say.
    if got != damage.status && !(lab.method == Method::Fast && damage.status == OVERFLOW) {
        let want = status::names(damage.status);
        return Err(Finding::text(format_args!("row {ROW}'s status"), want, status::names(got)));
    }
    let others = (0..data.rows()).filter(|&row| !damage.shared && row != ROW);
    for row in others {
        bits::same(row, "beside good data", after.row(row), before.row(row))?;
        lab.counts.compared += 1;
    }
    Ok(())
}

/// The same damage, through the combined call.
fn select(lab: &mut Lab<'_>, mut scores: index_scores::Data, damage: &Damage<index_scores::Data>) -> Verdict {
    (damage.make)(&mut scores);
    let slots = [0, 7, 14, 21, 28].map(|start| (100, start)).to_vec();
    let data = select_keys::Data { scores, k: 7, slots, outputs: 35 };
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, 0..data.rows())
}

fn attention_data(lab: &Lab<'_>) -> sparse_attention::Data {
    let rows = [(20, 7), (16, 9), (5, 0), (9, 4), (40, 41)];
    let rows = rows.map(|(kv_len, width)| sparse_attention::RowShape { kv_len, width }).to_vec();
    // More heads than a group of any GPU kernel has for so few rows: status words are theirs together.
    sparse_attention::Shape { heads: lab.size(5, 37), dim: lab.size(64, 512), rows }.generate(7)
}

/// A value of the cache row behind a slot of the bad row.
fn kv(data: &mut sparse_attention::Data, slot: usize, feature: usize) -> &mut bf16 {
    let row = &data.rows[ROW];
    &mut data.caches[row.cache][row.indices[slot] as usize * data.dim + feature]
}

/// The bad row's query of one head.
fn q(data: &mut sparse_attention::Data, head: usize) -> &mut [bf16] {
    let at = (data.rows[ROW].query * data.heads + head) * data.dim;
    &mut data.q[at..at + data.dim]
}

fn attention() -> Vec<Damage<sparse_attention::Data>> {
    type D = sparse_attention::Data;
    fn sink(data: &mut D, head: usize, to: f32) {
        data.sinks.as_mut().expect("generated")[head] = to;
    }
    vec![
        own("nothing", 0, |_| ()),
        own("index_below_minus_one", INVALID_INDEX, |d: &mut D| d.rows[ROW].indices[3] = -2),
        own("index_min", INVALID_INDEX, |d: &mut D| d.rows[ROW].indices[0] = i32::MIN),
        own("index_max", INVALID_INDEX, |d: &mut D| d.rows[ROW].indices[8] = i32::MAX),
        own("index_at_the_length", INVALID_INDEX, |d: &mut D| d.rows[ROW].indices[8] = 16),
        own("index_of_an_empty_cache", INVALID_INDEX, |d: &mut D| d.caches[ROW].clear()),
        own("index_instead_of_slot_0", INVALID_INDEX, |d: &mut D| {
            // Poison where a kernel would look that takes a bad index for 0.
            d.caches[ROW][..d.dim].fill(NAN);
            d.rows[ROW].indices[2] = 99;
        }),
        own("index_before_anything_else", INVALID_INDEX, |d: &mut D| {
            *kv(d, 0, 5) = NAN;
            q(d, 1)[0] = INF;
            d.rows[ROW].indices[8] = -7;
        }),
        own("kv_nan", NONFINITE_KV, |d: &mut D| *kv(d, 4, d.dim - 1) = NAN),
        own("kv_negative_nan", NONFINITE_KV, |d: &mut D| *kv(d, 8, 0) = -NAN),
        own("kv_inf", NONFINITE_KV, |d: &mut D| *kv(d, 0, 1) = INF),
        own("kv_minus_inf", NONFINITE_KV, |d: &mut D| *kv(d, 5, 17) = -INF),
        own("kv_inf_that_a_zero_query_hides", NONFINITE_KV, |d: &mut D| {
            (0..d.heads).for_each(|head| q(d, head)[9] = bf16::ZERO);
            *kv(d, 2, 9) = INF;
        }),
        own("kv_inf_of_a_slot_without_weight", NONFINITE_KV, |d: &mut D| {
            (0..d.heads).for_each(|head| q(d, head).fill(bf16::ONE));
            *kv(d, 2, 9) = -INF;
        }),
        own("kv_nan_not_attended", 0, |d: &mut D| {
            let free = (0..16).find(|i| !d.rows[ROW].indices.contains(i)).expect("9 of 16 are") as usize;
            d.caches[ROW][free * d.dim..(free + 1) * d.dim].fill(NAN);
        }),
        own("kv_nan_skipped", 0, |d: &mut D| {
            *kv(d, 3, 3) = NAN;
            d.rows[ROW].indices[3] = -1;
        }),
        own("query_nan", NONFINITE_QUERY, |d: &mut D| q(d, 2)[63] = NAN),
        own("query_inf", NONFINITE_QUERY, |d: &mut D| q(d, 0)[0] = INF),
        own("query_minus_inf", NONFINITE_QUERY, |d: &mut D| q(d, 4)[31] = -INF),
        own("query_nan_attends_to_nothing", 0, |d: &mut D| {
            q(d, 2)[0] = NAN;
            d.rows[ROW].indices.fill(-1);
        }),
        all("sink_nan", NONFINITE_SINK, |d: &mut D| sink(d, 3, f32::NAN)),
        all("sink_inf", NONFINITE_SINK, |d: &mut D| sink(d, 0, f32::INFINITY)),
        all("sink_minus_inf", NONFINITE_SINK, |d: &mut D| sink(d, 4, f32::NEG_INFINITY)),
        all("sink_inf_attends_to_nothing", 0, |d: &mut D| {
            sink(d, 0, f32::INFINITY);
            d.rows[ROW].indices.fill(-1);
        }),
        all("sink_lowest_is_none", 0, |d: &mut D| sink(d, 1, f32::MIN)),
        all("sink_highest_takes_all", 0, |d: &mut D| sink(d, 1, f32::MAX)),
        own("logit_overflow", OVERFLOW, |d: &mut D| {
            q(d, 1).fill(bf16::MAX);
            (0..d.dim).for_each(|f| *kv(d, 6, f) = bf16::from_f32(4.0));
        }),
        own("logit_overflow_below", OVERFLOW, |d: &mut D| {
            q(d, 1).fill(bf16::MAX);
            (0..d.dim).for_each(|f| *kv(d, 6, f) = bf16::from_f32(-4.0));
        }),
        all("scale_overflow", OVERFLOW, |d: &mut D| d.scale = f32::MAX),
        all("sum_overflow", OVERFLOW, |d: &mut D| {
            d.sinks = None;
            (0..d.heads).for_each(|head| q(d, head).fill(bf16::ZERO));
            (0..9).for_each(|slot| *kv(d, slot, 40) = bf16::MAX);
        }),
        own("kv_and_query", NONFINITE_KV | NONFINITE_QUERY, |d: &mut D| {
            *kv(d, 1, 1) = NAN;
            q(d, 4)[4] = NAN;
        }),
        all("query_and_sink", NONFINITE_QUERY | NONFINITE_SINK, |d: &mut D| {
            q(d, 0)[4] = NAN;
            sink(d, 3, f32::NAN);
        }),
        all("sink_beside_an_overflow", NONFINITE_SINK, |d: &mut D| {
            // Only a head whose inputs are all finite overflows.
            sink(d, 1, f32::NAN);
            q(d, 1).fill(bf16::MAX);
            (0..d.dim).for_each(|f| *kv(d, 6, f) = bf16::from_f32(4.0));
        }),
        own("leading_slots_skipped", 0, |d: &mut D| {
            let list = &mut d.rows[ROW].indices;
            *list = std::iter::repeat_n(-1, 200).chain(list.drain(..)).collect();
        }),
        own("trailing_slots_skipped", 0, |d: &mut D| d.rows[ROW].indices.resize(150, -1)),
        own("subnormals_and_zeros", 0, |d: &mut D| {
            q(d, 2).fill(bf16::from_bits(1));
            (0..d.dim).for_each(|f| *kv(d, 4, f) = bf16::from_bits(0x8001 >> (f % 2)));
            q(d, 3).fill(-bf16::ZERO);
        }),
    ]
}

fn scores_data(lab: &Lab<'_>) -> index_scores::Data {
    let rows = [39, 79, 2, 3, 16].map(|start_pos| index_scores::RowShape { start_pos, spare: 2 }).to_vec();
    index_scores::Shape { heads: lab.size(3, 32), dim: lab.size(32, 128), ratio: 4, rows }.generate(8)
}

fn scores() -> Vec<Damage<index_scores::Data>> {
    type D = index_scores::Data;
    fn key(data: &mut D, key: usize) -> &mut [bf16] {
        &mut data.caches[ROW][key * data.dim..(key + 1) * data.dim]
    }
    fn q(data: &mut D, head: usize) -> &mut [bf16] {
        let at = (ROW * data.heads + head) * data.dim;
        &mut data.q[at..at + data.dim]
    }
    vec![
        own("nothing", 0, |_| ()),
        own("key_nan", NONFINITE_SCORE, |d: &mut D| key(d, 5)[31] = NAN),
        own("key_inf", NONFINITE_SCORE, |d: &mut D| key(d, 0)[0] = INF),
        own("key_inf_that_relu_hides", NONFINITE_SCORE, |d: &mut D| {
            (0..d.heads).for_each(|head| q(d, head)[7] = bf16::ONE);
            key(d, 19)[7] = -INF;
        }),
        own("key_inf_times_zero", NONFINITE_SCORE, |d: &mut D| {
            (0..d.heads).for_each(|head| q(d, head)[7] = bf16::ZERO);
            key(d, 18)[7] = INF;
        }),
        own("key_nan_that_a_zero_weight_hides", NONFINITE_SCORE, |d: &mut D| {
            d.weights[ROW * d.heads..(ROW + 1) * d.heads].fill(0.0);
            key(d, 11)[3] = NAN;
        }),
        own("query_nan", NONFINITE_SCORE, |d: &mut D| q(d, 2)[1] = NAN),
        own("query_inf", NONFINITE_SCORE, |d: &mut D| q(d, 0)[31] = -INF),
        own("weight_nan", NONFINITE_SCORE, |d: &mut D| d.weights[ROW * d.heads + 1] = f32::NAN),
        own("weight_inf", NONFINITE_SCORE, |d: &mut D| d.weights[ROW * d.heads + 2] = f32::INFINITY),
        own("weight_inf_times_relu_zero", NONFINITE_SCORE, |d: &mut D| {
            q(d, 0).fill(bf16::ZERO);
            d.weights[ROW * d.heads] = f32::NEG_INFINITY;
        }),
        own("dot_overflow", NONFINITE_SCORE, |d: &mut D| {
            q(d, 1).fill(bf16::MAX);
            key(d, 4).fill(bf16::from_f32(-3.0));
        }),
        own("score_overflow", NONFINITE_SCORE, |d: &mut D| {
            (0..d.heads).for_each(|head| q(d, head).fill(bf16::from_f32(100.0)));
            key(d, 6).fill(bf16::from_f32(100.0));
            d.weights[ROW * d.heads..(ROW + 1) * d.heads].fill(f32::MAX);
            (0..20).filter(|&i| i != 6).for_each(|i| key(d, i).fill(bf16::from_f32(-1.0)));
        }),
        own("key_nan_not_visible", 0, |d: &mut D| key(d, 20).fill(NAN)),
        own("no_visible_key_and_all_nan", 0, |d: &mut D| {
            d.rows[ROW].start_pos = 2;
            d.caches[ROW].fill(NAN);
            (0..d.heads).for_each(|head| q(d, head).fill(NAN));
            d.weights[ROW * d.heads] = f32::NAN;
        }),
    ]
}

fn selection_data(_: &Lab<'_>) -> top_k::Data {
    top_k::Shape { k: 9, rows: vec![30, 25, 4, 0, 100] }.generate(9)
}

fn selection() -> Vec<Damage<top_k::Data>> {
    type D = top_k::Data;
    vec![
        own("nothing", 0, |_| ()),
        own("nan", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores[3] = f32::NAN),
        own("negative_nan", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores[24] = -f32::NAN),
        own("inf", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores[0] = f32::INFINITY),
        own("minus_inf", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores[20] = f32::NEG_INFINITY),
        own("all_nan", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores.fill(f32::NAN)),
        own("all_minus_inf", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores.fill(f32::NEG_INFINITY)),
        own("fewer_finite_than_k", NONFINITE_SCORE, |d: &mut D| d.rows[ROW].scores[4..].fill(f32::INFINITY)),
        own("padding_beats_nothing", 0, |d: &mut D| d.rows[ROW].scores = vec![f32::MIN; 5]),
        own("no_scores", 0, |d: &mut D| d.rows[ROW].scores.clear()),
        own("largest_offset", 0, |d: &mut D| d.rows[ROW].offset = i32::MAX - 24),
    ]
}

fn states_data(_: &Lab<'_>) -> compress::Data {
    let rows = [(0, 9), (9, 12), (3, 1), (6, 0), (100, 5)];
    let rows = rows.map(|(start_pos, tokens)| compress::RowShape { start_pos, tokens }).to_vec();
    compress::Shape { ratio: 4, dim: 64, ring: None, emit: Emit::EveryToken, rows }.generate(10)
}

/// The bad row's tokens are at 9 to 20: its blocks end at 11, 15 and 19. State rows 4 (position 8) and 0 to 3
/// (positions 4 to 7) are read; 5 to 7 will be overwritten first.
fn states() -> Vec<Damage<compress::Data>> {
    type D = compress::Data;
    const F: usize = 128;
    vec![
        own("nothing", 0, |_| ()),
        own("value_nan", NONFINITE_STATE, |d: &mut D| d.rows[ROW].kv[2 * F + 70] = f32::NAN),
        own("value_inf_of_the_next_block", NONFINITE_STATE, |d: &mut D| {
            d.rows[ROW].kv[F + 3] = f32::INFINITY
        }),
        own("score_nan", NONFINITE_STATE, |d: &mut D| d.rows[ROW].score[6 * F + 127] = -f32::NAN),
        own("score_inf", NONFINITE_STATE, |d: &mut D| d.rows[ROW].score[0] = f32::INFINITY),
        own("score_minus_inf", NONFINITE_STATE, |d: &mut D| d.rows[ROW].score[F] = f32::NEG_INFINITY),
        own("last_token_only", 0, |d: &mut D| {
            // Position 20 is in no block yet.
            d.rows[ROW].kv[11 * F] = f32::NAN;
            d.rows[ROW].score[11 * F + 90] = f32::NAN;
        }),
        own("state_value_nan", NONFINITE_STATE, |d: &mut D| d.rows[ROW].kv_state[2 * F + 5] = f32::NAN),
        own("state_value_inf", NONFINITE_STATE, |d: &mut D| d.rows[ROW].kv_state[4 * F + 64] = f32::INFINITY),
        own("state_value_inf_without_weight", NONFINITE_STATE, |d: &mut D| {
            d.rows[ROW].kv_state[5] = f32::INFINITY;
            d.rows[ROW].score_state[5] = f32::NEG_INFINITY;
        }),
        own("state_score_nan", NONFINITE_STATE, |d: &mut D| d.rows[ROW].score_state[F] = f32::NAN),
        own("state_score_inf", NONFINITE_STATE, |d: &mut D| {
            d.rows[ROW].score_state[4 * F + 100] = f32::INFINITY
        }),
        own("state_score_minus_inf", 0, |d: &mut D| d.rows[ROW].score_state[3 * F + 1] = f32::NEG_INFINITY),
        own("state_nan_in_the_unread_half", 0, |d: &mut D| {
            for row in 0..4 {
                d.rows[ROW].kv_state[row * F + 64..(row + 1) * F].fill(f32::NAN);
                d.rows[ROW].score_state[row * F + 64..(row + 1) * F].fill(f32::INFINITY);
            }
        }),
        own("state_nan_that_is_overwritten", 0, |d: &mut D| {
            d.rows[ROW].kv_state[5 * F..].fill(f32::NAN);
            d.rows[ROW].score_state[5 * F..].fill(f32::NAN);
        }),
        all("window_all_minus_inf", NONFINITE_STATE, |d: &mut D| {
            // One feature that nothing has a score for: all of the first block's window.
            (0..4).for_each(|row| d.rows[ROW].score_state[row * F + 8] = f32::NEG_INFINITY);
            d.rows[ROW].score_state[4 * F + 72] = f32::NEG_INFINITY;
            d.ape[F + 72] = f32::NEG_INFINITY;
            d.ape[2 * F + 72] = f32::NEG_INFINITY;
            d.ape[3 * F + 72] = f32::NEG_INFINITY;
        }),
        all("norm_nan", NONFINITE_STATE, |d: &mut D| d.norm[63] = f32::NAN),
        all("norm_inf", NONFINITE_STATE, |d: &mut D| d.norm[0] = f32::NEG_INFINITY),
        all("bias_nan", NONFINITE_STATE, |d: &mut D| d.ape[3 * F + 64] = f32::NAN),
        own("mean_overflow", NONFINITE_STATE, |d: &mut D| d.rows[ROW].kv[2 * F + 64..3 * F].fill(1e30)),
        own("sum_overflow", NONFINITE_STATE, |d: &mut D| {
            d.rows[ROW].kv[3 * F + 64..7 * F].fill(f32::MAX);
            d.rows[ROW].score[3 * F..7 * F].fill(0.0);
        }),
        all("result_overflow", NONFINITE_STATE, |d: &mut D| d.norm.fill(f32::MAX)),
        own("zeros_divide_by_epsilon", 0, |d: &mut D| {
            d.rows[ROW].kv.fill(0.0);
            d.rows[ROW].kv_state.fill(-0.0);
        }),
    ]
}
