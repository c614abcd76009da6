//! A compressor's answer against the recorded one, and every way of feeding it against the first.

use super::Case;
use super::feed::{Fed, Way};
use super::state::State;
use crate::replay::judge::{ENTRY, ENTRY_FLIPS, ENTRY_RMS, Verdict, difference};
use crate::replay::tensors::Data;
use abreast::{bf16, dims::status};

impl Case<'_> {
    /// Every token's output row: an entry where a block closes, else exactly zero.
    pub(super) fn judge_rows(&self, out: &[bf16], verdict: &mut Verdict) {
        let (d, want) = (self.d(), self.out.load());
        let exact = self.exact.as_ref().map(Data::load);
        // Squares of the errors and of what was recorded.
        let mut squares = (0.0, 0.0);
        for (t, (got, want)) in out.chunks(d).zip(want.chunks(d)).enumerate() {
            let entry = self.emitted.iter().position(|&at| at == t);
            let Some(entry) = entry.filter(|_| !self.fail_closed.contains(&t)) else {
                if let Some(f) = got.iter().position(|v| v.to_bits() != 0) {
                    verdict.fail(|| format!("token {t}, feature {f}: got {:e}, must be zero", got[f]));
                }
                continue;
            };
            let mut flips = 0;
            for (f, (&got, &want)) in got.iter().zip(want).enumerate() {
                let target = exact.as_ref().map_or(f64::from(want), |exact| f64::from(exact[entry * d + f]));
                let (error, equal) = ((f64::from(got) - target).abs(), got.to_bits() == want.to_bits());
                verdict.count(equal);
                flips += usize::from(!equal);
                squares = (squares.0 + error * error, squares.1 + target * target);
                if !self.loose {
                    let place = || format!("token {t}, feature {f}: got {got:e}, recorded {target:e}");
                    verdict.error(error, ENTRY.0 * target.abs() + ENTRY.1, place);
                }
            }
            if flips > ENTRY_FLIPS && !self.loose {
                let differ = "outputs differ from the recorded bits, at most";
                verdict.fail(|| format!("token {t}: {flips} of {d} {differ} {ENTRY_FLIPS} may"));
            }
        }
        if self.loose {
            let rms = if squares.0 == 0.0 { 0.0 } else { (squares.0 / squares.1).sqrt() };
            verdict.error(rms, ENTRY_RMS, || "relative root mean square of all emitted rows".into());
            verdict.note = Some("recorded in mode hfbf16: judged by root mean square error, not by bits");
        }
    }

    /// States hold one f32 addition an element: the same bits, but any NaN is a NaN.
    pub(super) fn judge_states(&self, state: &State, verdict: &mut Verdict) {
        let recorded =
            [("kv_state", &self.kv_after, &state.kv), ("score_state", &self.score_after, &state.score)];
        for (name, want, got) in recorded {
            let Some(want) = want.as_ref().map(Data::load) else { continue };
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            if let Some(i) = got.iter().zip(want.iter()).position(|pair| !same(pair)) {
                let (got, want) = (got[i], want[i]);
                verdict.fail(|| format!("{name}[{i}]: got {got:e}, must have the bits of {want:e}"));
            }
        }
    }

    /// A token that closes a bad block says so, and no other.
    pub(super) fn judge_status(&self, one_by_one: &[u32], verdict: &mut Verdict) {
        for (t, &got) in one_by_one.iter().enumerate() {
            let want = if self.fail_closed.contains(&t) { status::NONFINITE_STATE } else { 0 };
            if got != want {
                let (got, want) = (status::names(got), status::names(want));
                verdict.fail(|| format!("status of token {t}: got {got}, must be {want}"));
            }
        }
    }

    /// The first bit in which another way of feeding the tokens differs from one by one.
    pub(super) fn ways_differ(&self, first: &Fed, other: &Fed, way: Way) -> Option<String> {
        let name = format!("{way:?}");
        let names = ["one by one", &name];
        let union = |fed: &Fed| [fed.status.iter().fold(0, |a, b| a | b)];
        let end = self.start_pos as usize + self.tokens();
        // A ring has only the rows that are still to be read.
        let state = |state: &[f32]| match way {
            Way::Ring(_) => self.layout().live(state, end),
            _ => state.to_vec(),
        };
        difference("out", names, [&first.out, &other.out])
            .or_else(|| difference("status", names, [&union(first), &union(other)]))
            .or_else(|| difference("kv_state", names, [&state(&first.state.kv), &state(&other.state.kv)]))
            .or_else(|| {
                difference("score_state", names, [&state(&first.state.score), &state(&other.state.score)])
            })
    }
}
