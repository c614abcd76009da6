//! A handle that was opened before a fork is refused in the child, whose threads would never answer; a new one works.

#![cfg(target_os = "linux")]

use abreast::conformance::case::{Problem, top_k};
use abreast::conformance::check;
use abreast::{Device, Error};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

#[test]
fn the_child_gets_an_error() {
    let device = Device::cpu().unwrap();
    // So large that the device's own threads are asked.
    let problem = top_k::Shape { k: 300, rows: vec![60_000; 3] }.generate(1);
    check(&device, &problem).unwrap();
    // SAFETY: the child only computes, and ends without running anything of the test's own.
    let child = unsafe { fork() };
    if child == 0 {
        let refused = || {
            let mut loaded = problem.load(&device)?;
            loaded.call(&[0, 1, 2], 0)
        };
        let refused = matches!(refused(), Err(Error::Unavailable { .. }));
        let reopened = Device::cpu().is_ok_and(|device| check(&device, &problem).is_ok());
        // SAFETY: ends the child at once.
        unsafe { _exit(i32::from(!refused) + 2 * i32::from(!reopened)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child of this very process.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "exit status {}: 1: not refused, 2: a new device fails", status >> 8);
    check(&device, &problem).unwrap();
}
