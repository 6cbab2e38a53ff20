//! Far channels: messages to ranks of other machines, by asynchronous puts through a network card.
//!
//! Four operations suffice. `FarPut` moves a contiguous message and, where its channel publishes each put, counts itself after its own
//! bytes. `FarPublish` adds to a counter behind the puts of its group: it ends a batch, and without puts it is a credit. An engine may let
//! the last put of the batch carry it, or each put its own part. `FarWait` takes from a counter what it waits for, data and credits
//! alike. `FarSettle` waits for local completion.
//!
//! A counter is one a (channel, bank, source rank). Puts of two launches are not ordered: with one counter for both banks a put of
//! the next launch could stand for a missing one of this launch. No counter is one a (rank, slot): engines have few.

use serde::{Deserialize, Serialize};

use super::{CommOp, Kernel, OpKind, Param, ParamId, ParamKind};

/// Channels that an engine has: each has a counter for each rank. What a put brings beside its bytes has 16 bits on some providers of
/// libfabric: 6 for the channel, 10 for the rank. On EFA a counter of the card is a hardware endpoint.
pub const FAR_CHANNELS: u64 = 64;

/// Ranks of all machines at most: their numbers have 10 bits beside that of the channel.
pub const FAR_RANKS: u32 = 1024;

/// Bytes that an engine moves at once: messages stand at multiples of it, and what follows one up to the next multiple is moved with it.
pub const FAR_UNIT: u32 = 16;

/// Bytes of a put at most: commands count its units with 24 bits.
pub const FAR_LONGEST: u64 = ((1 << 24) - 1) * FAR_UNIT as u64;

/// Bytes of all outboxes and inboxes at most: commands number their units with 32 bits.
pub const FAR_MEMORY: u64 = (FAR_UNIT as u64) << 32;

/// What a parameter of a far channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FarPart {
    /// Memory of this rank that puts read until they are locally complete. The kernel stores to it and does nothing else with it.
    Outbox,
    /// Memory of this rank that puts of any rank write. The kernel loads from it with the receipt of a `FarWait`.
    Inbox,
    /// `U32` counters of this rank, zero before the first launch: arrived puts add to them, and waits take what they wait for.
    Counts,
}

/// Which ranks a far operation that names none, or several, is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FarReach {
    /// Those of this rank's number on each node, instead of all.
    pub rail: bool,
    /// Not this one.
    pub others: bool,
}

impl FarReach {
    /// Of a kernel: from one rank to the next, and how many there are, this one too.
    pub fn of(self, kernel: &Kernel) -> (u32, u32) {
        if self.rail { (kernel.ranks, kernel.nodes) } else { (1, kernel.all_ranks()) }
    }

    /// In words that follow "to".
    pub fn words(self) -> &'static str {
        match (self.rail, self.others) {
            (false, false) => "all ranks",
            (false, true) => "all other ranks",
            (true, false) => "all ranks of the rail",
            (true, true) => "all other ranks of the rail",
        }
    }
}

impl FarPart {
    /// Every part.
    pub const ALL: [FarPart; 3] = [FarPart::Outbox, FarPart::Inbox, FarPart::Counts];

    /// What such a parameter is to signatures, in one word, and with its article.
    pub(super) const fn words(self) -> [&'static str; 3] {
        match self {
            FarPart::Outbox => ["FarOutbox", "far outbox", "a far outbox"],
            FarPart::Inbox => ["FarInbox", "far inbox", "a far inbox"],
            FarPart::Counts => ["FarCounts", "far counts", "an array of far counters"],
        }
    }

    /// What a host program allocates for it is called, in capitals.
    pub const fn constant(self) -> &'static str {
        match self {
            FarPart::Outbox => "FAR_OUTBOX",
            FarPart::Inbox => "FAR_INBOX",
            FarPart::Counts => "FAR_COUNTS",
        }
    }

    /// The operations that such a parameter has.
    pub const fn purpose(self) -> &'static str {
        match self {
            FarPart::Outbox => "store to it, put from it with `far_put`, and settle it",
            FarPart::Inbox => "load from it with the receipt of a `far_wait`",
            FarPart::Counts => "`far_put` and `far_publish` add to it, and `far_wait` takes from it",
        }
    }
}

impl ParamKind {
    /// The part of a far channel that it is, if it is one.
    pub const fn far(self) -> Option<FarPart> {
        if let ParamKind::Far(part) = self { Some(part) } else { None }
    }
}

impl Kernel {
    /// The name of the first far channel of a kernel, if it has one: that of its inbox.
    pub fn far_channel(&self) -> Option<&str> {
        let named = |part| self.params.iter().find(|p| p.kind == ParamKind::Far(part));
        let [inbox, counts, outbox] = [FarPart::Inbox, FarPart::Counts, FarPart::Outbox].map(named);
        inbox.or(counts).or(outbox).map(|p| p.name.as_str())
    }

    /// The engine's channel that the first counters of an array are of, among the kernel's: a bank of counters, one for each rank, is one.
    pub fn first_far_channel(&self, counts: ParamId) -> u64 {
        let before =
            self.params[..counts.index()].iter().filter(|p| p.kind == ParamKind::Far(FarPart::Counts));
        before.map(|p| self.channels_of(p)).sum()
    }

    /// Channels that an engine has to have for a kernel.
    pub fn far_channels(&self) -> u64 {
        self.params.iter().map(|p| self.channels_of(p)).sum()
    }

    pub(super) fn channels_of(&self, param: &Param) -> u64 {
        if param.kind != ParamKind::Far(FarPart::Counts) {
            return 0;
        }
        param.len.div_ceil(self.all_ranks().max(1).into())
    }

    /// Whether something is put that belongs to an array of counters: without puts they count credits.
    pub fn far_is_put(&self, counts: ParamId) -> bool {
        self.ops
            .iter()
            .any(|op| matches!(&op.kind, OpKind::Comm(CommOp::FarPut(put)) if put.counts == counts))
    }

    /// Whether puts to an array of counters count themselves.
    pub fn far_counts_each(&self, counts: ParamId) -> bool {
        let mut puts = self.ops.iter().filter_map(|op| match &op.kind {
            OpKind::Comm(CommOp::FarPut(put)) => Some(put),
            OpKind::Comm(_)
            | OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Control(_) => None,
        });
        puts.any(|put| put.counts == counts && put.counted)
    }
}
