//! Combine: the experts' outputs back to the tokens' ranks, summed with the weights.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Combine;
use super::device::{at, expert, owner, owners};
use super::layout::Layout;
use super::pieces::each_piece;
use super::protocol::{Phase, Protocol};
use super::records::hear;

/// What rows of combine come back in.
#[derive(KernelArgs)]
#[args(config = Combine)]
pub struct ReturnArgs {
    /// Rows as they come back with flags, `[token][owner][hidden]`, or `[token][k][hidden]` in plain mode.
    #[len(|c| c.return_rows(Protocol::Flags) * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub returns: Option<AnySym>,
    /// A row has come back, `[token][owner]` or `[token][k]`.
    #[len(|c| c.return_rows(Protocol::Flags))]
    pub return_flag: Option<Flags>,
    /// Rows as they come back as packets, in the same order, `[parity]` first.
    #[len(|c| c.return_rows(Protocol::Packets) * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub return_packets: Option<AnyPackets>,
}

/// Parameters of [`combine`]. Those called "of dispatch" are its outputs, or inputs that have not changed since.
#[derive(KernelArgs)]
#[args(config = Combine)]
pub struct CombineArgs {
    /// The experts' outputs, in the order of the rows of dispatch. By token they are `[source][token][hidden]`: the sum, with
    /// the weights, of what this rank's experts made of that token.
    #[len(|c| c.placed_rows() * u64::from(c.hidden))]
    #[dtype(|c| c.dtype.dtype())]
    pub y: AnyPtr,
    /// Of dispatch: tokens of each source.
    #[len(|c| u64::from(c.ranks))]
    pub n_from: Ptr<u32>,
    /// Of dispatch, for rows by token: which of this rank's experts each entry goes to, `[source][token][k]`, -1 for one that
    /// is not here.
    #[len(|c| if c.layout == Layout::Tokens { c.max_rows() } else { 0 })]
    pub entry_expert: Option<Ptr<i32>>,
    /// Of dispatch, for rows by expert: the row of each entry, `[source][token][k]`, -1 for one that is not here.
    #[len(|c| if c.layout == Layout::Experts { c.max_rows() } else { 0 })]
    pub pos: Option<Ptr<i32>>,
    /// Of dispatch, for owners that sum: weights of the entries, `[source][token][k]`.
    #[len(|c| if c.sums_at_owner() { c.max_rows() } else { 0 })]
    pub weight_from: Option<Ptr<f32>>,
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

    /// Where rows come back.
    #[group]
    pub back: ReturnArgs,
    /// Of dispatch, with packets: a rank has begun it, `[parity][source]`. Dispatch says so, and combine hears it.
    #[len(|c| if c.protocol == Protocol::Packets { 2 * u64::from(c.ranks) } else { 0 })]
    pub begun: Option<Flags>,
    /// Counts combines: as many as dispatches.
    pub epoch: EpochWord,
}

/// Brings the experts' outputs back to the tokens' ranks and sums them with the weights.
///
/// One round is dispatch, the experts' work, and this combine, on every rank in this order in one stream (or in
/// streams that keep this order), ranks without tokens too. `y` holds what the experts made of dispatch's rows,
/// in the same order: with `tokens` in the variant's name, a row for each token that has come, in which what several of this
/// rank's experts made of it is summed with `weight_from` already. `n`, `ids`, `weights` and what is "of dispatch" are those of
/// the dispatch of the same round, unchanged; a token whose ids are all masked gets zeros. The epoch is another one than
/// dispatch's; the status records are the same.
///
/// All ranks use the same variant. A variant with `send` in its name is the first half of this, to be
/// followed by the one with `recv`, on the same buffers.
#[kernel]
pub fn combine(c: &Combine, a: &CombineArgs) {
    // Of the two launches of a split operation, the second one ends the epoch.
    let epoch = if c.phase == Phase::Send { a.epoch.peek() } else { a.epoch.begin() };
    // Packets exist twice: this launch uses the bank that starts here.
    let bank = epoch.parity() * c.bank_rows();
    if c.phase.sends() {
        role("send", c.send_blocks, |b| b.split(c.group_warps, |g| send(c, a, g, epoch, bank)));
    }
    if c.phase.receives() {
        role("recv", c.recv_blocks, |b| b.split(c.group_warps, |g| receive(c, a, g, epoch, bank)));
        if let Some(begun) = a.begun {
            role("begun", c.begun_blocks(), |_| hear(&begun, c.ranks, epoch));
        }
    }
}

