//! The configuration of combine: what comes from the problem, what tuning chooses, which points are legal.

use peerwarp_codegen::dsl::{ChannelShape, Slots};
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::combine::CombineArgs;
use super::ids::{IdType, notes_routes};
use super::layout::{Layout, Room};
use super::limits::{
    MAX_BLOCKS, MAX_SHARED_BYTES, fewer, groups_of, layout_of, numbers_of, resident, slots_of, topk_of,
    warps_of, with_barriers,
};
use super::pieces::Pieces;
use super::plan::{Begin, Own, Schedule, Share, worth_dynamic_scheduling};
use super::protocol::{Phase, Protocol, protocol_of};
use super::returned::ReturnDtype;
use super::thresholds::{Facts, Rows, group_warps};
use super::travel::Travel;
use crate::families::moe::{ExpertMap, MoeShape, RowDtype};

/// What rows are combined in.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum CombineDtype {
    /// bfloat16, also after fp8 dispatch.
    Bf16,
    /// IEEE binary16.
    Fp16,
}

impl CombineDtype {
    /// The element type.
    pub fn dtype(self) -> Dtype {
        match self {
            CombineDtype::Bf16 => Dtype::Bf16,
            CombineDtype::Fp16 => Dtype::Fp16,
        }
    }
}

impl From<RowDtype> for CombineDtype {
    fn from(dispatched: RowDtype) -> CombineDtype {
        match dispatched {
            RowDtype::Fp16 => CombineDtype::Fp16,
            _ => CombineDtype::Bf16,
        }
    }
}

impl From<CombineDtype> for RowDtype {
    fn from(combined: CombineDtype) -> RowDtype {
        match combined {
            CombineDtype::Bf16 => RowDtype::Bf16,
            CombineDtype::Fp16 => RowDtype::Fp16,
        }
    }
}

/// Tokens from which on a rank of two sums its own by itself, where rows stand by expert.
fn tokens_to_sum(protocol: Protocol) -> u32 {
    if protocol == Protocol::Packets { 64 } else { 1024 }
}

impl CombineKey {
    /// What the thresholds of default plans depend on.
    pub(super) fn facts(&self) -> Facts {
        let CombineKey { hidden, tokens, ranks, layout, .. } = *self;
        let facts = Facts::of(&Rows {
            hidden,
            tokens,
            ranks,
            layout,
            bytes: self.returned_bytes(),
            survive_packets: true,
        });
        let own = self.phase == Phase::Both && ranks == 2;
        let (left_over, sums_own) =
            (self.one_vector_left_over(facts.protocol()), self.sums_own(facts.protocol()));
        facts
            .with("topk", self.topk)
            .with("moved_rows", tokens * (ranks - u32::from(own)))
            .with("one_vector_left_over", left_over)
            .with("sums_own", own && sums_own)
    }

    fn choose(&self, choice: &str) -> u32 {
        self.facts().choose("combine", choice)
    }

    /// Bytes of a row that travels.
    fn returned_bytes(&self) -> u32 {
        self.combine_dtype.row_bytes(self.hidden)
    }

    /// Warps of a block. Those that quantise share the shared memory that every device has: of fewer bits, a piece has more elements.
    fn warps(&self) -> u32 {
        let warps = self.choose("warps");
        if self.combine_dtype.quantises() { warps.min(2 * self.combine_dtype.form().bits) } else { warps }
    }

    /// Vectors of a lane. One of fp8 has as many elements as two of 16 bits.
    fn vectors(&self) -> u32 {
        if self.combine_dtype.quantises() { 1 } else { self.choose("vectors") }
    }

    /// Whether a lane moves a row as pieces of four vectors and a last one of one vector, as with 5120 elements. Compilers keep both
    /// pieces' registers at once, so that 32 warps of it spill for `sm_90a`. Sixteen with four vectors fit all targets, but have not
    /// been timed: they have two.
    fn one_vector_left_over(&self, protocol: Protocol) -> bool {
        let lanes = 32 * group_warps(protocol, self.tokens, self.returned_bytes());
        let vectors = self.returned_bytes().div_ceil(16);
        vectors > 4 * lanes && (1..=lanes).contains(&(vectors % (4 * lanes)))
    }

    /// Whether a rank of two sums rows of its own by itself, where they stand by expert. Packets of four vectors are whole rows then:
    /// of those with a shorter last piece compilers would keep the registers of both.
    fn sums_own(&self, protocol: Protocol) -> bool {
        let whole = self.hidden.is_multiple_of(self.combine_dtype.piece_len(self.hidden, 1, 4))
            || protocol != Protocol::Packets;
        self.layout.by_expert() && whole && self.tokens >= tokens_to_sum(protocol)
    }
}

