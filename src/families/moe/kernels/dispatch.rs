//! Dispatch: every token to the ranks that own its experts.

use peerwarp_codegen::dsl::prelude::*;

use super::bases_in_memory::{BaseArgs, lay_out_in_memory};
use super::config::{COUNTED_AT_ONCE, Dispatch};
use super::deliver::{deliver, scales_at_hand};
use super::device::local_experts;
use super::expert_major::Rows;
use super::hook::{RowHook, stand_in_expert};
use super::inbox::{InboxArgs, Received};
use super::layout::Places;
use super::pieces::each_piece;
use super::plan::{Schedule, Then};
use super::protocol::Protocol;
use super::rank_major::{index, note_entries};
use super::roles::{go_on, role_of, take};
use super::send::send;
use super::wire::{FlagRecordArgs, ReadyArgs, Record, RecordArgs, RecordInParts, Records, notify_ready};

/// The word of an entry that goes nowhere: no expert has this number in its lower bank.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The tokens of a rank, and where they go.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct TokenArgs {
    /// Tokens to send, `[token][row]`. Of rows that are there, those that `n` leaves out are loaded at times, no more; so are
    /// their scales, ids and weights.
    #[input]
    #[len(|c| u64::from(c.tokens) * u64::from(c.given_row()))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.given())]
    pub x: AnyPtr,
    /// Scales of the tokens, `[token][scale]`, unless they are worked out here.
    #[input]
    #[len(|c| if c.quantises() { 0 } else { u64::from(c.tokens) * u64::from(c.scales()) })]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.scale())]
    pub x_scale: Option<AnyPtr>,
    /// How many tokens there are: at most as many as rows; of more than these, these.
    #[input]
    pub n: Ptr<u32>,
    /// Rows that there are of tokens, with scales, ids and weights: nothing beyond them is touched.
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
    /// Work counter of the slots to send, under dynamic scheduling.
    #[len(|c| u64::from(c.schedule() == Schedule::Dynamic))]
    pub next_slot: Option<Counters>,
}

/// Parameters of [`dispatch`].
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct DispatchArgs {
    /// What is sent.
    #[group]
    #[input]
    pub tokens: TokenArgs,

    /// Out, unless rows arrive in their places: rows received, by expert, source, token and k; or `[source][token][row]`.
    #[len(|c| if c.in_place() { 0 } else { c.room().places * u64::from(c.row()) })]
    #[dtype(|c| c.received())]
    pub rows: Option<AnyPtr>,
    /// Out: their scales.
    #[len(|c| if c.keeps_scales() && !c.in_place() { c.room().places * u64::from(c.scales()) } else { 0 })]
    #[dtype(|c| c.scale())]
    pub row_scale: Option<AnyPtr>,
    /// Out: first row of each of this rank's experts, and after the last one the number of rows.
    #[len(|c| u64::from(c.map().at_most()) + 1)]
    pub expert_start: Ptr<u32>,
    /// Out: rows of each of this rank's experts.
    #[len(|c| u64::from(c.map().at_most()))]
    pub expert_rows: Ptr<u32>,
    /// Out, for rows by token: which rows are whose experts', by expert, source, token and k. A row's number is
    /// source * the most tokens + token.
    #[len(|c| c.index_entries())]
    pub gather: Option<Ptr<u32>>,
    /// Out, for rows by token, and for combine: the expert that each entry goes to if it is this rank's, `[source][token][k]`;
    /// `nobody` for one that is not here, also of tokens that are not there.
    #[len(|c| c.index_entries())]
    pub entry_expert: Option<Ptr<i32>>,
    /// What `entry_expert` says where an entry is not here: no expert, such as -1 or the number of experts.
    pub nobody: Val<i32>,
    /// Out, for combine: tokens of each source.
    #[len(|c| u64::from(c.ranks))]
    pub n_from: Ptr<u32>,
    /// Out, for rows by expert of which there may be more than places: how many rows have none. They are not stored, and contribute
    /// nothing to what combine yields.
    #[len(|c| u64::from(c.room().drops))]
    pub overflow: Option<Ptr<u32>>,
    /// Out with it: the `max_rows` with which all would have had one.
    #[len(|c| u64::from(c.room().drops))]
    pub needed: Option<Ptr<u32>>,
    /// Out, for combine, for rows by expert: the row of each entry, `[source][token][k]`, -1 for one that is not here, -2 for one
    /// that has no place.
    #[len(|c| if c.layout.by_expert() { c.entries() } else { 0 })]
    pub pos: Option<Ptr<i32>>,
    /// Out, for whoever sums a token's rows at its owner: weights of the entries, `[source][token][k]`.
    #[len(|c| if c.dedup { c.entries() } else { 0 })]
    pub weight_from: Option<Ptr<f32>>,

    /// Where rows arrive.
    #[group]
    pub inbox: InboxArgs,
    /// Records, whichever way they come.
    #[group]
    pub records: RecordArgs,
    /// Bases in memory.
    #[group]
    pub bases: BaseArgs,
    /// Which ranks are ready for the next packets.
    #[group]
    pub ready: ReadyArgs,
    /// Work counters of rows that are received, where blocks that have sent do that as well.
    #[len(|c| 2 * u64::from(c.after_send() == Then::Receive))]
    pub next_row: Option<Counters>,
    /// Counts dispatches.
    pub epoch: EpochWord,
}

