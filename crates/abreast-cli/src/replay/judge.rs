//! The tolerances, and how an answer stands against them.
//!
//! They are those of the recording's own measurements: see `docs/traces.md`.

use abreast::bf16;
use bytemuck::Pod;

/// Half a unit in the last place of bf16, relative: what rounding a right result to bf16 may cost.
pub(super) const HALF_ULP: f64 = 1.0 / 256.0;
/// What f32 arithmetic may add to an attention output.
pub(super) const ATTENTION: f64 = 2e-5;
/// The same where weights are rounded to bf16, relative to the largest output or 12, and the root mean square error, relative.
pub(super) const FAST_ATTENTION: f64 = 1e-3;
pub(super) const FAST_ATTENTION_RMS: f64 = 2.3e-3;
/// Two index scores this close, relative to the largest, may swap their places where the order is not exact.
pub(super) const SCORE_ORDER: f64 = 2e-6;
/// An index score's error, relative to the sum of the magnitudes of all its products.
pub(super) const SCORE: f64 = 1e-6;
/// How many outputs of one compressed entry may differ from the recorded bits ..
pub(super) const ENTRY_FLIPS: usize = 2;
/// .. and by how much: one unit of the pooled value, and the rounding of the output; relative, then absolute.
pub(super) const ENTRY: (f64, f64) = (1.0 / 64.0, 1e-5);
/// Root mean square error of compressed entries, relative, where the recording is no target for bits.
pub(super) const ENTRY_RMS: f64 = 4e-3;

/// How an answer stands against what was recorded.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Largest error; `None` where it cannot be measured (not finite, another number of results).
    pub(super) max_error: Option<f64>,
    /// Error and bound of the place where the error uses up the largest part of its bound.
    pub(super) worst: (f64, f64),
    /// Results with exactly the recorded bits, and all results.
    pub(super) exact: (usize, usize),
    /// The first thing that is wrong.
    pub(super) wrong: Option<String>,
    /// What somebody who reads the result should know.
    pub(super) note: Option<&'static str>,
}

impl Verdict {
    pub(super) fn new() -> Self {
        Verdict { max_error: Some(0.0), ..Verdict::default() }
    }

    pub(super) fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(why());
        }
    }

    /// Counts one error in; beyond its bound, or not finite, it is wrong. `place` says where it is.
    pub(super) fn error(&mut self, error: f64, bound: f64, place: impl FnOnce() -> String) {
        self.max_error = self.max_error.filter(|_| error.is_finite()).map(|max| max.max(error));
        let part = |(error, bound): (f64, f64)| if error == 0.0 { 0.0 } else { error / bound };
        if self.worst.1 == 0.0 || part((error, bound)) > part(self.worst) {
            self.worst = (error, bound);
        }
        // A NaN is not within any bound.
        let within = error <= bound;
        if !within {
            self.fail(|| format!("{}: error {error:.3e} above {bound:.3e}", place()));
        }
    }

    /// Counts one result in as bit-equal or not.
    pub(super) fn count(&mut self, equal: bool) {
        self.exact.0 += usize::from(equal);
        self.exact.1 += 1;
    }
}

/// An element whose bits can be shown.
pub(super) trait Show: Pod {
    fn show(self) -> String;
}

impl Show for bf16 {
    fn show(self) -> String {
        format!("{self:e} (0x{:04x})", self.to_bits())
    }
}
impl Show for f32 {
    fn show(self) -> String {
        format!("{self:e} (0x{:08x})", self.to_bits())
    }
}
impl Show for i32 {
    fn show(self) -> String {
        self.to_string()
    }
}
impl Show for u32 {
    fn show(self) -> String {
        format!("{self:#x}")
    }
}

/// Where two results differ in a bit, and how: `what[i] joint .., alone ..`, by the two `names`.
pub(super) fn difference<T: Show>(what: &str, names: [&str; 2], results: [&[T]; 2]) -> Option<String> {
    let [a, b] = results;
    if a.len() != b.len() {
        return Some(format!("{what}: {} results {}, {} {}", a.len(), names[0], b.len(), names[1]));
    }
    let same = |(x, y): (&T, &T)| bytemuck::bytes_of(x) == bytemuck::bytes_of(y);
    let i = a.iter().zip(b).position(|pair| !same(pair))?;
    Some(format!("{what}[{i}]: {} {}, {} {}", a[i].show(), names[0], b[i].show(), names[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_judged_by_its_own_bound() {
        let mut verdict = Verdict::new();
        verdict.error(0.5, 1.0, || unreachable!("within its bound"));
        verdict.error(2.0, 8.0, || unreachable!("within its bound"));
        assert_eq!((verdict.max_error, verdict.worst), (Some(2.0), (0.5, 1.0)));
        verdict.error(0.25, 0.125, || "here".into());
        assert_eq!(verdict.worst, (0.25, 0.125));
        assert_eq!(verdict.wrong.as_deref(), Some("here: error 2.500e-1 above 1.250e-1"));
    }

    #[test]
    fn not_a_number_is_wrong() {
        let mut verdict = Verdict::new();
        verdict.error(f64::NAN, 1.0, || "here".into());
        verdict.error(0.0, 1.0, String::new);
        assert_eq!(verdict.max_error, None);
        assert!(verdict.wrong.is_some_and(|why| why.starts_with("here")));
    }

    #[test]
    fn bits_differ_where_values_do_not() {
        let at = |a: &[f32], b: &[f32]| difference("x", ["joint", "alone"], [a, b]);
        let nan = |bits| f32::from_bits(bits);
        assert_eq!(at(&[1.0, nan(0x7fc0_0000)], &[1.0, nan(0x7fc0_0000)]), None);
        assert!(at(&[nan(0x7fc0_0000)], &[nan(0x7fc0_0001)]).is_some());
        let zeros = at(&[1.0, 0.0], &[1.0, -0.0]);
        assert_eq!(zeros.as_deref(), Some("x[1]: 0e0 (0x00000000) joint, -0e0 (0x80000000) alone"));
        assert!(at(&[1.0], &[1.0, 1.0]).is_some());
    }
}
