//! What went wrong elsewhere, kind by kind, where no other group has it already.
//!
//! Ties and histogram bins are in `ties`; NaN scores, bad indices and skipped slots in `fail_closed`; the overlap copy
//! in `runs`; stale scratch in `law`.

use super::Case;
use super::bits::{self, Finding, Verdict};
use super::case::{Problem, Rng, compress, index_scores, select_keys, sparse_attention, top_k};
use super::lab::Lab;
use super::suite::Depth;
use crate::dims::{coff, window};
use crate::{
    Compress, CompressRow, Emit, IndexScores, Limits, Op, SelectKeys, SparseAttention, StateLayout, TopK,
    bf16,
};

pub(super) fn cases(depth: Depth) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |op: &str, name: String, body: Box<dyn Fn(&mut Lab<'_>) -> Verdict>| {
        cases.push(Case::new(format!("{op}/known/{name}"), body));
    };
    for rows in [1, 2, 7, 8, 9, 16, 17, 33] {
        add(SelectKeys::NAME, format!("two_calls/r{rows}"), Box::new(move |lab| two_calls(lab, rows)));
    }
    let brief = depth == Depth::Brief;
    for &width in if brief { &[300][..] } else { &[640, 2176] } {
        add(
            SparseAttention::NAME,
            format!("split_plan/w{width}"),
            Box::new(move |lab| split_plan(lab, width)),
        );
    }
    for skipped in [1, 31, 32, 33, 64, 128, 1000] {
        let body = move |lab: &mut Lab<'_>| leading_slots_skipped(lab, skipped);
        add(SparseAttention::NAME, format!("leading_slots_skipped/n{skipped}"), Box::new(body));
    }
    add(SparseAttention::NAME, "odd_padding".into(), Box::new(odd_padding));
    // Its row of 65,201 slots is out of reach for a tool that watches every access.
    if !brief {
        add(SparseAttention::NAME, "rounds_to_infinity".into(), Box::new(rounds_to_infinity));
    }
    add(SparseAttention::NAME, "list_in_the_middle".into(), Box::new(composed_list));
    for heads in [8, 16, 32, 64] {
        for k in [512, 1024, 2048] {
            let name = format!("pairs/h{heads}/k{k}");
            // Long rows are what such a tool takes longest for.
            if !brief || (heads, k) == (64, 512) {
                add(SparseAttention::NAME, name.clone(), Box::new(move |lab| attention_pair(lab, heads, k)));
            }
            add(SelectKeys::NAME, name, Box::new(move |lab| index_pair(lab, heads, k)));
        }
    }
    add(IndexScores::NAME, "causal_count".into(), Box::new(causal_count));
    add(SelectKeys::NAME, "padding_beats_real_keys".into(), Box::new(low_scores));
    add(Compress::NAME, "state_by_row".into(), Box::new(state_by_row));
    add(Compress::NAME, "epsilon_dominates".into(), Box::new(epsilon_dominates));
    for ratio in [1, 3, 4, 128] {
        let body = move |lab: &mut Lab<'_>| later_status(lab, ratio);
        add(Compress::NAME, format!("later_status/m{ratio}"), Box::new(body));
    }
    cases
}

/// The combined call has the bits of the two.
fn two_calls(lab: &mut Lab<'_>, rows: usize) -> Verdict {
    for k in [1, 5, 512] {
        let row = |r: usize| index_scores::RowShape { start_pos: (r * 977 % 1700) as u32, spare: r % 3 };
        let shape = index_scores::Shape {
            heads: lab.size(5, 64),
            dim: lab.size(64, 128),
            ratio: 2,
            rows: (0..rows).map(row).collect(),
        };
        let mut data = select_keys::Shape { scores: shape, k }.generate(rows as u64);
        // A key that is not selectable.
        let cache = data.scores.caches.iter_mut().find(|cache| !cache.is_empty());
        if let Some(cache) = cache {
            cache[0] = bf16::NAN;
        }
        let combined = lab.joint(&data)?;
        let scores = lab.joint(&data.scores)?;
        let mut selection = top_k::Data { k, rows: vec![], outputs: data.outputs };
        for (row, &(offset, out)) in data.slots.iter().enumerate() {
            selection.rows.push(top_k::Row { scores: scores.row(row)[0].floats(), offset, out });
        }
        let separate = lab.joint(&selection)?;
        let against = format!("{} and {}", IndexScores::NAME, TopK::NAME);
        lab.same(&combined, &separate, &against)?;
    }
    Ok(())
}