/// Sends back what belongs to each slot that was received: a row, or the weighted sum of this rank's rows of it.
#[kernel]
fn send(c: &Combine, a: &CombineArgs, g: Group, epoch: Epoch, bank: Val<u32>) {
    let pieces = c.sent_pieces();
    let here = a.pos.or(a.entry_expert).expect("either says which entries are here");
    for i in g.strided(c.tokens * c.token_slots() * c.ranks * pieces.parts()) {
        let (i, part) = pieces.part(i);
        // Each rank begins with itself, so that they do not all send to one.
        let source = (i + rank()) % c.ranks;
        let slot = i / c.ranks;
        if slot < a.n_from.get(source) * c.token_slots() {
            let entry = source * (c.tokens * c.topk) + slot * c.slot_entries();
            if (here.load(entry, c.slot_entries()) >= 0).any() {
                let back = bank + if c.dedup { slot * c.ranks + rank() } else { slot };
                let mut parcel = a.back.returns.map(|_| send_to(Peers::rank(source)));
                pieces.each(part, |start, len| {
                    let to = at(back, c.hidden) + start.to_u64();
                    if let Some(weights) = a.weight_from {
                        let sum = owned_sum(c, a, &here, &weights, entry, start, len);
                        if let Some(packets) = a.back.return_packets {
                            packets.send_f32(Peers::rank(source), to, sum);
                        }
                        if let (Some(returns), Some(parcel)) = (a.back.returns, &mut parcel) {
                            parcel.put_f32(&returns, to, sum);
                        }
                    } else {
                        let row = match c.layout {
                            Layout::Experts => here.get(entry).cast::<u32>(),
                            Layout::Tokens => source * c.tokens + slot,
                        };
                        let y = a.y.load(at(row, c.hidden) + start.to_u64(), len);
                        if let Some(packets) = a.back.return_packets {
                            packets.send(Peers::rank(source), to, y);
                        }
                        if let (Some(returns), Some(parcel)) = (a.back.returns, &mut parcel) {
                            parcel.put_any(&returns, to, y);
                        }
                    }
                });
                if let (Some(parcel), Some(flag)) = (parcel, a.back.return_flag) {
                    parcel.signal(&flag, back, epoch);
                }
            }
        }
    }
}

/// A piece of the weighted sum of the rows that this rank has of a token, in the order of k.
#[kernel]
fn owned_sum(
    c: &Combine,
    a: &CombineArgs,
    pos: &Ptr<i32>,
    weights: &Ptr<f32>,
    entry: Val<u32>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    // A loop of the device, as all rows at once would not fit the registers.
    each_piece(c.topk, tiles_in_flight(c.vectors).min(c.topk), |first, count| {
        let rows = (0..count).map(|i| {
            let k = first + i;
            let row = pos.get(entry + k);
            let here = row >= 0;
            let y = a.y.load_if(at(row.cast::<u32>(), c.hidden) + start.to_u64(), len, here);
            (y, here.select(weights.get(entry + k), 0.0))
        });
        for (y, weight) in rows.collect::<Vec<_>>() {
            sum = y.to_f32().fma(weight, &sum);
        }
    });
    sum.get()
}

/// How many tiles have their loads in flight together: 8 vectors of 16 bytes for each lane.
fn tiles_in_flight(vectors: u32) -> u32 {
    (8 / vectors).max(1)
}

/// Sums what comes back for every token.
#[kernel]
fn receive(c: &Combine, a: &CombineArgs, g: Group, epoch: Epoch, bank: Val<u32>) {
    let pieces = c.summed_pieces();
    for i in g.strided(a.n.get(0).min(c.tokens) * pieces.parts()) {
        let (token, part) = pieces.part(i);
        pieces.each(part, |start, len| sum_piece(c, a, (epoch, bank), token, start, len));
    }
}

