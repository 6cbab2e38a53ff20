//! The whole of Peerwarp's command line, for this crate's families.

use std::process::ExitCode;

use kernels::{FarGather, Histogram, KvPush, MatmulGelu, RingGather, Ulysses};
use peerwarp::cli::{main as program, workload};

fn main() -> ExitCode {
    program(&[
        workload::<FarGather>(),
        workload::<Histogram>(),
        workload::<KvPush>(),
        workload::<MatmulGelu>(),
        workload::<RingGather>(),
        workload::<Ulysses>(),
    ])
}
