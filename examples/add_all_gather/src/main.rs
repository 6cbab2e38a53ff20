//! The whole of Peerwarp's command line, for this crate's family.

use std::process::ExitCode;

use add_all_gather::AddAllGather;

fn main() -> ExitCode {
    peerwarp::cli::main(&[peerwarp::cli::workload::<AddAllGather>()])
}
