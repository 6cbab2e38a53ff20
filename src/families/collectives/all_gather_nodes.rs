//! All-gather over several nodes: vectors go along rails by far channels, then to all ranks of a node.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{self, Cut, Part, Piece};
use super::exchange::{self, Tiles};
use super::legal;
use super::nodes::{
    self, dealt, each_other_local, each_other_node, on_both_levels, over_nodes, send_to_node,
};

over_nodes! {
    /// A variant of all-gather over nodes.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "all_gather_nodes", kernel = all_gather_nodes, args = AllGatherNodesArgs, warps = warps, revision = 2)]
    pub struct AllGatherNodes, AllGatherNodesKey {
        /// Elements of a rank's vector.
        #[key(short = "n", range = 1..=67108864)]
        pub elements: u32,
    }
    length = |key| key.elements
}

impl AllGatherNodes {
    fn rail(&self) -> ChannelShape {
        self.rail_of(Slots::BySender(self.cut().tiles())).to_all()
    }

    fn near(&self) -> ChannelShape {
        exchange::tiles(self.protocol, self.local(), self.nodes * self.cut().tiles(), self.cut())
    }

    /// The slot within a node of a tile from some node.
    fn slot(&self, node: Val<u32>, t: &Piece) -> Val<u32> {
        node * self.cut().tiles() + t.index
    }

    /// The vector of a node's rank among all of them.
    fn row(&self, node: Val<u32>, local: Val<u32>) -> Part {
        Part::from(cut::row(node * self.local() + local, self.elements, self.ranks))
    }
}

/// Parameters of [`all_gather_nodes`].
#[derive(KernelArgs)]
#[args(config = AllGatherNodes)]
pub struct AllGatherNodesArgs {
    /// This rank's vector.
    #[input]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// The vectors of all ranks, `[rank][element]`.
    #[output]
    #[len(|c| u64::from(c.ranks) * u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// Tiles of the ranks of this number on all nodes.
    #[channel(|c| c.rail())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub rail: AnyChannel,
    /// Tiles of this node's ranks, and of those of their numbers on all nodes.
    #[channel(|c| c.near())]
    #[len(|c| if c.local() > 1 { c.cut().longest() } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub near: Option<AnyChannel>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Gives every rank of all nodes the vectors of all, in the order of ranks.
#[kernel]
pub fn all_gather_nodes(c: &AllGatherNodes, a: &AllGatherNodesArgs) {
    on_both_levels(c.blocks, &a.epoch, (&a.rail, a.near.as_ref()), |b, rail, near| {
        gather(c, a, b, rail, near)
    });
}

/// A block's tiles of this rank's vector go to both levels; those that come along the rail go to the node's ranks.
#[kernel]
fn gather(c: &AllGatherNodes, a: &AllGatherNodesArgs, b: Group, rail: &Tiles<'_>, near: Option<&Tiles<'_>>) {
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
    cut.each(b, |t| {
        let tile = Part::whole().load(&a.x, &t);
        exchange::send(rail, Peers::others(), t.index, tile);
        send_to_node(near, c.slot(node(), &t), tile);
        c.row(node(), local_rank()).store(&a.out, &t, tile);
    });
    take(node());
    let others = rail.wait_others(dealt(b, cut.tiles()));
    each_other_node(|from| {
        cut.each(b, |t| {
            let tile = others.slot(from, t.index).load(0, t.len);
            send_to_node(near, c.slot(from, &t), tile);
            c.row(from, local_rank()).store(&a.out, &t, tile);
        });
    });
    each_other_node(take);
    rail.settle();
}
