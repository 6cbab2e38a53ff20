//! Indices are unsigned, elements have the buffer's type, and peers' memory is read with a receipt.
use peerwarp_codegen::dsl::prelude::*;

fn signed_index(x: Ptr<u32>, id: Val<i32>) -> Val<u32> {
    x.get(id)
}

fn element(x: Ptr<u32>, v: Val<f32>) {
    x.set(0, v);
}

fn tile(x: Ptr<u32>, t: Tile<f32>) {
    x.store(0, t);
}

fn scalar_as_tile(x: Ptr<u32>, v: Val<u32>) {
    x.store(0, v);
}

fn no_receipt(inbox: Sym<u32>) -> Tile<u32> {
    inbox.load(0, 32)
}

fn store_to_inbox(inbox: Sym<u32>, t: Tile<u32>) {
    inbox.store(0, t);
}

fn put_to_local(mut parcel: Parcel, x: Ptr<u32>, t: Tile<u32>) {
    parcel.put(&x, 0, t);
}

fn main() {}
