//! All-reduce: every rank gets the reduction of all ranks' vectors.

use peerwarp_codegen::dsl::prelude::*;

use super::all_reduce_config::{Algorithm, AllReduce};
use super::cut::{Cut, Part, Piece, all_active, owner};
use super::exchange::{self, Tiles, send_to_all};
use super::length::{LengthArgs, LengthLaunch};
use super::multimem::MultimemArgs;
use super::norm::{NormArgs, NormLaunch, Results};
use super::pull::{Published, PullArgs, PullSumsArgs};

/// Parameters of [`all_reduce`].
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct AllReduceArgs {
    /// This rank's vector; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The reduction, normalised where there is a hook.
    #[output]
    #[len(|c| c.result().1.into())]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.result().0)]
    pub out: AnyPtr,
    /// What the hook takes and yields besides.
    #[group]
    #[input]
    pub norm: NormArgs,
    /// How long the vector is.
    #[group(|c| c.lengths())]
    #[input]
    pub length: LengthArgs,
    /// How tiles get to ranks.
    #[group]
    pub exchange: ExchangeArgs,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// How tiles get to ranks.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub enum ExchangeArgs {
    /// They are sent.
    #[when(|c| c.algorithm == Algorithm::OneShot)]
    Push(PushArgs),
    /// Each rank sends a tile to its owner; the owner sends the reduction to all ranks.
    #[when(|c| c.algorithm == Algorithm::TwoShot)]
    TwoShot(TwoShotArgs),
    /// All ranks read them where they are.
    #[when(|c| c.algorithm == Algorithm::Pull)]
    #[group(|c| c.pull())]
    Pull(PullArgs),
    /// Their owners read them, and all ranks read what becomes of them.
    #[when(|c| c.algorithm == Algorithm::PullTwoShot)]
    PullTwoShot(PullTwoShotArgs),
    /// The switch between the GPUs reads them, and stores what becomes of them to all.
    Multimem(BySwitchArgs),
}

/// Parameters where ranks send.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct PushArgs {
    /// The tiles of all ranks, and with two shots their reductions.
    #[channel(|c| c.channel())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub tiles: AnyChannel,
}

/// Parameters where ranks send twice.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct TwoShotArgs {
    /// What they send.
    #[group]
    pub push: PushArgs,
    /// What they show of tiles without an owner.
    #[group]
    pub orphans: OrphanArgs,
}

/// Parameters of tiles whose owners are not active.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct OrphanArgs {
    /// Tiles that ranks show each other, `[parity][turn][block][element]`.
    #[len(|c| 4 * u64::from(c.blocks) * u64::from(c.cut().longest()))]
    #[dtype(|c| c.dtype)]
    pub shown: AnyWindow,
    /// A rank shows its tile, `[parity][tile][rank]`.
    #[len(|c| 2 * u64::from(c.cut().tiles()) * u64::from(c.ranks))]
    pub shown_ready: Flags,
}

/// Parameters where ranks read of each other twice.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct PullTwoShotArgs {
    /// What owners read where it is.
    #[group(|c| c.pull())]
    pub pull: PullArgs,
    /// And all ranks.
    #[group(|c| c.pull_sums())]
    pub pull_sums: PullSumsArgs,
}

/// Parameters where the switch reads and stores.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct BySwitchArgs {
    /// What it reads where it is.
    #[group(|c| c.pull())]
    pub pull: PullArgs,
    /// What it stores to all.
    #[group(|c| c.multimem())]
    pub multimem: MultimemArgs,
}

/// Reduces a vector over all ranks, in the order of ranks unless the switch does it: all of them get the same bits.
#[kernel]
pub fn all_reduce(c: &AllReduce, a: &AllReduceArgs) {
    let epoch = a.epoch.begin();
    let x = a.x.unwrap_or(a.out);
    match &a.exchange {
        ExchangeArgs::Push(args) => one_shot(c, a, &args.tiles.open(epoch), &x),
        ExchangeArgs::TwoShot(args) => {
            let tiles = args.push.tiles.open(epoch);
            role("exchange", c.blocks, |b| two_shot(c, a, b, (&tiles, &args.orphans), &x, epoch));
            tiles.credits();
        }
        ExchangeArgs::Pull(args) => role("exchange", c.blocks, |b| pull(c, a, b, args, &x, epoch)),
        ExchangeArgs::PullTwoShot(args) => {
            role("exchange", c.blocks, |b| pull_two_shot(c, a, b, args, &x, epoch));
        }
        ExchangeArgs::Multimem(args) => role("exchange", c.blocks, |b| by_switch(c, a, b, args, &x, epoch)),
    }
}

