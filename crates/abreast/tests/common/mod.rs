//! For tests that need processes of their own: a test runs this program again for one ignored test.

use abreast::conformance::case::{
    Loaded, Problem, compress, convert_state, gather_rows, index_scores, select_keys, sparse_attention, top_k,
};
use abreast::conformance::{RowBits, digest};
use abreast::{Device, Emit, Error, Method};
use std::ffi::OsStr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes: what has not ended by then hangs.
const HANGS: Duration = Duration::from_secs(300);

/// Starts the ignored test `test` of this program; its standard input is a pipe.
pub(crate) fn start(test: &str, environment: &[(&str, &OsStr)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored", "--nocapture"]).envs(environment.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
}

/// Waits for a process; its one test must have run and passed. What it printed.
pub(crate) fn passes(mut child: Child) -> String {
    drop(child.stdin.take());
    let start = Instant::now();
    while child.try_wait().expect("its state").is_none() {
        if start.elapsed() > HANGS {
            child.kill().expect("killed");
            panic!("a process hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    said
}

/// Whether `child` returns in a forked copy of this process; a panic and a hang are none.
pub(crate) fn returns_when_forked(child: impl FnOnce()) -> bool {
    // SAFETY: only from a process of its own, whose other threads hold no lock that the child takes: that is this library's to see to.
    match unsafe { libc::fork() } {
        0 => {
            let returned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
            // SAFETY: ends the copy at once; the harness's end is the parent's affair.
            unsafe { libc::_exit(if returned { 0 } else { 1 }) }
        }
        pid => {
            assert!(pid > 0, "no fork");
            let (start, mut status) = (Instant::now(), 0);
            // SAFETY: waits for the child above, and writes a local.
            while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > HANGS / 5 {
                    println!("the forked child hangs");
                    // SAFETY: the child has not been waited for, so the number is still its own.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            status == 0
        }
    }
}

/// One small problem of every operation.
pub(crate) fn problems() -> Vec<Box<dyn Problem>> {
    let rows = 5;
    let attended = sparse_attention::RowShape { kv_len: 200, width: 90 };
    let scored = vec![index_scores::RowShape { start_pos: 900, spare: 3 }; rows];
    let scores = index_scores::Shape { heads: 3, dim: 64, ratio: 4, rows: scored };
    let fed = vec![compress::RowShape { start_pos: 2, tokens: 11 }; rows];
    vec![
        Box::new(sparse_attention::Shape { heads: 5, dim: 64, rows: vec![attended; rows] }.generate(1)),
        Box::new(scores.generate(2)),
        Box::new(top_k::Shape { k: 31, rows: vec![700; rows] }.generate(3)),
        Box::new(select_keys::Shape { scores, k: 31 }.generate(4)),
        Box::new(
            compress::Shape { ratio: 4, dim: 64, ring: None, emit: Emit::Blocks, rows: fed }.generate(5),
        ),
        Box::new(
            convert_state::Shape { ratio: 4, dim: 64, from: None, to: Some(9), rows: vec![7; rows] }
                .generate(6),
        ),
        Box::new(gather_rows::Shape { n: 513, rows }.generate::<f32>(7)),
    ]
}

/// A problem on a device.
pub(crate) struct Work {
    pub(crate) loaded: Box<dyn Loaded>,
    rows: Vec<usize>,
    pub(crate) op: &'static str,
}

/// The problems on a device.
pub(crate) fn load(device: &Device) -> Vec<Work> {
    let work = |problem: Box<dyn Problem>| Work {
        loaded: problem.load(device, Method::Reference).expect("memory"),
        rows: (0..problem.rows()).collect(),
        op: problem.op(),
    };
    problems().into_iter().map(work).collect()
}

impl Work {
    /// Fills the outputs with a pattern.
    pub(crate) fn reset(&mut self) {
        self.loaded.reset(0x5a).expect("outputs");
    }

    /// Queues the call.
    pub(crate) fn call(&mut self) -> Result<(), Error> {
        self.loaded.call(&self.rows, 0)
    }

    /// What the call gave.
    pub(crate) fn results(&self) -> Vec<RowBits> {
        self.loaded.results(&self.rows).unwrap_or_else(|why| panic!("{}: {why:?}", self.op))
    }

    /// Fills the outputs, calls, and gives the results.
    pub(crate) fn run(&mut self) -> Vec<RowBits> {
        self.reset();
        self.call().unwrap_or_else(|why| panic!("{why}"));
        self.results()
    }
}

/// A number for the bits that a device computes, the right ones on any device.
pub(crate) fn bits(device: &Device) -> String {
    format!("{:x?}", digest(device).expect("results"))
}