/// Configuration of [`combine`](super::combine()).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "moe_combine", kernel = super::combine::combine, args = CombineArgs, warps = warps, plan = CombinePlan, serde)]
pub struct Combine {
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
    /// Type of the experts' outputs and of the combined rows.
    #[key]
    pub dtype: CombineDtype,
    /// How rows stand at the rank that has received them; as in dispatch.
    #[key]
    pub layout: Layout,
    /// The most rows by expert that a rank holds: of all of its experts, or of each at a fixed stride, and then the stride too. 0: every
    /// possible row, or at a fixed stride one for each token of all ranks. Rows beyond have no place.
    #[key(short = "m", range = 0..=2147483647, default = 0, omitted)]
    pub max_rows: u32,
    /// Whether combine applies the weights to rank-major rows: to a rank's row the sum of the token's weights there. If not, the experts
    /// apply them. Rows by expert are always weighted.
    #[key(short = "weighted", default = false, omitted)]
    pub weighted: bool,
    /// What rows travel back as.
    #[key(short = "ret", default = ReturnDtype::Combined, omitted)]
    pub combine_dtype: ReturnDtype,
    /// Whether combine counts, for each token, the entries whose experts are on ranks that are not active.
    #[key(short = "missing", default = false, omitted)]
    pub missing: bool,
    /// Slots for experts that each rank has, where a table says in which of all ranks' slots they are. 0: there is no table, and ranks
    /// own experts in order.
    #[key(short = "slots", range = 0..=65535, default = 0, omitted)]
    pub expert_slots: u32,
    /// What expert ids are given as; as in dispatch.
    #[key(short = "ids", default = IdType::I32, omitted)]
    pub ids: IdType,
    /// Which half of the operation a launch does.
    #[key]
    pub phase: Phase,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16, 32], default = |key| key.warps())]
    pub warps: u32,
    /// Blocks that send.
    #[tune(short = "s", shrinks, values = [1, 2, 4, 6, 8, 10, 12, 16, 32, 64, 96], default = |key| key.choose("send_blocks"))]
    pub send_blocks: u32,
    /// Blocks that receive.
    #[tune(short = "r", shrinks, values = [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 32, 64], default = |key| key.choose("recv_blocks"))]
    pub recv_blocks: u32,
    /// Warps that move a row together, or a piece of it where groups share rows.
    #[tune(short = "g", values = [1, 2, 4, 8, 16], default = |key| with_barriers(key.choose("group_warps"), key.warps()))]
    pub group_warps: u32,
    /// Vectors of 16 bytes that a lane has in flight.
    #[tune(short = "v", values = [1, 2, 4, 8], default = |key| key.vectors())]
    pub vectors: u32,
    /// Whether an owner sums its rows of a token before it sends them; as dispatch was configured.
    #[tune(default = true, shared)]
    pub dedup: bool,
    /// How rows come back: as packets only if they went out as packets.
    #[tune(default = |key| key.facts().protocol(), shared)]
    pub protocol: Protocol,
    /// Tokens whose rows come back with one flag, where they come with flags.
    #[tune(short = "b", values = [1, 2, 4, 8, 16], default = |key| key.choose("batch"))]
    pub batch: u32,
    /// Whether what a rank has of its own tokens comes back as other ranks' rows do.
    #[tune(short = "own", rule = Combine::own_rule)]
    pub own: Option<Own>,
    /// Whether a piece of what a rank keeps is summed before it waits for the other rank's.
    #[tune(short = "ownfirst", rule = Combine::own_first_rule)]
    pub own_first: Option<bool>,
    /// When the launch takes its epoch.
    #[tune(short = "begin", rule = Combine::begin_rule)]
    pub begin: Option<Begin>,
    /// How rows to send, or batches of them, are divided among groups.
    #[tune(short = "schedule", rule = Combine::schedule_rule)]
    pub schedule: Option<Schedule>,
    /// How tokens to sum are divided among groups.
    #[tune(short = "sums", rule = Combine::sums_rule)]
    pub sums: Option<Schedule>,
    /// What groups that sum have of a row.
    #[tune(short = "share", rule = Combine::share_rule)]
    pub share: Option<Share>,
    /// Tiles that have their loads in flight together where rows are summed.
    #[tune(short = "tiles", values = [1, 2, 4, 8, 16], rule = Combine::tiles_in_flight_rule)]
    pub tiles_in_flight: Option<u32>,
    /// Rows of a token that an owner has in flight together where it sums them.
    #[tune(short = "rows", values = [1, 2, 3, 4], rule = Combine::rows_in_flight_rule)]
    pub rows_in_flight: Option<u32>,
}

