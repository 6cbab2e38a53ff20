//! The `peerwarp` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    peerwarp::cli::main(&peerwarp::cli::builtin())
}
