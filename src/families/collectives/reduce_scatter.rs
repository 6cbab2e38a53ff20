//! Reduce-scatter: every rank gets a part of the reduction of all ranks' vectors.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Parts};
use super::exchange::{self, Reduce, Reduction, send_to_each};
use super::legal;
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
    }
    dtypes = [F32, Fp16, Bf16, I32], length = |key| key.elements.div_ceil(key.ranks), roles = 2, blocks = [1, 2, 4, 8, 16, 32, 64],
    also = |c| legal::reduced(c.op, c.dtype)
}

impl ReduceScatter {
    fn parts(&self) -> Parts {
        Parts::new(self.elements, self.ranks)
    }

    fn reduce(&self) -> Reduce {
        Reduce::new(self.op, self.ranks, self.cut().longest(), self.dtype, self.warps)
    }

    fn channel(&self) -> ChannelShape {
        exchange::tiles(self.protocol, self.ranks, self.cut().tiles(), self.cut())
    }
}

/// Parameters of [`reduce_scatter`].
#[derive(KernelArgs)]
#[args(config = ReduceScatter)]
pub struct ReduceScatterArgs {
    /// This rank's vector, a part for each rank; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The reduction of this rank's part; in place, the vector, with the reduction where this rank's part was.
    #[output]
    #[len(|c| if c.in_place { c.elements } else { c.parts().part }.into())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// All ranks' parts, a tile a message.
    #[channel(|c| c.channel())]
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
    role("send", c.blocks, |b| send_to_each(b, &tiles, c.cut(), &x, c.parts()));
    role("reduce", c.blocks, |b| {
        let (cut, own) = (c.cut(), c.parts().of(rank()));
        let result = if c.in_place { own } else { own.at(0) };
        cut.each(b, |t| {
            let sum = c.reduce().tiles(&tiles, t.index, own.load(&x, &t), t.len);
            result.store(&a.out, &t, c.reduce().rounded(sum));
        });
    });
    tiles.credits();
}
