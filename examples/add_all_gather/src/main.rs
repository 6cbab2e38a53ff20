//! The whole of Peerwarp's command line, for this crate's family.

fn main() -> std::process::ExitCode {
    peerwarp::cli::main(&[peerwarp::cli::workload::<add_all_gather::AddAllGather>()])
}
