//! Broadcast: every rank gets the vector of one of them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Part};
use super::exchange::send;
use super::legal;
use super::length::{Length, LengthArgs, LengthLaunch, Lengths};
use super::tiled::tiled;

tiled! {
    /// A variant of broadcast.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "broadcast", kernel = broadcast, args = BroadcastArgs, warps = warps)]
    pub struct Broadcast, BroadcastKey {
        /// Elements of the vector.
        #[key(short = "n", range = 1..=268435456)]
        pub elements: u32,
        /// The rank whose vector it is.
        #[key(short = "root", range = 0..=63, default = 0)]
        pub root: u32,
        /// Whether the root's vector is where the others get it.
        #[key(short = "i", default = false)]
        pub in_place: bool,
        /// What says how many rows a launch has, up to all elements.
        #[key(short = "len", values = [Length::Whole, Length::Host, Length::Device], default = Length::Whole, omitted)]
        pub length: Length,
        /// Elements of a row.
        #[key(short = "row", range = 1..=65536, default = 1, omitted)]
        pub row: u32,
    }
    dtypes = [F32, Fp16, Bf16, I32, Fp8], length = |key| key.elements, roles = 1, blocks = [1, 2, 4, 8, 16, 32, 64, 128],
    also = Broadcast::root_and_rows, lengths, new = { root: 0, in_place: false }
}

impl Broadcast {
    fn root_and_rows(&self) -> Result<(), Illegal> {
        legal::root(self.root, self.ranks)?;
        self.lengths().legal(self.elements, 1)
    }

    /// The root sends alone, so that ranks know nothing of each other but by credits.
    fn channel(&self) -> ChannelShape {
        let shape = ChannelShape::new(self.protocol, self.ranks, Slots::Shared(self.cut().tiles()));
        shape.credits(true).banks_for(self.cut().bytes())
    }
}

/// Parameters of [`broadcast`].
#[derive(KernelArgs)]
#[args(config = Broadcast)]
pub struct BroadcastArgs {
    /// The vector, read on the root alone; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The root's vector.
    #[output]
    #[len(|c| c.elements.into())]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// How long the vector is.
    #[group(|c| c.lengths())]
    #[input]
    pub length: LengthArgs,
    /// The root's vector, a tile a message.
    #[channel(|c| c.channel())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub tiles: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Gives every rank the root's vector.
#[kernel]
pub fn broadcast(c: &Broadcast, a: &BroadcastArgs) {
    let tiles = a.tiles.open(a.epoch.begin());
    let all = Part::whole();
    role("exchange", c.blocks, |b| {
        let cut = c.cut().of_launch(c.lengths(), &a.length);
        if rank() == c.root {
            cut.each(b, |t| {
                let tile = all.load(&a.x.unwrap_or(a.out), &t);
                send(&tiles, Peers::others(), t.index, tile);
                if !c.in_place {
                    all.store(&a.out, &t, tile);
                }
            });
        } else {
            cut.each(b, |t| all.store(&a.out, &t, tiles.from(c.root).slot(t.index).load(0, t.len)));
        }
    });
    tiles.credits();
}
