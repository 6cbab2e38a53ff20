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

/// Adds up all ranks' rows in an inbox with one bank, which a barrier keeps until all have read it.
pub fn meeting(warp_size: u32) -> Kernel {
    traced("meeting", "Adds up all ranks' rows.", warp_size, |p| {
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
    let _all_ranks = read.meet(epoch);
}

/// Blocks of a role of [`hand_over`], and elements that each scales.
pub const PARTS: u32 = 4;
const PART: u32 = ROW / PARTS;

/// Blocks scale a row, another one turns it when their flags say that it is there, and the last group of a third role to come
/// sums up what all of its groups have summed up.
pub fn hand_over(warp_size: u32) -> Kernel {
    traced("hand_over", "Scales a row, turns it and sums it up.", warp_size, |p| {
        let (x, scaled) = (p.arg::<Ptr<f32>>("x", ROW.into()), p.arg::<Ptr<f32>>("scaled", ROW.into()));
        let (out, sum) = (p.arg::<Ptr<f32>>("out", ROW.into()), p.arg::<Ptr<f32>>("sum", 1));
        let (parts, ticket) = (p.arg::<Ptr<f32>>("parts", 8), p.arg::<Counters>("ticket", 1));
        let done = p.arg::<BlockFlags>("done", PARTS.into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("scale", PARTS, |b| scale(b, x, scaled, done, epoch));
        role("turn", 1, |_| turn(scaled, out, done, epoch));
        role("add", PARTS, |b| add_up(b, x, parts, sum, ticket));
    })
}

#[kernel]
fn scale(b: Group, x: Ptr<f32>, scaled: Ptr<f32>, done: BlockFlags, epoch: Epoch) {
    let block = b.index();
    scaled.store(block * PART, x.load(block * PART, PART) * 2.0);
    done.signal(block, epoch);
}

#[kernel]
fn turn(scaled: Ptr<f32>, out: Ptr<f32>, done: BlockFlags, epoch: Epoch) {
    done.from(0).wait(0, epoch);
    out.store(ROW - PART, scaled.load(0, PART));
    done.wait_all(1, PARTS - 1, 1, epoch);
    out.store(0, scaled.load(PART, ROW - PART));
}

#[kernel]
fn add_up(b: Group, x: Ptr<f32>, parts: Ptr<f32>, sum: Ptr<f32>, ticket: Counters) {
    b.split(1, |g| {
        parts.set(g.index(), x.load(g.index() * 8, 8).sum());
        g.last(ticket.counter(0), || sum.set(0, parts.load(0, 8).sum()));
    });
}

/// Blocks push parts of a row to the next rank, which takes the row when all of them have counted.
pub fn requests(warp_size: u32) -> Kernel {
    traced("requests", "Pushes a row to the next rank in parts.", warp_size, |p| {
        let (x, out) = (p.arg::<Ptr<f32>>("x", ROW.into()), p.arg::<Ptr<f32>>("out", ROW.into()));
        let (pool, sent) = (p.arg::<Sym<f32>>("pool", ROW.into()), p.arg::<Counts>("sent", 1));
        let taken = p.arg::<Flags>("taken", (2 * RANKS).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("push", PARTS, |b| push(b, x, pool, sent));
        role("decode", 1, |_| decode(out, pool, sent, taken, epoch));
    })
}

#[kernel]
fn push(b: Group, x: Ptr<f32>, pool: Sym<f32>, sent: Counts) {
    let place = b.index() * PART;
    let mut page = send_to(Peers::rank((rank() + 1) % RANKS));
    page.put(&pool, place, x.load(place, PART));
    page.count(&sent, 0, 1);
}

#[kernel]
fn decode(out: Ptr<f32>, pool: Sym<f32>, sent: Counts, taken: Flags, epoch: Epoch) {
    let all = sent.from((rank() + RANKS - 1) % RANKS).take(0, PARTS);
    out.store(0, pool.load(&all, 0, ROW));
    let _ = taken.meet(epoch);
}

/// Blocks push their parts of a row from this rank's window into the next one's, where its owner reads it.
pub fn pages(warp_size: u32) -> Kernel {
    traced("pages", "Pushes a row from pages to pages.", warp_size, |p| {
        let (x, out) = (p.arg::<Ptr<f32>>("x", ROW.into()), p.arg::<Ptr<f32>>("out", ROW.into()));
        let (pool, sent) = (p.arg::<Window<f32>>("pool", (2 * ROW).into()), p.arg::<Counts>("sent", 1));
        let free = p.arg::<Flags>("free", (2 * RANKS).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("read", 1, |_| read_pages(out, pool, sent, free, epoch));
        role("push", PARTS / 2, |b| push_pages(b, x, pool, sent, free, epoch));
    })
}

#[kernel]
fn read_pages(out: Ptr<f32>, pool: Window<f32>, sent: Counts, free: Flags, epoch: Epoch) {
    free.signal(Peers::all(), epoch.parity() * RANKS + rank(), epoch);
    let _all = sent.from((rank() + RANKS - 1) % RANKS).take(0, PARTS);
    out.store(0, pool.load(ROW, ROW));
}

#[kernel]
fn push_pages(b: Group, x: Ptr<f32>, pool: Window<f32>, sent: Counts, free: Flags, epoch: Epoch) {
    let (next, place) = ((rank() + 1) % RANKS, b.index() * 2 * PART);
    pool.store(place, x.load(place, 2 * PART));
    let _free = free.wait_all(epoch.parity() * RANKS, RANKS, 1, epoch);
    for part in 0..2 {
        let mut page = send_to(Peers::rank(next));
        page.put(&pool, place + (ROW + part * PART), pool.load(place + part * PART, PART));
        page.count(&sent, 0, 1);
    }
}
