//! The program `abreast`; everything is in the library of this crate.

#![deny(clippy::print_stdout, clippy::print_stderr)]

fn main() -> std::process::ExitCode {
    abreast_cli::main()
}
