use super::Defect::*;
use super::broken::Broken;
use crate::backend::Run;
use crate::ops::Op;
use crate::{Checked, Compress, CompressRow, ConvertState, DeviceId, Result, StateLayout};

/// Takes scores that are no number from a state, beyond the first 128 slots of the window that it fills: where, and what was there.
fn take_late(row: &mut CompressRow<'_>, ratio: usize) -> Vec<(usize, f32)> {
    let ([state_rows, features], start) = (row.score_state.shape(), row.start_pos as usize);
    let score = row.score_state.as_slice_mut().unwrap();
    let places = (start / ratio * ratio + 128..start).map(|position| position % state_rows * features);
    let late = places.flat_map(|at| at..at + features).filter(|&i| score[i].is_nan()).collect::<Vec<_>>();
    late.into_iter().map(|i| (i, std::mem::replace(&mut score[i], f32::NEG_INFINITY))).collect()
}

impl Broken {
    pub(super) fn broken_compress(&self, mut op: Checked<Compress<'_, '_>>) -> Result<()> {
        let args = &mut *op;
        let old: Vec<Vec<f32>> =
            args.rows.iter_mut().map(|row| row.kv_state.as_slice_mut().unwrap().to_vec()).collect();
        if self.has(EpsilonTimesTen) {
            args.epsilon *= 10.0;
        }
        let ratio = args.ratio as usize;
        let late =
            args.rows.iter_mut().filter(|_| self.has(LateNanOverlooked)).map(|row| take_late(row, ratio));
        let late: Vec<_> = late.collect();
        let mut rows = Vec::new();
        for row in args.rows.iter_mut() {
            let off = self.has(PositionOffByOne) && row.start_pos > 0;
            rows.push(CompressRow {
                start_pos: row.start_pos - u32::from(off),
                kv_state: row.kv_state.reborrow(),
                score_state: row.score_state.reborrow(),
                ..*row
            });
        }
        let (out, status) = (args.out.reborrow(), args.status.as_mut().map(|status| status.reborrow()));
        let call = Compress { rows: &mut rows, out, status, ..*args };
        match call.check(DeviceId::CPU) {
            Ok(call) => self.inner.compress(call)?,
            Err(_) => return self.inner.compress(op),
        }
        if self.has(CompressStatusLost) {
            args.status.iter_mut().for_each(|status| status.as_slice_mut().unwrap().fill(0));
        }
        for (row, late) in args.rows.iter_mut().zip(&late) {
            let score = row.score_state.as_slice_mut().unwrap();
            for &(i, nan) in late {
                if score[i] == f32::NEG_INFINITY {
                    score[i] = nan;
                }
            }
        }
        let layout = args.layout;
        if let (true, [first, second, ..]) = (self.has(StatesSwapped), &mut args.rows[..]) {
            let (a, b) = (first.kv_state.as_slice_mut().unwrap(), second.kv_state.as_slice_mut().unwrap());
            a.swap_with_slice(b);
        }
        for (row, old) in args.rows.iter_mut().zip(old) {
            let [state_rows, features] = row.kv_state.shape();
            let next = row.start_pos as usize + row.tokens();
            let state = row.kv_state.as_slice_mut().unwrap();
            if self.has(OverlapCopyLost) && layout == StateLayout::Shifted && args.ratio == 4 {
                state[..4 * features].copy_from_slice(&old[..4 * features]);
            }
            if self.has(RingForgets) && layout == StateLayout::Ring {
                state[next % state_rows * features..][..features].fill(0.0);
            }
        }
        Ok(())
    }

    pub(super) fn broken_convert(&self, mut op: Checked<ConvertState<'_, '_>>) -> Result<()> {
        let old: Vec<Vec<f32>> =
            op.rows.iter_mut().map(|row| row.kv_to.as_slice_mut().unwrap().to_vec()).collect();
        let args = &mut *op;
        let mut again = Vec::new();
        for row in args.rows.iter_mut() {
            again.push(crate::ConvertStateRow {
                kv_to: row.kv_to.reborrow(),
                score_to: row.score_to.reborrow(),
                ..*row
            });
        }
        let call = ConvertState { rows: &mut again, ..*args };
        self.inner.convert_state(call.check(DeviceId::CPU)?)?;
        if self.has(StaleNewState) {
            for (row, old) in args.rows.iter_mut().zip(old) {
                let state = row.kv_to.as_slice_mut().unwrap();
                state.iter_mut().zip(old).filter(|(x, _)| **x == 0.0).for_each(|(x, old)| *x = old);
            }
        }
        Ok(())
    }
}
