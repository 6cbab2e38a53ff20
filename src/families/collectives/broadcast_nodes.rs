//! Broadcast over several nodes: the root's vector goes along its rail by a far channel, then to all ranks of each node.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Part};
use super::exchange::{self, Tiles};
use super::legal;
use super::nodes::{self, dealt, on_both_levels, over_nodes, send_to_node};

over_nodes! {
    /// A variant of broadcast over nodes.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "broadcast_nodes", kernel = broadcast_nodes, args = BroadcastNodesArgs, warps = warps)]
    pub struct BroadcastNodes, BroadcastNodesKey {
        /// Elements of the vector.
        #[key(short = "n", range = 1..=67108864)]
        pub elements: u32,
        /// The rank whose vector it is.
        #[key(short = "root", range = 0..=1023, default = 0)]
        pub root: u32,
        /// Whether the root's vector is where the others get it.
        #[key(short = "i", default = false)]
        pub in_place: bool,
    }
    length = |key| key.elements, also = BroadcastNodes::root_is_a_rank
}

impl BroadcastNodes {
    fn root_is_a_rank(&self) -> Result<(), Illegal> {
        legal::root(self.root, self.ranks)
    }

    fn rail(&self) -> ChannelShape {
        // One rank sends alone: it hears of the others by credits.
        self.rail_of(Slots::BySender(self.cut().tiles())).to_all().credits(true)
    }

    /// One rank of a node sends alone, so that ranks know nothing of each other but by credits.
    fn near(&self) -> ChannelShape {
        let shape = ChannelShape::new(self.protocol, self.local(), Slots::Shared(self.cut().tiles()));
        shape.credits(true).banks_for(self.cut().bytes())
    }
}

/// Parameters of [`broadcast_nodes`].
#[derive(KernelArgs)]
#[args(config = BroadcastNodes)]
pub struct BroadcastNodesArgs {
    /// The vector, read on the root alone; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { c.elements.into() })]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// The root's vector.
    #[output]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// The root's vector, to the ranks of its number on all nodes.
    #[channel(|c| c.rail())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub rail: AnyChannel,
    /// The root's vector, to the ranks of this node.
    #[channel(|c| c.near())]
    #[len(|c| if c.local() > 1 { c.cut().longest() } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub near: Option<AnyChannel>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Gives every rank of all nodes the root's vector.
#[kernel]
pub fn broadcast_nodes(c: &BroadcastNodes, a: &BroadcastNodesArgs) {
    on_both_levels(c.blocks, &a.epoch, (&a.rail, a.near.as_ref()), |b, rail, near| {
        spread(c, a, b, rail, near)
    });
}

/// The root sends to both levels, the other ranks of its rail to their nodes; the others get nothing from the rail, and wait for nothing there.
#[kernel]
fn spread(c: &BroadcastNodes, a: &BroadcastNodesArgs, b: Group, rail: &Tiles<'_>, near: Option<&Tiles<'_>>) {
    let (cut, all) = (c.cut(), Part::whole());
    let (root_node, root_local) = (c.root / c.local(), c.root % c.local());
    if rank() == c.root {
        cut.each(b, |t| {
            let tile = all.load(&a.x.unwrap_or(a.out), &t);
            exchange::send(rail, Peers::others(), t.index, tile);
            send_to_node(near, t.index, tile);
            if !c.in_place {
                all.store(&a.out, &t, tile);
            }
        });
    } else if local_rank() == root_local {
        let got = rail.from(root_node).wait(dealt(b, cut.tiles()));
        cut.each(b, |t| {
            let tile = got.slot(t.index).load(0, t.len);
            send_to_node(near, t.index, tile);
            all.store(&a.out, &t, tile);
        });
    } else {
        if let Some(near) = near {
            cut.each(b, |t| {
                all.store(&a.out, &t, near.from(root_local).slot(t.index).load(0, t.len));
            });
        }
    }
    rail.settle();
}
