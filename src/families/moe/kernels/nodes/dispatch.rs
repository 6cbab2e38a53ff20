//! The first step of dispatch over nodes: tokens along the rail to the nodes of their experts.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{InboundFar, Incoming};
use peerwarp_codegen::family::{Family, Illegal, Legal};

use super::super::device::at;
use super::super::limits::{groups_of, topk_of};
use super::super::pieces::each_piece;
use super::super::plan::Begin;
use super::super::protocol::Phase;
use super::super::roles::{role_of, take};
use super::{Rails, credits, each_other_node, experts_of, lanes, piece, words};
use crate::families::moe::RowDtype;

/// The word of an entry whose expert is on another node.
const ELSEWHERE: u32 = u32::MAX;

/// Configuration of [`dispatch_nodes`](super::dispatch_nodes()).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "moe_dispatch_nodes", kernel = dispatch_nodes, args = DispatchNodesArgs, warps = warps, plan = DispatchNodesPlan, serde)]
pub struct DispatchNodes {
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
    /// What rows are sent as.
    #[key]
    pub dtype: RowDtype,
    /// Bytes of a row, where `dtype` is bytes.
    #[key(short = "b", range = 0..=131072, multiple_of = 4, default = 0, omitted)]
    pub row_bytes: u32,
    /// Bytes of a row's scales, where `dtype` is bytes.
    #[key(short = "sc", range = 0..=2048, multiple_of = 4, default = 0, omitted)]
    pub scale_bytes: u32,
    /// Which half of the operation a launch does.
    #[key]
    pub phase: Phase,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = 16)]
    pub warps: u32,
    /// Warps that move a row together.
    #[tune(short = "g", values = [1, 2, 4, 8, 16], default = 4)]
    pub group_warps: u32,
    /// Lanes of the rail, each with a block that sends, one that receives and one that keeps the rank's own tokens.
    #[tune(short = "l", shrinks, values = [1, 2, 4, 8, 16], default = |key| lanes(key.tokens))]
    pub lanes: u32,
}

impl DispatchNodes {
    fn rails(&self) -> Rails {
        let DispatchNodes { topk, tokens, ranks, nodes, warps, lanes, .. } = *self;
        Rails { experts: self.experts / nodes, topk, tokens, ranks, nodes, warps, lanes }
    }

    fn format(&self) -> RowDtype {
        self.dtype.with_sizes(self.row_bytes, self.scale_bytes)
    }

    /// Words of a row.
    fn row(&self) -> u32 {
        self.format().row_bytes(self.hidden) / 4
    }

    /// Words of a row's scales.
    fn scales(&self) -> u32 {
        self.format().scale_bytes(self.hidden) / 4
    }

    /// Words of a row as it travels, its scales behind it.
    fn sent(&self) -> u32 {
        self.row() + self.scales()
    }

    /// Words of a record: ids, weights, the rank's tokens, and rows that follow.
    fn record(&self) -> u32 {
        2 * self.rails().entries() + 2
    }
}

impl Legal for DispatchNodes {
    fn legal(&self) -> Result<(), Illegal> {
        let allowed = |(field, value, allowed)| Illegal::new(field, value, allowed);
        self.format().check(self.hidden).map_err(allowed)?;
        topk_of(self.topk, self.experts)?;
        experts_of(self.experts, self.ranks)?;
        groups_of(self.group_warps, self.warps)?;
        let (rails, record) = (self.rails(), u64::from(self.record()) * u64::from(self.lanes));
        let rows = u64::from(self.tokens) * u64::from(self.sent());
        // Outboxes and inboxes for each node.
        rails.legal(2 * u64::from(self.nodes) * 4 * (rows + record))
    }
}

/// Parameters of [`dispatch_nodes`].
#[derive(KernelArgs)]
#[args(config = DispatchNodes)]
pub struct DispatchNodesArgs {
    /// Tokens to send, `[token][row]`, in words.
    #[input]
    #[len(|c| u64::from(c.tokens) * u64::from(c.row()))]
    #[rows(rows_there, |c| c.tokens)]
    pub x: Ptr<u32>,
    /// Scales of the tokens, `[token][scale]`, in words.
    #[input]
    #[len(|c| u64::from(c.tokens) * u64::from(c.scales()))]
    #[rows(rows_there, |c| c.tokens)]
    pub x_scale: Option<Ptr<u32>>,
    /// The number of tokens. A number beyond the rows stands for all rows.
    #[input]
    pub n: Ptr<u32>,
    /// The number of token rows. `x`, `x_scale`, `ids` and `weights` have as many; nothing beyond them is touched.
    pub rows_there: Val<u32>,
    /// Expert ids, `[token][k]`; ids of no expert mask their entry.
    #[input]
    #[len(|c| u64::from(c.tokens * c.topk))]
    #[rows(rows_there, |c| c.tokens)]
    pub ids: Ptr<i32>,
    /// Weights of the entries, `[token][k]`.
    #[input]
    #[len(|c| u64::from(c.tokens * c.topk))]
    #[rows(rows_there, |c| c.tokens)]
    pub weights: Ptr<f32>,