/// `len` elements from element `start` on of what comes back for a token, summed: the owners' pieces in the order of
/// ranks, or the entries' rows with their weights in the order of k.
#[kernel]
fn sum_piece(
    c: &Combine,
    a: &CombineArgs,
    (epoch, bank): (Epoch, Val<u32>),
    token: Val<u32>,
    start: Val<u32>,
    len: u32,
) {
    let sum = match (c.dedup, a.back.return_packets) {
        (true, _) => {
            let owners = owners(c.map(), &a.ids, token * c.topk, c.topk);
            sum_of_owners(c, &a.back, owners, bank + token * c.ranks, epoch, start, len)
        }
        (false, Some(packets)) => sum_of_packets(c, a, packets, bank, token, start, len),
        (false, None) => sum_of_entries(c, a, epoch, token, start, len),
    };
    a.out.store_f32(at(token, c.hidden) + start.to_u64(), sum);
}

/// A piece of the sum of what the ranks of a mask send back for a token, in the order of ranks: rows from row `first` on.
#[kernel]
pub(super) fn sum_of_owners(
    c: &Combine,
    a: &ReturnArgs,
    owners: Val<u64>,
    first: Val<u32>,
    epoch: Epoch,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let arrived = a.return_flag.map(|flag| flag.wait_some(first, c.ranks, owners, 1, epoch));
    let mut sum = var(splat(0f32, len));
    each_piece(c.ranks, tiles_in_flight(c.vectors).min(c.ranks), |owner, count| {
        let some = (0..count).map(|i| owner + i);
        let place = |owner: Val<u32>| at(first + owner, c.hidden) + start.to_u64();
        let there = |owner: Val<u32>| (owners & bit(owner)) != 0;
        let parts: Vec<AnyTile> = match (a.returns, &arrived, a.return_packets) {
            (Some(returns), Some(arrived), _) => {
                some.map(|owner| returns.load_if(arrived, place(owner), len, there(owner))).collect()
            }
            (_, _, Some(packets)) => {
                let tiles = some.map(|owner| (place(owner), owner));
                packets.take_each(tiles, len, owners >> owner.to_u64())
            }
            _ => unreachable!("rows come back with flags or as packets"),
        };
        for part in parts {
            sum += part.to_f32();
        }
    });
    sum.get()
}

#[kernel]
fn sum_of_packets(
    c: &Combine,
    a: &CombineArgs,
    packets: AnyPackets,
    bank: Val<u32>,
    token: Val<u32>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let first = token * c.topk;
    let mut sum = var(splat(0f32, len));
    each_piece(c.topk, tiles_in_flight(c.vectors).min(c.topk), |k, count| {
        let mut there = 0u64.val();
        let (mut tiles, mut weights) = (vec![], vec![]);
        for i in 0..count {
            let back = first + k + i;
            let expert = expert(a.ids.get(back));
            let valid = expert < c.experts;
            there = there | valid.select(1u64 << i, 0u64);
            tiles.push((at(bank + back, c.hidden) + start.to_u64(), owner(c.map(), expert)));
            weights.push(valid.select(a.weights.get(back), 0.0));
        }
        for (y, weight) in packets.take_each(tiles, len, there).into_iter().zip(weights) {
            sum = y.to_f32().fma(weight, &sum);
        }
    });
    sum.get()
}

#[kernel]
fn sum_of_entries(
    c: &Combine,
    a: &CombineArgs,
    epoch: Epoch,
    token: Val<u32>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    for k in 0..c.topk.val() {
        let back = token * c.topk + k;
        let expert = expert(a.ids.get(back));
        if expert < c.experts {
            if let (Some(flag), Some(returns)) = (a.back.return_flag, a.back.returns) {
                let arrived = flag.from(owner(c.map(), expert)).wait(back, epoch);
                let y = returns.load_f32(&arrived, at(back, c.hidden) + start.to_u64(), len);
                sum = y.fma(a.weights.get(back), &sum);
            }
        }
    }
    sum.get()
}