/// A long row among short ones has the bits that it has alone, and as the oracle says.
fn split_plan(lab: &mut Lab<'_>, width: usize) -> Verdict {
    let row = |r| sparse_attention::RowShape { kv_len: 3000, width: if r == 11 { width } else { r } };
    let data = sparse_attention::Shape { heads: 3, dim: 512, rows: (0..33).map(row).collect() }.generate(20);
    let mut loaded = data.load(lab.device, lab.method)?;
    let joint = lab.run(&mut *loaded, &[&(0..33).collect::<Vec<_>>()], 0x5a)?;
    let alone = lab.run(&mut *loaded, &[&[11]], 0xa5)?;
    lab.same(&joint, &alone, "alone")?;
    lab.oracle(&data, &joint, [0, 1, 11, 32])
}

/// Slots that are skipped are simply absent.
fn leading_slots_skipped(lab: &mut Lab<'_>, skipped: usize) -> Verdict {
    let rows = vec![sparse_attention::RowShape { kv_len: 90, width: 40 }; 2];
    let mut data = sparse_attention::Shape { heads: 3, dim: lab.size(64, 512), rows }.generate(21);
    let list = &mut data.rows[1].indices;
    *list = std::iter::repeat_n(-1, skipped).chain(list.drain(..)).collect();
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, 0..2)
}

/// 342 rows run as 352: padding rows are rows, and change nothing.
fn odd_padding(lab: &mut Lab<'_>) -> Verdict {
    let rng = &mut Rng::new(22);
    let row = |r: usize| match r % 35 {
        34 => sparse_attention::RowShape { kv_len: 0, width: 0 },
        _ => sparse_attention::RowShape { kv_len: 1 + r % 9, width: 1 + r % 7 },
    };
    let shape =
        sparse_attention::Shape { heads: 2, dim: lab.size(32, 512), rows: (0..352).map(row).collect() };
    let data = shape.generate(23);
    let mut loaded = data.load(lab.device, lab.method)?;
    let padded = lab.run(&mut *loaded, &[&rng.permutation(352)], 0x5a)?;
    let real: Vec<usize> = (0..352).filter(|r| r % 35 != 34).collect();
    let real = lab.run(&mut *loaded, &[&real], 0xa5)?;
    lab.same(&padded, &real, "without padding")?;
    lab.oracle(&data, &padded, 0..352)
}

/// Sums whose small terms count in the numerator and vanish in the denominator: the quotient is finite in f32 and not in bf16.
fn rounds_to_infinity(lab: &mut Lab<'_>) -> Verdict {
    let (device, dim, width) = (lab.device, 32, 65_201);
    let mut kv = vec![bf16::ZERO; 2 * dim];
    (kv[31], kv[32], kv[63]) = (bf16::MAX, -bf16::ONE, bf16::MAX);
    let mut q = vec![bf16::ZERO; dim];
    q[0] = bf16::ONE;
    let mut indices = vec![1; width];
    indices[0] = 0;
    let (kv, q, indices) = (device.upload(&kv)?, device.upload(&q)?, device.upload(&indices)?);
    let (mut out, mut status) = (device.upload(&vec![bf16::ONE; dim])?, device.zeros::<u32>(1)?);
    let row = crate::AttentionRow { query: 0, out: 0, kv: kv.shaped([2, dim])?, indices: indices.view() };
    device.sparse_attention(SparseAttention {
        q: q.shaped([1, 1, dim])?,
        sinks: None,
        scale: 17.31,
        method: lab.method,
        rows: &[row],
        out: out.shaped_mut([1, 1, dim])?,
        status: Some(status.view_mut()),
    })?;
    let (out, status) = (out.read()?, status.read()?[0]);
    if status == crate::dims::status::OVERFLOW && out.iter().all(|x| x.to_bits() == 0) {
        return Ok(());
    }
    Err(Finding::text(
        "a result beyond bf16",
        "zeros and OVERFLOW",
        format!("{} and status {status}", out[31]),
    ))
}

