//! The configuration of dispatch: what comes from the problem, what tuning chooses, which points are legal.

use peerwarp_codegen::dsl::{ChannelShape, Slots};
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::deliver::Hook;
use super::dispatch::DispatchArgs;
use super::ids::{IdType, notes_routes};
use super::layout::{Begins, Layout, Room};
use super::limits::{
    MAX_BLOCKS, MAX_SHARED_BYTES, fewer, groups_of, layout_of, numbers_of, resident, rows_of, slots_of,
    topk_of, warps_of, with_barriers,
};
use super::pieces::{Pieces, piece_len};
use super::plan::{Bases, Begin, Copies, Count, Index, Own, Schedule, Then};
use super::protocol::{Phase, Protocol, protocol_of};
use super::quantise::{self, Quantise, ScaleRounding};
use super::scales::ScaleLayout;
use super::thresholds::{Facts, Rows};
use crate::families::moe::{ExpertMap, MoeShape, RowDtype};

/// Elements of a tile that a lane should hold at most, so that a few of them fit its registers.
pub(super) const MAX_A_LANE: u32 = 16;

/// Entries of a record at most: each has its number among them in half a word.
pub(super) const MOST_RECORD_ENTRIES: u32 = 1 << 16;

/// Experts whose entries a block counts at once, where bases are in memory.
pub(super) const COUNTED_AT_ONCE: u32 = 4096;

/// Shared memory that every supported device gives a block without being asked, less what reductions take: defaults that were measured
/// take no more than half of it for bases.
const FREE_SHARED_BYTES: u64 = 46 << 10;

