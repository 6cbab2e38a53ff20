//! Reduce-scatter over several nodes: nodes reduce what goes along each rail, and rails the nodes' reductions.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Part, Parts, Piece};
use super::exchange::{self, Reduce, Reduction, Tiles};
use super::legal;
use super::nodes::{self, dealt, each_other_local, each_other_node, of_nodes, on_both_levels, over_nodes};

over_nodes! {
    /// A variant of reduce-scatter over nodes.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "reduce_scatter_nodes", kernel = reduce_scatter_nodes, args = ReduceScatterNodesArgs, warps = warps, revision = 2)]
    pub struct ReduceScatterNodes, ReduceScatterNodesKey {
        /// Elements of a rank's vector: a part for each rank, of which the last ones are shorter where that does not divide it.
        #[key(short = "n", range = 1..=268435456)]
        pub elements: u32,
        /// How elements of different ranks become one.
        #[key(default = Reduction::Sum)]
        pub op: Reduction,
    }
    length = |key| key.elements.div_ceil(key.ranks)
}

impl ReduceScatterNodes {
    fn parts(&self) -> Parts {
        Parts::new(self.elements, self.ranks)
    }

    /// The part of a node's rank.
    fn part(&self, node: Val<u32>, local: Val<u32>) -> Part {
        self.parts().of(node * self.local() + local)
    }

    fn rail(&self) -> ChannelShape {
        self.rail_of(Slots::BySender(self.cut().tiles()))
    }

    fn near(&self) -> ChannelShape {
        exchange::tiles(self.protocol, self.local(), self.nodes * self.cut().tiles(), self.cut())
    }

    /// The slot within a node of a tile for some node.
    fn slot(&self, node: Val<u32>, t: &Piece) -> Val<u32> {
        node * self.cut().tiles() + t.index
    }

    fn reduce(&self, ranks: u32) -> Reduce {
        Reduce::new(self.op, ranks, self.cut().longest(), self.dtype, self.warps)
    }
}

/// Parameters of [`reduce_scatter_nodes`].
#[derive(KernelArgs)]
#[args(config = ReduceScatterNodes)]
pub struct ReduceScatterNodesArgs {
    /// This rank's vector, a part for each rank.
    #[input]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// The reduction of this rank's part.
    #[output]
    #[len(|c| c.parts().part.into())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// The other nodes' reductions of this rank's part.
    #[channel(|c| c.rail())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub rail: AnyChannel,
    /// Parts of this node's ranks for the ranks of this number on all nodes.
    #[channel(|c| c.near())]
    #[len(|c| if c.local() > 1 { c.cut().longest() } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub near: Option<AnyChannel>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Reduces a vector over all ranks of all nodes, and leaves each rank its part: each node's vectors in the order of its ranks, rounded once,
/// then these in the order of nodes.
#[kernel]
pub fn reduce_scatter_nodes(c: &ReduceScatterNodes, a: &ReduceScatterNodesArgs) {
    on_both_levels(c.blocks, &a.epoch, (&a.rail, a.near.as_ref()), |b, rail, near| {
        scatter(c, a, b, rail, near)
    });
}

/// A block's tiles of all parts: to the node's ranks by their numbers, then their reductions along the rail.
#[kernel]
fn scatter(
    c: &ReduceScatterNodes,
    a: &ReduceScatterNodesArgs,
    b: Group,
    rail: &Tiles<'_>,
    near: Option<&Tiles<'_>>,
) {
    let cut = c.cut();
    let give = |node: Val<u32>| {
        if let Some(near) = near {
            each_other_local(|to| {
                cut.each(b, |t| {
                    let tile = c.part(node, to).load(&a.x, &t);
                    exchange::send(near, Peers::rank(to), c.slot(node, &t), tile);
                });
            });
        }
    };
    let of_node = |node: Val<u32>, t: &Piece| {
        let own = c.part(node, local_rank()).load(&a.x, t);
        match near {
            Some(near) => {
                let sum = c.reduce(c.local()).tiles(near, c.slot(node, t), own, t.len).typed();
                AnyTile::rounded(sum, c.dtype)
            }
            None => own,
        }
    };
    each_other_node(give);
    give(node());
    each_other_node(|to| cut.each(b, |t| exchange::send(rail, Peers::rank(to), t.index, of_node(to, &t))));
    let result = c.parts().of(rank()).at(0);
    // It waits there for those of the other nodes.
    cut.each(b, |t| result.store(&a.out, &t, of_node(node(), &t)));
    let others = rail.wait_others(dealt(b, cut.tiles()));
    cut.each(b, |t| {
        let sum = of_nodes(c.reduce(c.nodes), &others, t.index, result.load(&a.out, &t), t.len);
        result.store(&a.out, &t, AnyTile::rounded(sum, c.dtype));
    });
    rail.settle();
}
