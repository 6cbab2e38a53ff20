//! Windows in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Ranks of [`pull`].
pub const PULL_RANKS: u32 = 4;
/// Elements that each of two blocks publishes, and reads of each rank.
pub const PULL_PART: u32 = 720;
/// Elements of a rank.
pub const PULL_ROW: u32 = 2 * PULL_PART;
/// Flags of an epoch: one for each block of each rank.
const FLAGS: u32 = 2 * PULL_RANKS;

/// Which deviation from the protocol a kernel has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bug {
    /// None.
    None,
    /// One half of the window instead of two in turn.
    SingleHalf,
    /// The owner signals before it has stored.
    EarlySignal,
    /// The reader reads the window of the rank after the one that it has waited for.
    WrongRank,
    /// The reader reads what another block publishes.
    WrongPart,
}

#[derive(Clone, Copy)]
struct Pull {
    x: AnyPtr,
    n: Ptr<u32>,
    window: AnyWindow,
    counts: Window<u32>,
    words: Window<u32>,
    ready: Flags,
    sum: AnyPtr,
    next: AnyPtr,
    turned: Ptr<u32>,
}

impl Pull {
    fn bind(p: &mut Binder) -> Pull {
        let row = u64::from(PULL_ROW);
        Pull {
            x: p.erased("x", row, Dtype::Bf16),
            n: p.arg("n", 1),
            window: p.erased("window", 2 * row, Dtype::Bf16),
            counts: p.arg("counts", 4),
            words: p.arg("words", 2 * row),
            ready: p.arg("ready", (2 * FLAGS).into()),
            sum: p.erased("sum", row, Dtype::Bf16),
            next: p.erased("next", row, Dtype::Bf16),
            turned: p.arg("turned", row),
        }
    }
}

/// Each rank publishes a row. All of them read all rows and add them up in the order of the ranks; of the next rank's row they
/// also copy the first `n` elements of each part, and words of their own backwards.
pub fn pull(warp_size: u32) -> Kernel {
    pull_with(warp_size, Bug::None)
}

/// [`pull`] with a mistake.
pub fn pull_with(warp_size: u32, bug: Bug) -> Kernel {
    let mut meta = TraceMeta::new("pull", PULL_RANKS, warp_size, 128 / warp_size);
    meta.doc = "Adds up what every rank publishes.".into();
    let kernel = trace(meta, |p| {
        let pull = Pull::bind(p);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        let half = if bug == Bug::SingleHalf { 0u32.val() } else { epoch.parity() };
        role("publish", 2, |b| publish(bug, b, pull, epoch, half));
        role("reduce", 2, |b| reduce(bug, b, pull, epoch, half));
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn publish(bug: Bug, b: Group, a: Pull, epoch: Epoch, half: Val<u32>) {
    let part = b.index() * PULL_PART;
    let flag = epoch.parity() * FLAGS + rank() * 2 + b.index();
    let store = || {
        a.window.store(half * PULL_ROW + part, a.x.load(part, PULL_PART));
        a.counts.set(half * 2 + b.index(), a.n.get(0));
        let words = arange(PULL_PART);
        a.words.store(half * PULL_ROW + part, words * 3 + (rank() * 1000 + part));
    };
    if bug != Bug::EarlySignal {
        store();
    }
    let mut all = send_to(Peers::all());
    all.publish_any(&a.window);
    all.publish(&a.counts);
    all.publish(&a.words);
    all.signal(&a.ready, flag, epoch);
    if bug == Bug::EarlySignal {
        store();
    }
}

#[kernel]
fn reduce(bug: Bug, b: Group, a: Pull, epoch: Epoch, half: Val<u32>) {
    let part = b.index() * PULL_PART;
    let read = if bug == Bug::WrongPart { PULL_PART - part } else { part };
    let at = half * PULL_ROW + read;
    let flags = epoch.parity() * FLAGS + b.index();
    let mut sum = var(splat(0f32, PULL_PART));
    for peer in 0..PULL_RANKS.val() {
        let got = a.ready.from(peer).wait(flags + peer * 2, epoch);
        let from = if bug == Bug::WrongRank { (peer + 1) % PULL_RANKS } else { peer };
        sum += a.window.of(from).load_f32(&got, at, PULL_PART);
    }
    a.sum.store_f32(part, &sum);
    let next = (rank() + 1) % PULL_RANKS;
    let got = a.ready.from(next).wait(flags + next * 2, epoch);
    let n = a.counts.of(next).get(&got, half * 2 + b.index());
    let lanes = arange(PULL_PART);
    a.next.store_f32(part, a.window.of(next).load_where_f32(&got, at, lanes.lt(n), 0f32));
    let backwards = at + (PULL_PART - 1) - lanes;
    a.turned.store(part, a.words.of(next).gather(&got, backwards, true, 0u32));
}
