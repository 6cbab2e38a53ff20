//! The attribute itself.
use peerwarp_codegen::dsl::prelude::*;

#[kernel(fast)]
fn arguments(x: Ptr<u32>) {
    x.set(0, 1);
}

#[kernel]
struct NotAFunction;

#[kernel]
fn moved_by_both_arms(list: Vec<u32>, all: bool) -> Vec<u32> {
    if all { list } else { list.into_iter().take(1).collect() }
}

#[kernel]
fn variable_used_twice(x: Ptr<u32>) {
    let v = var(0u32);
    x.set(0, v + 1);
    x.set(1, v + 2);
}

fn main() {
    // The function is there although the attribute is wrong.
    let _ = arguments;
}
