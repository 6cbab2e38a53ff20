//! Roles that run beside another one in its blocks, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks of the kernel.
pub const RANKS: u32 = 2;
/// Rows, and elements of each.
pub const ROWS: u32 = 5;
/// See [`ROWS`].
pub const ROW: u32 = 256;

/// Blocks double rows and turn them round. A warp beside each sends them to the other rank, and two more take what that one sends;
/// a block of another role adds up a row. The epoch is begun, or is one that another kernel advances.
pub fn relay(warp_size: u32, epoch: fn(&EpochWord) -> Epoch) -> Kernel {
    let mut meta = TraceMeta::new("relay", RANKS, warp_size, 4);
    meta.doc = "Doubles rows, turns them round and swaps them.".into();
    let body = |p: &mut Binder| {
        let x = p.arg::<Ptr<f32>>("x", (ROWS * ROW).into());
        let doubled = p.arg::<Ptr<f32>>("doubled", (2 * ROWS * ROW).into());
        let inbox = p.arg::<Sym<f32>>("inbox", (2 * ROWS * ROW).into());
        let out = p.arg::<Ptr<f32>>("out", (ROWS * ROW).into());
        let sum = p.arg::<Ptr<f32>>("sum", 1);
        let done = p.arg::<BlockFlags>("done", (2 * ROWS).into());
        let arrived = p.arg::<Flags>("arrived", (2 * ROWS).into());
        let epoch = epoch(&p.arg::<EpochWord>("epoch", 1));
        let bank = epoch.parity() * ROWS;
        role("add", 1, |_| add(x, sum));
        role("double", 2, |b| double(b, x, doubled, done, bank, epoch));
        role_beside("double", "send", 1, |b| send(b, doubled, inbox, (done, arrived), bank, epoch));
        role_beside("double", "take", 2, |b| take(b, inbox, out, arrived, bank, epoch));
    };
    trace(meta, body).unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn add(x: Ptr<f32>, sum: Ptr<f32>) {
    sum.set(0, x.load(0, ROW).sum());
}

#[kernel]
fn double(b: Group, x: Ptr<f32>, doubled: Ptr<f32>, done: BlockFlags, bank: Val<u32>, epoch: Epoch) {
    let row = shared::<f32>("row", ROW);
    for i in b.strided(ROWS) {
        row.store(0, x.load(i * ROW, ROW) * 2.0);
        doubled.store((bank + i) * ROW, row.gather(ROW - 1 - arange(ROW), true, 0.0));
        done.signal(bank + i, epoch);
    }
}

#[kernel]
fn send(
    b: Group,
    doubled: Ptr<f32>,
    inbox: Sym<f32>,
    (done, arrived): (BlockFlags, Flags),
    bank: Val<u32>,
    epoch: Epoch,
) {
    assert_eq!((b.warps(), b.count()), (1, 2));
    for i in b.strided(ROWS) {
        done.from(b.index()).wait(bank + i, epoch);
        let mut parcel = send_to(Peers::rank(rank() ^ 1));
        parcel.put(&inbox, (bank + i) * ROW, doubled.load((bank + i) * ROW, ROW));
        parcel.signal(&arrived, bank + i, epoch);
    }
}

#[kernel]
fn take(b: Group, inbox: Sym<f32>, out: Ptr<f32>, arrived: Flags, bank: Val<u32>, epoch: Epoch) {
    assert_eq!((b.warps(), b.count()), (2, 2));
    let taken = shared::<f32>("taken", ROW);
    for i in b.strided(ROWS) {
        let got = arrived.from(rank() ^ 1).wait(bank + i, epoch);
        taken.store(0, inbox.load(&got, (bank + i) * ROW, ROW));
        out.store(i * ROW, taken.gather(ROW - 1 - arange(ROW), true, 0.0));
    }
}

/// What a rank has at the beginning.
#[allow(dead_code)] // not all tests that have this file run it
pub fn x(rank: u32) -> Vec<f32> {
    (0..ROWS * ROW).map(|i| (i + 10_000 * rank) as f32).collect()
}

/// What it has in `out` and `sum` at the end.
#[allow(dead_code)] // see `x`
pub fn expected(rank: u32) -> [Vec<f32>; 2] {
    let out = x(rank ^ 1).into_iter().map(|x| 2.0 * x).collect();
    // The tree of a reduction rounds nothing here: sums stay below 2^24.
    [out, vec![x(rank)[..ROW as usize].iter().sum()]]
}
