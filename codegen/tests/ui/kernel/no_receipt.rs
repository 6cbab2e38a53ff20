//! Reading an inbox needs the receipt of a wait.
use peerwarp_codegen::dsl::prelude::*;

#[kernel]
fn reads(inbox: Sym<u32>, out: Ptr<u32>) {
    out.set(0, inbox.get(0));
    let row = inbox.load(0, 32);
    out.store(0, row);
}

fn main() {}
