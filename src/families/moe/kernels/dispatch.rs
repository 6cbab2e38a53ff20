//! Dispatch: every token to the ranks that own its experts.

use peerwarp_codegen::dsl::prelude::*;

use super::bases_in_memory::{BaseArgs, lay_out_in_memory};
use super::config::Dispatch;
use super::deliver::{RowHook, stand_in_expert};
use super::entries::note_entries;
use super::expert_major;
use super::plan::{Schedule, Then};
use super::rank_major;
use super::roles::{go_on, role_of, take};
use super::route::route;
use super::send::Sender;
use super::wire::{InboxArgs, ReadyArgs, RecordArgs, Records, notify_ready};

/// The tokens of a rank, and where they go.
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub struct TokenArgs {
    /// Tokens to send, `[token][row]`. Rows past `n` may be read, and their scales, ids and weights; they are never sent.
    #[input]
    #[len(|c| u64::from(c.tokens) * u64::from(c.given_row()))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.given())]
    pub x: AnyPtr,
    /// Scales of the tokens, `[token][scale]`.
    #[input]
    #[len(|c| if c.quantises() { 0 } else { u64::from(c.tokens) * u64::from(c.scales()) })]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.scale())]
    pub x_scale: Option<AnyPtr>,
    /// The scale of all rows, where they are quantised to nvfp4: a block's scale is over it.
    #[input]
    #[len(|c| u64::from(c.has_tensor_scale()))]
    pub tensor_scale: Option<Ptr<f32>>,
    /// Token count, clamped to `rows_there`.
    #[input]
    pub n: Ptr<u32>,
    /// Rows of the buffers of tokens, scales, ids and weights. Memory beyond them is never touched.
    pub rows_there: Val<u32>,
    /// Expert ids, `[token][k]`; ids of no expert mask their entry.
    #[input]
    #[len(|c| u64::from(c.tokens * c.topk))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.ids.dtype())]
    pub ids: AnyPtr,
    /// Where experts are, if a table says so: the slot of each replica, `[expert][replica]`, numbered over all ranks. An entry whose
    /// expert has no slot goes nowhere.
    #[input]
    #[len(|c| if c.expert_slots > 0 { u64::from(c.experts * c.replicas) } else { 0 })]
    pub place: Option<Ptr<i32>>,
    /// How many replicas each expert has, where there may be several: at most as many as the table has room for. They take turns from
    /// token to token.
    #[input]
    #[len(|c| if c.replicas > 1 { u64::from(c.experts) } else { 0 })]
    pub replicas: Option<Ptr<u32>>,
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

    /// Counts of each expert's entries, to which those of this rank's tokens are added, wherever the table places the expert. The caller
    /// sets them back.
    #[inout]
    #[len(|c| if c.expert_load { u64::from(c.experts) } else { 0 })]
    pub expert_load: Option<Ptr<u32>>,
    /// Output: received rows, expert-major ordered by expert, source rank, token, k; rank-major `[source][token][row]`.
    #[len(|c| if c.in_place() { 0 } else { c.room().places * u64::from(c.row()) })]
    #[dtype(|c| c.received())]
    pub rows: Option<AnyPtr>,
    /// Output: the scales of the received rows, in the order of `scale_layout`.
    #[len(|c| if c.keeps_scales() && !c.scales_in_place() { c.scale_room().all_words() } else { 0 })]
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
    /// `empty_id` for one that is not here, also of tokens that are not there.
    #[len(|c| c.index_entries())]
    pub entry_expert: Option<Ptr<i32>>,
    /// The id of no expert, which `entry_expert` has for an entry that is not here: -1, or the number of experts or more.
    pub empty_id: Val<i32>,
    /// The first expert of the node, where `ids` number those of one.
    #[len(|c| if c.of_node { c.index_entries().min(1) } else { 0 })]
    pub node_first: Option<Ptr<u32>>,
    /// Out, for combine, if a table places experts or ids have 64 bits: where each entry of this rank's tokens goes, `[token][k]`.
    /// Negative for one that goes nowhere: -2 if its expert has no slot.
    #[len(|c| if c.notes_routes() { u64::from(c.tokens * c.topk) } else { 0 })]
    pub routed: Option<Ptr<i32>>,
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
    /// Out, for sums of a token's rows at its owner: weights of the entries, `[source][token][k]`.
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
/// tokens too, with n = 0: every rank waits for the routing of all. A dispatch without the combine of the
/// round before would overwrite rows that are still being read.
///
/// After it, with `experts` in the variant's name, the rows of this rank's e-th expert are `expert_rows[e]` rows from row
/// `expert_start[e]` on. With `tokens` there, row `source * T + token`, where T is the most tokens of a rank, is what came of
/// that token, if it has an expert here; the rows of the e-th expert have the numbers in `expert_rows[e]` elements of
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
    let l = Launch { c, a, epoch, bank };
    let [routing, sending, receiving, indexing, bases, entries, ready] = c.roles();
    role_of("route", routing, |b| {
        route(l, b);
        go_on(&b, c.after_route());
    });
    role_of("send", sending, |b| {
        let sender = Sender { c, a: &a.tokens, inbox: &a.inbox, epoch };
        b.split(c.group_warps, |g| sender.send(g));
        go_on(&b, c.after_send());
    });
    let receive_tokens = || role_of("recv", receiving, |b| rank_major::receive(l, b, hook));
    let index_tokens = || {
        role_of("index", indexing, |b| {
            rank_major::index(l, b);
            go_on(&b, c.after_index());
        });
    };
    // A role is declared before the one that its blocks go on as.
    match (c.layout.by_expert(), c.after_index()) {
        (true, _) => role_of("recv", receiving, |b| expert_major::receive(l, b, hook)),
        (false, Then::Receive) => {
            index_tokens();
            receive_tokens();
        }
        (false, _) => {
            receive_tokens();
            index_tokens();
        }
    }
    role_of("bases", bases, |b| lay_out_in_memory(l, b));
    role_of("entries", entries, |b| b.split(1, |g| note_entries(l, g)));
    role_of("ready", ready, |_| notify_ready(&a.ready, c.ranks, epoch));
}

/// A launch of dispatch.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub c: &'a Dispatch,
    pub a: &'a DispatchArgs,
    pub epoch: Epoch,
    /// The first record of the bank that the launch uses.
    pub bank: Val<u32>,
}

impl<'a> Launch<'a> {
    /// The records of all ranks. Waits for their flags, where they have some.
    pub fn records(self) -> Box<dyn Records + 'a> {
        self.a.records.wire().receive(self)
    }
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
