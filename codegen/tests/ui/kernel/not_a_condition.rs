//! Conditions that are none.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn conditions(y: Ptr<f32>, n: Val<u32>) {
    let row = y.load(0, 32);
    if row > 0.5 {
        y.store(0, row);
    }
    while n {
        y.store(0, row);
    }
    if n && row > 0.5 {
        y.store(0, row);
    }
    let m = true && row > 0.5;
}

fn main() {}
