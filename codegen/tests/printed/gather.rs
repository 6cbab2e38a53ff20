//! A kernel whose ranks have different roles.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks.
pub const RANKS: u32 = 4;
/// Elements of a rank's row.
pub const ROW: u32 = 96;
/// Blocks of rank 0 that receive.
pub const RECEIVERS: u32 = 3;

/// Rows of ranks 1 to 3 to rank 0, which begins to receive with more blocks than the others have. All ranks sum their own row.
pub fn gather(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("gather", RANKS, warp_size, 2);
    meta.doc = "Brings the rows of all other ranks to rank 0, and sums each rank's row there.".into();
    let body = |p: &mut Binder| {
        let x = p.arg::<Ptr<u32>>("x", ROW.into());
        let inbox = p.arg::<Sym<u32>>("inbox", (2 * RANKS * ROW).into());
        let sent = p.arg::<Flags>("sent", (2 * RANKS).into());
        let out = p.arg::<Ptr<u32>>("out", (RANKS * ROW).into());
        let sum = p.arg::<Ptr<u32>>("sum", 1);
        let free = p.arg::<Flags>("free", (2 * RANKS).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role_on([0], "receive", RECEIVERS, |b| receive(b, inbox, sent, out, epoch));
        role_on(1..RANKS, "send", 1, |_| {
            let at = epoch.parity() * RANKS;
            let _free = free.from(0).wait(at, epoch);
            let mut row = send_to(Peers::rank(0));
            row.put(&inbox, (at + rank()) * ROW, x.load(0, ROW));
            row.signal(&sent, at + rank(), epoch);
        });
        role("sum", 1, |_| sum.set(0, x.load(0, ROW).sum()));
        role_on([0], "free", 1, |_| free.signal(Peers::others(), epoch.parity() * RANKS, epoch));
    };
    trace(meta, body).unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn receive(b: Group, inbox: Sym<u32>, sent: Flags, out: Ptr<u32>, epoch: Epoch) {
    for i in b.strided(RANKS - 1) {
        let from = i + 1;
        let at = epoch.parity() * RANKS + from;
        let arrived = sent.from(from).wait(at, epoch);
        out.store(from * ROW, inbox.load(&arrived, at * ROW, ROW));
    }
}