/// Brings every token to the ranks that own its experts.
///
/// One round is this dispatch, the experts' work on `rows`, and the combine that belongs to it. Every rank
/// launches round after round in this order in one stream (or in streams that keep this order), ranks without
/// tokens too, with n = 0: everybody waits for everybody's routing. A dispatch without the combine of the
/// round before would overwrite rows that are still being read.
///
/// After it, with `experts` in the variant's name, the rows of this rank's e-th expert are `expert_rows[e]` rows from row
/// `expert_start[e]` on. With `tokens` there, row `source * T + token`, where T is the most tokens of a rank, is what came of
/// that token, if it has an expert here; the rows of the e-th expert are those whose numbers are `expert_rows[e]` elements of
/// `gather` from element `expert_start[e]` on. Expert ids are global; a rank's experts are contiguous. Pass `n`, `ids`,
/// `weights`, `n_from`, and `pos` and `weight_from` or else `entry_expert` on to combine, and change none of them before it is
/// done. Where there is no `rows`, rows are this rank's own `inbox`, and their scales its `inbox_scale`. Where `x` and `rows` are
/// words, a word is four bytes of a row in the dtype that the variant's name tells.
///
/// All ranks use the same variant. A variant with `send` in its name is the first half of this, to be
/// followed by the one with `recv`, on the same buffers.
#[kernel]
pub fn dispatch(c: &Dispatch, a: &DispatchArgs) {
    dispatch_with(c, a, &stand_in_expert);
}

/// [`dispatch`] with a hook of one's own, for configurations whose [`Hook`](super::Hook) is not [`Hook::None`](super::Hook::None).
#[kernel]
pub fn dispatch_with(c: &Dispatch, a: &DispatchArgs, hook: RowHook<'_>) {
    let epoch = take(&a.epoch, c.phase, c.begin());
    // Records exist twice: this launch uses the bank that starts here.
    let bank = epoch.parity() * c.records();
    let [routing, sending, receiving, indexing, bases, entries, ready] = c.roles();
    role_of("route", routing, |b| {
        if c.receivers_count() {
            b.split(1, |g| tell(c, a, g, epoch, bank));
        } else {
            route(c, a, b, epoch, bank);
        }
        go_on(&b, c.after_route());
    });
    role_of("send", sending, |b| {
        b.split(c.group_warps, |g| send(c, &a.tokens, &a.inbox, g, epoch));
        go_on(&b, c.after_send());
    });
    let receive_rows = || {
        role_of("recv", receiving, |b| {
            if c.layout.by_expert() {
                receive(c, a, b, epoch, bank, hook);
            } else {
                receive_by_token(c, a, b, epoch, bank, hook);
            }
        });
    };
    let index_rows = || {
        role_of("index", indexing, |b| {
            index(c, a, b, epoch, bank);
            go_on(&b, c.after_index());
        });
    };
    // Blocks that look for rows begin first, but a role is declared before the one that its blocks go on as.
    if c.after_index() == Then::Receive {
        index_rows();
        receive_rows();
    } else {
        receive_rows();
        index_rows();
    }
    role_of("bases", bases, |b| lay_out_in_memory(c, a, b, epoch, bank));
    role_of("entries", entries, |b| b.split(1, |g| note_entries(c, a, g, epoch, bank)));
    role_of("ready", ready, |_| notify_ready(&a.ready, c.ranks, epoch));
}

/// How many tokens this rank sends.
#[kernel]
pub(super) fn tokens(c: &Dispatch, a: &TokenArgs) -> Val<u32> {
    let given = a.n.get(0);
    let there = rows_there(c, a);
    given.min(there)
}

/// How many rows of tokens there are: what is loaded before `n` is known ends there.
pub(super) fn rows_there(c: &Dispatch, a: &TokenArgs) -> Val<u32> {
    a.rows_there.min(c.tokens)
}

