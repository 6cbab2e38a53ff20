//! Combine: the experts' outputs back to the tokens' ranks, summed with the weights.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, AnyTile, IncomingSome};

use super::combine_config::Combine;
use super::device::{at, expert, owner, owners};
use super::layout::Layout;
use super::pieces::each_piece;
use super::plan::Schedule;
use super::protocol::Protocol;
use super::roles::{role_of, take};
use super::send_back::{owned_sum, placed, send};
use super::wire::await_ready;

/// What rows of combine come back in.
#[derive(KernelArgs)]
#[args(config = Combine)]
pub struct ReturnArgs {
    /// Rows as they come back, `[token][owner][hidden]`, or `[token][k][hidden]` in plain mode; as packets in two banks.
    #[channel(|c| c.way_back())]
    #[len(|c| c.hidden)]
    #[dtype(|c| c.dtype.dtype())]
    pub returns: AnyChannel,
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
    /// Of dispatch, for rows by token: the expert of each entry that is here, `[source][token][k]`, `nobody` for one that is not.
    #[len(|c| if c.layout == Layout::RankMajor { c.entries() } else { 0 })]
    pub entry_expert: Option<Ptr<i32>>,
    /// Of dispatch: what `entry_expert` says where an entry is not here.
    pub nobody: Val<i32>,
    /// Of dispatch, for rows by expert: the row of each entry, `[source][token][k]`, -1 for one that is not here.
    #[len(|c| if c.layout.by_expert() { c.entries() } else { 0 })]
    pub pos: Option<Ptr<i32>>,
    /// Of dispatch, for owners that sum: weights of the entries, `[source][token][k]`.
    #[len(|c| if c.sums_at_owner() { c.entries() } else { 0 })]
    pub weight_from: Option<Ptr<f32>>,
    /// Of dispatch: how many tokens this rank has.
    #[input]
    pub n: Ptr<u32>,
    /// Of dispatch: rows that there are of tokens. So many there are of ids, of weights and of combined rows.
    pub rows_there: Val<u32>,
    /// Of dispatch: expert ids, `[token][k]`.
    #[input]
    #[len(|c| u64::from(c.tokens * c.topk))]
    #[rows(rows_there, |c| c.tokens)]
    pub ids: Ptr<i32>,
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
/// in the same order. Rank-major, `y` has one row for each token that has come. It is the sum over this rank's experts, and they apply
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
    let back = a.back.returns.open(epoch);
    let [sending, receiving, ready] = c.roles();
    role_of("send", sending, |b| b.split(c.group_warps, |g| send(c, a, g, back)));
    role_of("recv", receiving, |b| b.split(c.group_warps, |g| receive(c, a, g, back)));
    role_of("ready", ready, |_| {
        await_ready(&a.ready.expect("packets order nothing"), c.ranks, epoch);
    });
}

/// How many tokens this rank has.
fn tokens(c: &Combine, a: &CombineArgs) -> Val<u32> {
    a.n.get(0).min(a.rows_there.min(c.tokens))
}

/// The batch of a token.
fn batch_of(c: &Combine, token: Val<u32>) -> Val<u32> {
    token / c.batch
}

/// Sums what comes back for every token.
#[kernel]
fn receive(c: &Combine, a: &CombineArgs, g: Group, back: OpenChannel<'_, Any>) {
    let pieces = c.summed_pieces();
    let counter = a.next_token.map(|next| next.counter(0));
    for i in g.dynamic(tokens(c, a) * pieces.parts(), counter) {
        let (token, part) = pieces.part(i);
        if c.dedup {
            let owners = owners(c.map(), &a.ids, token * c.topk, c.topk, g);
            let own = c.keeps_own().then(|| Own::of(c, a, g, owners, token));
            let senders = if c.keeps_own() { owners & bit(1 - rank()) } else { owners };
            let returned = || returned(c, back, senders, token);
            let weights = c.weighted.then_some(Weights { c, a, token });
            let before = (!c.own_first()).then(&returned);
            pieces.each(part, |start, len| {
                // Its loads are on their way while the other rank's row is waited for.
                let kept = own.as_ref().map(|own| own.piece(start, len));
                let sum = match &before {
                    Some(returned) => sum_of_owners(c, returned, (kept, weights), start, len),
                    None => sum_of_owners(c, &returned(), (kept, weights), start, len),
                };
                a.out.store_f32(at(token, c.hidden) + start.to_u64(), sum);
            });
        } else {
            pieces.each(part, |start, len| {
                let sum = match c.protocol {
                    Protocol::Packets => sum_of_packets(c, a, back, token, start, len),
                    Protocol::Flags | Protocol::Bulk => sum_of_entries(c, a, back, token, start, len),
                };
                a.out.store_f32(at(token, c.hidden) + start.to_u64(), sum);
            });
        }
    }
}

/// What the ranks of a mask send back for a token; waits for their flags, where they have some.
#[kernel]
pub(super) fn returned<'a>(
    c: &Combine,
    back: OpenChannel<'a, Any>,
    owners: Val<u64>,
    token: Val<u32>,
) -> IncomingSome<'a, Any> {
    let rows = back.from_some(owners);
    if c.batch > 1 { rows.batch(batch_of(c, token), token) } else { rows.slot(token) }
}

