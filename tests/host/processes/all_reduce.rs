//! An all-reduce whose ranks are all on machines of their own: a part from each rank to the one that sums it, and the sum to all.

use peerwarp::codegen::dsl::prelude::*;
use peerwarp::codegen::dsl::{TraceMeta, trace_args};
use peerwarp::codegen::ir::Kernel;

/// Ranks.
pub const RANKS: u32 = 4;
/// Elements that one rank sums.
pub const PART: u32 = 96;

/// What the channels depend on.
#[derive(Debug)]
pub struct AllReduce;

#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct AllReduceArgs {
    #[len(|_| u64::from(RANKS * PART))]
    x: Ptr<f32>,
    #[len(|_| u64::from(RANKS * PART))]
    out: Ptr<f32>,
    /// A part of each rank, to the rank that sums it.
    #[channel(|_| ChannelShape::new(Transport::Far, RANKS, Slots::BySender(1)))]
    #[len(|_| PART)]
    parts: Channel<f32>,
    /// The sum, to all ranks.
    #[channel(|_| ChannelShape::new(Transport::Far, RANKS, Slots::BySender(1)).publish(Publish::Batch))]
    #[len(|_| PART)]
    sums: Channel<f32>,
    epoch: EpochWord,
}

/// Sums `x` of all ranks, in the order of ranks.
#[kernel]
fn all_reduce(_c: &AllReduce, a: &AllReduceArgs) {
    let epoch = a.epoch.begin();
    let (parts, sums) = (a.parts.open(epoch), a.sums.open(epoch));
    role("scatter", 2, |b| {
        for to in b.strided(RANKS) {
            let part = parts.to(Peers::rank(to)).slot(0);
            part.put(0, a.x.load(to * PART, PART));
            part.done();
        }
        parts.settle();
    });
    role("sum", 1, |_| {
        let mut total = parts.from(0u32).wait(1).slot(0).load(0, PART);
        for from in 1..RANKS {
            total = total + parts.from(from).wait(1).slot(0).load(0, PART);
        }
        let sum = sums.to(Peers::all()).slot(0);
        sum.put(0, total);
        sum.done();
        sums.publish(Peers::all(), 1);
        sums.settle();
    });
    role("gather", 1, |b| {
        for from in b.strided(RANKS) {
            a.out.store(from * PART, sums.from(from).wait(1).slot(0).load(0, PART));
        }
    });
    parts.credits();
    sums.credits();
}

/// The kernel, in blocks of 64 threads.
pub fn kernel(warp_size: u32) -> Kernel {
    let meta = TraceMeta::new("all_reduce", RANKS, warp_size, 64 / warp_size);
    trace_args::<AllReduceArgs>(meta, &AllReduce, all_reduce).unwrap_or_else(|e| panic!("{e}"))
}

/// Element `i` of a rank's `x` in a round: sums of such numbers are not exact, so that their order shows.
fn element(round: u32, rank: u32, i: u32) -> f32 {
    let mixed = (round ^ rank << 20 ^ i << 24).wrapping_mul(0x9e37_79b9);
    (mixed >> 8) as f32 * 1e-3 - 7000.0
}

/// A rank's `x` in a round.
pub fn input(round: u32, rank: u32) -> Vec<f32> {
    (0..RANKS * PART).map(|i| element(round, rank, i)).collect()
}

/// Every rank's `out` in a round.
pub fn output(round: u32) -> Vec<f32> {
    let sum = |i| (1..RANKS).fold(element(round, 0, i), |sum, rank| sum + element(round, rank, i));
    (0..RANKS * PART).map(sum).collect()
}