/// One-shot: every rank sends all its tiles to all.
#[kernel]
fn one_shot(c: &AllReduce, a: &AllReduceArgs, tiles: &Tiles<'_>, x: &AnyPtr) {
    let send = |b| send_to_all(b, tiles, c.in_launch(a), (x, Part::whole()), |_, _| {});
    match c.senders {
        1.. => {
            role("send", c.senders, send);
            role("reduce", c.blocks, |b| reduce_all(c, a, b, tiles, x));
        }
        // A block has one tile at most, which stays in its registers.
        _ if c.cut().tiles() <= c.blocks => role("exchange", c.blocks, |b| {
            let results = Results::new(c, a);
            c.in_launch(a).each(b, |t| {
                let own = Part::whole().load(x, &t);
                exchange::send(tiles, Peers::others(), t.index, own);
                let sum = c.reduce().tiles(tiles, t.index, own, t.len);
                results.store(&t, c.reduce().rounded(sum));
            });
        }),
        _ => role("exchange", c.blocks, |b| {
            send(b);
            reduce_all(c, a, b, tiles, x);
        }),
    }
    tiles.credits();
}

/// One-shot: reduces all tiles, of which every rank has sent its own to all.
fn reduce_all(c: &AllReduce, a: &AllReduceArgs, b: Group, tiles: &Tiles<'_>, x: &AnyPtr) {
    let results = Results::new(c, a);
    c.in_launch(a).each(b, |t| {
        let sum = c.reduce().tiles(tiles, t.index, Part::whole().load(x, &t), t.len);
        results.store(&t, c.reduce().rounded(sum));
    });
}

/// Which of its owner's tiles it is.
fn owned(c: &AllReduce, b: Group, t: &Piece) -> Val<u32> {
    t.index / (b.count() * c.ranks) * b.count() + t.index % b.count()
}