/// Configuration of [`dispatch`](super::dispatch()).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "moe_dispatch", kernel = super::dispatch::dispatch, args = DispatchArgs, warps = warps, plan = DispatchPlan, serde)]
pub struct Dispatch {
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
    /// Bytes of a row, where `dtype` is bytes.
    #[key(short = "b", range = 0..=131072, multiple_of = 4, default = 0, omitted)]
    pub row_bytes: u32,
    /// Bytes of a row's scales, where `dtype` is bytes.
    #[key(short = "sc", range = 0..=2048, multiple_of = 4, default = 0, omitted)]
    pub scale_bytes: u32,
    /// What rows are quantised from before they are sent.
    #[key(short = "q", default = Quantise::None, omitted)]
    pub quantise: Quantise,
    /// How scales that are powers of two are rounded where rows are quantised.
    #[key(short = "sr", default = ScaleRounding::Floor, omitted)]
    pub scale_rounding: ScaleRounding,
    /// The order of the scales that come out.
    #[key(short = "sl", default = ScaleLayout::Row, omitted)]
    pub scale_layout: ScaleLayout,
    /// What happens to rows on their way into the output.
    #[key]
    pub hook: Hook,
    /// How rows stand at the rank that receives them.
    #[key]
    pub layout: Layout,
    /// The most rows by expert that a rank holds: of all of its experts, or of each at a fixed stride, and then the stride too. 0: every
    /// possible row, or at a fixed stride one for each token of all ranks. Rows beyond have no place.
    #[key(short = "m", range = 0..=2147483647, default = 0, omitted)]
    pub max_rows: u32,
    /// Whether it is one node's part of a dispatch over several nodes. `ids` then number the node's experts, and ids that come out count
    /// from `node_first`.
    #[key(short = "ofnode", default = false, omitted)]
    pub of_node: bool,
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
    /// Which half of the operation a launch does.
    #[key]
    pub phase: Phase,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16, 32], default = |key| key.choose("warps"))]
    pub warps: u32,
    /// Blocks that send rows.
    #[tune(short = "s", shrinks, values = [1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 64], default = |key| key.choose("send_blocks"))]
    pub send_blocks: u32,
    /// Blocks that receive.
    #[tune(short = "r", shrinks, values = [1, 2, 4, 8, 16, 32, 64, 80, 96, 104, 112], default = |key| key.choose("recv_blocks"))]
    pub recv_blocks: u32,
    /// Warps that move a row together, or a piece of it where groups share rows.
    #[tune(short = "g", values = [1, 2, 4, 8, 16], default = |key| key.group_warps())]
    pub group_warps: u32,
    /// Vectors of 16 bytes that a lane has in flight.
    #[tune(short = "v", values = [1, 2, 4, 8], default = |key| key.choose("vectors"))]
    pub vectors: u32,
    /// Tokens of a record.
    #[tune(short = "c", values = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384], default = |key| key.record_tokens())]
    pub chunk: u32,
    /// Whether a row goes once to every rank that owns one of its experts, not once for every expert.
    #[tune(default = true, shared)]
    pub dedup: bool,
    /// How rows travel.
    #[tune(default = |key| key.facts().protocol(), shared)]
    pub protocol: Protocol,
    /// Who counts the entries of a record.
    #[tune(short = "count", rule = Dispatch::count_rule)]
    pub count: Option<Count>,
    /// Where the first row of each (expert, source, record) is.
    #[tune(short = "bases", rule = Dispatch::bases_rule)]
    pub bases: Option<Bases>,
    /// Whether a rank's own rows are moved through its inbox, or read in place.
    #[tune(short = "own", rule = Dispatch::own_rule)]
    pub own: Option<Own>,
    /// Whether a group sends a part of a row to all its ranks.
    #[tune(short = "copies", rule = Dispatch::copies_rule)]
    pub copies: Option<Copies>,
    /// How rows to send are divided among groups.
    #[tune(short = "schedule", rule = Dispatch::schedule_rule)]
    pub schedule: Option<Schedule>,
    /// What a block does when it has sent records.
    #[tune(short = "afterroute", values = [Then::Leave, Then::Send], rule = Dispatch::after_route_rule)]
    pub after_route: Option<Then>,
    /// What a block does when it has sent rows.
    #[tune(short = "aftersend", values = [Then::Leave, Then::Receive], rule = Dispatch::after_send_rule)]
    pub after_send: Option<Then>,
    /// What a block does when it has written down which rows the experts have.
    #[tune(short = "afterindex", values = [Then::Leave, Then::Receive], rule = Dispatch::after_index_rule)]
    pub after_index: Option<Then>,
    /// Whether a warp or a block counts the rows of experts, where receivers count and rows are rank-major.
    #[tune(short = "index", rule = Dispatch::index_rule)]
    pub index: Option<Index>,
    /// Blocks that send records.
    #[tune(short = "routeblocks", shrinks, values = [1, 2, 3, 4, 5, 6, 7, 8], rule = Dispatch::route_blocks_rule)]
    pub route_blocks: Option<u32>,
    /// Blocks that write down entries' weights and experts, where those that receive rows do not.
    #[tune(short = "noteblocks", shrinks, values = [1, 2, 3, 4, 5, 6, 7, 8], rule = Dispatch::note_blocks_rule)]
    pub note_blocks: Option<u32>,
}

impl DispatchKey {
    /// What the thresholds of default plans depend on.
    pub(super) fn facts(&self) -> Facts {
        let DispatchKey { hidden, tokens, ranks, layout, dtype, .. } = *self;
        let bytes = dtype.with_sizes(self.row_bytes, self.scale_bytes).row_bytes(hidden);
        let survive_packets = dtype.survives_packets();
        Facts::of(&Rows { hidden, tokens, ranks, layout, bytes, survive_packets })
            .with("quantised", self.quantise != Quantise::None)
            .with("fp8", dtype == RowDtype::Fp8)
            .with("hooked", self.hook != Hook::None)
    }

    fn choose(&self, choice: &str) -> u32 {
        self.facts().choose("dispatch", choice)
    }

    fn group_warps(&self) -> u32 {
        with_barriers(self.facts().choose("rows", "group_warps"), self.choose("warps"))
    }

