//! All-reduce: every rank gets the reduction of everybody's vectors.

use peerwarp_codegen::dsl::prelude::*;

use super::all_reduce_config::{Algorithm, AllReduce};
use super::cut::{Part, Piece};
use super::exchange::{flag, others, send_to_all};
use super::inbox::{Inbox, InboxArgs};
use super::norm::{NormArgs, NormLaunch};

/// Parameters of [`all_reduce`].
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct AllReduceArgs {
    /// This rank's vector; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The reduction, normalised where there is a hook.
    #[output]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// What the hook takes and yields besides.
    #[group]
    #[input]
    pub norm: NormArgs,
    /// Memory that peers write to.
    #[group(|c| c.wire())]
    pub inbox: InboxArgs,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Reduces a vector over all ranks, in the order of ranks: all of them get the same bits.
#[kernel]
pub fn all_reduce(c: &AllReduce, a: &AllReduceArgs) {
    let epoch = a.epoch.begin();
    let inbox = Inbox::new(c.wire(), &a.inbox, epoch);
    let x = a.x.unwrap_or(a.out);
    match c.algorithm {
        Algorithm::TwoShot => role("exchange", c.blocks, |b| two_shot(c, a, b, &inbox, &x)),
        Algorithm::OneShot if c.senders > 0 => {
            role("send", c.senders, |b| send_to_all(b, &inbox, c.cut(), (&x, Part::whole()), |_, _| {}));
            role("reduce", c.blocks, |b| reduce_all(c, a, b, &inbox, &x));
        }
        Algorithm::OneShot => role("exchange", c.blocks, |b| {
            send_to_all(b, &inbox, c.cut(), (&x, Part::whole()), |_, _| {});
            reduce_all(c, a, b, &inbox, &x);
        }),
    }
    inbox.ready();
}

/// One-shot: reduces all tiles, of which every rank has sent its own to all.
fn reduce_all(c: &AllReduce, a: &AllReduceArgs, b: Group, inbox: &Inbox<'_>, x: &AnyPtr) {
    let (cut, all) = (c.cut(), Part::whole());
    let got = inbox.wait(flag(b, 0), others());
    cut.each(b, |t| {
        let sum = c.reduce().tiles(&got, all.load(x, &t), t.len, |r| r * cut.row() + t.at);
        a.norm.store(&a.out, &t, AnyTile::rounded(sum, c.dtype));
    });
}

/// Two-shot: every tile has an owner, which everybody sends it to, and which sends the reduction to everybody. A block's tiles have
/// the ranks as owners in turn.
#[kernel]
fn two_shot(c: &AllReduce, a: &AllReduceArgs, b: Group, inbox: &Inbox<'_>, x: &AnyPtr) {
    let (cut, all) = (c.cut(), Part::whole());
    let owner = |t: &Piece| t.index / b.count() % c.ranks;
    // Where a tile is among its owner's.
    let owned = |t: &Piece| (t.index / (b.count() * c.ranks) * b.count() + t.index % b.count()) * cut.chunk;
    for i in 1..c.ranks.val() {
        let to = (rank() + i) % c.ranks;
        let mut sending = inbox.send_to(Peers::rank(to));
        cut.each(b, |t| {
            if owner(&t) == to {
                sending.tile(rank() * c.owned() + owned(&t), all.load(x, &t));
            }
        });
        sending.signal(flag(b, 0) + rank());
    }

    let got = inbox.wait(flag(b, 0), others());
    let results = c.ranks * c.owned();
    let mut sending = inbox.send_to(Peers::others());
    cut.each(b, |t| {
        if owner(&t) == rank() {
            let sum = c.reduce().tiles(&got, all.load(x, &t), t.len, |r| r * c.owned() + owned(&t));
            let sum = AnyTile::rounded(sum, c.dtype);
            sending.tile(results + t.at, sum);
            a.norm.store(&a.out, &t, sum);
        }
    });
    sending.signal(flag(b, 1) + rank());

    let got = inbox.wait(flag(b, 1), others());
    cut.each(b, |t| {
        let from = owner(&t);
        if from != rank() {
            a.norm.store(&a.out, &t, got.take(results + t.at, t.len, from));
        }
    });
}
