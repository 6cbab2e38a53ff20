//! All-reduce: every rank gets the reduction of everybody's vectors.

use peerwarp_codegen::dsl::prelude::*;

use super::all_reduce_config::{Algorithm, AllReduce};
use super::cut::{Part, Piece};
use super::exchange::{Tiles, send, send_to_all};
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
    /// Everybody's tiles, and with two shots their reductions.
    #[channel(|c| c.channel())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub tiles: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Reduces a vector over all ranks, in the order of ranks: all of them get the same bits.
#[kernel]
pub fn all_reduce(c: &AllReduce, a: &AllReduceArgs) {
    let tiles = a.tiles.open(a.epoch.begin());
    let x = a.x.unwrap_or(a.out);
    let send = |b| send_to_all(b, &tiles, c.cut(), (&x, Part::whole()), |_, _| {});
    match c.algorithm {
        Algorithm::TwoShot => role("exchange", c.blocks, |b| two_shot(c, a, b, &tiles, &x)),
        Algorithm::OneShot if c.senders > 0 => {
            role("send", c.senders, send);
            role("reduce", c.blocks, |b| reduce_all(c, a, b, &tiles, &x));
        }
        Algorithm::OneShot => role("exchange", c.blocks, |b| {
            send(b);
            reduce_all(c, a, b, &tiles, &x);
        }),
    }
    tiles.credits();
}

/// One-shot: reduces all tiles, of which every rank has sent its own to all.
fn reduce_all(c: &AllReduce, a: &AllReduceArgs, b: Group, tiles: &Tiles<'_>, x: &AnyPtr) {
    c.cut().each(b, |t| {
        let sum = c.reduce().tiles(tiles, t.index, Part::whole().load(x, &t), t.len);
        a.norm.store(&a.out, &t, AnyTile::rounded(sum, c.dtype));
    });
}

/// Two-shot: every tile has an owner, which everybody sends it to, and which sends the reduction to everybody. A block's tiles have
/// the ranks as owners in turn, and so have the blocks' first ones, so that all links are in use at once.
#[kernel]
fn two_shot(c: &AllReduce, a: &AllReduceArgs, b: Group, tiles: &Tiles<'_>, x: &AnyPtr) {
    let (cut, all) = (c.cut(), Part::whole());
    let owner = |t: &Piece| (t.index / b.count() + t.index % b.count()) % c.ranks;
    // Which of its owner's tiles it is.
    let owned = |t: &Piece| t.index / (b.count() * c.ranks) * b.count() + t.index % b.count();
    cut.each(b, |t| {
        if owner(&t) != rank() {
            send(tiles, Peers::rank(owner(&t)), owned(&t), all.load(x, &t));
        }
    });
    cut.each(b, |t| {
        if owner(&t) == rank() {
            let sum = c.reduce().tiles(tiles, owned(&t), all.load(x, &t), t.len);
            let sum = AnyTile::rounded(sum, c.dtype);
            send(tiles, Peers::others(), owned(&t) + c.owned(), sum);
            a.norm.store(&a.out, &t, sum);
        }
    });
    cut.each(b, |t| {
        let from = owner(&t);
        if from != rank() {
            let sum = tiles.from(from).slot(owned(&t) + c.owned()).load(0, t.len);
            a.norm.store(&a.out, &t, sum);
        }
    });
}
