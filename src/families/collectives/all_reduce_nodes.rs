//! All-reduce over several nodes, in two levels: along rails by far channels, and within nodes.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::cut::{Cut, Part, Piece, owner};
use super::exchange::{self, Reduce, Reduction, Tiles};
use super::legal;
use super::nodes::{self, dealt, of_nodes, over_nodes};

/// Which level is first.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Levels {
    /// The rail: each rank gets the vectors of its number on all nodes, and their reduction goes to all ranks of the node. One hop of each
    /// kind, whole vectors over both.
    RailFirst,
    /// The node: each rank reduces a part of its node's vectors, which goes along the rail, and the reduction to all ranks of the node. Two
    /// hops within the node, and over the network a part of a vector to each node.
    NodeFirst,
}

over_nodes! {
    /// A variant of all-reduce over nodes.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "all_reduce_nodes", kernel = all_reduce_nodes, args = AllReduceNodesArgs, warps = warps)]
    pub struct AllReduceNodes, AllReduceNodesKey {
        /// Elements of a rank's vector.
        #[key(short = "n", range = 1..=67108864)]
        pub elements: u32,
        /// How elements of different ranks become one.
        #[key(default = Reduction::Sum)]
        pub op: Reduction,
        /// Which level is first.
        #[tune(default = |key| levels(key))]
        pub levels: Levels,
    }
    length = |key| key.elements
}

/// Bytes of a vector up to which a hop within the node costs more than whole vectors over the network.
const RAIL_FIRST_BYTES: u64 = 32 << 10;

fn levels(key: &AllReduceNodesKey) -> Levels {
    let bytes = u64::from(key.elements) * u64::from(key.dtype.bytes());
    let alone = key.ranks == key.nodes;
    if alone || bytes <= RAIL_FIRST_BYTES { Levels::RailFirst } else { Levels::NodeFirst }
}

impl AllReduceNodes {
    /// Tiles that a rank has to reduce over the nodes, at most.
    fn owned(&self) -> u32 {
        let owners = if self.levels == Levels::RailFirst { 1 } else { self.local() };
        self.cut().tiles().div_ceil(self.blocks * owners) * self.blocks
    }

    /// Elements of a reduction's tile within the node, and their type: that of the rail is not rounded before the node's.
    fn near_dtype(&self) -> Dtype {
        if self.levels == Levels::RailFirst { Dtype::F32 } else { self.dtype }
    }

    fn near(&self) -> ChannelShape {
        let cut = Cut { packet: PACKET_BYTES / self.near_dtype().bytes(), ..self.cut() };
        let slots = if self.levels == Levels::RailFirst { cut.tiles() } else { 2 * self.owned() };
        exchange::tiles(self.protocol, self.local(), slots, cut)
    }

    fn rail(&self) -> ChannelShape {
        self.rail_of(Slots::BySender(self.owned())).to_all()
    }

    fn over_ranks(&self) -> Reduce {
        self.reduce(self.local(), self.near_dtype())
    }

    fn over_nodes(&self) -> Reduce {
        self.reduce(self.nodes, self.dtype)
    }

    fn reduce(&self, ranks: u32, dtype: Dtype) -> Reduce {
        Reduce::new(self.op, ranks, self.cut().longest(), dtype, self.warps)
    }
}

