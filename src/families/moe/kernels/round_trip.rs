//! A round trip in one launch: every token to the ranks that own its experts, through an elementwise expert there, and back.

use std::ops::RangeInclusive;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::PACKET_BYTES;

use super::combine::ReturnArgs;
use super::combine_config::{Combine, CombinePlan};
use super::config::{Dispatch, DispatchPlan};
use super::deliver::{hooked, scales_at_hand};
use super::device::{at, local_experts, owners};
use super::dispatch::{TokenArgs, TokenLaunch, rows_there, tokens};
use super::hook::{Hook, RowHook, stand_in_expert};
use super::limits::{fewer, groups_of, resident, rows_of, topk_of};
use super::plan::{Bases, Copies, Count};
use super::protocol::Protocol;
use super::route::NOWHERE;
use super::send::Sender;
use super::sums::{returned, sum_of_owners};
use super::wire::{InboxArgs, ReadyArgs, Received, await_ready, notify_ready};
use crate::families::moe::{MoeKey, MoePlan, MoeShape, MoeTuning, RowDtype};

/// Numbers of tokens with which it pays on more than two ranks that more blocks send, and receive when they are done: rows come back
/// while others still go out.
const JOINED: RangeInclusive<u32> = 32..=128;

/// Joining pays on more than two ranks alone (`bench/results/moe-on-two-gpus.md`, choices).
fn joins(key: &RoundTripKey) -> bool {
    JOINED.contains(&key.tokens) && key.ranks > 2
}

/// With few tokens the blocks that sent do nearly all of the receiving, and more of a row is in flight
/// (`bench/results/moe-on-four-gpus.md`, choices).
fn few_join(key: &RoundTripKey) -> bool {
    joins(key) && key.tokens <= 64
}

/// No more than these: with more, many rows go out sooner, and come back no sooner.
fn send_blocks(key: &RoundTripKey) -> u32 {
    if few_join(key) {
        return key.tokens.next_power_of_two();
    }
    let most = if joins(key) || key.tokens < 64 { 32 } else { 16 };
    (key.tokens * 4).next_power_of_two().clamp(8, most)
}

fn recv_blocks(key: &RoundTripKey) -> u32 {
    if few_join(key) { 2 } else { (key.tokens * 4).next_power_of_two().clamp(8, 32) }
}

/// One where all warps have a piece then and none has two, and where rows are few enough for more pieces to be on their way so; of fp8
/// one has as many elements as two should have.
fn vectors(key: &RoundTripKey) -> u32 {
    match key.tokens * key.ranks {
        _ if key.dtype == RowDtype::Fp8 => 1,
        _ if few_join(key) => 4,
        ..=16 | 128..=512 => 1,
        _ => 2,
    }
}

/// Configuration of [`round_trip`].
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "moe_round_trip", kernel = super::round_trip::round_trip, args = RoundTripArgs, warps = warps, serde)]
pub struct RoundTrip {
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
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// What rows are sent as.
    #[key]
    pub dtype: RowDtype,
    /// What the experts do to rows.
    #[key]
    pub hook: Hook,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = |key| if key.tokens < 8 { 8 } else { 16 })]
    pub warps: u32,
    /// Blocks that send rows.
    #[tune(short = "s", shrinks, values = [1, 2, 4, 8, 16, 32, 64], default = |key| send_blocks(key))]
    pub send_blocks: u32,
    /// Blocks that receive rows, run the experts and send back.
    #[tune(short = "x", shrinks, values = [1, 2, 4, 8, 16, 32, 64, 80], default = |key| (key.tokens * key.ranks * 2).next_power_of_two().clamp(8, 64))]
    pub expert_blocks: u32,
    /// Blocks that receive what comes back.
    #[tune(short = "r", shrinks, values = [1, 2, 4, 8, 16, 32, 64], default = |key| recv_blocks(key))]
    pub recv_blocks: u32,
    /// Whether blocks that have sent all they have go on to receive what comes back.
    #[tune(default = |key| joins(key))]
    pub join: bool,
    /// Warps that move a piece of a row together.
    #[tune(short = "g", values = [1, 2, 4, 8, 16], default = 1)]
    pub group_warps: u32,
    /// Vectors of 16 bytes that a lane has in flight.
    #[tune(short = "v", values = [1, 2, 4, 8], default = |key| vectors(key))]
    pub vectors: u32,
    /// Whether a group sends a part of a row to all its ranks.
    #[tune(short = "copies", rule = |c| c.dispatch().copies())]
    pub copies: Option<Copies>,
    /// Blocks that tell ranks where entries go.
    #[tune(short = "routeblocks", values = [1, 2, 3, 4, 6, 8], rule = RoundTrip::route_blocks_rule)]
    pub route_blocks: Option<u32>,
    /// Tiles that have their loads in flight together where rows are summed.
    #[tune(short = "tiles", values = [1, 2, 4, 8, 16], rule = |c| c.combine().tiles_in_flight())]
    pub tiles_in_flight: Option<u32>,
}