/// Window slots, then a selection written behind them: one list, composed in place.
fn composed_list(lab: &mut Lab<'_>) -> Verdict {
    let device = lab.device;
    let selection = top_k::Shape { k: 5, rows: vec![40, 3] }.generate(24);
    let window = [7, 8, 9, -7];
    let mut list = device.upload(&[window, [-7; 4], window, [-7; 4]].concat())?;
    let scores = [device.upload(&selection.rows[0].scores)?, device.upload(&selection.rows[1].scores)?];
    let row = |r: usize| crate::TopKRow { scores: scores[r].view(), offset: 10, out: 8 * r + 3 };
    let rows = [row(0), row(1)];
    device.top_k(crate::TopK { k: 5, rows: &rows, out: list.view_mut(), status: None })?;
    let kv: Vec<bf16> = Rng::new(25).bf16s(50 * 32, 1.0);
    let q: Vec<bf16> = Rng::new(26).bf16s(2 * 32, 3.0);
    let (kv_buffer, q_buffer) = (device.upload(&kv)?, device.upload(&q)?);
    let mut out = device.zeros::<bf16>(2 * 32)?;
    let row = |r: usize| -> crate::Result<crate::AttentionRow<'_>> {
        let indices = list.view().slice(8 * r..8 * r + 8);
        Ok(crate::AttentionRow { query: r, out: r, kv: kv_buffer.shaped([50, 32])?, indices })
    };
    device.sparse_attention(SparseAttention {
        q: q_buffer.shaped([2, 1, 32])?,
        sinks: None,
        scale: 0.2,
        method: lab.method,
        rows: &[row(0)?, row(1)?],
        out: out.shaped_mut([2, 1, 32])?,
        status: None,
    })?;
    // The same from lists made on the host.
    let indices = |r: usize| {
        let selected = selection.expect(r, lab.method).swap_remove(0).wants;
        let slot = |want: &super::Want| match want {
            super::Want::Bits(bits) if *bits as u32 as i32 >= 0 => {
                *bits as i32 - selection.rows[r].offset + 10
            }
            _ => -1,
        };
        window[..3].iter().copied().chain(selected.iter().map(slot)).collect()
    };
    let row = |r| sparse_attention::Row { query: r, out: r, cache: 0, indices: indices(r) };
    let whole = sparse_attention::Data {
        heads: 1,
        dim: 32,
        scale: 0.2,
        q,
        sinks: None,
        caches: vec![kv],
        rows: vec![row(0), row(1)],
        outputs: 2,
    };
    let want = lab.joint(&whole)?;
    for (r, out) in out.read()?.chunks(32).enumerate() {
        let got = vec![bits::Part::of("out", out)];
        bits::same(r, "from a list made on the host", &got, &want.row(r)[..1].to_vec())?;
    }
    Ok(())
}

/// Every number of heads a rank may have, with every selection.
fn attention_pair(lab: &mut Lab<'_>, heads: usize, k: usize) -> Verdict {
    let rows = vec![sparse_attention::RowShape { kv_len: k + 300, width: 128 + k }; 2];
    let data = sparse_attention::Shape { heads, dim: lab.size(32, 512), rows }.generate(27);
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, [0])
}

fn index_pair(lab: &mut Lab<'_>, heads: usize, k: usize) -> Verdict {
    let rows =
        [k / 2, k, k + 700].map(|keys| index_scores::RowShape { start_pos: 4 * keys as u32, spare: 5 });
    let scores = index_scores::Shape { heads, dim: lab.size(32, 128), ratio: 4, rows: rows.to_vec() };
    let data = select_keys::Shape { scores, k }.generate(28);
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, 0..3)
}

/// A query sees `(start_pos + 1) / ratio` keys, no fewer and no more, also none; a NaN behind them is not seen.
fn causal_count(lab: &mut Lab<'_>) -> Verdict {
    for ratio in [1, 2, 4, 128] {
        let row = |start_pos| index_scores::RowShape { start_pos, spare: 3 };
        let mut data = index_scores::Shape {
            heads: lab.size(2, 32),
            dim: lab.size(32, 128),
            ratio,
            rows: (0..300).step_by(7).map(row).collect(),
        }
        .generate(29);
        let all: Vec<usize> = (0..data.rows()).collect();
        // A place between the rows' scores, where one score too many would show.
        data.rows.iter_mut().enumerate().for_each(|(r, row)| row.out += r);
        data.outputs += data.rows.len();
        data.poison(&all, &mut Rng::new(30));
        let results = lab.joint(&data)?;
        lab.oracle(&data, &results, all)?;
    }
    Ok(())
}

/// Every legal score is below zero, and there are fewer than k: they are all selected, and then -1.
fn low_scores(lab: &mut Lab<'_>) -> Verdict {
    let rows = [0, 1, 2, 19, 400].map(|keys| index_scores::RowShape { start_pos: keys, spare: 9 }).to_vec();
    let scores = index_scores::Shape { heads: lab.size(2, 64), dim: lab.size(32, 128), ratio: 1, rows };
    let mut data = select_keys::Shape { scores, k: 512 }.generate(31);
    data.scores.weights.iter_mut().for_each(|w| *w = -1e30 * w.abs().max(0.01));
    let results = lab.joint(&data)?;
    for row in 0..5 {
        let offset = data.slots[row].0;
        let slot = |i| results.row(row)[0].bits(i) as u32 as i32;
        let mut got: Vec<i32> = (0..512).map(slot).filter(|&i| i >= 0).collect();
        got.sort_unstable();
        let want: Vec<i32> = (0..data.scores.count(row) as i32).map(|i| i + offset).collect();
        if got != want {
            return Err(Finding::text(
                format_args!("row {row}'s set"),
                format!("{want:?}"),
                format!("{got:?}"),
            ));
        }
    }
    Ok(())
}