    /// The smallest chunk whose records are worth sending, no more than so many a rank unless those are too long to be made at once; and
    /// whose bases fit half the shared memory.
    fn record_tokens(&self) -> u32 {
        let base_words = |chunk: u32| {
            let map = ExpertMap { experts: self.experts, ranks: self.ranks }.with_slots(self.expert_slots);
            u64::from(map.at_most() * self.ranks) * u64::from(self.tokens.div_ceil(chunk))
        };
        let (records, entries) = (self.choose("records"), self.choose("record_entries"));
        let entries_at_once = self.choose("warps") * 32 * MAX_A_LANE;
        let worth = |chunk: u32| chunk * self.topk >= entries && chunk >= (self.tokens / records).min(512);
        let enough = |chunk: &u32| *chunk >= self.tokens || worth(*chunk);
        let takes = |chunk: &u32, bytes: u64| base_words(*chunk) * 4 <= bytes;
        let chunks = || (0..=14).map(|bit| 1 << bit).filter(|chunk| chunk * self.topk <= MOST_RECORD_ENTRIES);
        let found = chunks().take(11).find(|chunk| enough(chunk) && takes(chunk, FREE_SHARED_BYTES / 2));
        // Longer ones where there are so many experts and tokens, and shorter ones that a block makes at once if these do as well.
        let most = self.tokens.next_power_of_two();
        let found = found.or_else(|| chunks().skip(10).find(|chunk| takes(chunk, FREE_SHARED_BYTES)));
        let found = found.or_else(|| chunks().next_back()).unwrap_or(1).min(most);
        let at_once = |chunk: &u32| chunk * self.topk <= entries_at_once;
        let shorter = || chunks().rfind(|chunk| at_once(chunk) && takes(chunk, FREE_SHARED_BYTES));
        if at_once(&found) { found } else { shorter().unwrap_or(found) }
    }
}

impl Dispatch {
    /// Which rank owns which expert; where a table places experts, which has which slot.
    pub fn map(&self) -> ExpertMap {
        ExpertMap { experts: self.experts, ranks: self.ranks }.with_slots(self.expert_slots)
    }

    /// Whether it writes down where entries go, which combine reads in place of their ids.
    pub(super) fn notes_routes(&self) -> bool {
        notes_routes(self.expert_slots, self.ids)
    }

    /// Expert ids that travel together: all of a token's, or one.
    pub fn slot_entries(&self) -> u32 {
        if self.dedup { self.topk } else { 1 }
    }

    /// Slots of a token.
    pub fn token_slots(&self) -> u32 {
        self.topk / self.slot_entries()
    }

    /// Slots of a rank at most.
    pub fn slots(&self) -> u32 {
        self.tokens * self.token_slots()
    }

    /// Records of a rank.
    pub fn chunks(&self) -> u32 {
        self.tokens.div_ceil(self.chunk)
    }

    /// Records of all ranks.
    pub fn records(&self) -> u32 {
        self.ranks * self.chunks()
    }

    /// Entries of a record.
    pub fn record_entries(&self) -> u32 {
        self.chunk * self.topk
    }

    /// Entries that a block has at once where it makes records.
    pub(super) fn entries_at_once(&self) -> u32 {
        self.warps * 32 * MAX_A_LANE
    }

    /// Experts whose rows a block lays out at once, where bases are in memory.
    pub(super) fn laid_out_at_once(&self) -> u32 {
        (self.map().at_most() + 1).min(self.warps * 32 * 4)
    }

    /// Records in both banks.
    pub(super) fn record_words(&self) -> u64 {
        2 * u64::from(self.records())
    }

    /// Type in which rows move: words, unless the receiver has to look into them.
    pub fn moved(&self) -> Dtype {
        match self.hook {
            // Who sends them has computed them.
            _ if self.quantises() => quantise::moved(self.dtype),
            Hook::None => Dtype::U32,
            Hook::Expert | Hook::Custom => self.dtype.dispatched().unwrap_or(Dtype::U32),
        }
    }

    /// Whether rows are quantised before they are sent.
    pub fn quantises(&self) -> bool {
        self.quantise != Quantise::None
    }

