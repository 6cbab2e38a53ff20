//! What a launch may do in one way or another: the values of the fields that rules choose, and the rules of dispatch.

use peerwarp_codegen::family::{Choice, Illegal};

use super::config::{Dispatch, MAX_A_LANE};
use super::entries::entry_pieces;
use super::limits::MAX_SHARED_BYTES;
use super::protocol::{Phase, Protocol};
use super::travel::Travel;

/// Who counts the entries of a record.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Count {
    /// The block that sends it.
    Sender,
    /// Every block that receives it. The record leaves as soon as its ids are there.
    Receiver,
}

/// Where rows of a rank's own are that it sends to itself.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Own {
    /// They travel as other ranks' rows do.
    Moved,
    /// They stay where they are, and the receiving role reads them there.
    InPlace,
}

/// Which ranks a group sends a part of a row to.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Copies {
    /// All that the row goes to, one after the other.
    Together,
    /// One: each rank's copy is another group's work.
    Apart,
}

/// How work is divided among groups.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Schedule {
    /// Each group has every n-th piece of work.
    Strided,
    /// Each group draws the next piece when it is done with the last.
    Dynamic,
}

/// What a block does when its role is done.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Then {
    /// It leaves.
    Leave,
    /// It goes on as a block that sends rows.
    Send,
    /// It goes on as a block that receives rows.
    Receive,
}

/// Who counts entries where receivers do and rows stand by token.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Index {
    /// One warp, which waits for no other.
    Warp,
    /// A block, a record for each warp.
    Block,
}

/// Where the bases of rows are: the first row of each (expert, source, record).
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Bases {
    /// In shared memory. Each block that needs them computes them.
    Shared,
    /// In this rank's memory. One block computes them, and signals the others.
    Memory,
}

/// When a launch takes its epoch.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Begin {
    /// When the launch before is over.
    InTurn,
    /// While the launch before may still run. What it finds of that launch may be anything, if that launch has given up.
    Early,
}

/// What groups divide among them.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Share {
    /// Rows: all pieces of a row are one group's.
    Rows,
    /// Pieces of rows.
    Pieces,
}

/// Most entries of all ranks for which receivers count by expert: up to this number a block counts faster than it adds up its senders'
/// counts (`bench/results/moe-on-two-gpus.md`, choices).
const FEW_BY_EXPERT: u32 = 512;

/// Entries of all ranks that one warp counts sooner than a block, whose warps would meet several times.
const FEW_ENTRIES: u32 = 256;

/// Most entries of all ranks that a warp counts at once.
const MOST_OF_A_WARP: u32 = 32 * MAX_A_LANE;

/// Whether rows that go with flags are scheduled dynamically, and not dealt to groups: it comes back only where each has several, as not all
/// groups are equally fast.
pub(super) fn worth_dynamic_scheduling(protocol: Protocol, numbers: u32, groups: u32) -> bool {
    protocol != Protocol::Packets && numbers >= 4 * groups
}

/// The rules.
impl Dispatch {
    /// Receivers count packets by token, where no other role waits for the counts, and few packets by expert. Many entries, as in
    /// prefill, have many senders that count them.
    pub(super) fn count_rule(&self) -> Count {
        let few = self.entries_of_records() <= FEW_BY_EXPERT;
        let receiver = self.protocol == Protocol::Packets && (few || !self.layout.by_expert());
        let fits = self.bases != Some(Bases::Memory) && self.fits_shared(Count::Receiver);
        if receiver && fits { Count::Receiver } else { Count::Sender }
    }

    /// In shared memory, if it holds them in every launch of the operation.
    pub(super) fn bases_rule(&self) -> Bases {
        if self.fits_shared(self.count()) { Bases::Shared } else { Bases::Memory }
    }