impl RoundTrip {
    /// The dispatch that it begins with: what says how rows go out.
    pub fn dispatch(&self) -> Dispatch {
        self.operation().dispatch()
    }

    /// The combine that it ends with: what says how rows come back.
    pub fn combine(&self) -> Combine {
        self.operation().combine()
    }

    /// The operation that it does in one launch.
    pub(in crate::families::moe) fn operation(&self) -> MoeTuning {
        let RoundTrip { hidden, experts, topk, tokens, ranks, dtype, hook, .. } = *self;
        let RoundTrip { warps, send_blocks, expert_blocks, recv_blocks, group_warps, vectors, .. } = *self;
        let key = MoeKey { hook, ..MoeKey::new(MoeShape { hidden, experts, topk, tokens, ranks, dtype }) };
        let dispatch = DispatchPlan {
            warps,
            send_blocks,
            recv_blocks: expert_blocks,
            group_warps,
            vectors,
            chunk: 1,
            count: Some(Count::Receiver),
            bases: Some(Bases::Shared),
            own: None,
            copies: self.copies,
            schedule: None,
            after_route: None,
            after_send: None,
            after_index: None,
            index: None,
            route_blocks: None,
            note_blocks: None,
        };
        let combine = CombinePlan {
            warps,
            send_blocks: expert_blocks,
            recv_blocks,
            group_warps,
            // Several ranks' pieces are in flight together.
            vectors: (vectors / 2).max(1),
            batch: 1,
            own: None,
            own_first: None,
            begin: None,
            schedule: None,
            sums: None,
            share: None,
            tiles_in_flight: self.tiles_in_flight,
            rows_in_flight: None,
        };
        MoeTuning { key, plan: MoePlan { dedup: true, way: Protocol::Packets.into(), dispatch, combine } }
    }

    /// Entries of a rank.
    fn entries(&self) -> u32 {
        self.tokens * self.topk
    }

    /// Entries that a group tells a rank at once.
    fn told(&self) -> u32 {
        self.entries().min(128)
    }

    /// Entries of a rank as they travel: whole tiles.
    fn sent_entries(&self) -> u32 {
        self.entries().next_multiple_of(self.told())
    }

    /// What groups tell: each of these to each rank.
    fn chunks(&self) -> u32 {
        self.sent_entries() / self.told()
    }

    /// With fewer blocks of each kind, so that a launch has at most so many, or as few as it can have.
    #[must_use]
    pub fn within(mut self, most: u32) -> RoundTrip {
        let counts =
            |c: &mut RoundTrip| fewer([&mut c.send_blocks, &mut c.expert_blocks, &mut c.recv_blocks]);
        while self.blocks() > most && counts(&mut self) {}
        self
    }

    pub(crate) fn blocks(&self) -> u32 {
        let blocks = self.route_blocks() + self.send_blocks + self.expert_blocks + self.recv_blocks;
        blocks + self.dispatch().ready_blocks()
    }

    fn route_blocks_rule(&self) -> u32 {
        (self.chunks() * self.ranks).div_ceil(self.warps).min(3)
    }
}

impl Legal for RoundTrip {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(
            self.hook != Hook::Custom,
            "hook",
            self.hook.name(),
            || "expert here: a hook of one's own needs a family of one's own, see `round_trip_with`",
        )?;
        self.fits()
    }
}

