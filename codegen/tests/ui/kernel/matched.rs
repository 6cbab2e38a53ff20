//! `match` works on values of the host.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn matched(x: Ptr<u32>) {
    let n = x.get(0);
    match n {
        0 => x.set(0, 1),
        1..=3 => x.set(0, 2),
        _ => {}
    }
    match n < 3 {
        true => x.set(0, 1),
        false => x.set(0, 2),
    }
}

fn main() {}
