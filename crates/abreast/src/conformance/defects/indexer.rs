use super::Defect::*;
use super::broken::Broken;
use crate::backend::Run;
use crate::dims::causal_count;
use crate::ops::Op;
use crate::{Checked, DeviceId, IndexScores, Result, TopK};
use std::cmp::Ordering;

impl Broken {
    pub(super) fn broken_scores(&self, mut op: Checked<IndexScores<'_>>) -> Result<()> {
        let args = &mut *op;
        let mut rows = args.rows.to_vec();
        if self.has(CausalCountPlusOne) {
            for row in &mut rows {
                let next = row.start_pos + args.ratio;
                if causal_count(next, args.ratio) <= row.keys.shape()[0] {
                    row.start_pos = next;
                }
            }
        }
        let status = args.status.as_mut().map(|status| status.reborrow());
        let call = IndexScores { rows: &rows, out: args.out.reborrow(), status, ..*args };
        // Where the wrong arguments do not even make a legal call, the right ones do no harm.
        match call.check(DeviceId::CPU) {
            Ok(call) => self.inner.index_scores(call)?,
            Err(_) => return self.inner.index_scores(op),
        }
        let rows = args.rows;
        let out = args.out.as_slice_mut().unwrap();
        for row in rows {
            let count = causal_count(row.start_pos, args.ratio);
            let scores = &mut out[row.out..row.out + count];
            if self.has(ReluHidesNan) {
                scores.iter_mut().filter(|score| !score.is_finite()).for_each(|score| *score = 0.0);
            }
            if self.has(KeysStagedAsHalf) && count > 0 {
                let keys = row.keys.slice(0..count);
                for (key, score) in keys.as_slice().unwrap().chunks(keys.shape()[1]).zip(scores) {
                    if key.iter().any(|x| x.to_f32().abs() > 65504.0) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn broken_selection(&self, mut op: Checked<TopK<'_>>) -> Result<()> {
        let args = &mut *op;
        let mut rows = args.rows.to_vec();
        if self.has(OffsetCut) {
            rows.iter_mut().for_each(|row| row.offset &= 0xffff);
        }
        let status = args.status.as_mut().map(|status| status.reborrow());
        let call = TopK { rows: &rows, out: args.out.reborrow(), status, ..*args };
        self.inner.top_k(call.check(DeviceId::CPU)?)?;
        let k = args.k;
        for row in args.rows {
            let scores = row.scores.as_slice().unwrap();
            let slots = &mut args.out.as_slice_mut().unwrap()[row.out..row.out + k];
            self.break_slots(slots, scores, row.offset);
        }
        Ok(())
    }

    fn break_slots(&self, slots: &mut [i32], scores: &[f32], offset: i32) {
        let mut sort = |better: fn(f32, f32) -> Ordering, ascending: bool| {
            let mut all: Vec<usize> = (0..scores.len()).filter(|&i| scores[i].is_finite()).collect();
            if !ascending {
                all.reverse();
            }
            all.sort_by(|&a, &b| better(scores[b], scores[a]));
            slots.iter_mut().zip(all).for_each(|(slot, i)| *slot = i as i32 + offset);
        };
        let value = |a: f32, b: f32| a.partial_cmp(&b).unwrap();
        match () {
            _ if self.has(TiesDescending) => sort(value, false),
            _ if self.has(NegativeZeroBelow) => sort(|a, b| a.total_cmp(&b), true),
            _ if self.has(BinsOnly) => sort(|a, b| (a.to_bits() >> 16).cmp(&(b.to_bits() >> 16)), true),
            _ if self.has(TieDropped) => {
                let tied = |score: &&f32| **score == scores[0];
                if scores.iter().filter(tied).count() > 1024 {
                    *slots.last_mut().unwrap() = -1;
                }
            }
            _ if self.has(IndexOffByOne) => {
                slots.iter_mut().filter(|slot| **slot >= 0).for_each(|slot| *slot = slot.wrapping_add(1));
            }
            _ if self.has(PaddingSelected) => {
                slots.iter_mut().filter(|slot| **slot < 0).for_each(|slot| *slot = scores.len() as i32);
            }
            _ if self.has(NanSelected) => {
                if let Some(nan) = scores.iter().position(|score| score.is_nan()) {
                    slots[0] = nan as i32 + offset;
                }
            }
            _ => {}
        }
    }
}