    /// Whether rows are quantised with a scale for all of them, beside those of their blocks.
    pub fn has_tensor_scale(&self) -> bool {
        self.quantises() && self.dtype == RowDtype::Nvfp4
    }

    /// Elements that so many are that move: of those that several are packed into one, more.
    pub(super) fn elements(&self, moved: u32) -> u32 {
        moved * (self.given_row() / self.row())
    }

    /// Type of the rows that callers give.
    pub fn given(&self) -> Dtype {
        self.quantise.from().unwrap_or_else(|| self.moved())
    }

    /// Elements of a row that callers give.
    pub fn given_row(&self) -> u32 {
        if self.quantises() { self.hidden } else { self.row() }
    }

    /// Type of the rows that come out.
    pub fn received(&self) -> Dtype {
        match self.hook {
            Hook::None => self.moved(),
            Hook::Expert | Hook::Custom => self.dtype.combined(),
        }
    }

    /// Elements of a row, of the type in which it moves.
    pub fn row(&self) -> u32 {
        self.shape().row_bytes() / self.moved().bytes()
    }

    /// Scales of a row, in words.
    pub fn scales(&self) -> u32 {
        self.shape().scales()
    }

    /// Type of the words of scales.
    pub(super) fn scale(&self) -> Dtype {
        self.dtype.moved_scales()
    }

    /// Whether scales go with the part of a row that they are of, as a hook needs them and who quantises has them; else all of a row's
    /// go with its first.
    pub(super) fn scales_apart(&self) -> bool {
        self.dtype == RowDtype::Fp8 || (self.quantises() && self.dtype != RowDtype::Int8)
    }

    /// Elements of a row, of the type in which it moves, that have a word of scales together.
    pub fn scaled(&self) -> u32 {
        self.dtype.scaled_bytes() / self.moved().bytes()
    }

    /// Scales of a piece of a row. Pieces that are not a row's last have whole packets of them.
    pub(super) fn scales_of(&self, piece: u32) -> u32 {
        piece.div_ceil(self.scaled())
    }

    /// The same as they travel: whole packets, where they are packets.
    pub(super) fn sent_scales_of(&self, piece: u32) -> u32 {
        let scales = self.scales_of(piece);
        match self.protocol {
            Protocol::Flags | Protocol::Bulk => scales,
            Protocol::Packets => scales.next_multiple_of(PACKET_BYTES / 4),
        }
    }

    /// Elements of a row's scales as they travel.
    pub fn sent_scales(&self) -> u32 {
        match self.protocol {
            Protocol::Flags | Protocol::Bulk => self.scales(),
            Protocol::Packets => self.scales().next_multiple_of(PACKET_BYTES / 4),
        }
    }

    /// The most scales of a piece that a hook needs.
    pub(super) fn scales_at_hand(&self) -> u32 {
        if self.scales() == 0 || self.hook == Hook::None { 0 } else { self.sent_scales_of(self.pieces().len) }
    }

    /// The channel that rows take. Combine of the same round says that a row was taken, with flags: so one bank is enough. A packet
    /// is in one of two, and must not be overtaken by the next launch's; credits are the whole operation's.
    pub(super) fn arrivals(&self) -> ChannelShape {
        let slots = Slots::BySender(self.slots());
        let shape = ChannelShape::new(self.protocol.transport(), self.ranks, slots);
        let shape = shape.credits(false);
        let shape = if self.dtype.survives_packets() { shape.float_words() } else { shape };
        match self.protocol {
            Protocol::Flags | Protocol::Bulk => shape
                .banks(1)
                .named("row", "inbox")
                .named("scales", "inbox_scale")
                .named("arrived", "row_flag"),
            Protocol::Packets => shape.named("row", "inbox_packets").named("scales", "scale_packets"),
        }
    }

    /// Whether the scales come out with the rows.
    pub fn keeps_scales(&self) -> bool {
        self.scales() > 0 && self.hook == Hook::None
    }