    /// Out: the tokens of this number's ranks on all nodes that have experts here, `[token][node][row]`.
    #[len(|c| c.rails().all() * u64::from(c.row()))]
    pub node_x: Ptr<u32>,
    /// Out: their scales.
    #[len(|c| c.rails().all() * u64::from(c.scales()))]
    pub node_scale: Option<Ptr<u32>>,
    /// Out: how many of these places may have a token.
    pub node_n: Ptr<u32>,
    /// Out: their experts among those of this node, `[token][node][k]`; -1 where one is elsewhere.
    #[len(|c| c.rails().all() * u64::from(c.topk))]
    pub node_ids: Ptr<i32>,
    /// Out: their weights.
    #[len(|c| c.rails().all() * u64::from(c.topk))]
    pub node_weights: Ptr<f32>,
    /// Out: the first expert of this node.
    pub node_first: Ptr<u32>,

    /// Rows on their way, with their scales.
    #[channel(|c| c.rails().channel(c.tokens))]
    #[len(|c| c.sent())]
    pub rail: Channel<u32>,
    /// Records on their way.
    #[channel(|c| c.rails().channel(c.lanes).credits(false))]
    #[len(|c| c.record())]
    pub rail_record: Channel<u32>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// What a block has of the rail.
struct Lane<'a> {
    c: &'a DispatchNodes,
    a: &'a DispatchNodesArgs,
    rows: OpenChannel<'a, u32>,
    records: OpenChannel<'a, u32>,
    number: Val<u32>,
    /// Tokens of this rank.
    n: Val<u32>,
}

/// Brings every token to each node that owns one of its experts: to the rank of the same number there.
///
/// Dispatch of one node follows it, with what it puts out as tokens: `tokens` times `nodes`, and `experts` divided by `nodes`. A token
/// `t` of the rank of node `o` is the `t * nodes + o`-th.
#[kernel]
pub fn dispatch_nodes(c: &DispatchNodes, a: &DispatchNodesArgs) {
    let epoch = take(&a.epoch, c.phase, Begin::InTurn);
    let (rail, records) = (a.rail.open(epoch), a.rail_record.open(epoch));
    let lane = |b: &Group| Lane {
        c,
        a,
        rows: rail.lane(b.index()),
        records: records.lane(b.index()),
        number: b.index(),
        n: a.n.get(0).min(a.rows_there.min(c.tokens)),
    };
    role_of("send", c.phase.senders(c.lanes), |b| send(&lane(&b), b));
    role_of("keep", c.phase.senders(c.lanes), |b| keep(&lane(&b), b));
    role_of("recv", c.phase.receivers(c.lanes), |b| receive(&lane(&b), b));
    credits(c.phase, &rail);
}

impl Lane<'_> {
    /// Experts and weights of `len` of the lane's entries from `start` on: of tokens that are there, and on a node.
    #[kernel]
    fn entries(&self, start: Val<u32>, len: u32, node: Val<u32>) -> (Tile<u32>, Tile<f32>) {
        let (c, a) = (self.c, self.a);
        let i = arange(len) + start;
        let token = c.rails().of_lane(self.number, i / c.topk);
        let (entry, there) = (token * c.topk + i % c.topk, token < self.n);
        let expert = a.ids.gather(entry, there, -1).cast::<u32>();
        let here = c.rails().of_node(expert, node);
        let weights = a.weights.gather(entry, here, 0.0);
        (here.select(expert, ELSEWHERE), weights)
    }

    /// Writes down `len` entries from `start` on of a node's tokens of this lane.
    #[kernel]
    fn note(&self, node_of: Val<u32>, start: Val<u32>, (expert, weights): (Tile<u32>, Tile<f32>)) {
        let (c, a) = (self.c, self.a);
        let i = arange(expert.len()) + start;
        let token = c.rails().of_lane(self.number, i / c.topk);
        let there = token < c.tokens;
        let to = (token * c.nodes + node_of) * c.topk + i % c.topk;
        let local = expert - node() * c.rails().experts;
        let local = (expert == ELSEWHERE).select(ELSEWHERE, local).cast::<i32>();
        a.node_ids.scatter(to, local, there);
        a.node_weights.scatter(to, weights, there);
    }

    /// Does something with each piece of a row, given its first word and how many it has. Scales follow the row.
    fn each_row_piece(&self, row: impl FnMut(Val<u32>, u32)) {
        each_piece(self.c.row(), words(self.c.row(), self.c.group_warps), row);
    }
}

