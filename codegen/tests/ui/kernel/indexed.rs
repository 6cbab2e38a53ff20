//! A device value cannot index what the host has, and `as` does not make it one of the host.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn indexed(x: Ptr<u32>, table: &[u32], mut list: Vec<u32>) {
    let n = x.get(0);
    x.set(0, table[n]);
    list[n] = 3;
    for i in 0..n {
        x.set(i, list[i]);
    }
    x.set(1, table[n as usize]);
    let wide = n as u64 + 1;
}

fn main() {}
