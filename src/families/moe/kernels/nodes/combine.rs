//! The second step of combine over nodes: the sums of nodes' experts along the rail to the tokens' ranks, where they are added.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, InboundFar};
use peerwarp_codegen::family::{Family, Illegal, Legal};

use super::super::combine_config::CombineDtype;
use super::super::device::at;
use super::super::limits::{groups_of, topk_of};
use super::super::pieces::{each_piece, piece_len};
use super::super::plan::Begin;
use super::super::protocol::Phase;
use super::super::roles::{role_of, take};
use super::{Rails, credits, each_other_node, experts_of, lanes};

/// Configuration of [`combine_nodes`](super::combine_nodes()).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "moe_combine_nodes", kernel = combine_nodes, args = CombineNodesArgs, warps = warps, plan = CombineNodesPlan, serde)]
pub struct CombineNodes {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    /// Experts of all ranks together.
    #[key(short = "e", range = 1..=65535)]
    pub experts: u32,
    /// Expert ids of a token.
    #[key(short = "k", range = 1..=32)]
    pub topk: u32,
    /// Tokens of a rank at most.
    #[key(short = "t", range = 1..=65536, covers)]
    pub tokens: u32,
    /// Ranks of all nodes.
    #[key(short = "r", range = 2..=1024, ranks)]
    pub ranks: u32,
    /// Nodes, with as many ranks each.
    #[key(short = "o", range = 2..=64, nodes)]
    pub nodes: u32,
    /// Type of the sums and of the combined rows.
    #[key]
    pub dtype: CombineDtype,
    /// Which half of the operation a launch does.
    #[key]
    pub phase: Phase,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = 16)]
    pub warps: u32,
    /// Warps that move a row together.
    #[tune(short = "g", values = [1, 2, 4, 8, 16], default = 4)]
    pub group_warps: u32,
    /// Lanes of the rail, each with a block that sends and one that receives.
    #[tune(short = "l", shrinks, values = [1, 2, 4, 8, 16], default = |key| lanes(key.tokens))]
    pub lanes: u32,
}

impl CombineNodes {
    fn rails(&self) -> Rails {
        let CombineNodes { topk, tokens, ranks, nodes, warps, lanes, .. } = *self;
        Rails { experts: self.experts / nodes, topk, tokens, ranks, nodes, warps, lanes }
    }

    /// Elements of a row that a group moves together.
    fn piece(&self) -> u32 {
        piece_len(self.hidden, self.group_warps, 2, 2)
    }
}

impl Legal for CombineNodes {
    fn legal(&self) -> Result<(), Illegal> {
        topk_of(self.topk, self.experts)?;
        experts_of(self.experts, self.ranks)?;
        groups_of(self.group_warps, self.warps)?;
        let rows = u64::from(self.tokens) * u64::from(self.hidden);
        self.rails().legal(2 * u64::from(self.nodes) * 2 * rows)
    }
}

/// Parameters of [`combine_nodes`]. Those called "of dispatch" are its inputs and outputs, unchanged.
#[derive(KernelArgs)]
#[args(config = CombineNodes)]
pub struct CombineNodesArgs {
    /// What this node's experts make of the tokens of this number's ranks on all nodes, `[token][node][hidden]`.
    #[len(|c| c.rails().all() * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub node_out: AnyPtr,
    /// Of dispatch: their experts among those of this node, `[token][node][k]`; -1 where one is elsewhere.
    #[len(|c| c.rails().all() * u64::from(c.topk))]
    pub node_ids: Ptr<i32>,
    /// Of dispatch: how many tokens this rank has.
    #[input]
    pub n: Ptr<u32>,
    /// Of dispatch: the number of token rows. `ids` and `out` have as many.
    pub rows_there: Val<u32>,
    /// Of dispatch: expert ids, `[token][k]`.
    #[input]
    #[len(|c| u64::from(c.tokens * c.topk))]
    #[rows(rows_there, |c| c.tokens)]
    pub ids: Ptr<i32>,

    /// Out: the combined rows, `[token][hidden]`.
    #[output]
    #[len(|c| u64::from(c.tokens) * u64::from(c.hidden))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.dtype.dtype())]
    pub out: AnyPtr,

    /// Sums on their way home.
    #[channel(|c| c.rails().channel(c.tokens))]
    #[len(|c| c.hidden)]
    #[dtype(|c| c.dtype.dtype())]
    pub rail_back: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Brings the sums of all nodes' experts back to the tokens' ranks, and adds them in f32: the own node's first, then those of the nodes
/// after it. A token without experts gets zeros.
///
/// Combine of one node comes before it, in the same round.
#[kernel]
pub fn combine_nodes(c: &CombineNodes, a: &CombineNodesArgs) {
    let epoch = take(&a.epoch, c.phase, Begin::InTurn);
    let back = a.rail_back.open(epoch);
    role_of("send", c.phase.senders(c.lanes), |b| send(c, a, &back.lane(b.index()), b));
    role_of("recv", c.phase.receivers(c.lanes), |b| receive(c, a, &back.lane(b.index()), b));
    credits(c.phase, &back);
}

/// Sends the sums of a lane's tokens home.
#[kernel]
fn send(c: &CombineNodes, a: &CombineNodesArgs, back: &OpenChannel<'_, Any>, b: Group) {
    let rails = c.rails();
    b.split(c.group_warps, |g| {
        for token in g.strided(c.tokens) {
            each_other_node(|to| {
                let from = rails.place(token, to);
                if (a.node_ids.load(from * c.topk, c.topk) != -1).any() {
                    let sum = back.to(Peers::rank(to)).slot(token);
                    each_piece(c.hidden, c.piece(), |start, len| {
                        sum.put(start, a.node_out.load(at(from, c.hidden) + start.to_u64(), len));
                    });
                    sum.done();
                }
            });
        }
        back.settle();
    });
}

/// Adds the sums of all nodes for a lane's tokens.
#[kernel]
fn receive(c: &CombineNodes, a: &CombineNodesArgs, back: &OpenChannel<'_, Any>, b: Group) {
    let rails = c.rails();
    let n = a.n.get(0).min(a.rows_there.min(c.tokens));
    let others: Vec<(Val<u32>, InboundFar<'_, Any>)> = (1..c.nodes)
        .map(|i| {
            let from = (node() + i) % nodes();
            (from, back.from(from).wait(rails.going(&a.ids, b.index(), n, from)))
        })
        .collect();
    b.split(c.group_warps, |g| {
        for token in g.strided(n) {
            let experts = a.ids.load(token * c.topk, c.topk).cast::<u32>();
            let here = rails.of_node(experts, node()).any();
            let own = rails.place(token, node());
            each_piece(c.hidden, c.piece(), |start, len| {
                let kept = a.node_out.load_if(at(own, c.hidden) + start.to_u64(), len, here);
                let mut sum = var(here.splat(len).select(kept.to_f32(), 0.0));
                for (from, arrived) in &others {
                    if rails.of_node(experts, *from).any() {
                        sum += arrived.slot(token).load_f32(start, len);
                    }
                }
                let sum = sum.get();
                a.out.store_f32(at(token, c.hidden) + start.to_u64(), sum);
            });
        }
    });
}
