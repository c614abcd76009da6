//! Softmax weights of one head, in place of its logits.

use super::lanes::{Lanes, WIDEST};
use super::math::{exp, tree};
use super::values::is_finite;
use crate::dims::PARTIALS;

/// One head's logits, of the attended slots in order.
pub(super) struct Logits<'a> {
    /// At least `n` places, and on to the next multiple of 32.
    pub(super) first: *mut f32,
    /// At least 1.
    pub(super) n: usize,
    /// Where each stood in the index list; `None` where none was skipped.
    pub(super) slots: Option<&'a [u32]>,
}

impl Logits<'_> {
    /// Overwrites the logits with `exp(logit - m)`, m the largest of logits and sink, and returns the sum of all, the
    /// sink's term included; NaN where a logit or the sink is not finite.
    ///
    /// # Safety
    /// `first` has its places.
    #[inline(always)]
    pub(super) unsafe fn softmax<L: Lanes>(&self, sink: Option<f32>) -> f32 {
        let end = self.n.next_multiple_of(PARTIALS);
        // SAFETY: `first` has `end` places, a multiple of the lanes.
        unsafe {
            let head = *self.first;
            self.fill_tail(head);
            let (mut most, mut poison) = (L::splat(head), L::splat(0.0));
            for j in (0..end).step_by(L::N) {
                let logits = L::load(self.first.add(j));
                most = most.max(logits);
                poison = logits.poison(poison);
            }
            if !is_finite(poison) || sink.is_some_and(|sink| !sink.is_finite()) {
                return f32::NAN;
            }
            let most = largest(most).max(sink.unwrap_or(f32::MIN));
            for j in (0..end).step_by(L::N) {
                let weights = exp(L::load(self.first.add(j)).sub(L::splat(most)));
                weights.store(self.first.add(j));
            }
            self.fill_tail(0.0);
            let sink = sink.map_or(0.0, |sink| exp::<f32>(sink - most));
            self.sum::<L>(sink)
        }
    }

    /// Fills what lies between the logits and the next multiple of 32.
    #[inline(always)]
    unsafe fn fill_tail(&self, value: f32) {
        for j in self.n..self.n.next_multiple_of(PARTIALS) {
            // SAFETY: within the places of `first`.
            unsafe { *self.first.add(j) = value };
        }
    }

    /// 32 partial sums over the slots, strided by 32; the first starts with the sink's term.
    #[inline(always)]
    unsafe fn sum<L: Lanes>(&self, sink: f32) -> f32 {
        let mut partials = [0.0f32; PARTIALS];
        partials[0] = sink;
        // SAFETY: `first` has its places, `partials` 32.
        unsafe {
            let Some(slots) = self.slots else {
                for l in (0..PARTIALS).step_by(L::N) {
                    let mut sum = L::load(partials.as_ptr().add(l));
                    for j in (l..self.n.next_multiple_of(PARTIALS)).step_by(PARTIALS) {
                        sum = sum.add(L::load(self.first.add(j)));
                    }
                    sum.store(partials.as_mut_ptr().add(l));
                }
                return tree(partials);
            };
            for (a, slot) in slots.iter().enumerate() {
                partials[*slot as usize % PARTIALS] += *self.first.add(a);
            }
        }
        tree(partials)
    }
}

#[inline(always)]
fn largest<L: Lanes>(lanes: L) -> f32 {
    let mut all = [f32::MIN; WIDEST];
    // SAFETY: there are no more lanes.
    unsafe { lanes.store(all.as_mut_ptr()) };
    all.into_iter().fold(f32::MIN, f32::max)
}