    /// Whether shared memory holds the bases, and the counts of all experts, in the launches that an operation of this phase has.
    fn fits_shared(&self, count: Count) -> bool {
        let both = [self.phase];
        let phases = if self.phase == Phase::Both { &both[..] } else { &[Phase::Send, Phase::Recv] };
        phases.iter().all(|phase| self.shared_bytes(*phase, count, Bases::Shared) <= MAX_SHARED_BYTES)
    }

    /// In place, as far as the layout copies rows anyway. Few rows as packets are in the inbox before their places are known, so that a
    /// load from the input would only be later (`bench/results/moe-on-two-gpus.md`, choices).
    pub(super) fn own_rule(&self) -> Own {
        let many_packets = self.ranks == 2 && self.tokens > 128 && self.copies() == Copies::Together;
        let pays = self.protocol != Protocol::Packets || many_packets;
        if pays && self.may_keep_own() { Own::InPlace } else { Own::Moved }
    }

    /// Apart while a group has two copies at most: then waiting is what takes time. Rows that have not come from another node are not loaded.
    pub(super) fn copies_rule(&self) -> Copies {
        let parts = self.slots() * self.pieces().parts() * self.ranks;
        let few = parts <= 2 * self.send_blocks * self.groups_a_block();
        if self.protocol == Protocol::Packets && few && !self.of_node {
            Copies::Apart
        } else {
            Copies::Together
        }
    }

    /// With each number drawn the warps of a group wait for the one that releases the row before, where they had been ahead of it. That
    /// pays if a row goes to many ranks, or if so many groups send that the link is what they wait for.
    pub(super) fn schedule_rule(&self) -> Schedule {
        let joining = if self.few_send() { self.route_blocks() } else { 0 };
        let groups = (self.send_blocks + joining) * self.groups_a_block();
        let copies = self.ranks.min(self.slot_entries());
        let pays = worth_dynamic_scheduling(self.protocol, self.slots(), groups);
        if pays && (copies >= 4 || groups >= 512) { Schedule::Dynamic } else { Schedule::Strided }
    }

    /// Blocks that have told the ranks where rows go help few that send, where groups draw rows.
    pub(super) fn after_route_rule(&self) -> Then {
        let helps = self.few_send() && self.schedule() == Schedule::Dynamic;
        if helps { Then::Send } else { Then::Leave }
    }

    /// By expert a row is stored several times, and who does that is not done when the link is, unless it has rows for many ranks to
    /// bring. Blocks go on once.
    pub(super) fn after_send_rule(&self) -> Then {
        let groups = (self.send_blocks + self.recv_blocks) * self.groups_a_block();
        let many = worth_dynamic_scheduling(self.protocol, self.slots() * self.ranks, groups);
        let helps = self.keeps_own() && self.ranks == 2 && many && self.after_route() == Then::Leave;
        if helps { Then::Receive } else { Then::Leave }
    }

    /// Blocks of the index help to receive where few send.
    pub(super) fn after_index_rule(&self) -> Then {
        if self.few_send() && !self.layout.by_expert() { Then::Receive } else { Then::Leave }
    }

    /// One warp for few entries.
    pub(super) fn index_rule(&self) -> Index {
        if self.entries_of_records() <= FEW_ENTRIES { Index::Warp } else { Index::Block }
    }

    /// A warp for each rank and record, where no counts are made; else a block for each record.
    pub(super) fn route_blocks_rule(&self) -> u32 {
        if self.receivers_count() { self.records().div_ceil(self.warps) } else { self.chunks() }.min(8)
    }

    /// A warp for each part of a record, in fewer blocks where few send.
    pub(super) fn note_blocks_rule(&self) -> u32 {
        let most = if self.few_send() { (self.send_blocks / 6).max(1) } else { 8 };
        (self.records() * entry_pieces(self).parts() + 1).div_ceil(self.warps).min(most)
    }

    /// Whether rows go with flags and so few blocks send them that the others are missed when they are done with their own. Where
    /// many do, one kernel for all of it would have more registers than a thread of 32 warps has.
    fn few_send(&self) -> bool {
        !self.receivers_count() && self.send_blocks < 32
    }

