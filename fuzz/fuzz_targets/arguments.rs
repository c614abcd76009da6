//! Any arguments to any operation on the CPU: a result or `Error::Argument`, never a panic; a refused call touches no
//! output; and in a legal one every row has the bits of its own call, by another instruction set.

#![no_main]

use abreast_fuzz::{Devices, Draw, OPERATIONS};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static DEVICES: LazyLock<Devices> = LazyLock::new(Devices::open);

fuzz_target!(|bytes: &[u8]| {
    // Bytes that run out give the simplest value, so nothing that is drawn fails.
    let Ok(mut draw) = Draw::new(bytes) else { return };
    let Ok(operation) = draw.pick(&OPERATIONS) else { return };
    let _ = operation(&mut draw, &DEVICES);
});
