//! Combine: the experts' outputs back to the tokens' ranks, summed with the weights.

use peerwarp_codegen::dsl::prelude::*;

use super::config::{Combine, Phase};
use super::device::{at, expert, owner, owners};
use super::pieces::each_piece;

/// Parameters of [`combine`]. Those called "of dispatch" are its outputs, or inputs that have not changed since.
#[derive(KernelArgs)]
#[args(config = Combine)]
pub struct CombineArgs {
    /// The experts' outputs, in the order of the rows of dispatch.
    #[len(|c| c.max_rows() * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub y: AnyPtr,
    /// Of dispatch: tokens of each source.
    #[len(|c| u64::from(c.ranks))]
    pub n_from: Ptr<u32>,
    /// Of dispatch: the row of each entry, `[source][token][k]`, -1 for one that is not here.
    #[len(|c| c.max_rows())]
    pub pos: Ptr<i32>,
    /// Of dispatch: weights of the entries, `[source][token][k]`.
    #[len(|c| if c.dedup { c.max_rows() } else { 1 })]
    pub weight_from: Ptr<f32>,
    /// Of dispatch: how many tokens this rank has.
    pub n: Ptr<u32>,
    /// Of dispatch: expert ids, `[token][k]`.
    #[len(|c| u64::from(c.tokens * c.topk))]
    pub ids: Ptr<i32>,
    /// Of dispatch: weights of the entries, `[token][k]`.
    #[len(|c| u64::from(c.tokens * c.topk))]
    pub weights: Ptr<f32>,

    /// Out: the combined rows, `[token][hidden]`.
    #[len(|c| u64::from(c.tokens) * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub out: AnyPtr,

    /// Rows as they come back, `[token][owner][hidden]`, or `[token][k][hidden]` in plain mode.
    #[len(|c| u64::from(c.tokens * c.returns()) * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub returns: AnySym,
    /// A row has come back, `[token][owner]` or `[token][k]`.
    #[len(|c| u64::from(c.tokens * c.returns()))]
    pub return_flag: Flags,
    /// Counts combines.
    pub epoch: EpochWord,
}

/// Brings the experts' outputs back to the tokens' ranks and sums them with the weights.
///
/// One round is dispatch, the experts' work, and this combine, on every rank in this order in one stream (or in
/// streams that keep this order), ranks without tokens too. `y` holds what the experts made of dispatch's rows,
/// in the same order. `n`, `ids`, `weights`, `n_from`, `pos` and `weight_from` are those of the dispatch of the same
/// round, unchanged; a token whose ids are all masked gets zeros. The epoch is another one than dispatch's;
/// the status records are the same.
///
/// All ranks use the same variant. A variant with `send` in its name is the first half of this, to be
/// followed by the one with `recv`, on the same buffers.
#[kernel]
pub fn combine(c: &Combine, a: &CombineArgs) {
    // Of the two launches of a split operation, the second one ends the epoch.
    let epoch = if c.phase == Phase::Send { a.epoch.peek() } else { a.epoch.begin() };
    if c.phase.sends() {
        role("send", c.send_blocks, |b| b.split(c.group_warps, |g| send(c, a, g, epoch)));
    }
    if c.phase.receives() {
        role("recv", c.recv_blocks, |b| b.split(c.group_warps, |g| receive(c, a, g, epoch)));
    }
}

