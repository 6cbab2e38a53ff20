//! Assertions are about the configuration.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn asserted(x: Ptr<u32>, len: u32) {
    let n = x.get(0);
    assert!(len > 3);
    assert!(n < 3);
    assert!(n < len, "n is below {len}");
    debug_assert!(n != 0);
    assert_eq!(n, 3);
}

fn main() {}