/// Sends the record of a lane's tokens, and their rows.
#[kernel]
fn send(l: &Lane<'_>, b: Group) {
    let (c, a, rails) = (l.c, l.a, l.c.rails());
    each_other_node(|to| {
        let record = l.records.to(Peers::rank(to)).slot(l.number);
        each_piece(rails.entries(), piece(rails.entries(), c.warps), |start, len| {
            let (experts, weights) = l.entries(start, len, to);
            record.put(start, experts);
            record.put(start + rails.entries(), weights.bitcast::<u32>());
        });
        let going = rails.going(&a.ids, l.number, l.n, to);
        record.put(2 * rails.entries(), (arange(2) == 0).select(splat(l.n, 2), splat(going, 2)));
        record.done();
    });
    b.split(c.group_warps, |g| {
        for token in g.strided(l.n) {
            let experts = a.ids.load(token * c.topk, c.topk).cast::<u32>();
            each_other_node(|to| {
                if rails.of_node(experts, to).any() {
                    send_row(l, token, to);
                }
            });
        }
        l.rows.settle();
    });
    l.records.settle();
}

#[kernel]
fn send_row(l: &Lane<'_>, token: Val<u32>, to: Val<u32>) {
    let (c, a) = (l.c, l.a);
    let row = l.rows.to(Peers::rank(to)).slot(token);
    l.each_row_piece(|start, len| row.put(start, a.x.load(at(token, c.row()) + start.to_u64(), len)));
    if let Some(scales) = a.x_scale {
        row.put(c.row(), scales.load(at(token, c.scales()), c.scales()));
    }
    row.done();
}

/// Keeps the rank's own tokens that have experts on its node.
#[kernel]
fn keep(l: &Lane<'_>, b: Group) {
    let (c, a, rails) = (l.c, l.a, l.c.rails());
    each_piece(rails.entries(), piece(rails.entries(), c.warps), |start, len| {
        let entries = l.entries(start, len, node());
        l.note(node(), start, entries);
    });
    b.split(c.group_warps, |g| {
        for token in g.strided(l.n) {
            let experts = a.ids.load(token * c.topk, c.topk).cast::<u32>();
            if rails.of_node(experts, node()).any() {
                let to = rails.place(token, node());
                l.each_row_piece(|start, len| {
                    let x = a.x.load(at(token, c.row()) + start.to_u64(), len);
                    a.node_x.store(at(to, c.row()) + start.to_u64(), x);
                });
                if let Some((from, into)) = a.x_scale.zip(a.node_scale) {
                    into.store(at(to, c.scales()), from.load(at(token, c.scales()), c.scales()));
                }
            }
        }
    });
    if l.number == 0 {
        a.node_first.set(0, node() * rails.experts);
    }
}

/// Takes what other nodes send along the lane.
#[kernel]
fn receive(l: &Lane<'_>, b: Group) {
    let (c, a, rails) = (l.c, l.a, l.c.rails());
    let mut most = var(l.n);
    each_other_node(|from| {
        let record = l.records.from(from).wait(1).slot(l.number);
        each_piece(rails.entries(), piece(rails.entries(), c.warps), |start, len| {
            let experts = record.load(start, len);
            let weights = record.load(start + rails.entries(), len).bitcast::<f32>();
            l.note(from, start, (experts, weights));
        });
        let n = record.load(2 * rails.entries(), 1).max();
        let coming = record.load(2 * rails.entries() + 1, 1).max();
        most.set(most.get().max(n));
        let arrived = l.rows.from(from).wait(coming);
        b.split(c.group_warps, |g| take_rows(l, g, from, &record, &arrived));
    });
    if l.number == 0 {
        a.node_n.set(0, most.get() * c.nodes);
    }
}

/// Stores the rows of a node's tokens.
#[kernel]
fn take_rows(
    l: &Lane<'_>,
    g: Group,
    from: Val<u32>,
    record: &Incoming<'_, u32>,
    arrived: &InboundFar<'_, u32>,
) {
    let (c, a, rails) = (l.c, l.a, l.c.rails());
    for token in g.strided(c.tokens) {
        let experts = record.load(token / c.lanes * c.topk, c.topk);
        if (experts != ELSEWHERE).any() {
            let (row, to) = (arrived.slot(token), rails.place(token, from));
            l.each_row_piece(|start, len| {
                a.node_x.store(at(to, c.row()) + start.to_u64(), row.load(start, len));
            });
            if let Some(scales) = a.node_scale {
                scales.store(at(to, c.scales()), row.load(c.row(), c.scales()));
            }
        }
    }
}
