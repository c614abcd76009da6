//! The program `abreast`; everything is in the library of this crate.

fn main() -> std::process::ExitCode {
    abreast_cli::main()
}