impl RoundTrip {
    /// What makes a configuration legal, except that the hook may be a custom one.
    pub fn fits(&self) -> Result<(), Illegal> {
        Illegal::unless(
            self.hook != Hook::None,
            "hook",
            self.hook.name(),
            || "expert: a round trip has the experts' work in it",
        )?;
        rows_of(self.dtype, self.hidden, self.hook, Protocol::Packets)?;
        topk_of(self.topk, self.experts)?;
        let row_bytes = self.dispatch().shape().row_bytes();
        Illegal::unless(row_bytes.is_multiple_of(PACKET_BYTES), "hidden", self.hidden, || {
            format!("such that a row is whole packets of {PACKET_BYTES} bytes, and not {row_bytes} bytes")
        })?;
        groups_of(self.group_warps, self.warps)?;
        self.dispatch().choices()?;
        resident("expert_blocks", self.expert_blocks, self.blocks())
    }
}

/// Parameters of [`round_trip`].
#[derive(KernelArgs)]
#[args(config = RoundTrip)]
pub struct RoundTripArgs {
    /// What is sent.
    #[group(|c| c.dispatch())]
    #[input]
    pub tokens: TokenArgs,

    /// Out: the combined rows, `[token][hidden]`.
    #[output]
    #[len(|c| u64::from(c.tokens) * u64::from(c.hidden))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.dtype.combined())]
    pub out: AnyPtr,

    /// Where rows arrive.
    #[group(|c| c.dispatch())]
    pub inbox: InboxArgs,
    /// Expert of each entry, and the bits of its weight, `[parity][source][entry][2]`.
    #[len(|c| 4 * u64::from(c.ranks * c.sent_entries()))]
    pub entries: Ll<u32>,
    /// Where rows come back.
    #[group(|c| c.combine())]
    pub back: ReturnArgs,
    /// Which ranks are ready for the next packets.
    #[group(|c| c.dispatch())]
    pub ready: ReadyArgs,
    /// Counts round trips.
    pub epoch: EpochWord,
}

/// Brings every token to the ranks that own its experts, runs the experts there on the row as it arrives, and brings the
/// weighted sums of their outputs back: what dispatch with a hook and combine yield, bit for bit, in one launch and without
/// rows by expert in between.
///
/// Every rank launches it in turn, ranks without tokens too, with n = 0. A token whose ids are all masked gets zeros.
/// All ranks use the same variant.
#[kernel]
pub fn round_trip(c: &RoundTrip, a: &RoundTripArgs) {
    round_trip_with(c, a, &stand_in_expert);
}

/// [`round_trip`] with a hook of one's own, for configurations whose [`Hook`] is [`Hook::Custom`].
#[kernel]
pub fn round_trip_with(c: &RoundTrip, a: &RoundTripArgs, hook: RowHook<'_>) {
    let epoch = a.epoch.begin();
    let out = c.dispatch();
    role("route", c.route_blocks(), |b| b.split(1, |g| tell(c, a, g, epoch)));
    role("send", c.send_blocks, |b| {
        let sender = Sender { c: &out, a: &a.tokens, inbox: &a.inbox, epoch };
        b.split(c.group_warps, |g| sender.send(g));
        if c.join {
            b.goes_on_as("recv");
        }
    });
    role("expert", c.expert_blocks, |b| b.split(c.group_warps, |g| answer(c, a, g, epoch, hook)));
    role("recv", c.recv_blocks, |b| b.split(c.group_warps, |g| receive(c, a, g, epoch)));
    role("ready", out.ready_blocks(), |_| {
        notify_ready(&a.ready, c.ranks, epoch);
        await_ready(&a.ready.ready.expect("packets order nothing"), c.ranks, epoch);
    });
}