/// Parameters of [`all_reduce_nodes`].
#[derive(KernelArgs)]
#[args(config = AllReduceNodes)]
pub struct AllReduceNodesArgs {
    /// This rank's vector.
    #[input]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// The reduction.
    #[output]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// Tiles of the ranks of this number on all nodes.
    #[channel(|c| c.rail())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub rail: AnyChannel,
    /// Tiles of this node's ranks.
    #[channel(|c| c.near())]
    #[len(|c| if c.local() > 1 { c.cut().longest() } else { 0 })]
    #[dtype(|c| c.near_dtype())]
    pub near: Option<AnyChannel>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Reduces a vector over all ranks of all nodes. All of them get the same bits.
#[kernel]
pub fn all_reduce_nodes(c: &AllReduceNodes, a: &AllReduceNodesArgs) {
    let epoch = a.epoch.begin();
    let rail = a.rail.open(epoch);
    match &a.near {
        None => role("exchange", c.blocks, |b| along_rail(c, a, b, &rail)),
        Some(near) => {
            let near = near.open(epoch);
            match c.levels {
                Levels::RailFirst => role("exchange", c.blocks, |b| rail_first(c, a, b, &rail, &near)),
                Levels::NodeFirst => role("exchange", c.blocks, |b| node_first(c, a, b, &rail, &near)),
            }
            near.credits();
        }
    }
    rail.credits();
}

/// One rank a node.
#[kernel]
fn along_rail(c: &AllReduceNodes, a: &AllReduceNodesArgs, b: Group, rail: &Tiles<'_>) {
    let (rail, all) = (rail.lane(b.index()), Part::whole());
    c.cut().each(b, |t| exchange::send(&rail, Peers::others(), t.index, all.load(&a.x, &t)));
    let others = rail.wait_others(dealt(b, c.cut().tiles()));
    c.cut().each(b, |t| {
        let sum = of_nodes(c.over_nodes(), &others, t.index, all.load(&a.x, &t), t.len);
        all.store(&a.out, &t, AnyTile::rounded(sum, c.dtype));
    });
    rail.settle();
}

/// Whole vectors along the rail, then their reductions within the node.
#[kernel]
fn rail_first(c: &AllReduceNodes, a: &AllReduceNodesArgs, b: Group, rail: &Tiles<'_>, near: &Tiles<'_>) {
    let (rail, all) = (rail.lane(b.index()), Part::whole());
    c.cut().each(b, |t| exchange::send(&rail, Peers::others(), t.index, all.load(&a.x, &t)));
    let others = rail.wait_others(dealt(b, c.cut().tiles()));
    c.cut().each(b, |t| {
        let own = AnyTile::from(of_nodes(c.over_nodes(), &others, t.index, all.load(&a.x, &t), t.len));
        exchange::send(near, Peers::others(), t.index, own);
        let sum = c.over_ranks().tiles(near, t.index, own, t.len).typed();
        all.store(&a.out, &t, AnyTile::rounded(sum, c.dtype));
    });
    rail.settle();
}

/// Each tile has an owner in the node, which reduces it there, then over the nodes, and sends what it is to the node's ranks.
#[kernel]
fn node_first(c: &AllReduceNodes, a: &AllReduceNodesArgs, b: Group, rail: &Tiles<'_>, near: &Tiles<'_>) {
    let (rail, cut, all) = (rail.lane(b.index()), c.cut(), Part::whole());
    let owner = |t: &Piece| owner(c.local(), b, t);
    let owned = |t: &Piece| t.index / (b.count() * c.local()) * b.count() + t.index % b.count();
    let mut sent = var(0u32);
    cut.each(b, |t| {
        if owner(&t) != local_rank() {
            exchange::send(near, Peers::rank(owner(&t)), owned(&t), all.load(&a.x, &t));
        }
    });
    cut.each(b, |t| {
        if owner(&t) == local_rank() {
            let sum = c.over_ranks().tiles(near, owned(&t), all.load(&a.x, &t), t.len).typed();
            let sum = AnyTile::rounded(sum, c.dtype);
            exchange::send(&rail, Peers::others(), owned(&t), sum);
            // It waits there for those of the other nodes.
            all.store(&a.out, &t, sum);
            sent.set(sent.get() + 1);
        }
    });
    let others = rail.wait_others(sent.get());
    cut.each(b, |t| {
        if owner(&t) == local_rank() {
            let sum = of_nodes(c.over_nodes(), &others, owned(&t), all.load(&a.out, &t), t.len);
            let sum = AnyTile::rounded(sum, c.dtype);
            exchange::send(near, Peers::others(), owned(&t) + c.owned(), sum);
            all.store(&a.out, &t, sum);
        }
    });
    cut.each(b, |t| {
        let from = owner(&t);
        if from != local_rank() {
            all.store(&a.out, &t, near.from(from).slot(owned(&t) + c.owned()).load(0, t.len));
        }
    });
    rail.settle();
}