    /// Whether rows are where they belong when they arrive: no block reads them, and each has one place, which its sender
    /// knows. `inbox` and `inbox_scale` are what comes out then.
    pub fn in_place(&self) -> bool {
        self.layout == Layout::RankMajor && self.protocol != Protocol::Packets && self.hook == Hook::None
    }

    /// Whether scales are where they belong when they arrive, too.
    pub fn scales_in_place(&self) -> bool {
        self.in_place() && self.scale_layout == ScaleLayout::Row
    }

    /// How groups divide rows. A flag is for a row and one group's; a packet is a group's for itself.
    pub(super) fn pieces(&self) -> Pieces {
        let row = self.row();
        let shared = self.protocol == Protocol::Packets;
        Pieces { row, len: piece_len(row, self.group_warps, self.vectors, self.moved().bytes()), shared }
    }

    /// Blocks that write down which rows the experts have, where rows stand by token: one if it counts them.
    pub fn index_blocks(&self) -> u32 {
        match self.receivers_count() {
            _ if self.layout.by_expert() => 0,
            true => 1,
            false => self.note_blocks(),
        }
    }

    /// Blocks that write down which weights entries have, and by token which experts, if those of the index or those that receive
    /// don't.
    pub fn entry_blocks(&self) -> u32 {
        if self.receivers_count() { self.note_blocks() } else { 0 }
    }

    /// Whether records come with flags, and not as LL elements.
    pub(super) fn records_have_flags(&self) -> bool {
        self.protocol.arrival() == Protocol::Flags || self.keeps_bases_in_memory()
    }

    /// Entries of the index of rows by token.
    pub(super) fn index_entries(&self) -> u64 {
        if self.layout == Layout::RankMajor { self.entries() } else { 0 }
    }

    /// The places that there are for rows.
    pub fn room(&self) -> Room {
        self.layout.room(&self.placed_shape(), self.max_rows)
    }

    /// Whether rows begin where those of the expert before end, and all have a place.
    pub(super) fn is_packed(&self) -> bool {
        self.room().begins == Begins::Aligned(1) && !self.room().drops
    }

    /// The most rows that can come out: every entry of every rank.
    pub fn entries(&self) -> u64 {
        u64::from(self.ranks * self.tokens) * u64::from(self.topk)
    }

    /// The problem's shape, with slots for experts where a table places these.
    fn placed_shape(&self) -> MoeShape {
        self.shape().with_slots(self.expert_slots)
    }

    /// The problem's shape.
    pub fn shape(&self) -> MoeShape {
        let Dispatch { hidden, experts, topk, tokens, ranks, .. } = *self;
        let dtype = self.dtype.with_sizes(self.row_bytes, self.scale_bytes);
        MoeShape { hidden, experts, topk, tokens, ranks, dtype }
    }

    /// Blocks that notify ranks that this one is ready, where records order nothing.
    pub fn ready_blocks(&self) -> u32 {
        self.phase.senders(u32::from(self.protocol == Protocol::Packets))
    }

    /// With fewer blocks that send and that receive, so that a launch has at most so many, or as few as it can have.
    #[must_use]
    pub fn within(mut self, most: u32) -> Dispatch {
        if self.blocks() <= most {
            return self;
        }
        if self.in_place() && self.protocol == Protocol::Flags {
            // Receivers move nothing. With one warp a row, a warp waits for no other warp's stores before its next row
            // (`bench/results/moe-on-two-gpus.md`, few SMs).
            (self.group_warps, self.vectors) = (1, 4);
            self.recv_blocks = self.recv_blocks.min(2);
        }
        while self.blocks() > most && fewer([&mut self.send_blocks, &mut self.recv_blocks]) {}
        // Halving leaves up to half of them unused.
        for more in [12, 20, 24] {
            let wider = Dispatch { send_blocks: more, ..self.clone() };
            if more > self.send_blocks && wider.blocks() <= most {
                self = wider;
            }
        }
        self
    }

    pub(crate) fn blocks(&self) -> u32 {
        self.roles().iter().sum()
    }

