//! Device values as conditions of the host: in a function without the attribute, and where Rust itself decides.
use peerwarp_codegen::dsl::prelude::*;

fn without_the_attribute(x: Ptr<u32>, n: Val<u32>, ready: Val<bool>) {
    if n < 3 {
        x.set(0, 1);
    }
    if ready {
        x.set(0, 2);
    }
    while x.get(0) != n {
        x.set(0, 3);
    }
}

#[kernel]
fn where_rust_decides(x: Ptr<u32>, n: Val<u32>, some: Option<u32>) {
    if let Some(k) = some
        && n < k
    {
        x.set(0, k);
    }
    match some {
        Some(k) if n == k => x.set(0, k),
        _ => {}
    }
    let _ok = n > 3 || return;
    #[host]
    if n > 3 {
        x.set(0, 1);
    }
}

fn main() {}
