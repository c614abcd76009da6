//! For tests that need a process of their own: a test runs this program again for one ignored test.

use std::process::{Command, Output};

/// This program for the ignored test `test`, by its path within the crate, started by `wrapper` where there is one.
pub(super) fn again(test: &str, wrapper: &[&str]) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = match wrapper {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

/// Whether the one test ran and passed, and what it printed.
pub(super) fn passed(output: &Output) -> (bool, String) {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success() && said.contains("1 passed"), said)
}
