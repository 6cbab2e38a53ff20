//! The whole of Peerwarp's command line, for this crate's families.

use std::process::ExitCode;

use kernels::{Histogram, RingGather, Ulysses};
use peerwarp::cli::{main as program, workload};

fn main() -> ExitCode {
    program(&[workload::<Histogram>(), workload::<RingGather>(), workload::<Ulysses>()])
}