    /// The blocks of each role of a launch: route, send, recv, index, bases, entries, ready.
    pub(super) fn roles(&self) -> [u32; 7] {
        let phase = self.phase;
        [
            phase.senders(self.route_blocks()),
            phase.senders(self.send_blocks),
            phase.receivers(self.recv_blocks),
            phase.receivers(self.index_blocks()),
            phase.receivers(u32::from(self.keeps_bases_in_memory())),
            phase.receivers(self.entry_blocks()),
            self.ready_blocks(),
        ]
    }

    /// When a launch takes its epoch. The launch before is a combine: of what it leaves nothing is an index here, unless bases are in
    /// memory.
    pub(super) fn begin(&self) -> Begin {
        let early = self.phase == Phase::Both && self.protocol == Protocol::Packets;
        if early && !self.keeps_bases_in_memory() { Begin::Early } else { Begin::InTurn }
    }

    /// Warps of a receiving group, where rows stand by token: one is enough where there is nothing to move.
    pub(super) fn receiving_warps(&self) -> u32 {
        if self.in_place() { 1 } else { self.group_warps }
    }

    /// Bytes of shared memory that a block of a launch of this phase declares at most.
    pub(super) fn shared_bytes(&self, phase: Phase, count: Count, bases: Bases) -> u64 {
        let in_memory = bases == Bases::Memory;
        let experts = self.map().experts;
        let counted = if in_memory { experts.min(COUNTED_AT_ONCE) } else { experts };
        let counts = if phase.sends() { u64::from(counted) } else { 0 };
        let groups = u64::from(self.warps / self.group_warps);
        let counted_here = self.layout.by_expert() && count == Count::Receiver;
        // What all rows come to stands behind the bases of few entries.
        let most = u64::from(self.map().at_most());
        let bases = match counted_here {
            true => most + 1,
            false if in_memory => 0,
            false => most * u64::from(self.records()),
        };
        // Three more words each: arrays are rounded up to 16 bytes.
        let group = u64::from(self.slot_entries() + 3 + self.scales_at_hand() + 3);
        let recv = if phase.receives() {
            let moved = if in_memory {
                u64::from(self.laid_out_at_once()) + 3
            } else if self.is_packed() {
                0
            } else {
                2 * (most + 1 + 3)
            };
            // The row of each entry, or else the tokens of each record.
            let rows = self.records() * if counted_here { self.record_entries() } else { 1 };
            bases + 3 + moved + u64::from(rows) + 3 + groups * group
        } else {
            0
        };
        let quantised = if self.quantises() && phase.sends() {
            groups * u64::from(quantise::shared_words(self))
        } else {
            0
        };
        4 * (counts + 3 + recv + quantised)
    }
}

impl Legal for Dispatch {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(
            self.hook != Hook::Custom,
            "hook",
            self.hook.name(),
            || "raw or expert here: a hook of one's own needs a family of one's own, see `dispatch_with`",
        )?;
        self.fits()
    }
}

impl Dispatch {
    /// Whether kernels can quantise so.
    fn quantised(&self) -> Result<(), Illegal> {
        let from = self.quantise.name();
        Illegal::unless(!self.quantises() || quantise::makes(self.dtype), "quantise", from, || {
            format!("none for {}: what kernels quantise to is {}", self.dtype, quantise::made())
        })?;
        let rounds =
            self.quantises() && self.dtype.has_powers() || self.scale_rounding == ScaleRounding::Floor;
        Illegal::unless(rounds, "scale_rounding", self.scale_rounding.name(), || {
            "floor, unless `quantise` makes rows whose scales are powers of two, such as mxfp8".to_owned()
        })?;
        Illegal::unless(!self.quantises() || self.protocol != Protocol::Bulk, "protocol", "bulk", || {
            "flags or packets, where rows are not sent as they are given".to_owned()
        })
    }

