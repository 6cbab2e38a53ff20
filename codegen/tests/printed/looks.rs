//! Packets of one place that are sent and taken twice a launch, and LL elements that say when, in the tests of printer, simulator and
//! emitted text.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks of the kernels here.
pub const RANKS: u32 = 2;
/// Elements of a row. A rank sends two rows a launch.
pub const ROW: u32 = 128;
/// LL elements that go with the rows.
pub const SAID: u32 = 32;

/// How a block hears that the second packets are its own to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It takes the first ones, too.
    TakesBoth,
    /// A flag of the block that takes the first ones.
    BlockFlag,
    /// A flag between ranks, which the block that takes the first ones signals to its own rank.
    Flag,
    /// LL elements, which order nothing.
    Ll,
}

/// Passes two rows on as the same packets, with an acknowledgement after each.
pub fn looks(warp_size: u32, heard: Heard) -> Kernel {
    let mut meta = TraceMeta::new("looks", RANKS, warp_size, 2);
    meta.doc = "Passes two rows on by one place.".into();
    let kernel = trace(meta, |p: &mut Binder| {
        let wire = Wire {
            x: p.arg("x", (2 * ROW).into()),
            out: p.arg("out", (2 * ROW).into()),
            note: p.arg("note", SAID.into()),
            inbox: p.arg("inbox", ROW.into()),
            say: p.arg("say", SAID.into()),
            taken: p.arg("taken", 3),
            done: p.arg("done", 1),
            over: p.arg("over", (2 * RANKS).into()),
        };
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 1, |_| send_rows(wire, epoch, heard));
        if heard == Heard::TakesBoth {
            role("take", 1, |_| take_both(wire, epoch));
        } else {
            role("first", 1, |_| take_first(wire, epoch, heard));
            role("second", 1, |_| take_second(wire, epoch, heard));
        }
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

#[derive(Clone, Copy)]
struct Wire {
    x: Ptr<f32>,
    out: Ptr<f32>,
    note: Ptr<u32>,
    inbox: Packets<f32>,
    say: Ll<u32>,
    taken: Flags,
    done: BlockFlags,
    over: Flags,
}

fn other() -> Val<u32> {
    (rank() + 1) % RANKS
}

#[kernel]
fn send_rows(wire: Wire, epoch: Epoch, heard: Heard) {
    let Wire { x, inbox, say, taken, over, .. } = wire;
    inbox.send(Peers::rank(other()), 0, x.load(0, ROW));
    if heard != Heard::Ll {
        say.send(Peers::rank(other()), 0, arange(SAID), epoch);
    }
    let _ = taken.from(other()).wait(0, epoch);
    if heard == Heard::Ll {
        say.send(Peers::rank(other()), 0, arange(SAID), epoch);
    }
    inbox.send(Peers::rank(other()), 0, x.load(ROW, ROW));
    let _ = taken.from(other()).wait(1, epoch);
    // The next launch signals the same flags.
    let _ = over.meet(epoch);
}

#[kernel]
fn take_both(wire: Wire, epoch: Epoch) {
    let Wire { out, note, inbox, say, taken, .. } = wire;
    note.store(0, say.load(0, SAID, other(), epoch));
    out.store(0, inbox.take(0, ROW, other()));
    taken.signal(Peers::rank(other()), 0, epoch);
    out.store(ROW, inbox.take(0, ROW, other()));
    taken.signal(Peers::rank(other()), 1, epoch);
}

#[kernel]
fn take_first(wire: Wire, epoch: Epoch, heard: Heard) {
    let Wire { out, inbox, taken, done, .. } = wire;
    out.store(0, inbox.take(0, ROW, other()));
    taken.signal(Peers::rank(other()), 0, epoch);
    match heard {
        Heard::BlockFlag => done.signal(0, epoch),
        Heard::Flag => taken.signal(Peers::rank(rank()), 2, epoch),
        Heard::TakesBoth | Heard::Ll => {}
    }
}

#[kernel]
fn take_second(wire: Wire, epoch: Epoch, heard: Heard) {
    let Wire { out, note, inbox, say, taken, done, .. } = wire;
    note.store(0, say.load(0, SAID, other(), epoch));
    match heard {
        Heard::BlockFlag => done.from(0).wait(0, epoch),
        Heard::Flag => _ = taken.from(rank()).wait(2, epoch),
        Heard::TakesBoth | Heard::Ll => {}
    }
    out.store(ROW, inbox.take(0, ROW, other()));
    taken.signal(Peers::rank(other()), 1, epoch);
}
