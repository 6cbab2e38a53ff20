//! A variable has one name, a parcel is signalled once, and a trace is of one thread.
use peerwarp_codegen::dsl::prelude::*;

fn moved(n: Var<u32>) -> Val<u32> {
    let twice = n + 1;
    twice + n
}

fn second_name(n: Var<u32>) {
    let mut other = n;
    other.set(1);
    n.get();
}

fn no_variable() {
    var("text");
}

fn signalled_twice(row: Parcel, flag: Flags, epoch: Epoch) {
    row.signal(&flag, 0, epoch);
    row.signal(&flag, 1, epoch);
}

fn other_thread(n: Val<u32>) {
    std::thread::spawn(move || n + 1);
}

fn main() {}