/// Two-shot: every tile has an owner, which every rank sends it to, and which sends the reduction to all ranks.
#[kernel]
fn two_shot(
    c: &AllReduce,
    a: &AllReduceArgs,
    b: Group,
    (tiles, orphans): (&Tiles<'_>, &OrphanArgs),
    x: &AnyPtr,
    epoch: Epoch,
) {
    let (cut, all, results) = (c.in_launch(a), Part::whole(), Results::new(c, a));
    let owner = |t: &Piece| owner(c.ranks, b, t);
    let owned = |t: &Piece| owned(c, b, t);
    cut.each(b, |t| {
        if owner(&t) != rank() {
            exchange::send(tiles, Peers::rank(owner(&t)), owned(&t), all.load(x, &t));
        }
    });
    cut.each(b, |t| {
        if owner(&t) == rank() {
            let sum = c.reduce().tiles(tiles, owned(&t), all.load(x, &t), t.len);
            let sum = c.reduce().rounded(sum);
            exchange::send(tiles, Peers::others(), owned(&t) + c.owned(), sum);
            results.store(&t, sum);
        }
    });
    cut.each(b, |t| {
        let from = owner(&t);
        if from != rank() && is_active(from) {
            let sum = tiles.from(from).slot(owned(&t) + c.owned()).load(0, t.len);
            results.store(&t, sum);
        }
    });
    if !all_active() {
        one_by_one(c, (cut.with_empty(), &results), b, orphans, x, epoch);
    }
}

/// Tiles whose owners are not active, one after the other: every rank shows its own, and reduces what all show. Tiles that a launch
/// does not have are shown, too: their flags say that what was shown before them has been read.
#[kernel]
fn one_by_one(
    c: &AllReduce,
    (cut, results): (Cut, &Results<'_>),
    b: Group,
    args: &OrphanArgs,
    x: &AnyPtr,
    epoch: Epoch,
) {
    let shown = args.shown;
    let mut turn = var(0u32.val());
    cut.each(b, |t| {
        if !is_active(owner(c.ranks, b, &t)) {
            // Who shows the tile after this one knows that all have read the one before.
            let at = ((epoch.parity() * 2 + turn.get()) * b.count() + b.index()) * cut.longest();
            turn.set(1 - turn.get());
            shown.store(at, Part::whole().load(x, &t));
            let first = (epoch.parity() * cut.tiles() + t.index) * c.ranks;
            shown.signal(Peers::all(), &args.shown_ready, first + rank(), epoch);
            let got = args.shown_ready.wait_all(first, c.ranks, 1, epoch);
            let load = |of: Val<u32>| shown.of(of).load_if(&got, at, t.len, is_active(of));
            let sum = c.reduce().loaded(t.len, load);
            results.store(&t, c.reduce().rounded(sum));
        }
    });
}

/// Every rank publishes its vector: stores it where peers read it, and signals them.
#[kernel]
fn publish(
    c: &AllReduce,
    b: Group,
    (cut, args): (Cut, &PullArgs),
    x: &AnyPtr,
    epoch: Epoch,
) -> (Published, Arrived) {
    let all = args.open(epoch, c.pull());
    cut.each(b, |t| all.store(t.at, Part::whole().load(x, &t)));
    (all, all.exchange(b))
}

/// Every rank publishes its vector, and reads the others' where they are.
#[kernel]
fn pull(c: &AllReduce, a: &AllReduceArgs, b: Group, args: &PullArgs, x: &AnyPtr, epoch: Epoch) {
    let (cut, results) = (c.in_launch(a), Results::new(c, a));
    let (all, got) = publish(c, b, (cut, args), x, epoch);
    cut.each(b, |t| {
        let sum = c.reduce().published(&all, &got, &t);
        results.store(&t, c.reduce().rounded(sum));
    });
}

/// The same of the tiles that a rank owns, whose reductions it publishes in turn.
#[kernel]
fn pull_two_shot(
    c: &AllReduce,
    a: &AllReduceArgs,
    b: Group,
    args: &PullTwoShotArgs,
    x: &AnyPtr,
    epoch: Epoch,
) {
    let (cut, results) = (c.in_launch(a), Results::new(c, a));
    let (all, got) = publish(c, b, (cut, &args.pull), x, epoch);
    let sums = args.pull_sums.open(epoch, c.pull_sums());
    let slot = |t: &Piece| owned(c, b, t) * cut.longest();
    cut.each(b, |t| {
        let from = owner(c.ranks, b, &t);
        if from == rank() || !is_active(from) {
            let sum = c.reduce().rounded(c.reduce().published(&all, &got, &t));
            if from == rank() {
                sums.store(slot(&t), sum);
            }
            results.store(&t, sum);
        }
    });
    let got = sums.exchange(b);
    cut.each(b, |t| {
        let from = owner(c.ranks, b, &t);
        if from != rank() && is_active(from) {
            results.store(&t, sums.load(from, &got, slot(&t), t.len));
        }
    });
}

/// Every rank publishes its vector, and lets the switch reduce the tiles that it owns and store them to all.
#[kernel]
fn by_switch(c: &AllReduce, a: &AllReduceArgs, b: Group, args: &BySwitchArgs, x: &AnyPtr, epoch: Epoch) {
    let (cut, results) = (c.in_launch(a), Results::new(c, a));
    let (all, got) = publish(c, b, (cut, &args.pull), x, epoch);
    let sums = args.multimem.open(epoch, c.multimem());
    let mut parcel = multicast();
    cut.each(b, |t| {
        if owner(c.ranks, b, &t) == rank() {
            sums.put(&mut parcel, t.at, all.reduced(c.op.of_switch(), &got, &t));
        }
    });
    let got = sums.exchange(b, parcel);
    cut.each(b, |t| results.store(&t, sums.load(&got, &t)));
}