/// Tells every rank where the entries of each chunk of tokens go, and what they weigh. Empty chunks too: everybody waits for
/// all records. A group has a chunk and a rank, so that no rank waits for what others are told.
#[kernel]
fn tell(c: &Dispatch, a: &DispatchArgs, g: Group, epoch: Epoch, bank: Val<u32>) {
    for i in g.strided(c.records()) {
        let to = (i + rank()) % c.ranks;
        let chunk = i / c.ranks;
        let entries = Chunk::load(c, a, chunk * c.record_entries(), c.record_entries());
        let words = entries.valid.select(entries.expert, NOWHERE);
        let number = bank + rank() * c.chunks() + chunk;
        Record { number, n: entries.n, count: None, words, weights: entries.weights }.send(
            c,
            &a.records,
            Peers::rank(to),
            epoch,
        );
    }
}

/// Entries of this rank's tokens that follow one another: a chunk's, or a part of them.
struct Chunk {
    /// Tokens of the rank.
    n: Val<u32>,
    /// Expert of each entry.
    expert: Tile<u32>,
    /// Which of them are entries: those of tokens that there are, for an expert that there is.
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
        let id = a.tokens.ids.load(first.only(arange(len) < there), len);
        let loaded = c.dedup.then(|| a.tokens.weights.load(first.only(arange(len) < there), len));
        let expert = id.cast::<u32>();
        let entries = n * c.topk;
        let used = entries - first.min(entries);
        let counted = i < used;
        let valid = counted & (expert < c.experts);
        let weights = loaded.map(|weights| counted.select(weights, 0.0));
        Chunk { n, expert, valid, weights }
    }
}

/// The same with the count of each expert's entries, and each entry's rank among those of its expert.
#[kernel]
fn route(c: &Dispatch, a: &DispatchArgs, b: Group, epoch: Epoch, bank: Val<u32>) {
    if let (RecordArgs::Flags(records), true) = (&a.records, c.keeps_bases_in_memory()) {
        return route_by_experts(c, a, records, b, epoch, bank);
    }
    let count = shared::<u32>("count", c.experts);
    if c.record_entries() > c.entries_at_once() {
        route_in_parts(c, a, b, epoch, bank, count);
    } else {
        route_at_once(c, a, b, epoch, bank, count);
    }
}

/// Records of more entries than a block has at once: it counts and sends one part after the other.
#[kernel]
fn route_in_parts(
    c: &Dispatch,
    a: &DispatchArgs,
    b: Group,
    epoch: Epoch,
    bank: Val<u32>,
    count: Shared<u32>,
) {
    for i in b.strided(c.chunks()) {
        count.store(0, splat(0u32, c.experts));
        let number = bank + rank() * c.chunks() + i;
        let mut record = RecordInParts::new(c, &a.records, Peers::all(), number);
        each_piece(c.record_entries(), c.entries_at_once(), |start, len| {
            let chunk = Chunk::load(c, a, i * c.record_entries() + start, len);
            let before = count.tally(chunk.expert, chunk.valid);
            let words = chunk.valid.select((before << 16) | chunk.expert, NOWHERE);
            record.put(start, words, chunk.weights, epoch);
        });
        record.send(tokens(c, &a.tokens), &count, epoch);
    }
}

/// Records of so many experts that a block counts entries for some of them at once: it goes through a record's entries for each part
/// of the experts, and sends those that go to one of them.
#[kernel]
fn route_by_experts(
    c: &Dispatch,
    a: &DispatchArgs,
    records: &FlagRecordArgs,
    b: Group,
    epoch: Epoch,
    bank: Val<u32>,
) {
    let (counted, entries) = (c.experts.min(COUNTED_AT_ONCE), c.record_entries().min(c.entries_at_once()));
    let count = shared::<u32>("count", counted);
    for i in b.strided(c.chunks()) {
        let number = bank + rank() * c.chunks() + i;
        let mut record = send_to(Peers::all());
        each_piece(c.experts, counted, |first, experts| {
            count.store(0, splat(0u32, experts));
            each_piece(c.record_entries(), entries, |start, len| {
                let chunk = Chunk::load(c, a, i * c.record_entries() + start, len);
                let local = chunk.expert - first;
                let counted = chunk.valid & (local < experts);
                let before = count.tally(local, counted);
                let words = chunk.valid.select((before << 16) | chunk.expert, NOWHERE);
                // What goes nowhere is sent with the first part.
                let sent = counted | (!chunk.valid & first.eq_to(0).splat(len));
                let to = (number * c.record_entries() + start).only(sent);
                record.put(&records.rec_route, to, words);
                if let (Some(weight), Some(weights)) = (records.rec_weight, chunk.weights) {
                    record.put(&weight, to, weights);
                }
            });
            record.put(&records.rec_count, number * c.experts + first, count.load(0, experts));
        });
        record.put_value(&records.rec_n, number, tokens(c, &a.tokens));
        record.signal(&records.rec_flag, number, epoch);
    }
}