/// Sends back what belongs to each slot that was received: in dedup mode the weighted sum of this rank's rows of it.
#[kernel]
fn send(c: &Combine, a: &CombineArgs, g: Group, epoch: Epoch) {
    let slots = a.n_from.load(0, c.ranks).max() * c.token_slots();
    for i in g.strided(slots * c.ranks) {
        // Each rank begins with itself, so that they do not all send to one.
        let source = (i + rank()) % c.ranks;
        let slot = i / c.ranks;
        if slot < a.n_from.get(source) * c.token_slots() {
            let entry = source * (c.tokens * c.topk) + slot * c.slot_entries();
            if (a.pos.load(entry, c.slot_entries()) >= 0).any() {
                let back = if c.dedup { slot * c.ranks + rank() } else { slot };
                let mut parcel = send_to(Peers::rank(source));
                each_piece(c.hidden, c.piece_len(), |start, len| {
                    let to = at(back, c.hidden) + start.to_u64();
                    if c.dedup {
                        parcel.put_f32(&a.returns, to, owned_sum(c, a, entry, start, len));
                    } else {
                        let row = a.pos.get(entry).cast::<u32>();
                        parcel.put_any(&a.returns, to, a.y.load(at(row, c.hidden) + start.to_u64(), len));
                    }
                });
                parcel.signal(&a.return_flag, back, epoch);
            }
        }
    }
}

/// A piece of the weighted sum of the rows that this rank has of a token, in the order of k.
#[kernel]
fn owned_sum(c: &Combine, a: &CombineArgs, entry: Val<u32>, start: Val<u32>, len: u32) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    for some in in_flight(c.topk) {
        let rows = some.map(|k| {
            let row = a.pos.get(entry + k);
            let here = row >= 0;
            let y = a.y.load_if(at(row.cast::<u32>(), c.hidden) + start.to_u64(), len, here);
            (y, here.select(a.weight_from.get(entry + k), 0.0))
        });
        for (y, weight) in rows.collect::<Vec<_>>() {
            sum = y.to_f32().fma(weight, &sum);
        }
    }
    sum.get()
}

/// 0 to `n`, in portions of as many as have their loads in flight together.
fn in_flight(n: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    const MOST: u32 = 8;
    (0..n).step_by(MOST as usize).map(move |first| first..n.min(first + MOST))
}

/// Sums what comes back for every token. Groups share tokens: each takes a piece of a row.
#[kernel]
fn receive(c: &Combine, a: &CombineArgs, g: Group, epoch: Epoch) {
    let n = a.n.get(0).min(c.tokens);
    let (pieces, len, last) = (c.pieces_a_row(), c.piece_len(), c.last_piece_len());
    for i in g.strided(n * pieces) {
        let (token, piece) = (i / pieces, i % pieces);
        if last == len {
            sum_piece(c, a, epoch, token, piece * len, len);
        } else if piece < pieces - 1 {
            // The bound says to the printer, too, that pieces of one token don't reach into the next one.
            sum_piece(c, a, epoch, token, piece.min(pieces - 2) * len, len);
        } else {
            sum_piece(c, a, epoch, token, (c.hidden - last).val(), last);
        }
    }
}

/// `len` elements from element `start` on of what comes back for a token, summed: the owners' pieces in the order of
/// ranks, or the entries' rows with their weights in the order of k.
#[kernel]
fn sum_piece(c: &Combine, a: &CombineArgs, epoch: Epoch, token: Val<u32>, start: Val<u32>, len: u32) {
    let mut sum = var(splat(0f32, len));
    if c.dedup {
        let owners = owners(c.map(), &a.ids, token * c.topk, c.topk);
        let first = token * c.ranks;
        let arrived = a.return_flag.wait_some(first, c.ranks, owners, 1, epoch);
        for some in in_flight(c.ranks) {
            let parts = some.map(|owner| {
                let there = (owners & bit(owner.val())) != 0;
                a.returns.load_if(&arrived, at(first + owner, c.hidden) + start.to_u64(), len, there)
            });
            for part in parts.collect::<Vec<_>>() {
                sum += part.to_f32();
            }
        }
    } else {
        for k in 0..c.topk.val() {
            let back = token * c.topk + k;
            let expert = expert(a.ids.get(back));
            if expert < c.experts {
                let arrived = a.return_flag.from(owner(c.map(), expert)).wait(back, epoch);
                let y = a.returns.load_f32(&arrived, at(back, c.hidden) + start.to_u64(), len);
                sum = y.fma(a.weights.get(back), &sum);
            }
        }
    }
    a.out.store_f32(at(token, c.hidden) + start.to_u64(), &sum);
}
