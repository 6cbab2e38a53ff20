//! Arms of a device `if`.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn arms(x: Ptr<u32>, y: Ptr<f32>) {
    let n = x.get(0);
    let types = if n > 1 { n } else { y.get(0) };
    let shapes = if n > 1 {
        y.load(0, 32)
    } else {
        y.get(0)
    };
    let host = if n > 1 { 1 } else { 2 };
    let number = if n > 1 { n } else { 0.5 };
    let handle = if n > 1 { x } else { x };
    let missing = if n > 1 { n };
    let mut v = var(0u32);
    let variable = if n > 1 { v } else { v };
}

fn main() {}