/// What this rank has of a token of its own, where that stays where it is.
struct Own<'a> {
    c: &'a Combine,
    a: &'a CombineArgs,
    /// The token, among all that ranks have.
    token: Val<u32>,
    /// Whether there is something.
    there: Val<bool>,
    /// Which of its entries have rows here, where those are summed.
    placed: Option<Val<u32>>,
}

impl<'a> Own<'a> {
    #[kernel]
    fn of(c: &'a Combine, a: &'a CombineArgs, g: Group, owners: Val<u64>, token: Val<u32>) -> Own<'a> {
        let there = (owners & bit(rank())) != 0;
        let token = rank() * c.tokens + token;
        let placed = c.sums_at_owner().then(|| placed(c, a, g, token * c.topk));
        Own { c, a, token, there, placed }
    }

    /// A piece of it, as it would have come back: by token its row, by expert the weighted sum of its experts' rows.
    #[kernel]
    fn piece(&self, start: Val<u32>, len: u32) -> Tile<f32> {
        let Own { c, a, token, there, placed } = *self;
        if let (Some(weights), Some(placed)) = (a.weight_from, placed) {
            let sum = owned_sum(c, a, &weights, (token * c.topk, placed), start, len);
            AnyTile::rounded(sum, c.dtype.dtype()).to_f32()
        } else {
            a.y.load_if(at(token, c.hidden) + start.to_u64(), len, there).to_f32()
        }
    }
}

/// The weights of a token, for rows that come by token.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    c: &'a Combine,
    a: &'a CombineArgs,
    token: Val<u32>,
}

impl Weights<'_> {
    /// The sum of the weights of the entries that a rank owns, in the order of k.
    #[kernel]
    fn of(&self, of: Val<u32>) -> Val<f32> {
        let Weights { c, a, token } = *self;
        let mut sum = var(0f32);
        for k in 0..c.topk.val() {
            let slot = token * c.topk + k;
            let expert = expert(a.ids.get(slot));
            if expert < c.experts {
                if owner(c.map(), expert) == of {
                    sum += a.weights.get(slot);
                }
            }
        }
        sum.get()
    }
}

/// The weights of so many ranks from one on, if there are weights.
fn weights_of(weights: Option<Weights<'_>>, first: Val<u32>, count: u32) -> Vec<Option<Val<f32>>> {
    (0..count).map(|i| weights.map(|weights| weights.of(first + i))).collect()
}

/// A rank's row with its weight, if it has one. The product is rounded by itself, so that two ranks' rows may come in either order.
fn weighted(row: Tile<f32>, weight: Option<Val<f32>>) -> Tile<f32> {
    match weight {
        Some(weight) => row * weight,
        None => row,
    }
}

/// A piece of the sum of what several ranks have of a token, in the order of ranks: of what they send back, or of what this rank keeps
/// and the other one's; with weights where there are some.
#[kernel]
pub(super) fn sum_of_owners(
    c: &Combine,
    returned: &IncomingSome<'_, Any>,
    (kept, weights): (Option<Tile<f32>>, Option<Weights<'_>>),
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    if let Some(kept) = kept {
        sum += weighted(kept, weights.map(|weights| weights.of(rank())));
        for other in returned.load_each(1 - rank(), 1, start.to_u64(), len) {
            sum += weighted(other.to_f32(), weights.map(|weights| weights.of(1 - rank())));
        }
    } else {
        each_piece(c.ranks, c.tiles_in_flight().min(c.ranks), |owner, count| {
            // Weights come first: the registers of rows would have to last through their loops.
            let each = weights_of(weights, owner, count).into_iter();
            for (weight, part) in each.zip(returned.load_each(owner, count, start.to_u64(), len)) {
                sum += weighted(part.to_f32(), weight);
            }
        });
    }
    sum.get()
}

/// The same of each entry's rows, with its weight: of packets, several of which are on their way together.
#[kernel]
fn sum_of_packets(
    c: &Combine,
    a: &CombineArgs,
    back: OpenChannel<'_, Any>,
    token: Val<u32>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let first = token * c.topk;
    let mut sum = var(splat(0f32, len));
    each_piece(c.topk, c.tiles_in_flight().min(c.topk), |k, count| {
        let mut there = 0u64.val();
        let (mut messages, mut weights) = (vec![], vec![]);
        for i in 0..count {
            let slot = first + k + i;
            let expert = expert(a.ids.get(slot));
            let valid = expert < c.experts;
            there = there | valid.select(1u64 << i, 0u64);
            messages.push((owner(c.map(), expert), slot));
            weights.push(valid.select(a.weights.get(slot), 0.0));
        }
        let rows = back.from_each(messages, there).load(start.to_u64(), len);
        for (y, weight) in rows.into_iter().zip(weights) {
            sum = y.to_f32().fma(weight, &sum);
        }
    });
    sum.get()
}

/// The same with flags, each of which is waited for.
#[kernel]
fn sum_of_entries(
    c: &Combine,
    a: &CombineArgs,
    back: OpenChannel<'_, Any>,
    token: Val<u32>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    for k in 0..c.topk.val() {
        let slot = token * c.topk + k;
        let expert = expert(a.ids.get(slot));
        if expert < c.experts {
            let owner = owner(c.map(), expert);
            let rows = back.from(owner);
            let row = if c.batch > 1 {
                rows.batch(batch_of(c, token) * c.ranks + owner, slot)
            } else {
                rows.slot(slot)
            };
            let y = row.load_f32(start.to_u64(), len);
            sum = y.fma(a.weights.get(slot), &sum);
        }
    }
    sum.get()
}