/// The rules.
impl Combine {
    /// In place, of two ranks: that is half of all, and few SMs take longer to move it through memory than the link takes for the
    /// others; by expert both roles read rows so, and not one alone. Few packets are there as soon, and of those with a shorter last piece
    /// compilers keep both pieces' registers at once, and spill.
    fn own_rule(&self) -> Own {
        let packets = self.protocol == Protocol::Packets;
        let whole = !packets || self.hidden.is_multiple_of(self.piece_len());
        let pays = match self.layout.by_expert() {
            true => whole && self.tokens >= tokens_to_sum(self.protocol),
            false => !packets,
        };
        if pays && self.may_keep_own() { Own::InPlace } else { Own::Moved }
    }

    /// By expert the sum is most of the work, which need not stand behind rows that are still on their way.
    fn own_first_rule(&self) -> bool {
        self.keeps_own() && self.layout.by_expert() && self.protocol != Protocol::Packets
    }

    /// Early, while latency is what counts.
    fn begin_rule(&self) -> Begin {
        let early = self.phase == Phase::Both && self.protocol == Protocol::Packets;
        if early { Begin::Early } else { Begin::InTurn }
    }

    fn schedule_rule(&self) -> Schedule {
        let groups = self.send_blocks * (self.warps / self.group_warps);
        let slots = if self.batch > 1 { self.batches() } else { self.tokens * self.token_slots() };
        let pays = worth_dynamic_scheduling(self.protocol, slots * self.destinations(), groups);
        if pays { Schedule::Dynamic } else { Schedule::Strided }
    }

    fn sums_rule(&self) -> Schedule {
        let groups = self.recv_blocks * (self.warps / self.group_warps);
        let pays = worth_dynamic_scheduling(self.protocol, self.tokens, groups);
        if pays { Schedule::Dynamic } else { Schedule::Strided }
    }

    /// With flags, each of which has to be waited for, a group has rows of its own where there are enough of them.
    fn share_rule(&self) -> Share {
        let groups = self.recv_blocks * self.warps / self.group_warps;
        let shared = self.protocol == Protocol::Packets || self.tokens < 2 * groups;
        if shared { Share::Pieces } else { Share::Rows }
    }

    /// A lane has 8 vectors of 16 bytes in flight, and 16 where no lane polls and a thread has more than 64 registers.
    fn tiles_in_flight_rule(&self) -> u32 {
        let polls = self.protocol == Protocol::Packets || self.layout.by_expert();
        self.tiles_of(if polls || self.warps > 16 { 8 } else { 16 })
    }

    /// Seldom more than four: of two ranks, whose blocks all do that, as many as fit the registers beside the sum. They are fewer where
    /// some lanes have none of a row's last vectors.
    fn rows_in_flight_rule(&self) -> u32 {
        let even = self.hidden.is_multiple_of(self.combine_dtype.piece_len(self.hidden, self.group_warps, 1));
        self.tiles_of(if self.keeps_own() && even { 12 } else { 8 }).min(4)
    }

    /// Tiles that so many vectors of rows of 16 bits are.
    fn tiles_of(&self, vectors: u32) -> u32 {
        (vectors / (self.vectors * 16 / self.combine_dtype.form().bits)).max(1)
    }

    /// Ranks whose rows of a token are loaded together.
    pub(super) fn owners_in_flight(&self) -> u32 {
        self.tiles_in_flight().min(self.ranks)
    }

    /// Entries whose rows are loaded together, where each comes back for itself.
    pub(super) fn entries_in_flight(&self) -> u32 {
        self.tiles_in_flight().min(self.topk)
    }

    /// Whether what a rank has of its own can stay where it is: which of two comes first makes no difference to the sum, of more it
    /// does.
    fn may_keep_own(&self) -> bool {
        self.dedup && self.phase == Phase::Both && self.ranks == 2
    }

    pub(super) fn piece_len(&self) -> u32 {
        self.combine_dtype.piece_len(self.hidden, self.group_warps, self.vectors)
    }

