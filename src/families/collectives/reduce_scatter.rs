//! Reduce-scatter: every rank gets a part of the reduction of all ranks' vectors.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Part, Parts};
use super::exchange::{self, Reduce, Reduction, Tiles, send_to_each};
use super::legal;
use super::length::{Length, LengthArgs, LengthLaunch, Lengths, Shares};
use super::tiled::tiled;

tiled! {
    /// A variant of reduce-scatter.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "reduce_scatter", kernel = reduce_scatter, args = ReduceScatterArgs, warps = warps)]
    pub struct ReduceScatter, ReduceScatterKey {
        /// Elements of a rank's vector: a part for each rank, of which the last ones are shorter where that does not divide it.
        #[key(short = "n", range = 1..=268435456)]
        pub elements: u32,
        /// How elements of different ranks become one.
        #[key(default = Reduction::Sum)]
        pub op: Reduction,
        /// Whether the result takes the place of this rank's part of the vector.
        #[key(short = "i", default = false)]
        pub in_place: bool,
        /// What says how many rows of a part a launch has, up to all elements.
        #[key(short = "len", default = Length::Whole, omitted)]
        pub length: Length,
        /// Elements of a row.
        #[key(short = "row", range = 1..=65536, default = 1, omitted)]
        pub row: u32,
    }
    dtypes = [F32, Fp16, Bf16, I32], length = |key| key.elements.div_ceil(key.ranks), roles = 2, blocks = [1, 2, 4, 8, 16, 32, 64],
    also = ReduceScatter::op_and_rows, lengths, new = { op: Reduction::Sum, in_place: false }
}

impl ReduceScatter {
    fn op_and_rows(&self) -> Result<(), Illegal> {
        legal::reduced(self.op, self.dtype)?;
        legal::not_in_place(self.length == Length::Each, self.in_place)?;
        self.lengths().legal(self.elements, self.ranks)
    }

    fn parts(&self) -> Parts {
        Parts::new(self.elements, self.ranks)
    }

    fn reduce(&self) -> Reduce {
        Reduce::new(self.op, self.ranks, self.cut().longest(), self.dtype, self.warps)
    }
}

/// Parameters of [`reduce_scatter`].
#[derive(KernelArgs)]
#[args(config = ReduceScatter)]
pub struct ReduceScatterArgs {
    /// This rank's vector, a part for each rank; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[rows(|c| c.lengths().of_all())]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The reduction of this rank's part; in place, the vector, with the reduction where this rank's part was.
    #[output]
    #[len(|c| if c.in_place { c.elements } else { c.parts().part }.into())]
    #[rows(|c| c.lengths().of_rank())]
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

/// Reduces a vector over all ranks, in the order of ranks, and leaves each rank its part.
#[kernel]
pub fn reduce_scatter(c: &ReduceScatter, a: &ReduceScatterArgs) {
    let tiles = a.tiles.open(a.epoch.begin());
    let x = a.x.unwrap_or(a.out);
    let shares = Shares::new(c.lengths(), &a.length);
    let in_launch = || c.cut().of_launch(c.lengths(), &a.length);
    role("send", c.blocks, |b| match shares {
        Some(shares) => shares.others(|to, part, there| {
            c.cut()
                .of(Some(there))
                .each(b, |t| exchange::send(&tiles, Peers::rank(to), t.index, part.load(&x, &t)));
        }),
        None => {
            let cut = in_launch();
            send_to_each(b, &tiles, cut, &x, c.parts().in_launch(&cut));
        }
    });
    role("reduce", c.blocks, |b| match shares {
        Some(shares) => {
            let (own, there) = shares.own();
            reduce(c, a, b, &tiles, (c.cut().of(Some(there)), own));
        }
        None => {
            let cut = in_launch();
            let own = c.parts().in_launch(&cut).of(rank());
            reduce(c, a, b, &tiles, (cut, own));
        }
    });
    tiles.credits();
}

/// Reduces this rank's part, which all others send.
#[kernel]
fn reduce(c: &ReduceScatter, a: &ReduceScatterArgs, b: Group, tiles: &Tiles<'_>, (cut, own): (Cut, Part)) {
    let (x, result) = (a.x.unwrap_or(a.out), if c.in_place { own } else { own.at(0) });
    cut.each(b, |t| {
        let sum = c.reduce().tiles(tiles, t.index, own.load(&x, &t), t.len);
        result.store(&a.out, &t, c.reduce().rounded(sum));
    });
}
