//! All-gather: every rank gets the vectors of all.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{self, Cut, Part};
use super::exchange::{send_to_all, take_from_each};
use super::legal;
use super::length::{Length, LengthArgs, LengthLaunch, Lengths, Shares};
use super::pull::{Pull, PullArgs};
use super::tiled::tiled;

/// How an all-gather goes about it.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gathering {
    /// Every rank sends its vector to all.
    Push,
    /// Every rank reads the vectors of all where they are.
    Pull,
}

tiled! {
    /// A variant of all-gather.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "all_gather", kernel = all_gather, args = AllGatherArgs, warps = warps)]
    pub struct AllGather, AllGatherKey {
        /// Elements of a rank's vector.
        #[key(short = "n", range = 1..=268435456)]
        pub elements: u32,
        /// Whether this rank's vector is in its place among all of them.
        #[key(short = "i", default = false)]
        pub in_place: bool,
        /// What says how many rows of a rank a launch has, up to all elements.
        #[key(short = "len", default = Length::Whole, omitted)]
        pub length: Length,
        /// Elements of a row.
        #[key(short = "row", range = 1..=65536, default = 1, omitted)]
        pub row: u32,
        /// How it goes about it.
        #[tune]
        pub algorithm: Gathering,
    }
    dtypes = [F32, Fp16, Bf16, I32, Fp8], length = |key| key.elements, roles = 2, blocks = [1, 2, 4, 8, 16, 32, 64],
    also = AllGather::reads_and_rows, lengths, new = { in_place: false }
}

impl AllGather {
    fn reads_and_rows(&self) -> Result<(), Illegal> {
        legal::flags(self.algorithm == Gathering::Pull, self.protocol)?;
        let each = self.length == Length::Each;
        legal::not_in_place(each, self.in_place)?;
        let allowed = || "push where each rank has a length of its own";
        Illegal::unless(!each || self.algorithm == Gathering::Push, "algorithm", "pull", allowed)?;
        self.lengths().legal(self.elements, 1)
    }

    /// How a rank's vector is cut in a launch, where all have one length.
    fn in_launch(&self, a: &AllGatherArgs) -> Cut {
        self.cut().of_launch(self.lengths(), &a.length)
    }

    /// A rank's vector among all of them.
    fn row(&self, rank: Val<u32>, cut: &Cut) -> Part {
        Part::from(cut::row_of(rank, cut, self.ranks))
    }

    fn pull(&self) -> Pull {
        Pull::new(self.cut(), (self.ranks, self.blocks), self.dtype)
    }
}

/// Parameters of [`all_gather`].
#[derive(KernelArgs)]
#[args(config = AllGather)]
pub struct AllGatherArgs {
    /// This rank's vector; in place, it is in `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The vectors of all ranks, `[rank][element]`.
    #[output]
    #[len(|c| u64::from(c.ranks) * u64::from(c.elements))]
    #[rows(|c| c.lengths().of_all())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// How long vectors are.
    #[group(|c| c.lengths())]
    #[input]
    pub length: LengthArgs,
    /// How vectors get to ranks.
    #[group]
    pub exchange: GatherArgs,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// How vectors get to ranks.
#[derive(KernelArgs)]
#[args(config = AllGather)]
pub enum GatherArgs {
    /// They are sent.
    #[when(|c| c.algorithm == Gathering::Push)]
    Push(GatherPushArgs),
    /// They are read where they are.
    #[group(|c| c.pull())]
    Pull(PullArgs),
}

/// Parameters where ranks send.
#[derive(KernelArgs)]
#[args(config = AllGather)]
pub struct GatherPushArgs {
    /// The vectors of all ranks, a tile a message.
    #[channel(|c| c.lengths().tiles(c.protocol, c.cut()))]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub tiles: AnyChannel,
}

/// Gives every rank the vectors of all, in the order of ranks.
#[kernel]
pub fn all_gather(c: &AllGather, a: &AllGatherArgs) {
    let epoch = a.epoch.begin();
    let tiles = match &a.exchange {
        GatherArgs::Push(push) => push.tiles.open(epoch),
        GatherArgs::Pull(args) => return role("exchange", c.blocks, |b| pull(c, a, b, args, epoch)),
    };
    let shares = Shares::new(c.lengths(), &a.length);
    role("send", c.blocks, |b| match (a.x, shares) {
        (Some(x), Some(shares)) => {
            let (own, there) = shares.own();
            let cut = c.cut().of(Some(there));
            send_to_all(b, &tiles, cut, (&x, Part::whole()), |t, tile| own.store(&a.out, &t, tile));
        }
        (Some(x), None) => {
            let cut = c.in_launch(a);
            send_to_all(b, &tiles, cut, (&x, Part::whole()), |t, tile| {
                c.row(rank(), &cut).store(&a.out, &t, tile)
            });
        }
        (None, _) => {
            let cut = c.in_launch(a);
            send_to_all(b, &tiles, cut, (&a.out, c.row(rank(), &cut)), |_, _| {})
        }
    });
    role("receive", c.blocks, |b| match shares {
        Some(shares) => shares.others(|from, part, there| {
            c.cut().of(Some(there)).each(b, |t| {
                part.store(&a.out, &t, tiles.from(from).slot(t.index).load(0, t.len));
            });
        }),
        None => {
            let cut = c.in_launch(a);
            take_from_each(b, &tiles, cut, |from, t, tile| c.row(from, &cut).store(&a.out, &t, tile));
        }
    });
    tiles.credits();
}

/// Every rank publishes its vector, and reads the others' where they are. The next rank's is the first.
#[kernel]
fn pull(c: &AllGather, a: &AllGatherArgs, b: Group, args: &PullArgs, epoch: Epoch) {
    let (cut, all) = (c.in_launch(a), args.open(epoch, c.pull()));
    cut.each(b, |t| match a.x {
        Some(x) => {
            let tile = Part::whole().load(&x, &t);
            all.store(t.at, tile);
            c.row(rank(), &cut).store(&a.out, &t, tile);
        }
        None => all.store(t.at, c.row(rank(), &cut).load(&a.out, &t)),
    });
    let got = all.exchange(b);
    for i in 1..ranks().val() {
        let from = (rank() + i) % ranks();
        cut.each(b, |t| c.row(from, &cut).store(&a.out, &t, all.tile(from, &got, &t)));
    }
}
