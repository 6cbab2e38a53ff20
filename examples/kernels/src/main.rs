//! The whole of Peerwarp's command line, for this crate's families.

use std::process::ExitCode;

use kernels::{RingGather, Ulysses};
use peerwarp::cli::{main as program, workload};

fn main() -> ExitCode {
    program(&[workload::<RingGather>(), workload::<Ulysses>()])
}
