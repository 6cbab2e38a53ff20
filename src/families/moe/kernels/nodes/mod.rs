//! Dispatch and combine over several nodes: what goes along rails. Within each node the launches of one node follow and precede.
//!
//! A rank's *rail* are the ranks of its number on all nodes. [`dispatch_nodes`] sends a token along it once to each node that owns one of
//! the token's experts. What arrives stands beside the rank's own tokens, as if all were its own: dispatch of one node takes it from
//! there, and combine of one node brings the sums of a node's experts back to there. [`combine_nodes`] sends these sums home, where they
//! are added: the own node's first, then those of the nodes after it.
//!
//! # Protocol
//! Blocks have lanes of the rail, to which tokens are dealt in turn, as they are to blocks. Along a lane goes one *record* to each other node: the expert ids
//! and weights of the lane's tokens, how many tokens the rank has, and how many rows follow to the node. Rows are puts of their own, of
//! which a receiver waits for as many as the record says: puts arrive in any order. On the way back the receiver knows by the ids of its
//! tokens how many sums come.
//!
//! One bank is enough. A rank begins dispatch of the next round after combine of this one, in which every rank of the rail says that it has
//! begun it: dispatch of this round is over there. So is combine when the next dispatch ends.

mod combine;
mod dispatch;

use peerwarp_codegen::dsl::Payload;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Illegal;

use super::pieces::{each_piece, piece_len};
use super::protocol::Phase;
use crate::families::nodes::{self, each_other_node};

pub use combine::{CombineNodes, CombineNodesArgs, CombineNodesKey, CombineNodesPlan, combine_nodes};
pub use dispatch::{DispatchNodes, DispatchNodesArgs, DispatchNodesKey, DispatchNodesPlan, dispatch_nodes};

/// Elements of a tile of ids that a lane of a warp has.
const IDS_A_LANE: u32 = 8;

/// How tokens are divided among nodes and lanes.
#[derive(Clone, Copy)]
struct Rails {
    /// Experts of a node.
    experts: u32,
    topk: u32,
    tokens: u32,
    ranks: u32,
    nodes: u32,
    warps: u32,
    lanes: u32,
}

impl Rails {
    /// Tokens of a lane.
    fn share(self) -> u32 {
        self.tokens.div_ceil(self.lanes)
    }

    /// Entries of a lane's tokens.
    fn entries(self) -> u32 {
        self.share() * self.topk
    }

    /// Tokens of all nodes' ranks of a number.
    fn all(self) -> u64 {
        u64::from(self.tokens) * u64::from(self.nodes)
    }

    /// A channel along the rail, with so many slots for each node.
    fn channel(self, slots: u32) -> ChannelShape {
        let shape = ChannelShape::new(Transport::Far, self.nodes, Slots::BySender(slots));
        shape.rail(self.ranks / self.nodes).lanes(self.lanes).banks(1)
    }

    /// The place of a token of a node's rank among the tokens of all nodes. Tokens of one number stand together, so that places without a
    /// token are the last.
    #[kernel]
    fn place(self, token: Val<u32>, node: Val<u32>) -> Val<u32> {
        token * self.nodes + node
    }

    /// Which of these experts are a node's.
    #[kernel]
    fn of_node(self, expert: Tile<u32>, node: Val<u32>) -> Tile<bool> {
        // An expert below the node's first one wraps to a large number, as an id of no expert is one.
        let local = expert - node * self.experts;
        let own = local < self.experts;
        own
    }

    /// Tokens of a lane, by their numbers there.
    #[kernel]
    fn of_lane(self, lane: Val<u32>, nth: Tile<u32>) -> Tile<u32> {
        let token = nth * self.lanes + lane;
        token
    }

    /// The number of a lane's tokens below `n` that have experts on a node.
    #[kernel]
    fn going(self, ids: &Ptr<i32>, lane: Val<u32>, n: Val<u32>, node: Val<u32>) -> Val<u32> {
        let mut going = var(0u32);
        each_piece(self.share(), piece(self.share(), self.warps), |start, len| {
            let token = self.of_lane(lane, arange(len) + start);
            let there = token < n;
            let mut some = splat(false, len);
            for k in 0..self.topk {
                let expert = ids.gather(token * self.topk + k, there, -1).cast::<u32>();
                some = some | self.of_node(expert, node);
            }
            going += some.select(splat(1u32, len), 0).sum();
        });
        going.get()
    }

    fn legal(self, bytes: u64) -> Result<(), Illegal> {
        nodes::divide(self.ranks, self.nodes)?;
        nodes::rail(("tokens", self.tokens), self.nodes, bytes)
    }
}

/// Gives and awaits the credits of a rail, in a launch that receives.
#[track_caller]
fn credits<T: Payload>(phase: Phase, rail: &OpenChannel<'_, T>) {
    if phase.receives() {
        rail.credits();
    }
}

/// Each rank owns as many experts, so that a node's are those of its ranks.
fn experts_of(experts: u32, ranks: u32) -> Result<(), Illegal> {
    Illegal::unless(experts.is_multiple_of(ranks), "experts", experts, || {
        format!("a multiple of the {ranks} ranks, where these are on several nodes")
    })
}

/// Elements that a block looks at together, of so many.
fn piece(all: u32, warps: u32) -> u32 {
    all.min(warps * 32 * IDS_A_LANE)
}

/// Words of a row that a group moves together.
fn words(row: u32, group_warps: u32) -> u32 {
    piece_len(row, group_warps, 4, 4)
}

/// A block for so many tokens, unless they are more than all blocks take.
fn lanes(tokens: u32) -> u32 {
    tokens.div_ceil(4).next_power_of_two().min(8)
}
