//! Combine: the experts' outputs back to the tokens' ranks, summed with the weights.

use peerwarp_codegen::dsl::prelude::*;

use super::combine_config::Combine;
use super::layout::Layout;
use super::plan::Schedule;
use super::protocol::Protocol;
use super::returned::Returned;
use super::roles::{role_of, take};
use super::send_back::send;
use super::sums::receive;
use super::wire::await_ready;

/// What rows of combine come back in.
#[derive(KernelArgs, Clone)]
#[args(config = Combine)]
pub struct ReturnArgs {
    /// Rows on their way back to their tokens' ranks.
    #[channel(|c| c.way_back())]
    pub returns: Channel<Returned>,
}

/// Parameters of [`combine`]. Those called "of dispatch" are its outputs, or inputs that have not changed since.
#[derive(KernelArgs)]
#[args(config = Combine)]
pub struct CombineArgs {
    /// The experts' outputs, in the order of the rows of dispatch. By token they are `[source][token][hidden]`: the sum of what this
    /// rank's experts made of that token. The experts apply the weights to it, unless the variant is `weighted`.
    #[input]
    #[len(|c| c.room().places * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub y: AnyPtr,
    /// Of dispatch: tokens of each source.
    #[len(|c| u64::from(c.ranks))]
    pub n_from: Ptr<u32>,
    /// Of dispatch, for rows by token: the expert of each entry that is here, `[source][token][k]`, `empty_id` for one that is not.
    #[len(|c| if c.layout == Layout::RankMajor { c.entries() } else { 0 })]
    pub entry_expert: Option<Ptr<i32>>,
    /// Of dispatch: the id of no expert, which `entry_expert` has for an entry that is not here.
    pub empty_id: Val<i32>,
    /// Of dispatch, for rows by expert: the row of each entry, `[source][token][k]`, -1 for one that is not here.
    #[len(|c| if c.layout.by_expert() { c.entries() } else { 0 })]
    pub pos: Option<Ptr<i32>>,
    /// Of dispatch, for owners that sum: weights of the entries, `[source][token][k]`.
    #[len(|c| if c.sums_at_owner() { c.entries() } else { 0 })]
    pub weight_from: Option<Ptr<f32>>,
    /// Of dispatch: how many tokens this rank has.
    #[input]
    pub n: Ptr<u32>,
    /// Of dispatch: the number of rows of `x`. `ids`, `weights` and `out` have as many.
    pub rows_there: Val<u32>,
    /// Of dispatch: expert ids, `[token][k]`.
    #[input]
    #[len(|c| if c.reads_routes() { 0 } else { u64::from(c.tokens * c.topk) })]
    #[rows(rows_there, |c| c.tokens)]
    pub ids: Option<Ptr<i32>>,
    /// Of dispatch, in place of `ids` if a table places experts or ids have 64 bits: where each entry went, `[token][k]`.
    #[len(|c| if c.reads_routes() { u64::from(c.tokens * c.topk) } else { 0 })]
    pub routed: Option<Ptr<i32>>,
    /// Of dispatch: weights of the entries, `[token][k]`.
    #[input]
    #[len(|c| u64::from(c.tokens * c.topk))]
    #[rows(rows_there, |c| c.tokens)]
    pub weights: Ptr<f32>,

    /// Out: the combined rows, `[token][hidden]`.
    #[output]
    #[len(|c| u64::from(c.tokens) * u64::from(c.hidden))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.dtype.dtype())]
    pub out: AnyPtr,
    /// Out, if the variant is `missing`: how many of each token's entries name experts of ranks that are not active. The token's row
    /// is the sum of the others. Experts that the table of dispatch places in no slot count too.
    #[len(|c| if c.missing { u64::from(c.tokens) } else { 0 })]
    pub missing: Option<Ptr<u32>>,

    /// Where rows come back.
    #[group]
    pub back: ReturnArgs,
    /// Of dispatch, with packets: a rank is ready, `[parity][source]`. Dispatch signals it, and combine waits for it.
    #[len(|c| if c.protocol == Protocol::Packets { 2 * u64::from(c.ranks) } else { 0 })]
    pub ready: Option<Flags>,
    /// Work counter of the slots, or batches of tokens, to send, under dynamic scheduling.
    #[len(|c| u64::from(c.schedule() == Schedule::Dynamic))]
    pub next_send: Option<Counters>,
    /// Work counter of the tokens to sum, under dynamic scheduling.
    #[len(|c| u64::from(c.sums() == Schedule::Dynamic))]
    pub next_token: Option<Counters>,
    /// Counts combines: as many as dispatches.
    pub epoch: EpochWord,
}

/// Brings the experts' outputs back to the tokens' ranks and sums them: rows by expert with the weights; rank-major rows as they are,
/// for their experts apply the weights, unless the variant is `weighted`.
///
/// One round is dispatch, the experts' work, and this combine, on every rank in this order in one stream (or in
/// streams that keep this order), ranks without tokens too. `y` holds what the experts made of dispatch's rows,
/// in the same order. Rank-major, `y` has one row for each token that came. It is the sum over this rank's experts, and they apply
/// the weights (`weight_from`). A variant with `weighted` in its name applies them itself: it multiplies a rank's row by the sum
/// of the token's weights there. Combine always weighs rows by expert. `n`, `ids`, `weights` and what is "of dispatch" are those of
/// the dispatch of the same round, unchanged; a token whose ids are all masked gets zeros. The epoch is another one than
/// dispatch's; the status records are the same.
///
/// All ranks use the same variant. A variant with `send` in its name is the first half of this, to be
/// followed by the one with `recv`, on the same buffers.
#[kernel]
pub fn combine(c: &Combine, a: &CombineArgs) {
    let epoch = take(&a.epoch, c.phase, c.begin());
    let l = Launch { c, a, back: a.back.returns.open(epoch) };
    let [sending, receiving, ready] = c.roles();
    role_of("send", sending, |b| b.split(c.group_warps, |g| send(l, g)));
    role_of("recv", receiving, |b| b.split(c.group_warps, |g| receive(l, g)));
    role_of("ready", ready, |_| {
        await_ready(&a.ready.expect("packets order nothing"), c.ranks, epoch);
    });
}

/// A launch of combine.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub c: &'a Combine,
    pub a: &'a CombineArgs,
    /// The channel that rows come back by.
    pub back: OpenChannel<'a, Returned>,
}
