//! What the collectives over several nodes share: the fields that cut a vector into tiles, their defaults and limits, and the hops of
//! tiles.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, InboundOthers};
use peerwarp_codegen::ir::Dtype;

use super::exchange::{self, Reduce, Tiles};
pub(super) use crate::families::nodes::{divide, each_other_node, rail};

/// Blocks that a launch has at most by default: an engine has channels for no more lanes in two banks.
const BLOCKS: u32 = 24;

/// A family with these fields: the elements of a vector first, then other key fields, then tuning fields of its own. The blocks share
/// tiles of as many elements as `length` says of a key. `also` checks the other fields.
macro_rules! over_nodes {
    (
        $(#[$family:meta])*
        pub struct $name:ident, $key:ident {
            $(#[$elements_attr:meta])*
            pub $elements:ident: u32,
            $($fields:tt)*
        }
        length = $length:expr $(, also = $also:expr)?
    ) => {
        $(#[$family])*
        pub struct $name {
            $(#[$elements_attr])*
            pub $elements: u32,
            /// Ranks of all nodes.
            #[key(short = "r", range = 2..=1024, ranks)]
            pub ranks: u32,
            /// Nodes, with as many ranks each.
            #[key(short = "o", range = 2..=128, nodes)]
            pub nodes: u32,
            /// Type of the elements.
            #[key(values = [Dtype::F32, Dtype::Fp16, Dtype::Bf16])]
            pub dtype: Dtype,
            $($fields)*
            /// How tiles travel within a node.
            #[tune(values = [Transport::Packets, Transport::Flags])]
            pub protocol: Transport,
            /// Warps of a block.
            #[tune(short = "w", values = [4, 8, 16, 32], default = |key| legal::warps(chunk(key), key.dtype))]
            pub warps: u32,
            /// Elements of a tile, each of which is a put.
            #[tune(short = "c", values = [256, 1024, 2048, 4096, 8192, 16384], default = |key| chunk(key))]
            pub chunk: u32,
            /// Blocks, each with a lane of the rail.
            #[tune(short = "b", shrinks, values = [1, 2, 4, 8, 16, 24], default = |key| nodes::blocks(length(key), chunk(key)))]
            pub blocks: u32,
        }

        /// Elements that are cut into tiles.
        fn length(key: &$key) -> u32 {
            let length: fn(&$key) -> u32 = $length;
            length(key)
        }

        fn chunk(key: &$key) -> u32 {
            nodes::chunk(length(key), key.dtype)
        }

        impl Legal for $name {
            fn legal(&self) -> Result<(), Illegal> {
                nodes::divide(self.ranks, self.nodes)?;
                let bytes = self.rail().far_slots() * self.cut().bytes();
                nodes::rail((stringify!($elements), self.$elements), self.nodes, bytes)?;
                $(
                    let also: fn(&$name) -> Result<(), Illegal> = $also;
                    also(self)?;
                )?
                legal::tile("chunk", self.chunk, self.warps)
            }
        }

        impl $name {
            /// Ranks of a node.
            pub(super) fn local(&self) -> u32 {
                self.ranks / self.nodes
            }

            fn cut(&self) -> Cut {
                Cut::new(length(&self.key()), self.chunk, self.dtype)
            }

            /// The channel to the ranks of the same number on all nodes: a block has a lane. It has no credits where each launch waits
            /// for all other nodes: what they have sent says that they have read what was sent two launches before.
            fn rail_of(&self, slots: Slots) -> ChannelShape {
                let shape = ChannelShape::new(Transport::Far, self.nodes, slots).credits(false);
                shape.rail(self.local()).lanes(self.blocks)
            }
        }
    };
}

pub(super) use over_nodes;

/// Elements of a tile: two of a vector, or as many as 32 KiB have. A proxy takes longer for a put than for some KiB more in it
/// (`bench/results/far.md`).
pub(super) fn chunk(elements: u32, dtype: Dtype) -> u32 {
    elements.div_ceil(2).next_power_of_two().clamp(1024, 32768 / dtype.bytes())
}

/// A block for each tile, up to the most.
pub(super) fn blocks(elements: u32, chunk: u32) -> u32 {
    elements.div_ceil(chunk).next_power_of_two().min(BLOCKS)
}

/// Blocks that exchange tiles over both levels, each by its lane of the rail. Nodes of one rank have no near channel.
#[kernel]
pub(super) fn on_both_levels(
    blocks: u32,
    word: &EpochWord,
    (rail, near): (&AnyChannel, Option<&AnyChannel>),
    exchange: impl FnOnce(Group, &Tiles<'_>, Option<&Tiles<'_>>),
) {
    let epoch = word.begin();
    let rail = rail.open(epoch);
    let near = near.map(|near| near.open(epoch));
    role("exchange", blocks, |b| exchange(b, &rail.lane(b.index()), near.as_ref()));
    rail.credits();
    if let Some(near) = near {
        near.credits();
    }
}

/// How many of `0..tiles` a block has, where they are dealt to all blocks in turn.
pub(super) fn dealt(b: Group, tiles: u32) -> Val<u32> {
    (tiles.val() + (b.count() - 1) - b.index()) / b.count()
}

/// What other nodes have sent by the block's lane.
pub(super) type FromNodes<'a> = InboundOthers<'a, Any>;

/// The tiles of a slot on all nodes as one, in the order of nodes: this rank's own, and what the others have sent.
#[kernel]
pub(super) fn of_nodes(
    reduce: Reduce,
    others: &FromNodes<'_>,
    slot: Val<u32>,
    own: AnyTile,
    len: u32,
) -> Tile<f32> {
    let own = own.to_f32();
    reduce
        .loaded(len, |from| {
            AnyTile::from(if from == node() { own } else { others.slot(from, slot).load(0, len).to_f32() })
        })
        .typed()
}

/// Sends a tile to the other ranks of the node, if there are some.
pub(super) fn send_to_node(near: Option<&Tiles<'_>>, slot: Val<u32>, tile: AnyTile) {
    if let Some(near) = near {
        exchange::send(near, Peers::others(), slot, tile);
    }
}

/// Does something for each other rank of the node, by its number there. The next one is the first.
#[kernel]
pub(super) fn each_other_local(mut act: impl FnMut(Val<u32>)) {
    for i in 1..local_ranks().val() {
        act((local_rank() + i) % local_ranks());
    }
}
