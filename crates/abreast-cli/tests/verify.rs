//! `abreast verify` as its users meet it.

use serde_json::Value;
use std::process::{Command, Output};

fn verify(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abreast")).arg("verify").args(args).output().unwrap()
}

#[test]
fn a_filter_runs_a_case_alone() {
    let output = verify(&["--filter", "top_k/ties/five_values/k512"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    let line = table.lines().find(|line| line.starts_with("top_k/ties")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["top_k/ties", "1", "0", "0", "9", "0"]);
    assert!(table.trim_end().ends_with("All good."), "{table}");
}

#[test]
fn json_is_one_object_with_the_counts() {
    let output = verify(&["--backend", "cpu", "--filter", "gather_rows/law/r1", "--json"]);
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // r1, r10 to r19, r127 to r129.
    assert_eq!((&report["cases"], &report["failed"]), (&14.into(), &0.into()));
    let rows: u64 = [1, 127, 128, 129].into_iter().chain(10..=19).sum();
    assert_eq!(report["counts"]["rows"], rows);
    assert_eq!(report["groups"][0]["name"], "gather_rows/law");
    assert_eq!(report["failures"], Value::Array(vec![]));
}

#[test]
fn the_list_names_every_case() {
    let names = String::from_utf8(verify(&["--list"]).stdout).unwrap();
    for name in ["sparse_attention/law/r66/s0", "compress/errors/ratio", "steps/soak/s0", "device/memory/u8"]
    {
        assert!(names.lines().any(|line| line == name), "{name}");
    }
}

#[test]
fn a_filter_that_matches_nothing_is_one_line_and_status_2() {
    let output = verify(&["--filter", "no such case"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        line,
        "abreast: no case's name contains \"no such case\"; `abreast verify --list` shows them all\n"
    );
}
