//! The records of a rank: where the entries of each chunk of its tokens go, and what they weigh.

use peerwarp_codegen::dsl::prelude::*;

use super::config::{COUNTED_AT_ONCE, Dispatch};
use super::dispatch::{DispatchArgs, Launch, rows_there, tokens};
use super::ids::{Ids, count_entries};
use super::pieces::each_piece;
use super::plan::{Bases, Count};
use super::wire::{Entries, FlagRecordArgs, RecordArgs};

/// The word of an entry that goes nowhere: no expert has this number in its lower half.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Sends every rank a record of each chunk of tokens, of empty ones too: ranks wait for all records.
pub(super) fn route(l: Launch<'_>, b: Group) {
    let c = l.c;
    let in_parts = c.record_entries() > c.entries_at_once();
    match (c.count(), c.bases(), &l.a.records, in_parts) {
        (Count::Receiver, ..) => b.split(1, |g| uncounted(l, g)),
        (Count::Sender, Bases::Memory, RecordArgs::Flags(records), _) => by_experts(l, records, b),
        (Count::Sender, _, _, true) => parts(l, b),
        (Count::Sender, _, _, false) => whole(l, b),
    }
}

/// The number of a chunk's record among those of all ranks.
fn number(l: Launch<'_>, chunk: Val<u32>) -> Val<u32> {
    l.bank + rank() * l.c.chunks() + chunk
}

/// Entries of this rank's tokens that follow one another: a chunk's, or a part of them.
struct Chunk {
    /// The first one.
    first: Val<u32>,
    /// Tokens of the rank.
    n: Val<u32>,
    /// The expert that each entry names.
    expert: Tile<u32>,
    /// Where it is.
    slot: Tile<u32>,
    /// Whether each token exists.
    counted: Tile<bool>,
    /// Whether each is an entry: its token and its expert exist.
    valid: Tile<bool>,
    /// Weight of each entry, where they travel.
    weights: Option<Tile<f32>>,
}

impl Chunk {
    #[kernel]
    fn load(c: &Dispatch, a: &DispatchArgs, first: Val<u32>, len: u32) -> Chunk {
        let i = arange(len);
        let n = tokens(c, &a.tokens);
        // What `n` leaves out is loaded too, as far as there are rows: so it is on its way together with it.
        let entries_there = rows_there(c, &a.tokens) * c.topk;
        let there = entries_there - first.min(entries_there);
        let ids = Ids::given(c, &a.tokens);
        let id = ids.load(first.only(arange(len) < there), len);
        let loaded = c.dedup.then(|| a.tokens.weights.load(first.only(arange(len) < there), len));
        let expert = ids.named(id);
        let slot = ids.placed(expert, || arange(len) + first);
        let entries = n * c.topk;
        let used = entries - first.min(entries);
        let counted = i < used;
        let valid = counted & (slot < c.map().experts);
        let weights = loaded.map(|weights| counted.select(weights, 0.0));
        Chunk { first, n, expert, slot, counted, valid, weights }
    }

    /// Writes down where the entries go, if combine reads that, and counts them.
    #[kernel]
    fn note(&self, c: &Dispatch, a: &DispatchArgs) {
        if let Some(counts) = a.expert_load {
            let named = self.counted & (self.expert < c.experts);
            count_entries(counts, self.expert, named);
        }
        if let Some(routed) = a.routed {
            routed.store(self.first.only(self.counted), self.slot.cast::<i32>());
        }
    }

    /// The same where `holds` is true. Without anything to write, `holds` is not computed.
    #[kernel]
    fn note_if(&self, c: &Dispatch, a: &DispatchArgs, holds: impl FnOnce() -> Val<bool>) {
        let notes = a.expert_load.is_some() || a.routed.is_some();
        if notes {
            if holds() {
                self.note(c, a);
            }
        }
    }
}

/// Records without counts. A group has a chunk and a rank, so that no rank waits for another's record.
#[kernel]
fn uncounted(l: Launch<'_>, g: Group) {
    let c = l.c;
    for i in g.strided(c.records()) {
        let to = (i + rank()) % c.ranks;
        let chunk = i / c.ranks;
        let entries = Chunk::load(c, l.a, chunk * c.record_entries(), c.record_entries());
        let words = entries.valid.select(entries.slot, NOWHERE);
        let number = number(l, chunk);
        let mut record = l.a.records.wire().open(l, Peers::rank(to), number);
        record.words(0u32.val(), words);
        record.weights(0u32.val(), entries.weights);
        record.send(entries.n);
        entries.note_if(c, l.a, || to == rank());
    }
}

/// Records whose entries a block has at once.
#[kernel]
fn whole(l: Launch<'_>, b: Group) {
    let c = l.c;
    let experts = c.map().experts;
    let count = shared::<u32>("count", experts);
    for i in b.strided(c.chunks()) {
        count.store(0, splat(0u32, experts));
        let chunk = Chunk::load(c, l.a, i * c.record_entries(), c.record_entries());
        let before = count.tally(chunk.slot, chunk.valid);
        let words = chunk.valid.select((before << 16) | chunk.slot, NOWHERE);
        let number = number(l, i);
        let mut record = l.a.records.wire().open(l, Peers::all(), number);
        record.all(words, &count, chunk.weights);
        record.send(chunk.n);
        chunk.note(c, l.a);
    }
}

/// Records of more entries than a block has at once: it counts and sends one part after the other.
#[kernel]
fn parts(l: Launch<'_>, b: Group) {
    let c = l.c;
    let experts = c.map().experts;
    let count = shared::<u32>("count", experts);
    for i in b.strided(c.chunks()) {
        count.store(0, splat(0u32, experts));
        let number = number(l, i);
        let mut record = l.a.records.wire().open(l, Peers::all(), number);
        each_piece(c.record_entries(), c.entries_at_once(), |start, len| {
            let chunk = Chunk::load(c, l.a, i * c.record_entries() + start, len);
            let before = count.tally(chunk.slot, chunk.valid);
            let words = chunk.valid.select((before << 16) | chunk.slot, NOWHERE);
            record.words(start, words);
            record.weights(start, chunk.weights);
            chunk.note(c, l.a);
        });
        record.send_counted(tokens(c, &l.a.tokens), &count);
    }
}

/// Records of so many experts that a block counts entries for some of them at once: it goes through a record's entries for each part
/// of the experts, and sends those that go to one of them.
#[kernel]
fn by_experts(l: Launch<'_>, records: &FlagRecordArgs, b: Group) {
    let c = l.c;
    let all = c.map().experts;
    let (counted, entries) = (all.min(COUNTED_AT_ONCE), c.record_entries().min(c.entries_at_once()));
    let count = shared::<u32>("count", counted);
    for i in b.strided(c.chunks()) {
        let number = number(l, i);
        let mut record = records.record(l, Peers::all(), number);
        each_piece(all, counted, |first, experts| {
            count.store(0, splat(0u32, experts));
            each_piece(c.record_entries(), entries, |start, len| {
                let chunk = Chunk::load(c, l.a, i * c.record_entries() + start, len);
                let local = chunk.slot - first;
                let counted = chunk.valid & (local < experts);
                let before = count.tally(local, counted);
                let words = chunk.valid.select((before << 16) | chunk.slot, NOWHERE);
                // What goes nowhere is sent with the first part.
                let sent = counted | (!chunk.valid & first.eq_to(0).splat(len));
                record.put_where(Entries { start, sent, words, weights: chunk.weights });
                chunk.note_if(c, l.a, || first == 0);
            });
            record.put_counts(first, experts, &count);
        });
        record.finish(tokens(c, &l.a.tokens));
    }
}