/// Values so small that their mean square is nothing beside epsilon.
fn epsilon_dominates(lab: &mut Lab<'_>) -> Verdict {
    let rows = vec![compress::RowShape { start_pos: 0, tokens: 13 }; 2];
    let shape = compress::Shape { ratio: 4, dim: 64, ring: None, emit: Emit::EveryToken, rows };
    let mut data = shape.generate(34);
    data.rows.iter_mut().flat_map(|row| &mut row.kv).for_each(|x| *x *= 1e-4);
    let results = lab.joint(&data)?;
    lab.oracle(&data, &results, 0..2)
}

/// Requests keep their states while their places in the dispatch change from step to step.
fn state_by_row(lab: &mut Lab<'_>) -> Verdict {
    let rng = &mut Rng::new(32);
    let (n, tokens) = (9, 14);
    let rows = (0..n).map(|r| compress::RowShape { start_pos: 5 * r as u32, tokens }).collect();
    let data = compress::Shape { ratio: 4, dim: 32, ring: Some(window(4) + 1), emit: Emit::Blocks, rows }
        .generate(33);
    let whole = lab.joint(&data)?;
    let state = |row: &compress::Row| (row.kv_state.clone(), row.score_state.clone());
    let mut states: Vec<_> = data.rows.iter().map(state).collect();
    let mut outs = vec![Vec::new(); n];
    for token in 0..tokens {
        let order = rng.permutation(n);
        let mut step = compress::Data { rows: vec![], ..data.clone() };
        for &row in &order {
            step.rows.extend(data.part(row, token..token + 1, states[row].clone()).rows);
        }
        step.scatter(rng);
        let results = lab.joint(&step)?;
        for (entry, &row) in order.iter().enumerate() {
            let bits = results.row(entry);
            outs[row].extend_from_slice(&bits[0].bytes);
            states[row] = (bits[2].floats(), bits[3].floats());
        }
    }
    for (row, out) in outs.into_iter().enumerate() {
        let got = vec![bits::Part { bytes: out, ..whole.row(row)[0].clone() }];
        bits::same(row, "in one call", &got, &whole.row(row)[..1].to_vec())?;
    }
    Ok(())
}

/// Two calls of a step share a status word: it is the later one's, which has no tokens and nothing to wait for.
fn later_status(lab: &mut Lab<'_>, ratio: u32) -> Verdict {
    let (device, d, most) = (lab.device, 32, 500);
    let (rows, features) = (window(ratio as usize), coff(ratio as usize) * d);
    let kv = device.upload(&vec![f32::NAN; most * features])?;
    let (ape, norm) = (device.zeros::<f32>(ratio as usize * features)?, device.zeros::<f32>(d)?);
    let state = || device.zeros::<f32>(2 * rows * features);
    let (mut kv_states, mut score_states) = (state()?, state()?);
    let (mut out, mut status) = (device.zeros::<bf16>(most * d)?, device.upload(&[77u32])?);
    let mut step = device.step(Limits { rows: 1, width: 0, keys: 0 })?;
    step.run(|calls| {
        for (request, tokens) in [most, 0].into_iter().enumerate() {
            let mine = request * rows * features..(request + 1) * rows * features;
            let fed = kv.view().slice(0..tokens * features).reshape([tokens, features])?;
            let row = CompressRow {
                start_pos: 0,
                kv: fed,
                score: fed,
                kv_state: kv_states.view_mut().slice(mine.clone()).reshape([rows, features])?,
                score_state: score_states.view_mut().slice(mine).reshape([rows, features])?,
                out: 0,
            };
            calls.compress(Compress {
                ratio,
                layout: StateLayout::Ring,
                emit: Emit::EveryToken,
                ape: ape.shaped([ratio as usize, features])?,
                norm: norm.view(),
                epsilon: 1e-6,
                rows: &mut [row],
                out: out.view_mut().reshape([most, d])?,
                status: Some(status.view_mut()),
            })?;
        }
        Ok(())
    })?;
    match status.read()?[0] {
        0 => Ok(()),
        other => Err(Finding::text("the status of the later call", 0, other)),
    }
}
