//! The program `abreast`: replays recorded decode steps, verifies the law of rows, measures. No mathematics.
//!
//! A library too, so that tests and fuzz targets reach the parsers.

// They panic where the stream is closed or full: `print` and `note` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod backend;
mod bench;
mod info;
pub mod replay;
mod report;
mod verify;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// DeepSeek-V4's decode cores for many independent requests in one dispatch.
#[derive(Parser)]
#[command(name = "abreast", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run recorded decode steps jointly and alone, and compare with what was recorded
    Replay(replay::Args),
    /// Run the conformance suite: the law of rows, the oracle, the edges
    Verify(verify::Args),
    /// Measure the operations
    Bench(bench::Args),
    /// Turn reports of `bench --json` into one HTML page with plots
    Report(report::Args),
    /// Show the version, the processor and the backends
    Info(info::Args),
}

/// How a command ended, for the exit status: 0 when all is well, 1 when something it checked is wrong.
enum Outcome {
    Good,
    Bad,
}

/// What a command returns: an `Err` is one clear line about bad input, exit status 2.
type CommandResult = Result<Outcome, String>;

/// Runs the program on the process's arguments. The exit status is 0 when all is well, 1 when something that it
/// checked is wrong, 2 for bad input.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Replay(args) => replay::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Report(args) => report::run(args),
        Command::Info(args) => info::run(args),
    };
    match result {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Err(message) => {
            note(&message);
            ExitCode::from(2)
        }
    }
}

/// Writes one line to stderr, whatever names a file brought in. Nobody is left to tell where that fails.
pub(crate) fn note(text: &str) {
    let line = text.replace(char::is_control, " ");
    let _ = writeln!(std::io::stderr(), "abreast: {line}");
}

/// Writes to stdout. A reader that has gone away (`abreast replay | head`) is no error; a full disk is.
pub(crate) fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("stdout: {e}")),
        _ => Ok(()),
    }
}
