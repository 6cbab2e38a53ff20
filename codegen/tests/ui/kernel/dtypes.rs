//! Element types do not convert by themselves.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn mixed(x: Ptr<u32>, y: Ptr<f32>) {
    let (n, v) = (x.get(0), y.get(0));
    let sum = n + v;
    if n < v {
        y.set(0, v);
    }
    if 1.5 > n {
        y.set(0, v);
    }
    let mut total = var(0u32);
    total = v;
    total += 0.5;
    let row = y.load(0, 32) + n;
    let same = row == n;
}

fn main() {}
