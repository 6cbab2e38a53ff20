//! The configuration of a round trip: what comes from the problem, what tuning chooses, which points are legal.

use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::combine_config::{Combine, CombinePlan};
use super::config::{Dispatch, DispatchPlan};
use super::deliver::Hook;
use super::ids::IdType;
use super::limits::{MAX_BLOCKS, MAX_SHARED_BYTES, fewer, groups_of, resident, rows_of, slots_of, topk_of};
use super::plan::{Bases, Copies, Count, Then};
use super::protocol::Protocol;
use super::returned::ReturnDtype;
use super::round_trip::RoundTripArgs;
use super::thresholds::Facts;
use crate::families::moe::{MoeKey, MoePlan, MoeShape, MoeTuning, RowDtype};

impl RoundTripKey {
    /// What the thresholds of default plans say.
    fn choose(&self, choice: &str) -> u32 {
        self.facts().choose("round_trip", choice)
    }

    /// Vectors of a lane. Those that quantise what goes back have 16 elements, as many as make a vector of fp8.
    fn vectors(&self) -> u32 {
        if self.combine_dtype.quantises() { self.given_bytes() } else { self.choose("vectors") }
    }

    /// Bytes of an element of a row that is sent.
    fn given_bytes(&self) -> u32 {
        self.dtype.dispatched().map_or(1, Dtype::bytes)
    }

    /// What they depend on.
    pub(super) fn facts(&self) -> Facts {
        let RoundTripKey { tokens, ranks, dtype, .. } = *self;
        Facts::of_tokens(tokens, ranks).with("fp8", dtype == RowDtype::Fp8)
    }
}

