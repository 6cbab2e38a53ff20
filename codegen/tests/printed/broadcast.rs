//! A kernel with dynamic scheduling.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks.
pub const RANKS: u32 = 4;
/// Rows of a rank at most.
pub const ROWS: u32 = 6;
/// Elements of a row.
pub const ROW: u32 = 96;

/// Rows to all ranks: whichever group is free draws the next one, to send it or to take it out.
pub fn broadcast(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("broadcast_rows", RANKS, warp_size, 4);
    meta.doc = "Brings the first n rows of every rank to all ranks, except those that are empty.".into();
    let body = |p: &mut Binder| {
        let x = p.arg::<Ptr<u32>>("x", (ROWS * ROW).into());
        let n = p.arg::<Ptr<u32>>("n", 1);
        let inbox = p.arg::<Sym<u32>>("inbox", (2 * RANKS * ROWS * ROW).into());
        let row_flag = p.arg::<Flags>("row_flag", (2 * RANKS * ROWS).into());
        let out = p.arg::<Ptr<u32>>("out", (RANKS * ROWS * ROW).into());
        let next = p.arg::<Counters>("next", 2);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        let rows = Rows { n, inbox, row_flag, epoch };
        role("send", 2, |b| b.split(2, |g| send(g, x, &rows, next.counter(0))));
        role("recv", 1, |b| b.split(1, |g| receive(g, out, &rows, next.counter(1))));
    };
    trace(meta, body).unwrap_or_else(|e| panic!("{e}"))
}

/// Rows on their way: in two banks, as a rank that has all rows of a launch may begin the next one.
struct Rows {
    n: Ptr<u32>,
    inbox: Sym<u32>,
    row_flag: Flags,
    epoch: Epoch,
}

impl Rows {
    /// The number of a row among those of both banks.
    fn on_its_way(&self, number: Val<u32>) -> Val<u32> {
        self.epoch.parity() * (RANKS * ROWS) + number
    }
}

#[kernel]
fn send(g: Group, x: Ptr<u32>, rows: &Rows, counter: Counter) {
    for row in g.dynamic(rows.n.get(0), Some(counter)) {
        let to = rows.on_its_way(rank() * ROWS + row);
        let mut parcel = send_to(Peers::all());
        parcel.put(&rows.inbox, to * ROW, x.load(row * ROW, ROW));
        parcel.signal(&rows.row_flag, to, rows.epoch);
    }
}

#[kernel]
fn receive(g: Group, out: Ptr<u32>, rows: &Rows, counter: Counter) {
    for i in g.dynamic(rows.n.get(0) * RANKS, Some(counter)) {
        let number = i % RANKS * ROWS + i / RANKS;
        let from = rows.on_its_way(number);
        let arrived = rows.row_flag.from(i % RANKS).wait(from, rows.epoch);
        let row = rows.inbox.load(&arrived, from * ROW, ROW);
        if row.max() == 0 {
            continue;
        }
        out.store(number * ROW, row);
    }
}
