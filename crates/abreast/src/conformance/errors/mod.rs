//! Bad arguments: every error with its exact text, before anything is launched, outputs untouched.

mod compress;
mod gather_rows;
mod indexer;
mod sparse_attention;

use super::Case;
use super::arena::{Arena, repeat};
use super::bits::{Finding, Verdict};
use super::lab::Lab;
use crate::{Device, DeviceId, Element, Kind, Result, View};

pub(super) fn cases() -> Vec<Case> {
    [sparse_attention::cases(), indexer::cases(), compress::cases(), gather_rows::cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// What one attempt breaks: arguments of the whole call, or the second entry of its row list.
enum Break<Args, Row> {
    Args(Args),
    Row(Row),
}

/// A call with one bad argument. In the text, `{device}` stands for the device's name.
struct Attempt<Args, Row> {
    name: &'static str,
    bad: Break<Args, Row>,
    text: &'static str,
}

fn args<Args, Row>(name: &'static str, text: &'static str, edit: Args) -> Attempt<Args, Row> {
    Attempt { name, bad: Break::Args(edit), text }
}

fn row<Args, Row>(name: &'static str, text: &'static str, edit: Row) -> Attempt<Args, Row> {
    Attempt { name, bad: Break::Row(edit), text }
}

/// One case per attempt.
fn table<A: 'static, R: 'static>(
    op: &'static str,
    attempts: Vec<Attempt<A, R>>,
    run: fn(&mut Lab<'_>, &Attempt<A, R>) -> Verdict,
) -> Vec<Case> {
    let case = |attempt: Attempt<A, R>| {
        Case::new(format!("{op}/errors/{}", attempt.name), move |lab| run(lab, &attempt))
    };
    attempts.into_iter().map(case).collect()
}

/// Whether a call was refused with this text.
fn refused(lab: &mut Lab<'_>, result: Result<()>, text: &str) -> Verdict {
    let want = text.replace("{device}", &lab.device.id().to_string());
    lab.counts.refused += 1;
    lab.counts.calls += 1;
    match result {
        Err(e) if e.to_string() == want => Ok(()),
        Err(e) => Err(Finding::text("the error", want, e)),
        Ok(()) => Err(Finding::text("the call", want, "no error")),
    }
}

/// What an output holds before a call that must not touch it.
const FILL: u8 = 0x5a;

/// An output that must stay as it is.
fn output<T: Element>(device: &Device, name: &'static str, len: usize) -> Result<Arena<T>> {
    Arena::upload(device, name, 0xa5, [&vec![repeat::<T>(FILL); len][..]])
}

fn untouched<T: Element>(lab: &mut Lab<'_>, output: &Arena<T>) -> Verdict {
    lab.counts.red_zones += 1;
    output.read_named([], repeat(FILL))?;
    Ok(())
}

/// A view without elements of a device that nobody has.
fn elsewhere<'a, T: Element, const N: usize>() -> View<'a, T, N> {
    let nobody = DeviceId { kind: Kind::Metal, ordinal: 77 };
    // SAFETY: the address is aligned and not null, and the view has no elements.
    unsafe { View::from_raw(std::ptr::NonNull::dangling().as_ptr(), [0; N], nobody) }
}
