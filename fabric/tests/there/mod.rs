//! Tests that need libfabric run where it is.

use peerwarp_fabric::{LIBRARY_VARIABLE, library_version};

/// Whether there is a libfabric to test with. Where PEERWARP_LIBFABRIC names one, it has to be.
pub fn library_is_there() -> bool {
    let is_there = std::env::var_os(LIBRARY_VARIABLE).is_some() || library_version().is_ok();
    if !is_there {
        println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    is_there
}