    /// Whether a rank's own rows can stay where they are: receivers copy rows by expert, in the same launch and as they are given.
    fn may_keep_own(&self) -> bool {
        self.layout.by_expert() && self.phase == Phase::Both && !self.quantises()
    }

    fn entries_of_records(&self) -> u32 {
        self.records() * self.record_entries()
    }

    fn groups_a_block(&self) -> u32 {
        self.warps / self.group_warps
    }
}

/// What choices mean for the kernel.
impl Dispatch {
    /// Whether receivers count the entries of records.
    pub fn receivers_count(&self) -> bool {
        self.count() == Count::Receiver
    }

    /// Whether bases are in this rank's memory.
    pub(super) fn keeps_bases_in_memory(&self) -> bool {
        self.bases() == Bases::Memory
    }

    /// Whether a rank's own rows go from the input to their places, and not through its inbox.
    pub(super) fn keeps_own(&self) -> bool {
        self.own() == Own::InPlace
    }

    /// The ranks that rows travel to and from.
    pub(super) fn travel(&self) -> Box<dyn Travel> {
        self.own().travel(self.ranks)
    }

    /// Ranks that rows are sent to.
    pub(super) fn destinations(&self) -> u32 {
        self.ranks - u32::from(self.keeps_own())
    }

    /// Whether choices go together.
    pub(super) fn choices(&self) -> Result<(), Illegal> {
        let packets = self.protocol == Protocol::Packets;
        let entries = self.entries_of_records();
        let most = if self.layout.by_expert() { self.entries_at_once() } else { u32::MAX };
        let receiver = self.receivers_count();
        Illegal::unless(!receiver || (packets && entries <= most), "count", "receiver", || {
            if packets {
                format!("sender, where ranks have {entries} entries and a block counts {most} at once")
            } else {
                "sender, where records come with flags".to_owned()
            }
        })?;
        let in_memory = self.keeps_bases_in_memory();
        Illegal::unless(!receiver || !in_memory, "count", "receiver", || {
            "sender, where bases are in memory".to_owned()
        })?;
        let apart = self.copies() == Copies::Apart;
        Illegal::unless(!apart || packets, "copies", "apart", || "together, where rows go with flags")?;
        let of_node =
            "together, where rows come from other nodes: one that stays out is not there to be loaded";
        Illegal::unless(!apart || !self.of_node, "copies", "apart", || of_node)?;
        Illegal::unless(
            !self.keeps_own() || (self.may_keep_own() && !apart),
            "own",
            "in-place",
            || "moved, unless rows stand by expert, travel in one launch as they are given, and `copies` is together",
        )?;
        let dynamic = self.schedule() == Schedule::Dynamic;
        Illegal::unless(!dynamic || !packets, "schedule", "dynamic", || "strided, where rows go as packets")?;
        let sends_then = self.after_route() == Then::Send;
        Illegal::unless(
            !sends_then || (!receiver && dynamic),
            "after_route",
            "send",
            || "leave, unless senders count records and `schedule` is dynamic",
        )?;
        let receives_then = self.after_send() == Then::Receive;
        let legal = self.layout.by_expert() && self.phase == Phase::Both && !packets && !sends_then;
        Illegal::unless(
            !receives_then || legal,
            "after_send",
            "receive",
            || "leave, unless rows stand by expert, go with flags in one launch, and `after_route` is leave",
        )?;
        let helps = self.after_index() == Then::Receive;
        Illegal::unless(
            !helps || !self.layout.by_expert(),
            "after_index",
            "receive",
            || "leave, where rows stand by expert: there is no index",
        )?;
        let warp = self.index() == Index::Warp;
        Illegal::unless(!warp || entries <= MOST_OF_A_WARP, "index", "warp", || {
            format!("block, where ranks have {entries} entries and a warp counts {MOST_OF_A_WARP} at once")
        })
    }
}
