//! All-to-all: every rank sends every other one a part of its vector.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Parts};
use super::exchange::{send_to_each, take_from_each};
use super::legal;
use super::length::{Length, LengthArgs, LengthLaunch, Lengths};
use super::tiled::tiled;

tiled! {
    /// A variant of all-to-all.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "all_to_all", kernel = all_to_all, args = AllToAllArgs, warps = warps)]
    pub struct AllToAll, AllToAllKey {
        /// Elements of a rank's vector: a part for each rank, of which the last ones are shorter where that does not divide it.
        #[key(short = "n", range = 1..=268435456)]
        pub elements: u32,
        /// Whether the result takes the vector's place.
        #[key(short = "i", default = false)]
        pub in_place: bool,
        /// What says how many rows of a part a launch has, up to all elements.
        #[key(short = "len", values = [Length::Whole, Length::Host, Length::Device], default = Length::Whole, omitted)]
        pub length: Length,
        /// Elements of a row.
        #[key(short = "row", range = 1..=65536, default = 1, omitted)]
        pub row: u32,
    }
    dtypes = [F32, Fp16, Bf16, I32, Fp8], length = |key| key.elements.div_ceil(key.ranks), roles = 2, blocks = [1, 2, 4, 8, 16, 32, 64],
    also = |c| c.lengths().legal(c.elements, c.ranks), lengths, new = { in_place: false }
}

impl AllToAll {
    fn parts(&self) -> Parts {
        Parts::new(self.elements, self.ranks)
    }
}

/// Parameters of [`all_to_all`].
#[derive(KernelArgs)]
#[args(config = AllToAll)]
pub struct AllToAllArgs {
    /// This rank's vector, a part for each rank; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[rows(|c| c.lengths().of_all())]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// All ranks' parts for this rank, `[rank][element]`, where all rows have room for the longest part.
    #[output]
    #[len(|c| u64::from(c.ranks) * u64::from(c.parts().part))]
    #[rows(|c| c.lengths().of_all())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// How long parts are.
    #[group(|c| c.lengths())]
    #[input]
    pub length: LengthArgs,
    /// All ranks' parts, a tile a message.
    #[channel(|c| c.lengths().tiles(c.protocol, c.cut()))]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub tiles: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends each rank its part of this rank's vector.
#[kernel]
pub fn all_to_all(c: &AllToAll, a: &AllToAllArgs) {
    let tiles = a.tiles.open(a.epoch.begin());
    let in_launch = || {
        let cut = c.cut().of_launch(c.lengths(), &a.length);
        (cut, c.parts().in_launch(&cut))
    };
    let receive = |b, (cut, parts): (Cut, Parts)| {
        take_from_each(b, &tiles, cut, |from, t, tile| parts.in_row(rank(), from).store(&a.out, &t, tile));
    };
    match a.x {
        Some(x) => {
            role("send", c.blocks, |b| {
                let (cut, parts) = in_launch();
                send_to_each(b, &tiles, cut, &x, parts);
                let own = parts.of(rank());
                cut.each(b, |t| own.store(&a.out, &t, own.load(&x, &t)));
            });
            role("receive", c.blocks, |b| receive(b, in_launch()));
        }
        // A block has sent what was where it puts what comes.
        None => role("exchange", c.blocks, |b| {
            let (cut, parts) = in_launch();
            send_to_each(b, &tiles, cut, &a.out, parts);
            receive(b, (cut, parts));
        }),
    }
    tiles.credits();
}