    /// Whether choices go together.
    fn choices(&self) -> Result<(), Illegal> {
        let packets = self.protocol == Protocol::Packets;
        Illegal::unless(
            !self.keeps_own() || self.may_keep_own(),
            "own",
            "in-place",
            || "moved, unless two ranks combine in one launch, and `dedup` is on",
        )?;
        Illegal::unless(
            !self.own_first() || self.keeps_own(),
            "own_first",
            true,
            || "false, where `own` is moved",
        )?;
        let early = self.begin() == Begin::Early;
        Illegal::unless(
            !early || (packets && self.phase == Phase::Both),
            "begin",
            "early",
            || "in-turn, unless rows come back as packets in one launch",
        )?;
        for (field, schedule) in [("schedule", self.schedule()), ("sums", self.sums())] {
            let legal = schedule == Schedule::Strided || !packets;
            Illegal::unless(legal, field, "dynamic", || "strided, where rows come back as packets")?;
        }
        Illegal::unless(
            self.share() == Share::Pieces || !packets,
            "share",
            "rows",
            || "pieces, where rows come back as packets",
        )
    }
}

impl Combine {
    /// Which rank owns which expert; where a table places experts, which has which slot.
    pub fn map(&self) -> ExpertMap {
        ExpertMap { experts: self.experts, ranks: self.ranks }.with_slots(self.expert_slots)
    }

    /// Whether it reads where entries went, as dispatch wrote it down, in place of their ids.
    pub(super) fn reads_routes(&self) -> bool {
        notes_routes(self.expert_slots, self.ids)
    }

    /// The problem's shape, as of rows that go out as they come back.
    pub(in crate::families::moe) fn shape(&self) -> MoeShape {
        let Combine { hidden, experts, topk, tokens, ranks, .. } = *self;
        MoeShape { hidden, experts, topk, tokens, ranks, dtype: self.dtype.into() }
    }

    /// Expert ids that come back together: a token's of one owner, or one.
    pub fn slot_entries(&self) -> u32 {
        if self.dedup { self.topk } else { 1 }
    }

    /// Slots of a token.
    pub fn token_slots(&self) -> u32 {
        self.topk / self.slot_entries()
    }

    /// Rows that may come back for a token: one from every owner, or one for every entry.
    pub fn returns(&self) -> u32 {
        if self.dedup { self.ranks } else { self.topk }
    }

    /// The channel that rows come back by. The dispatch of the next round says that a row was taken, with flags: so one bank is
    /// enough. A packet is in one of two, and must not be overtaken by the next launch's; credits are the whole operation's.
    pub(super) fn way_back(&self) -> ChannelShape {
        let slots =
            if self.dedup { Slots::ByNumber(self.tokens) } else { Slots::Shared(self.tokens * self.topk) };
        let shape = ChannelShape::new(self.protocol.transport(), self.ranks, slots).credits(false);
        // No word of nvfp4 that is sent is all ones.
        let packs = self.combine_dtype == ReturnDtype::Nvfp4;
        let shape = if packs { shape.float_words() } else { shape };
        match self.protocol {
            Protocol::Flags | Protocol::Bulk => {
                let shape = shape.banks(1).named("row", "returns").named("scales", "return_scale");
                let shape = shape.named("arrived", "return_flag");
                if self.batch > 1 { shape.batches(self.batches() * self.ranks) } else { shape }
            }
            Protocol::Packets => shape.named("row", "return_packets").named("scales", "return_scale_packets"),
        }
    }

    /// With fewer blocks that send and that receive, so that a launch has at most so many, or as few as it can have.
    #[must_use]
    pub fn within(mut self, most: u32) -> Combine {
        if self.blocks() > most && self.keeps_own() && self.layout == Layout::RankMajor {
            // One warp a row: a warp waits for no other warp's loads and stores, which is faster than four warps a row on few SMs
            // (`bench/results/moe-on-two-gpus.md`, few SMs).
            (self.group_warps, self.batch) = (1, 2);
            let half = [64, 32, 16, 12, 10, 8, 6, 4, 2, 1].into_iter().find(|half| 2 * half <= most);
            (self.send_blocks, self.recv_blocks) = [half.unwrap_or(1); 2].into();
        }
        while self.blocks() > most && fewer([&mut self.send_blocks, &mut self.recv_blocks]) {}
        self
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.roles().iter().sum()
    }

    /// Blocks that send, that receive, and that wait until all ranks are ready, where records order nothing.
    pub(super) fn roles(&self) -> [u32; 3] {
        let ready = u32::from(self.protocol == Protocol::Packets);
        [
            self.phase.senders(self.send_blocks),
            self.phase.receivers(self.recv_blocks),
            self.phase.receivers(ready),
        ]
    }

