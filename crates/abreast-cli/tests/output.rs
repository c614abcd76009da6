//! Where the output goes may be gone or full: no command panics.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::process::{Command, Output, Stdio};

const BENCH: &[&str] = &["bench", "--op", "gather_rows n 512", "--rows", "1", "--seconds", "0"];

/// One command for every way to write to stdout.
const COMMANDS: [&[&str]; 9] = [
    &["replay"],
    &["replay", "--json"],
    &["info"],
    &["info", "--json"],
    &["verify", "--list"],
    &["verify", "--filter", "top_k/ties/five_values/k512"],
    &["verify", "--filter", "top_k/ties/five_values/k512", "--json"],
    BENCH,
    &["bench", "--op", "gather_rows n 512", "--rows", "1", "--seconds", "0", "--json"],
];

fn abreast(args: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_abreast"));
    program.args(args).stdout(stdout).stderr(stderr).output().unwrap()
}

/// Has no room for a byte.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader has ended.
fn closed() -> Stdio {
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let pipe = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    pipe.into()
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    for command in COMMANDS {
        let output = abreast(command, closed(), Stdio::piped());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.as_str()), (Some(0), ""), "{command:?}");
    }
}

#[test]
fn a_full_disk_is_one_line_and_status_2() {
    for command in COMMANDS {
        let output = abreast(command, full(), Stdio::piped());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
        assert!(text.starts_with("abreast: stdout: ") && text.lines().count() == 1, "{command:?}: {text}");
    }
}

/// Neither a note nor an error needs somebody who reads it.
#[test]
fn notes_that_nobody_can_read_change_nothing() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("output-baseline.json");
    std::fs::write(&path, r#"{"machine": {"cpu": "another"}, "results": []}"#).unwrap();
    let bench = [BENCH, &["--baseline", path.to_str().unwrap()]].concat();
    let heard = abreast(&bench, Stdio::piped(), Stdio::piped());
    assert!(String::from_utf8(heard.stderr).unwrap().contains("note: the baseline figures are of another"));
    for stderr in [full(), closed()] {
        let output = abreast(&bench, Stdio::piped(), stderr);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.ends_with(b"|\n"));
    }
    for stderr in [full(), closed()] {
        let output = abreast(&["verify", "--filter", "no such case"], Stdio::piped(), stderr);
        assert_eq!(output.status.code(), Some(2));
    }
}