/// Records whose entries a block has at once.
#[kernel]
fn route_at_once(c: &Dispatch, a: &DispatchArgs, b: Group, epoch: Epoch, bank: Val<u32>, count: Shared<u32>) {
    for i in b.strided(c.chunks()) {
        count.store(0, splat(0u32, c.experts));
        let chunk = Chunk::load(c, a, i * c.record_entries(), c.record_entries());
        let before = count.tally(chunk.expert, chunk.valid);
        let words = chunk.valid.select((before << 16) | chunk.expert, NOWHERE);
        let number = bank + rank() * c.chunks() + i;
        let weights = chunk.weights;
        Record { number, n: chunk.n, count: Some(count), words, weights }.send(
            c,
            &a.records,
            Peers::all(),
            epoch,
        );
    }
}

/// Writes down where every row belongs, and puts it there when it arrives.
#[kernel]
fn receive<'a>(
    c: &'a Dispatch,
    a: &'a DispatchArgs,
    b: Group,
    epoch: Epoch,
    bank: Val<u32>,
    hook: RowHook<'_>,
) {
    let records = Records::receive(c, &a.records, epoch, bank);
    let rows_of = Rows::new(c, a, b, &records, epoch);
    let pieces = c.pieces();

    b.split(c.group_warps, |g| {
        rows_of.note(c, a, g);
        let rows = shared::<i32>("rows", c.slot_entries());
        let scales = scales_at_hand(c);
        let put = |source: Val<u32>, slot: Val<u32>, received: &dyn Fn() -> Received<'a>| {
            rows_of.find(c, (source, slot), &rows, || {
                deliver(c, a, &Places::All(rows), &received(), scales, hook);
            });
        };
        if c.keeps_own() {
            // What others send is on its way meanwhile.
            for i in g.dynamic(c.slots() * pieces.parts(), a.next_row.map(|next| next.counter(1))) {
                let (slot, part) = pieces.part(i);
                let given = || Received::given(c, &a.tokens, slot / c.token_slots(), part);
                put(rank(), slot, &given);
            }
        }
        for i in
            g.dynamic(c.slots() * c.destinations() * pieces.parts(), a.next_row.map(|next| next.counter(0)))
        {
            let (message, part) = pieces.part(i);
            let (source, slot) = arriving(c, message);
            put(source, slot, &|| Received::wait(c, &a.inbox, source, slot, part, epoch));
        }
    });
}

/// The source and the slot of the n-th message to look for, in the order in which they are sent: all sources' first slots, then their
/// second ones.
#[kernel]
pub(super) fn arriving(c: &Dispatch, message: Val<u32>) -> (Val<u32>, Val<u32>) {
    let others = c.destinations();
    let source = if c.keeps_own() { (rank() + 1 + message % others) % c.ranks } else { message % c.ranks };
    let slot = message / others;
    (source, slot)
}

/// Puts every row that arrives in its source's and token's place, if it is not there already. That it comes is said by the
/// words of its own entries: what is known of other tokens only later, nobody here waits for.
#[kernel]
fn receive_by_token(
    c: &Dispatch,
    a: &DispatchArgs,
    b: Group,
    epoch: Epoch,
    bank: Val<u32>,
    hook: RowHook<'_>,
) {
    let records = Records::receive(c, &a.records, epoch, bank);
    // Records that came with flags are all here.
    let most = match c.protocol {
        Protocol::Flags | Protocol::Bulk => records.n(arange(c.records())).max(),
        Protocol::Packets => c.tokens.val(),
    };
    let pieces = c.pieces();
    b.split(c.receiving_warps(), |g| {
        let scales = scales_at_hand(c);
        for i in g.strided(most * (c.ranks * pieces.parts())) {
            let (message, part) = pieces.part(i);
            let (source, token) = arriving(c, message);
            let chunk = token / c.chunk;
            let in_record = token * c.topk - chunk * c.record_entries();
            let word = records.words(source * c.chunks() + chunk, in_record, c.topk);
            let (_, mine) = local_experts(c.map(), word & 0xffff);
            if mine.any() {
                let received = Received::wait(c, &a.inbox, source, token, part, epoch);
                if !c.in_place() {
                    let place = source * c.tokens + token;
                    deliver(c, a, &Places::One(place), &received, scales, hook);
                }
            }
        }
    });
}