/// Configuration of [`round_trip`](super::round_trip()).
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
    /// What rows travel back as. A group has a piece of a row, and no scale for all of it.
    #[key(short = "ret", default = ReturnDtype::Combined, omitted)]
    pub combine_dtype: ReturnDtype,
    /// Whether it counts, for each token, the entries whose experts are on ranks that are not active.
    #[key(short = "missing", default = false, omitted)]
    pub missing: bool,
    /// Slots for experts that each rank has, where a table says in which of all ranks' slots they are. 0: there is no table, and ranks
    /// own experts in order.
    #[key(short = "slots", range = 0..=65535, default = 0, omitted)]
    pub expert_slots: u32,
    /// Slots that an expert may be in at once, where a table says so.
    #[key(short = "replicas", range = 1..=64, default = 1, omitted)]
    pub replicas: u32,
    /// Whether it counts the entries of each expert.
    #[key(short = "load", default = false, omitted)]
    pub expert_load: bool,
    /// What expert ids are given as.
    #[key(short = "ids", default = IdType::I32, omitted)]
    pub ids: IdType,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = |key| key.choose("warps"))]
    pub warps: u32,
    /// Blocks that send rows.
    #[tune(short = "s", shrinks, values = [1, 2, 4, 8, 16, 32, 64], default = |key| key.choose("send_blocks"))]
    pub send_blocks: u32,
    /// Blocks that receive rows, run the experts and send back.
    #[tune(short = "x", shrinks, values = [1, 2, 4, 8, 16, 32, 64, 80], default = |key| key.choose("expert_blocks"))]
    pub expert_blocks: u32,
    /// Blocks that receive what comes back.
    #[tune(short = "r", shrinks, values = [1, 2, 4, 8, 16, 32, 64], default = |key| key.choose("recv_blocks"))]
    pub recv_blocks: u32,
    /// Whether blocks that have sent all they have go on to receive what comes back.
    #[tune(default = |key| key.choose("join") == 1)]
    pub join: bool,
    /// Warps that move a piece of a row together.
    #[tune(short = "g", values = [1, 2, 4, 8, 16], default = 1)]
    pub group_warps: u32,
    /// Vectors of 16 bytes that a lane has in flight.
    #[tune(short = "v", values = [1, 2, 4, 8], default = |key| key.vectors())]
    pub vectors: u32,
    /// Whether a group sends a part of a row to all its ranks.
    #[tune(short = "copies", rule = |c| c.dispatch().copies())]
    pub copies: Option<Copies>,
    /// Blocks that tell ranks where entries go.
    #[tune(short = "routeblocks", shrinks, values = [1, 2, 3, 4, 6, 8], rule = RoundTrip::route_blocks_rule)]
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
        let RoundTrip { combine_dtype, missing, expert_slots, replicas, expert_load, ids, .. } = *self;
        let shape = MoeShape { hidden, experts, topk, tokens, ranks, dtype };
        let placed = MoeKey { expert_slots, replicas, expert_load, ids, ..MoeKey::new(shape) };
        let key = MoeKey { hook, combine_dtype, missing, ..placed };
        let dispatch = DispatchPlan {
            warps,
            send_blocks,
            recv_blocks: expert_blocks,
            group_warps,
            vectors,
            chunk: 1,
            count: Some(Count::Receiver),
            bases: Some(Bases::Shared),
            copies: self.copies,
            ..DispatchPlan::default()
        };
        let combine = CombinePlan {
            warps,
            send_blocks: expert_blocks,
            recv_blocks,
            group_warps,
            vectors: self.vectors_back(),
            batch: 1,
            tiles_in_flight: self.tiles_in_flight,
            ..CombinePlan::default()
        };
        let plan = MoePlan { dedup: true, way: Protocol::Packets.into(), dispatch, combine, nodes: None };
        MoeTuning { key, plan }
    }

    /// Vectors of a lane where rows are summed. Several ranks' pieces are in flight together; pieces that are quantised are those that
    /// were sent.
    fn vectors_back(&self) -> u32 {
        let quantised = || self.vectors / self.key().given_bytes();
        (if self.combine_dtype.quantises() { quantised() } else { self.vectors / 2 }).max(1)
    }

    /// Entries of a rank.
    fn entries(&self) -> u32 {
        self.tokens * self.topk
    }

    /// Entries that a group tells a rank at once.
    pub(super) fn told(&self) -> u32 {
        self.entries().min(128)
    }

    /// Entries of a rank as they travel: whole tiles.
    pub(super) fn sent_entries(&self) -> u32 {
        self.entries().next_multiple_of(self.told())
    }

    /// What groups tell: each of these to each rank.
    pub(super) fn chunks(&self) -> u32 {
        self.sent_entries() / self.told()
    }

    /// What a block does when it has sent rows.
    pub(super) fn after_send(&self) -> Then {
        if self.join { Then::Receive } else { Then::Leave }
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
    /// Whether rows can travel back so.
    fn returns(&self) -> Result<(), Illegal> {
        let (back, vectors) = (self.combine_dtype, self.vectors);
        Illegal::unless(
            !matches!(back, ReturnDtype::Fp8Token | ReturnDtype::Nvfp4),
            "combine_dtype",
            back.name(),
            || "combined or fp8: a group that runs experts has a piece of a row, and no scale for all of it",
        )?;
        if !back.quantises() {
            return Ok(());
        }
        let least = self.key().given_bytes();
        Illegal::unless(vectors >= least, "vectors", vectors, || {
            format!("at least {least} for {} where `combine_dtype` is {}", self.dtype, back.name())
        })?;
        let (dispatch, combine) = (self.dispatch(), self.combine());
        let row_bytes = combine.returned_bytes();
        Illegal::unless(row_bytes.is_multiple_of(PACKET_BYTES), "hidden", self.hidden, || {
            format!(
                "a multiple of {PACKET_BYTES} where `combine_dtype` is {}: rows are whole packets",
                back.name()
            )
        })?;
        let groups = u64::from(self.warps / self.group_warps);
        let entries = u64::from(2 * self.topk + 3 + dispatch.scales_at_hand() + 3);
        let bytes = 4 * groups * entries + combine.shared_bytes();
        Illegal::unless(bytes <= MAX_SHARED_BYTES, "vectors", vectors, || {
            format!(
                "fewer, or more warps a group, where `combine_dtype` is {}: a block needs {bytes} bytes of shared memory so, and \
                 has {MAX_SHARED_BYTES}",
                back.name()
            )
        })
    }

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
        slots_of(self.expert_slots, self.replicas, self.ranks)?;
        let row_bytes = self.dispatch().shape().row_bytes();
        Illegal::unless(row_bytes.is_multiple_of(PACKET_BYTES), "hidden", self.hidden, || {
            format!("such that a row is whole packets of {PACKET_BYTES} bytes, and not {row_bytes} bytes")
        })?;
        groups_of(self.group_warps, self.warps)?;
        self.returns()?;
        self.dispatch().choices()?;
        resident("expert_blocks", self.expert_blocks, self.blocks(), MAX_BLOCKS)
    }
}