    /// Whether tables and ids are those of a whole world, where they have to be.
    fn of_one_node(&self) -> Result<(), Illegal> {
        let why = "for a node's part of a dispatch: ids are those that came from other nodes";
        Illegal::unless(!self.of_node || self.expert_slots == 0, "expert_slots", self.expert_slots, || {
            format!("0 {why}")
        })?;
        Illegal::unless(!self.of_node || !self.expert_load, "expert_load", self.expert_load, || {
            format!("false {why}")
        })?;
        Illegal::unless(!self.of_node || self.ids == IdType::I32, "ids", self.ids.name(), || {
            format!("i32 {why}")
        })
    }

    /// Whether scales can stand so.
    fn scales_stand(&self) -> Result<(), Illegal> {
        let refused = |why: &str| Err(Illegal::new("scale_layout", self.scale_layout.name(), why));
        match self.scale_layout {
            ScaleLayout::Row => Ok(()),
            _ if !self.keeps_scales() => refused("row, where no scales come out"),
            ScaleLayout::Tiles if !self.dtype.has_blocks() => refused(
                "row or column, unless rows are mxfp8, nvfp4 or mxfp4, whose scales are bytes of blocks",
            ),
            _ if self.scale_room().all_words() >> 32 != 0 => {
                refused("row, where there are places for 2^32 words of scales or more")
            }
            _ => Ok(()),
        }
    }

    /// What makes a configuration legal, except that the hook may be a custom one.
    pub fn fits(&self) -> Result<(), Illegal> {
        let sizes = (self.row_bytes, self.scale_bytes);
        let none = sizes == self.dtype.with_sizes(self.row_bytes, self.scale_bytes).sizes();
        Illegal::unless(none, "row_bytes", format!("{} and {}", sizes.0, sizes.1), || {
            format!("0, and `scale_bytes` too, for {}, whose sizes follow from `hidden`", self.dtype)
        })?;
        self.quantised()?;
        self.scales_stand()?;
        rows_of(self.shape().dtype, self.hidden, self.hook, self.protocol)?;
        topk_of(self.topk, self.experts)?;
        slots_of(self.expert_slots, self.replicas, self.ranks)?;
        self.of_one_node()?;
        groups_of(self.group_warps, self.warps)?;
        warps_of(self.warps, self.in_place())?;
        protocol_of(self.protocol, self.shape().row_bytes(), self.warps / self.group_warps)?;
        layout_of(self.layout, &self.placed_shape(), self.max_rows, self.dedup)?;
        numbers_of(self.tokens, self.token_slots(), self.ranks, self.pieces().parts())?;
        self.choices()?;
        let most = self.tokens.next_power_of_two();
        Illegal::unless(self.chunk <= most, "chunk", self.chunk, || {
            format!("at most {most}, which holds all {} tokens", self.tokens)
        })?;
        let (most, entries) = (self.entries_at_once(), self.record_entries());
        Illegal::unless(entries <= MOST_RECORD_ENTRIES, "chunk", self.chunk, || {
            format!(
                "at most {}: a record numbers {MOST_RECORD_ENTRIES} entries",
                MOST_RECORD_ENTRIES / self.topk
            )
        })?;
        Illegal::unless(!self.receivers_count() || entries <= most, "chunk", self.chunk, || {
            let most = most / self.topk;
            format!("at most {most}, so that a record's entries fit the registers of {} warps", self.warps)
        })?;
        let bytes = self.shared_bytes(self.phase, self.count(), self.bases());
        let forced = self.bases == Some(Bases::Shared) && bytes > MAX_SHARED_BYTES;
        Illegal::unless(!forced, "bases", "shared", || {
            format!("memory: a block needs {bytes} bytes of shared memory so, and has {MAX_SHARED_BYTES}")
        })?;
        let allowed = || {
            let (records, experts) = (self.records(), self.map().at_most());
            format!(
                "larger: {records} records of {experts} experts need {bytes} bytes of shared memory and a block has {MAX_SHARED_BYTES}"
            )
        };
        Illegal::unless(bytes <= MAX_SHARED_BYTES, "chunk", self.chunk, allowed)?;
        resident("recv_blocks", self.recv_blocks, self.blocks(), MAX_BLOCKS)
    }
}
