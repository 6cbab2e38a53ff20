//! Tiles of any number of elements, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Ranks of [`tails_of`].
pub const TAIL_RANKS: u32 = 3;
/// Elements of a tile.
pub const TAIL_CHUNK: u32 = 512;

/// How many elements, of what type.
#[derive(Clone, Copy, Debug)]
pub struct Tails {
    pub n: u32,
    pub dtype: Dtype,
    /// Whether the device alone knows how many.
    pub on_device: bool,
}

/// No number of vectors.
#[allow(dead_code)] // for the printer's tests
pub fn tails(warp_size: u32) -> Kernel {
    tails_of(Tails { n: 1003, dtype: Dtype::Bf16, on_device: false }, warp_size)
}

/// A number of vectors, so that none of them is masked in part.
#[allow(dead_code)] // for the printer's tests
pub fn tails_of_vectors(warp_size: u32) -> Kernel {
    tails_of(Tails { n: 1000, dtype: Dtype::Fp16, on_device: false }, warp_size)
}

/// Each rank's `x + 1` to all of them, its `x`, as packets its `2 x` and as LL elements its `x - 1` to the next one, and its sum by way
/// of shared memory.
pub fn tails_of(c: Tails, warp_size: u32) -> Kernel {
    let name = format!("tails_{}_{}{}", c.n, c.dtype, if c.on_device { "_device" } else { "" });
    let mut meta = TraceMeta::new(&name, TAIL_RANKS, warp_size, 2);
    meta.doc = "Moves tiles of as many elements as there are.".into();
    let kernel = trace(meta, |p| {
        let a = Buffers::bind(c, p);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 2, |b| send(b, c, a, epoch));
        role("receive", 2, |b| receive(b, c, a, epoch));
        role("take", 2, |b| take(b, c, a, epoch));
        role("add", 1, |b| add(b, c, a));
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

#[derive(Clone, Copy)]
struct Buffers {
    /// How many elements there are.
    count: Ptr<u32>,
    x: AnyPtr,
    /// `x + 1` of every rank.
    all: AnyPtr,
    inbox: AnySym,
    arrived: Flags,
    /// `x` of the rank before, and its double.
    copied: AnyPtr,
    doubled: AnyPtr,
    copies: AnySym,
    copied_flag: Flags,
    packets: AnyPackets,
    /// `x - 1` of the rank before.
    less: AnyPtr,
    /// The last ones of it backwards, as many as a tile has.
    backwards: AnyPtr,
    ll: AnyLl,
    sum: Ptr<f32>,
    next: Counters,
}

impl Buffers {
    fn bind(c: Tails, p: &mut Binder) -> Buffers {
        let (n, ranks) = (u64::from(c.n), u64::from(TAIL_RANKS));
        let tiles = u64::from(c.n.div_ceil(TAIL_CHUNK));
        Buffers {
            count: p.arg("count", 1),
            x: p.erased("x", n, c.dtype),
            all: p.erased("all", ranks * n, c.dtype),
            inbox: p.erased("inbox", ranks * n, c.dtype),
            arrived: p.arg("arrived", ranks * tiles),
            copied: p.erased("copied", n, c.dtype),
            doubled: p.erased("doubled", n, c.dtype),
            copies: p.erased("copies", n, c.dtype),
            copied_flag: p.arg("copied_flag", tiles),
            packets: p.erased("packets", n.next_multiple_of(8), c.dtype),
            less: p.erased("less", n, c.dtype),
            backwards: p.erased("backwards", TAIL_CHUNK.into(), c.dtype),
            ll: p.erased("ll", n.next_multiple_of(2), c.dtype),
            sum: p.arg("sum", 1),
            next: p.arg("next", 1),
        }
    }
}

/// The elements as tiles.
#[kernel]
fn tiles_of(c: Tails, a: Buffers) -> Tiles {
    if c.on_device { tiles(a.count.get(0), TAIL_CHUNK) } else { tiles(c.n, TAIL_CHUNK) }
}

#[kernel]
fn send(b: Group, c: Tails, a: Buffers, epoch: Epoch) {
    let tiles = tiles_of(c, a);
    let next = (rank() + 1) % TAIL_RANKS;
    for i in b.strided(tiles.count()) {
        let t = tiles.tile(i);
        let x = a.x.load(t.at(), t.len());
        let more = x.to_f32() + 1.0;
        let mut to_all = send_to(Peers::all());
        to_all.put_f32(&a.inbox, rank() * c.n + t.at(), more);
        to_all.signal(&a.arrived, rank() * tiles.count() + t.number(), epoch);
        let mut to_next = send_to(Peers::rank(next));
        to_next.put_any(&a.copies, t.at(), x);
        to_next.signal(&a.copied_flag, t.number(), epoch);
        a.packets.send_f32(Peers::rank(next), t.at(), 2.0 * x.to_f32());
    }
    for i in b.strided(tiles.count()) {
        let t = tiles.tile(i);
        a.ll.send_f32(Peers::rank(next), t.at(), a.x.load(t.at(), t.len()).to_f32() - 1.0, epoch);
    }
}

#[kernel]
fn receive(b: Group, c: Tails, a: Buffers, epoch: Epoch) {
    let tiles = tiles_of(c, a);
    for i in b.strided(tiles.count() * TAIL_RANKS) {
        let source = i / tiles.count();
        let t = tiles.tile(i % tiles.count());
        let got = a.arrived.from(source).wait(source * tiles.count() + t.number(), epoch);
        a.all.store(source * c.n + t.at(), a.inbox.load(&got, source * c.n + t.at(), t.len()));
    }
}

#[kernel]
fn take(b: Group, c: Tails, a: Buffers, epoch: Epoch) {
    let last = (rank() + TAIL_RANKS - 1) % TAIL_RANKS;
    let n = if c.on_device { a.count.get(0) } else { c.n.val() };
    for t in b.tiles(n, TAIL_CHUNK).dynamic(Some(a.next.counter(0))) {
        a.doubled.store(t.at(), a.packets.take(t.at(), t.len(), last));
        let got = a.copied_flag.from(last).wait(t.number(), epoch);
        a.copied.store_f32(t.at(), a.copies.load_f32(&got, t.at(), t.len()));
    }
    for t in b.tiles(n, TAIL_CHUNK) {
        a.less.store(t.at(), a.ll.load(t.at(), t.len(), last, epoch));
    }
    if b.index() == 0 {
        let i = arange(TAIL_CHUNK);
        let there = i.lt(c.n.min(TAIL_CHUNK));
        a.backwards.store(0, a.ll.gather(c.n - 1 - i, last, there, epoch));
    }
}

/// What lies beyond the end of shared memory is undefined, and adds nothing.
#[kernel]
fn add(b: Group, c: Tails, a: Buffers) {
    let here = shared::<f32>("here", c.n);
    let mut sum = var(0f32);
    for t in b.tiles(c.n, TAIL_CHUNK) {
        here.store(t.at(), a.x.load_f32(t.at(), t.len()));
        let least = t.mask().select(here.load(t.at(), t.len()), 1e9).min();
        sum += here.load(t.at(), t.len()).sum() + least;
    }
    a.sum.set(0, &sum);
}
