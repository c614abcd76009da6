//! The program `abreast`: replays recorded decode steps, verifies the law of rows, measures. No mathematics.

mod backend;
mod bench;
mod info;
mod replay;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// DeepSeek-V4's decode cores for many independent requests in one dispatch.
#[derive(Parser)]
#[command(version, propagate_version = true)]
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
    /// Measure every operation
    Bench(bench::Args),
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

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Replay(args) => replay::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Info(args) => info::run(args),
    };
    match result {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::from(1),
        Err(message) => {
            eprintln!("abreast: {message}");
            ExitCode::from(2)
        }
    }
}
