//! Steps with requests coming and going leave no memory behind.
//!
//! A program of its own: it looks at all of its memory.

#![cfg(target_os = "linux")]

use abreast::Device;
use abreast::conformance::{Options, run};

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn memory_is_flat() {
    let device = Device::cpu().unwrap();
    let options = Options { filter: Some("steps/soak".into()), ..Options::default() };
    let soak = || assert!(run(&device, &options, &mut |_| ()).is_good());
    soak();
    let before = resident();
    (0..3).for_each(|_| soak());
    let grown = resident().saturating_sub(before);
    println!("{before} bytes after 2,000 steps, {grown} more after 8,000");
    assert!(grown < 8 << 20, "{grown} bytes more after 6,000 steps");
}
