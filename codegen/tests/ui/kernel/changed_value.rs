//! A traced value cannot be changed in place.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn sums(x: Ptr<u32>, y: Ptr<f32>) {
    let mut n = x.get(0);
    n += 1;
    let mut row = y.load(0, 32);
    row *= 2.0;
    x.set(0, n);
    y.store(0, row);
}

fn main() {}
