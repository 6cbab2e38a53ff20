//! LL elements and counting in order, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks of [`census`].
pub const CENSUS_RANKS: u32 = 4;
/// Values that a rank counts: two steps of a group of 128 lanes.
pub const CENSUS_VALUES: u32 = 150;
/// Values that are counted are below.
pub const CENSUS_BINS: u32 = 20;

/// Which deviation from the protocol a kernel has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// None.
    None,
    /// One bank instead of two.
    SingleBank,
    /// Readers do not signal.
    NoAnswer,
    /// The reader waits for elements that no rank sends.
    WrongElement,
    /// The reader believes another rank sends.
    WrongSender,
}

/// Each rank counts its values and sends the counts to all ranks.
pub fn census(warp_size: u32) -> Kernel {
    census_with(warp_size, Bug::None)
}

/// [`census`] with a mistake.
pub fn census_with(warp_size: u32, bug: Bug) -> Kernel {
    let mut meta = TraceMeta::new("census", CENSUS_RANKS, warp_size, 128 / warp_size);
    meta.doc = "Counts values and tells every rank.".into();
    let kernel = trace(meta, |p: &mut Binder| {
        let values = p.arg::<Ptr<u32>>("values", CENSUS_VALUES.into());
        let before = p.arg::<Ptr<u32>>("before", CENSUS_VALUES.into());
        let counts = p.arg::<Ll<u32>>("counts", (2 * CENSUS_RANKS * CENSUS_BINS + 1).into());
        let (note, answered) = (p.arg::<Sym<u32>>("note", 8), p.arg::<Flags>("answered", 8));
        let all = p.arg::<Ptr<u32>>("all", (2 * CENSUS_RANKS * CENSUS_BINS).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        let bank =
            if bug == Bug::SingleBank { 0u32.val() } else { epoch.parity() * (CENSUS_RANKS * CENSUS_BINS) };
        role("count", 1, |_| {
            let count = shared::<u32>("count", CENSUS_BINS);
            count.store(0, splat(0u32, CENSUS_BINS));
            let value = values.load(0, CENSUS_VALUES);
            before.store(0, count.tally(value, value.lt(CENSUS_BINS)));
            counts.send(Peers::all(), bank + rank() * CENSUS_BINS, count.load(0, CENSUS_BINS), epoch);
            if bug != Bug::NoAnswer {
                // What was read in the launch before was read before this.
                let mut answer = send_to(Peers::all());
                answer.put_value(&note, epoch.parity() * CENSUS_RANKS + rank(), 1u32);
                answer.signal(&answered, epoch.parity() * CENSUS_RANKS + rank(), epoch);
            }
        });
        role("read", 2, |b| {
            read_counts(bug, b, counts, all, bank, epoch);
            if bug != Bug::NoAnswer {
                hear(b, note, answered, epoch);
            }
        });
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn read_counts(bug: Bug, b: Group, counts: Ll<u32>, all: Ptr<u32>, bank: Val<u32>, epoch: Epoch) {
    let len = CENSUS_RANKS * CENSUS_BINS;
    let i = arange(len);
    let from = if bug == Bug::WrongSender { (i / CENSUS_BINS + 1) % CENSUS_RANKS } else { i / CENSUS_BINS };
    let index = if bug == Bug::WrongElement { i + bank + 1 } else { i + bank };
    all.store(b.index() * len, counts.gather(index, from, true, epoch));
}

/// One block waits for every rank.
#[kernel]
fn hear(b: Group, note: Sym<u32>, answered: Flags, epoch: Epoch) {
    if b.index() == 0 {
        let all = answered.wait_all(epoch.parity() * CENSUS_RANKS, CENSUS_RANKS, 1, epoch);
        note.get(&all, epoch.parity() * CENSUS_RANKS);
    }
}
