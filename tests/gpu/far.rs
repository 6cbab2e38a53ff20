//! Far channels between GPUs of one host: puts by libfabric, which a thread of the host carries for each rank.

#[path = "../../examples/kernels/src/far_gather.rs"]
mod far_gather;

use far_gather::FarGather;

use super::cases::cases;

/// Whether there is a libfabric to test with. Where PEERWARP_LIBFABRIC names one, it has to be.
fn library_is_there() -> bool {
    std::env::var_os(peerwarp_fabric::LIBRARY_VARIABLE).is_some()
        || peerwarp_fabric::library_version().is_ok()
}

#[test]
fn rows_that_are_put_far_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases("far_gather", 3, |cases| {
        cases.run::<FarGather>("elements=1001 ranks=2");
        cases.run::<FarGather>("elements=4096 ranks=2 pieces=4");
        cases.run::<FarGather>("elements=262144 ranks=2 pieces=16");
    });
}
