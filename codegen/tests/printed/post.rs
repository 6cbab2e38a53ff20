//! Rows to ranks of other machines: some to one rank each, counted one by one, and one with its scale to all ranks, in a batch.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::Kernel;

/// Ranks.
pub const RANKS: u32 = 3;
/// Rows of each rank to each rank.
pub const ROWS: u32 = 2;
/// Elements of a row.
pub const ROW: u32 = 64;

/// How far a rank's messages go.
#[derive(Debug)]
pub struct Post;

/// A row for all ranks.
#[derive(Message)]
#[message(config = Post)]
struct Scaled {
    #[len(|_| ROW)]
    row: Field<bf16>,
    #[len(|_| 1)]
    scale: Field<f32>,
}

#[derive(KernelArgs)]
#[args(config = Post)]
pub struct PostArgs {
    /// A row for each rank and number.
    #[len(|_| u64::from(RANKS * ROWS * ROW))]
    x: Ptr<bf16>,
    /// Rows that arrived, by sender and number.
    #[len(|_| u64::from(RANKS * ROWS * ROW))]
    out: Ptr<bf16>,
    /// The first row of each rank, scaled.
    #[len(|_| u64::from(RANKS * ROW))]
    scaled_out: Ptr<f32>,
    /// Rows to one rank.
    #[channel(|_| ChannelShape::new(Transport::Far, RANKS, Slots::BySender(ROWS)))]
    #[len(|_| ROW)]
    rows: Channel<bf16>,
    /// A row to all ranks.
    #[channel(|_| ChannelShape::new(Transport::Far, RANKS, Slots::ByNumber(1)).publish(Publish::Batch))]
    scaled: Channel<Scaled>,
    epoch: EpochWord,
}

/// Sends rows to ranks of other machines, and a scaled row to all of them.
#[kernel]
fn exchange(_c: &Post, a: &PostArgs) {
    let epoch = a.epoch.begin();
    let (rows, scaled) = (a.rows.open(epoch), a.scaled.open(epoch));
    role("send", 2, |b| {
        for i in b.strided(RANKS * ROWS) {
            let row = rows.to(Peers::rank(i / ROWS)).slot(i % ROWS);
            row.put(0, a.x.load(i * ROW, ROW));
            row.done();
        }
        rows.settle();
    });
    role("send_all", 1, |_| {
        let row = scaled.to(Peers::all()).slot(0);
        row.field(scaled.row).copy(0, &a.x, 0, ROW);
        row.field(scaled.scale).put(0, splat(0.5f32, 1));
        row.done();
        scaled.publish(Peers::all(), 1);
        scaled.settle();
    });
    role("receive", RANKS, |b| {
        let from = b.index();
        let all = rows.from(from).wait(ROWS);
        for i in 0..ROWS {
            a.out.store((from * ROWS + i) * ROW, all.slot(i).load(0, ROW));
        }
        let row = scaled.from(from).wait(1).slot(0);
        let scale = row.field(scaled.scale).load(0, 1).sum();
        a.scaled_out.store(from * ROW, row.field(scaled.row).load(0, ROW).cast::<f32>() * scale);
    });
    rows.credits();
    scaled.credits();
}

/// The kernel.
pub fn post(warp_size: u32) -> Kernel {
    trace_args::<PostArgs>(TraceMeta::new("post", RANKS, warp_size, 2), &Post, exchange)
        .unwrap_or_else(|e| panic!("{e}"))
}
