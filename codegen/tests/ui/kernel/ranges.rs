//! What `for` runs over.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn ranges(x: Ptr<u32>, y: Ptr<f32>, long: u64) {
    let n = x.get(0);
    for i in 0.5..=n {
        x.set(i, 1);
    }
    for i in n {
        x.set(i, 1);
    }
    for i in long..n {
        x.set(i, 1);
    }
    for i in 0..y.get(0) {
        x.set(i, 1);
    }
    for i in 3u32..long {
        x.set(i, 1);
    }
}

fn main() {}