/// Tells every rank where each entry goes and what it weighs: those of tokens that are not there go nowhere. A group has some
/// entries and a rank, so that no rank waits for what others are told.
#[kernel]
fn tell(c: &RoundTrip, a: &RoundTripArgs, g: Group, epoch: Epoch) {
    let len = c.told();
    let n = tokens(&c.dispatch(), &a.tokens);
    let i = arange(2 * len);
    for part in g.strided(c.chunks() * c.ranks) {
        let to = (part + rank()) % c.ranks;
        let first = part / c.ranks * len;
        let entry = i / 2 + first;
        // What `n` leaves out is loaded too, as far as there are rows: so it is on its way together with it.
        let there = entry < rows_there(&c.dispatch(), &a.tokens) * c.topk;
        let expert = a.tokens.ids.gather(entry, there, -1).cast::<u32>();
        let weight = a.tokens.weights.gather(entry, there, 0.0);
        let valid = (entry < n * c.topk) & (expert < c.experts);
        let expert = valid.select(expert, NOWHERE);
        let weight = valid.select(weight, 0.0).bitcast::<u32>();
        let words = (i % 2 == 0).select(expert, weight);
        a.entries.send(Peers::rank(to), (bank(c, rank(), epoch) + first) * 2, words, epoch);
    }
}

/// The first of a rank's entries.
fn bank(c: &RoundTrip, source: Val<u32>, epoch: Epoch) -> Val<u32> {
    (epoch.parity() * c.ranks + source) * c.sent_entries()
}

/// Runs the experts on every row that arrives, and sends the sum of what they make of it back.
#[kernel]
fn answer(c: &RoundTrip, a: &RoundTripArgs, g: Group, epoch: Epoch, hook: RowHook<'_>) {
    let out = c.dispatch();
    let pieces = out.pieces();
    let entries = shared::<u32>("entries", 2 * c.topk);
    let word = arange(2 * c.topk);
    let scales = scales_at_hand(&out);
    for i in g.strided(c.tokens * c.ranks * pieces.parts()) {
        let (message, part) = pieces.part(i);
        let (source, token) = out.travel().arriving(message);
        let entry = bank(c, source, epoch) + token * c.topk;
        let words = a.entries.load(entry * 2, 2 * c.topk, source, epoch);
        let (_, owned) = local_experts(out.map(), words);
        let bits = ((word % 2 == 0) & owned).select(splat(1u32, 2 * c.topk) << (word / 2), 0);
        let mine = bits.or_all();
        if mine != 0 {
            entries.store(0, words);
            let received = Received::wait(&a.inbox, source, token, epoch);
            let back = a.back.returns.open(epoch).to(Peers::rank(source)).slot(token);
            pieces.each(part, |start, len| {
                let y = hooked(&out, &received, scales, hook, start, len);
                let y = AnyTile::rounded(y, c.dtype.combined()).to_f32();
                let sum = weighted(c, mine, &entries, y, len);
                back.put_f32(start.to_u64(), sum);
            });
            back.done();
        }
    }
}

/// What this rank's experts, a bit of `mine` each, add up to if each yields `y`: in the order of k, as combine has it.
#[kernel]
fn weighted(c: &RoundTrip, mine: Val<u32>, entries: &Shared<u32>, y: Tile<f32>, len: u32) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    for k in 0..c.topk.val() {
        // Others' weights are loaded too, so that no load waits for a branch.
        let weight = entries.get(k * 2 + 1).bitcast::<f32>();
        let owned = (mine >> k) & 1 != 0;
        sum = owned.select(y.fma(weight, &sum), &sum);
    }
    sum.get()
}

/// Sums what comes back for every token.
#[kernel]
fn receive(c: &RoundTrip, a: &RoundTripArgs, g: Group, epoch: Epoch) {
    let coming = c.combine();
    let pieces = coming.summed_pieces();
    for i in g.strided(tokens(&c.dispatch(), &a.tokens) * pieces.parts()) {
        let (token, part) = pieces.part(i);
        let owners = owners(coming.map(), &a.tokens.ids, token * c.topk, c.topk, g);
        let returned = returned(&coming, a.back.returns.open(epoch), owners, token);
        pieces.each(part, |start, len| {
            let sum = sum_of_owners(&coming, &returned, None, start, len);
            a.out.store_f32(at(token, c.hidden) + start.to_u64(), sum);
        });
    }
}