    /// How groups divide rows that they send: a flag is for a row, a packet for itself.
    pub(super) fn sent_pieces(&self) -> Pieces {
        Pieces { shared: self.protocol == Protocol::Packets, ..self.summed_pieces() }
    }

    /// Whether what this rank has of its own tokens stays where it is, and is summed from there.
    pub(in crate::families::moe) fn keeps_own(&self) -> bool {
        self.own() == Own::InPlace
    }

    /// The ranks that rows travel back to and from.
    pub(super) fn travel(&self) -> Box<dyn Travel> {
        self.own().travel(self.ranks)
    }

    /// Ranks that rows go back to.
    pub(super) fn destinations(&self) -> u32 {
        self.ranks - u32::from(self.keeps_own())
    }

    /// Warps that move a row together where rows travel so.
    pub(in crate::families::moe) fn group_warps_with(&self, protocol: Protocol) -> u32 {
        let warps = group_warps(protocol, self.tokens, self.returned_bytes());
        with_barriers(warps.min(self.warps), self.warps)
    }

    /// Batches of a rank's tokens.
    pub(super) fn batches(&self) -> u32 {
        self.tokens.div_ceil(self.batch)
    }

    /// How groups divide rows that they sum.
    pub(super) fn summed_pieces(&self) -> Pieces {
        Pieces { row: self.hidden, len: self.piece_len(), shared: self.share() == Share::Pieces }
    }

    /// Whether an owner sums its rows of a token: by token, that has been done.
    pub(crate) fn sums_at_owner(&self) -> bool {
        self.dedup && self.layout.by_expert()
    }

    /// The places that there are for rows; as in dispatch.
    pub fn room(&self) -> Room {
        self.layout.room(&self.shape().with_slots(self.expert_slots), self.max_rows)
    }

    /// The most rows that can come to the experts: every entry of every rank.
    pub fn entries(&self) -> u64 {
        u64::from(self.ranks * self.tokens) * u64::from(self.topk)
    }
}

impl Combine {
    /// Whether rows can be quantised so.
    fn quantised(&self) -> Result<(), Illegal> {
        let quantises = self.combine_dtype.quantises();
        Illegal::unless(!quantises || self.protocol != Protocol::Bulk, "protocol", "bulk", || {
            format!(
                "flags or packets where `combine_dtype` is {}: senders quantise rows",
                self.combine_dtype.name()
            )
        })?;
        let bytes = self.shared_bytes();
        Illegal::unless(bytes <= MAX_SHARED_BYTES, "vectors", self.vectors, || {
            format!(
                "fewer, or more warps a group, where `combine_dtype` is {}: a block needs {bytes} bytes of shared memory so, \
                 and has {MAX_SHARED_BYTES}",
                self.combine_dtype.name()
            )
        })
    }
}

impl Legal for Combine {
    fn legal(&self) -> Result<(), Illegal> {
        topk_of(self.topk, self.experts)?;
        slots_of(self.expert_slots, 1, self.ranks)?;
        groups_of(self.group_warps, self.warps)?;
        warps_of(self.warps, self.layout == Layout::RankMajor && self.protocol != Protocol::Packets)?;
        protocol_of(self.protocol, self.returned_bytes(), self.warps / self.group_warps)?;
        self.quantised()?;
        Illegal::unless(
            self.protocol != Protocol::Bulk || !self.sums_at_owner(),
            "protocol",
            self.protocol.name(),
            || "flags or packets, where owners sum their rows of a token before they send them".to_owned(),
        )?;
        layout_of(self.layout, &self.shape().with_slots(self.expert_slots), self.max_rows, self.dedup)?;
        Illegal::unless(
            !self.weighted || self.layout == Layout::RankMajor,
            "weighted",
            self.weighted,
            || format!("false for {}, whose rows combine weights in any case", self.layout.name()),
        )?;
        numbers_of(self.tokens, self.token_slots(), self.ranks, self.sent_pieces().parts())?;
        let most = if self.protocol == Protocol::Packets { 1 } else { self.tokens.next_power_of_two() };
        Illegal::unless(self.batch <= most, "batch", self.batch, || match self.protocol {
            Protocol::Packets => "1, where rows come back as packets, which have no flags".to_owned(),
            Protocol::Flags | Protocol::Bulk => {
                format!("at most {most}, which holds all {} tokens", self.tokens)
            }
        })?;
        self.choices()?;
        resident("send_blocks", self.send_blocks, self.blocks(), MAX_BLOCKS)
    }
}
