//! A device value cannot index what the host has.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn indexed(x: Ptr<u32>, table: &[u32], mut list: Vec<u32>) {
    let n = x.get(0);
    x.set(0, table[n]);
    list[n] = 3;
    for i in 0..n {
        x.set(i, list[i]);
    }
}

fn main() {}
