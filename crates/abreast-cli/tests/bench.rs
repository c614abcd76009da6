//! `abreast bench` as its users meet it. No test here looks at a time.

use abreast::{Device, Kind};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The smallest run that has a joint call.
fn bench(more: &[&str]) -> Output {
    let small = ["bench", "--op", "gather_rows n 512", "--rows", "1,2", "--seconds", "0", "--threads", "2"];
    Command::new(env!("CARGO_BIN_EXE_abreast")).args(small).args(more).output().unwrap()
}

fn file(name: &str, content: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn a_report_can_be_a_baseline_and_a_peer() {
    let first = bench(&["--json"]);
    assert!(first.status.success(), "{first:?}");
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(report["machine"]["threads"], 2);
    assert_eq!(report["method"], "reference");
    for key in ["cpu", "features", "isa", "version", "date"] {
        assert!(!report["machine"][key].is_null(), "{key}");
    }
    let positive = |value: &Value| value.as_f64().is_some_and(|x| x > 0.0 && x.is_finite());
    assert!(positive(&report["ceilings"]["fma_gflops"]));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|r| r["rows"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    for result in results {
        assert_eq!((&result["op"], &result["shape"]), (&"gather_rows".into(), &"n 512".into()));
        for key in
            ["median_us", "p10_us", "p90_us", "gbs", "solo_us", "speedup", "floor_us", "share", "samples"]
        {
            assert!(positive(&result[key]), "{key}: {result}");
        }
    }

    let path = file("bench-report.json", &first.stdout);
    let path = path.to_str().unwrap();
    let second = bench(&["--json", "--baseline", path, "--peers", path]);
    let report: Value = serde_json::from_slice(&second.stdout).unwrap();
    let compared = &report["results"][1]["baseline"];
    assert_eq!(compared["median_us"], results[1]["median_us"]);
    assert!(positive(&compared["ratio"]));
    assert_eq!(report["results"][1]["peers"][0]["median_us"], results[1]["median_us"]);

    // A table of peers may have goals.
    let peers = "gpu,op,shape,rows,peer,us,goal_us,bare_us\ng,gather_rows,n 512,2,them,8,0.25,\ng,gather_rows,n 512,2,others,9,,\n";
    let peers = file("bench-peers.csv", peers.as_bytes());
    let third = bench(&["--json", "--method", "fast", "--peers", peers.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&third.stdout).unwrap();
    let best = &report["results"][1]["peers"][0];
    assert_eq!(
        (&report["method"], &best["how"], &best["goal_us"]),
        (&"fast".into(), &"them".into(), &0.25.into())
    );
    let table = String::from_utf8(bench(&["--peers", peers.to_str().unwrap()]).stdout).unwrap();
    assert!(table.contains("| ours/goal |") && table.contains("| 0.25 µs |"), "{table}");

    let table = String::from_utf8(bench(&["--baseline", path]).stdout).unwrap();
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
    assert!(lines.len() == 4 && lines[0].contains("ours/baseline") && lines[3].contains("n 512"), "{table}");
}

/// On a machine with a GPU: the figures that only a GPU has. Elsewhere: the library's own reason.
#[test]
fn a_gpu_is_measured_or_refused_in_one_line() {
    let small = ["bench", "--backend", "cuda", "--op", "gather_rows n 512", "--rows", "2", "--seconds", "0"];
    let bench =
        |more: &[&str]| Command::new(env!("CARGO_BIN_EXE_abreast")).args(small).args(more).output().unwrap();
    let refused = |output: Output, why: &str| {
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("abreast: {why}\n"));
    };
    refused(bench(&["--threads", "2"]), "bench: --isa and --threads are for the CPU");
    if let Err(why) = Device::open(Kind::Cuda) {
        return refused(bench(&[]), &why.to_string());
    }
    let output = bench(&["--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let positive = |value: &Value| value.as_f64().is_some_and(|x| x > 0.0 && x.is_finite());
    for key in ["name", "architecture", "driver"] {
        assert!(report["machine"]["gpu"][key].is_string(), "{key}");
    }
    assert!(
        positive(&report["ceilings"]["least_call_us"])
            && positive(&report["ceilings"]["memory"][1]["copy_gbs"])
    );
    let result = &report["results"][0];
    for key in
        ["median_us", "solo_us", "floor_us", "warm_us", "warm_floor_us", "call_host_us", "replay_host_us"]
    {
        assert!(positive(&result[key]), "{key}: {result}");
    }
    // What a GPU measured can be a baseline of its next run.
    let path = file("bench-cuda.json", &output.stdout);
    let table = String::from_utf8(bench(&["--baseline", path.to_str().unwrap()]).stdout).unwrap();
    assert!(table.contains("ours/baseline") && table.contains("host call/replay"), "{table}");
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let broken = file("bench-broken.json", b"{\"results\": [");
    let foreign = file("bench-foreign.json", b"{\"machine\": {}, \"results\": []}");
    let (broken, foreign) = (broken.to_str().unwrap(), foreign.to_str().unwrap());
    // As large as no report is, without taking room on the disk.
    let large = file("bench-large.json", b"");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(1 << 40).unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["--baseline", "no/such/file.json"], "no/such/file.json: "),
        (&["--baseline", broken], "bench-broken.json: not a report of figures"),
        (&["--peers", foreign], "bench-foreign.json: not a report of figures: missing field `cpu`"),
        (&["--peers", env!("CARGO_TARGET_TMPDIR")], ": must be a file"),
        (&["--baseline", "/dev/zero"], if cfg!(unix) { "/dev/zero: must be a file" } else { "/dev/zero: " }),
        (&["--peers", large.to_str().unwrap()], "bench-large.json: must be at most 67108864 bytes"),
        (&["--isa", if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" }], "this processor has no"),
    ];
    for (arguments, want) in cases {
        let output = bench(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with("abreast: ") && text.contains(want), "{arguments:?}: {text}");
        assert_eq!((text.lines().count(), output.stdout.len()), (1, 0), "{arguments:?}: {text}");
    }
}

/// A named pipe would keep the program waiting for ever; this one ends at once if it is read all the same.
#[test]
#[cfg(target_os = "linux")]
fn a_pipe_is_no_report() {
    let arguments = ["bench", "--op", "top_k", "--baseline", "/dev/stdin"];
    let mut program = Command::new(env!("CARGO_BIN_EXE_abreast"));
    let output = program.args(arguments).stdin(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "abreast: /dev/stdin: must be a file\n");
}

#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    let machine = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (most, more) = (format!("must be 1 to {}", 4 * machine), (4 * machine + 1).to_string());
    let cases: [(&[&str], &str); 5] = [
        (&["--seconds", "-1"], "must be 0 to 60"),
        (&["--seconds", "NaN"], "must be 0 to 60"),
        (&["--threads", "0"], &most),
        (&["--threads", "-1"], &most),
        (&["--threads", &more], &most),
    ];
    for (arguments, want) in cases {
        let mut program = Command::new(env!("CARGO_BIN_EXE_abreast"));
        let output = program.args(["bench", "--op", "gather_rows n 512"]).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(want), "{arguments:?}: {text}");
    }
}

/// Other people's reports are printed: no terminal obeys them, and no cell has two lines.
#[test]
fn names_of_a_report_cannot_steer_the_terminal() {
    let hostile = br#"{"name": "\u001b]0;x\u0007\npeer", "machine": {"cpu": "\u001b[31m\ncpu", "threads": 1},
        "results": [{"op": "gather_rows", "shape": "n 512", "rows": 1, "median_us": 1, "how": "\u001b[2J\nway"}]}"#;
    let path = file("bench-hostile.json", hostile);
    let path = path.to_str().unwrap();
    let output = bench(&["--baseline", path, "--peers", path]);
    assert!(output.status.success(), "{output:?}");
    let (table, notes) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(table.contains(" peer ") && table.contains(" way ") && notes.contains(" cpu,"), "{table}{notes}");
    assert!(!(table + &notes).chars().any(|c| c.is_control() && c != '\n'), "{notes}");
}
