//! All-to-all over several nodes: parts go along rails to their nodes by far channels, then to their ranks.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Part, Parts, Piece};
use super::exchange::{self, Tiles};
use super::legal;
use super::nodes::{self, dealt, each_other_local, each_other_node, on_both_levels, over_nodes};

over_nodes! {
    /// A variant of all-to-all over nodes.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "all_to_all_nodes", kernel = all_to_all_nodes, args = AllToAllNodesArgs, warps = warps, revision = 2)]
    pub struct AllToAllNodes, AllToAllNodesKey {
        /// Elements of a rank's vector: a part for each rank, of which the last ones are shorter where that does not divide it.
        #[key(short = "n", range = 1..=268435456)]
        pub elements: u32,
    }
    length = |key| key.elements.div_ceil(key.ranks)
}

impl AllToAllNodes {
    fn parts(&self) -> Parts {
        Parts::new(self.elements, self.ranks)
    }

    /// The part of a node's rank.
    fn part(&self, node: Val<u32>, local: Val<u32>) -> Part {
        self.parts().of(node * self.local() + local)
    }

    /// Where this rank's part from a node's rank is.
    fn row(&self, node: Val<u32>, local: Val<u32>) -> Part {
        let from = node * self.local() + local;
        self.parts().of(rank()).at(from * self.parts().part)
    }

    fn rail(&self) -> ChannelShape {
        self.rail_of(Slots::BySender(self.local() * self.cut().tiles()))
    }

    fn near(&self) -> ChannelShape {
        exchange::tiles(self.protocol, self.local(), self.nodes * self.cut().tiles(), self.cut())
    }

    /// The slot of a tile: on a rail for a node's rank, within a node from a node.
    fn slot(&self, number: Val<u32>, t: &Piece) -> Val<u32> {
        number * self.cut().tiles() + t.index
    }
}

/// Parameters of [`all_to_all_nodes`].
#[derive(KernelArgs)]
#[args(config = AllToAllNodes)]
pub struct AllToAllNodesArgs {
    /// This rank's vector, a part for each rank.
    #[input]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// All ranks' parts for this rank, `[rank][element]`, where all rows have room for the longest part.
    #[output]
    #[len(|c| u64::from(c.ranks) * u64::from(c.parts().part))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// Parts for this node's ranks from the ranks of this number on all nodes.
    #[channel(|c| c.rail())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub rail: AnyChannel,
    /// Parts for this rank from this node's ranks, and from those of their numbers on all nodes.
    #[channel(|c| c.near())]
    #[len(|c| if c.local() > 1 { c.cut().longest() } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub near: Option<AnyChannel>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends each rank of all nodes its part of this rank's vector.
#[kernel]
pub fn all_to_all_nodes(c: &AllToAllNodes, a: &AllToAllNodesArgs) {
    on_both_levels(c.blocks, &a.epoch, (&a.rail, a.near.as_ref()), |b, rail, near| {
        exchange_parts(c, a, b, rail, near)
    });
}

/// A block's tiles of all parts: along the rail to their nodes, where the rank of this number hands them to theirs.
#[kernel]
fn exchange_parts(
    c: &AllToAllNodes,
    a: &AllToAllNodesArgs,
    b: Group,
    rail: &Tiles<'_>,
    near: Option<&Tiles<'_>>,
) {
    let cut = c.cut();
    let take = |of: Val<u32>| {
        if let Some(near) = near {
            each_other_local(|from| {
                cut.each(b, |t| {
                    let tile = near.from(from).slot(c.slot(of, &t)).load(0, t.len);
                    c.row(of, from).store(&a.out, &t, tile);
                });
            });
        }
    };
    each_other_node(|to| {
        for local in 0..local_ranks().val() {
            cut.each(b, |t| {
                exchange::send(rail, Peers::rank(to), c.slot(local, &t), c.part(to, local).load(&a.x, &t));
            });
        }
    });
    if let Some(near) = near {
        each_other_local(|to| {
            cut.each(b, |t| {
                let tile = c.part(node(), to).load(&a.x, &t);
                exchange::send(near, Peers::rank(to), c.slot(node(), &t), tile);
            });
        });
    }
    cut.each(b, |t| {
        let tile = c.part(node(), local_rank()).load(&a.x, &t);
        c.row(node(), local_rank()).store(&a.out, &t, tile);
    });
    take(node());
    let others = rail.wait_others(dealt(b, cut.tiles()) * c.local());
    each_other_node(|from| {
        if let Some(near) = near {
            each_other_local(|to| {
                cut.each(b, |t| {
                    let tile = others.slot(from, c.slot(to, &t)).load(0, t.len);
                    exchange::send(near, Peers::rank(to), c.slot(from, &t), tile);
                });
            });
        }
        cut.each(b, |t| {
            let tile = others.slot(from, c.slot(local_rank(), &t)).load(0, t.len);
            c.row(from, local_rank()).store(&a.out, &t, tile);
        });
    });
    each_other_node(take);
    rail.settle();
}
