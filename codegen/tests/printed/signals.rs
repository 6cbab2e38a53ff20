//! Signals without data and barriers, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks of the kernels here.
pub const RANKS: u32 = 3;
/// Elements of a row.
pub const ROW: u32 = 64;

/// Passes a row on as packets. A signal without data lets the sender send to the same ones again.
pub fn credit(warp_size: u32) -> Kernel {
    credit_by(warp_size, tell)
}

/// As [`credit`], with a barrier for it.
#[allow(dead_code)] // not all tests that have this file emit it
pub fn credit_by_barrier(warp_size: u32) -> Kernel {
    credit_by(warp_size, |ready, epoch| _ = ready.meet(epoch))
}

fn credit_by(warp_size: u32, tell: fn(Flags, Epoch)) -> Kernel {
    traced("credit", "Passes a row on.", warp_size, |p| {
        let x = p.arg::<Ptr<f32>>("x", ROW.into());
        let out = p.arg::<Ptr<f32>>("out", ROW.into());
        let packets = p.arg::<Packets<f32>>("packets", (2 * ROW).into());
        let ready = p.arg::<Flags>("ready", (2 * RANKS).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("pass", 1, |_| pass(x, out, packets, epoch));
        role("ready", 1, |_| tell(ready, epoch));
    })
}

/// Adds up everybody's rows in an inbox with one bank, which a barrier keeps until all have read it.
pub fn meeting(warp_size: u32) -> Kernel {
    traced("meeting", "Adds up everybody's rows.", warp_size, |p| {
        let x = p.arg::<Ptr<f32>>("x", ROW.into());
        let out = p.arg::<Ptr<f32>>("out", ROW.into());
        let inbox = p.arg::<Sym<f32>>("inbox", (RANKS * ROW).into());
        let sent = p.arg::<Flags>("sent", RANKS.into());
        let read = p.arg::<Flags>("read", (2 * RANKS).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("add", 1, |_| add(x, out, inbox, sent, read, epoch));
    })
}

fn traced(name: &str, doc: &str, warp_size: u32, body: impl FnOnce(&mut Binder)) -> Kernel {
    let mut meta = TraceMeta::new(name, RANKS, warp_size, 2);
    meta.doc = doc.into();
    trace(meta, body).unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn pass(x: Ptr<f32>, out: Ptr<f32>, packets: Packets<f32>, epoch: Epoch) {
    let (next, last) = ((rank() + 1) % RANKS, (rank() + RANKS - 1) % RANKS);
    let bank = epoch.parity() * ROW;
    packets.send(Peers::rank(next), bank, x.load(0, ROW));
    out.store(0, packets.take(bank, ROW, last));
}

/// Says that this rank has taken the packets of earlier launches, and waits until the others have.
#[kernel]
fn tell(ready: Flags, epoch: Epoch) {
    let first = epoch.parity() * RANKS;
    ready.signal(Peers::others(), first + rank(), epoch);
    let _ = ready.wait_some(first, RANKS, 0b111 & !bit(rank()), 1, epoch);
}

#[kernel]
fn add(x: Ptr<f32>, out: Ptr<f32>, inbox: Sym<f32>, sent: Flags, read: Flags, epoch: Epoch) {
    let place = rank() * ROW;
    let mut parcel = send_to(Peers::all());
    parcel.put(&inbox, place, x.load(0, ROW));
    parcel.signal(&sent, rank(), epoch);
    let got = sent.wait_all(0, RANKS, 1, epoch);
    let mut total = var(splat(0.0f32, ROW));
    for source in 0..RANKS.val() {
        total += inbox.load(&got, source * ROW, ROW);
    }
    out.store(0, total.get());
    let _everybody = read.meet(epoch);
}
