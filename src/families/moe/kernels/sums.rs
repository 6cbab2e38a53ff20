//! The receiving half of combine: sums of the rows that come back for a token, scaled where they travelled as fp8.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{AnyTile, IncomingEach, IncomingSome};

use super::combine::Launch;
use super::combine_config::Combine;
use super::device::{at, missing, owners, owning};
use super::ids::Ids;
use super::outputs::{Keep, RankMajor, Summed};
use super::pieces::each_piece;
use super::plan::Own;
use super::protocol::Protocol;
use super::returned::{ReturnDtype, Returned};
use crate::families::quantise::of_sixteen;

/// Sums what comes back for every token.
pub(super) fn receive(l: Launch<'_>, g: Group) {
    let c = l.c;
    let scaling = |messages: u32| Dequantiser::new(c, messages);
    let with_own = |kept: &dyn Keep| {
        let s = scaling(1);
        each_token(l, g, |token, part| sum_with_own((l, s), g, kept, (token, part)));
    };
    match (c.dedup, c.own(), c.layout.by_expert(), c.protocol.arrival()) {
        (true, Own::Moved, ..) => {
            let s = scaling(c.owners_in_flight());
            each_token(l, g, |token, part| sum_returned((l, s), g, token, part));
        }
        (true, Own::InPlace, true, _) => with_own(&Summed(l)),
        (true, Own::InPlace, false, _) => with_own(&RankMajor(l)),
        (false, .., Protocol::Packets) => {
            let s = scaling(c.entries_in_flight());
            each_token(l, g, |token, part| sum_packets((l, s), token, part));
        }
        (false, ..) => {
            let s = scaling(1);
            each_token(l, g, |token, part| sum_entries((l, s), token, part));
        }
    }
}

/// Does something with each part of each token's row.
#[kernel]
fn each_token(l: Launch<'_>, g: Group, act: impl Fn(Val<u32>, Val<u32>)) {
    let Launch { c, a, .. } = l;
    let pieces = c.summed_pieces();
    let counter = a.next_token.map(|next| next.counter(0));
    for i in g.dynamic(tokens(l) * pieces.parts(), counter) {
        let (token, part) = pieces.part(i);
        act(token, part);
        if let Some(counts) = a.missing {
            if part == 0 {
                counts.set(token, missing(c.map(), &Ids::dispatched(l), token * c.topk, c.topk));
            }
        }
    }
}

/// How many tokens this rank has.
fn tokens(l: Launch<'_>) -> Val<u32> {
    l.a.n.get(0).min(l.a.rows_there.min(l.c.tokens))
}

fn store(l: Launch<'_>, token: Val<u32>, start: Val<u32>, sum: Tile<f32>) {
    l.a.out.store_f32(at(token, l.c.hidden) + start.to_u64(), sum);
}

/// The ranks that own a token's experts, a bit each.
fn owners_of(l: Launch<'_>, g: Group, token: Val<u32>) -> Val<u64> {
    owners(l.c.map(), &Ids::dispatched(l), token * l.c.topk, l.c.topk, g)
}

/// The weights that combine applies to a token's rows.
fn weights(l: Launch<'_>, token: Val<u32>) -> Option<Weights<'_>> {
    l.c.weighted.then_some(Weights(l, token))
}

/// A launch, and what a group scales rows with.
type Receiving<'a> = (Launch<'a>, Dequantiser<'a>);

/// The sum of what all owners send back.
#[kernel]
fn sum_returned((l, s): Receiving<'_>, g: Group, token: Val<u32>, part: Val<u32>) {
    let c = l.c;
    let owners = owners_of(l, g, token);
    let returned = returned(c, l.back, owners, token);
    c.summed_pieces().each(part, |start, len| {
        let sum = sum_of_owners((c, l.back, s), &returned, weights(l, token), start, len);
        store(l, token, start, sum);
    });
}

/// The sum of what this rank keeps and what the other one sends back.
#[kernel]
fn sum_with_own((l, s): Receiving<'_>, g: Group, kept: &dyn Keep, (token, part): (Val<u32>, Val<u32>)) {
    let c = l.c;
    let owners = owners_of(l, g, token);
    let own = kept.pieces(g, owners, token);
    let senders = owners & bit(1 - rank());
    let returned = || returned(c, l.back, senders, token);
    let add = |returned: &IncomingSome<'_, Returned>, kept: Tile<f32>, start: Val<u32>, len: u32| {
        let sum = sum_of_two((l.back, s), (returned, kept), weights(l, token), start, len);
        store(l, token, start, sum);
    };
    // Loads of what is kept are in flight while the other rank's row is waited for.
    if c.own_first() {
        c.summed_pieces().each(part, |start, len| {
            let kept = own(start, len);
            add(&returned(), kept, start, len);
        });
    } else {
        let returned = returned();
        c.summed_pieces().each(part, |start, len| {
            let kept = own(start, len);
            add(&returned, kept, start, len);
        });
    }
}

/// What the ranks of a mask send back for a token. Waits for their flags, where they have some.
#[kernel]
pub(super) fn returned<'a>(
    c: &Combine,
    back: OpenChannel<'a, Returned>,
    owners: Val<u64>,
    token: Val<u32>,
) -> IncomingSome<'a, Returned> {
    let rows = back.from_some(owners);
    c.batching().of_token(&rows, token)
}

/// The weights of a token, for rows that come by token.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a>(Launch<'a>, Val<u32>);

impl Weights<'_> {
    /// The sum of the weights of the entries that a rank owns, in the order of k.
    #[kernel]
    fn of(&self, of: Val<u32>) -> Val<f32> {
        let Weights(l, token) = *self;
        let Launch { c, a, .. } = l;
        let ids = Ids::dispatched(l);
        let mut sum = var(0f32);
        for k in 0..c.topk.val() {
            let slot = token * c.topk + k;
            let expert = ids.of_one(slot);
            if expert < c.map().experts {
                if owning(c.map()).owner(expert) == of {
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
    weight.map_or(row, |weight| row * weight)
}

/// A piece of the sum of what several ranks send back for a token, in the order of ranks.
#[kernel]
pub(super) fn sum_of_owners(
    (c, back, s): (&Combine, OpenChannel<'_, Returned>, Dequantiser<'_>),
    returned: &IncomingSome<'_, Returned>,
    weights: Option<Weights<'_>>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    each_piece(c.ranks, c.owners_in_flight(), |owner, count| {
        // Weights come first: the registers of rows would have to last through their loops.
        let each = weights_of(weights, owner, count).into_iter();
        for (weight, part) in each.zip(s.of_ranks(back, returned, (owner, count), (start, len))) {
            sum += weighted(part.to_f32(), weight);
        }
    });
    sum.get()
}

/// A piece of the sum of what this rank keeps of a token and what the other one sends back.
#[kernel]
fn sum_of_two(
    (back, s): (OpenChannel<'_, Returned>, Dequantiser<'_>),
    (returned, kept): (&IncomingSome<'_, Returned>, Tile<f32>),
    weights: Option<Weights<'_>>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    sum += weighted(kept, weights.map(|weights| weights.of(rank())));
    for other in s.of_ranks(back, returned, (1 - rank(), 1), (start, len)) {
        sum += weighted(other.to_f32(), weights.map(|weights| weights.of(1 - rank())));
    }
    sum.get()
}

/// The sum of each entry's rows, with its weight: of packets, several of which are in flight together.
#[kernel]
fn sum_packets((l, s): Receiving<'_>, token: Val<u32>, part: Val<u32>) {
    let Launch { c, a, back } = l;
    let ids = Ids::dispatched(l);
    c.summed_pieces().each(part, |start, len| {
        let first = token * c.topk;
        let mut sum = var(splat(0f32, len));
        each_piece(c.topk, c.entries_in_flight(), |k, count| {
            let mut there = 0u64.val();
            let (mut messages, mut weights) = (vec![], vec![]);
            for i in 0..count {
                let slot = first + k + i;
                let expert = ids.of_one(slot);
                let valid = expert < c.map().experts;
                there = there | valid.select(1u64 << i, 0u64);
                messages.push((owning(c.map()).owner(expert), slot));
                weights.push(valid.select(a.weights.get(slot), 0.0));
            }
            let messages = back.from_each(messages, there);
            let rows = messages.field(back.row).load(c.place(start), c.moved(len));
            let scales = back.scales.map(|scales| s.each_scale(&messages, scales, start, len));
            let rows = s.scaled(rows, scales, len);
            for (y, weight) in rows.into_iter().zip(weights) {
                sum = y.to_f32().fma(weight, &sum);
            }
        });
        let sum = sum.get();
        store(l, token, start, sum);
    });
}

/// The same with flags, each of which is waited for.
#[kernel]
fn sum_entries((l, s): Receiving<'_>, token: Val<u32>, part: Val<u32>) {
    let Launch { c, a, back } = l;
    let ids = Ids::dispatched(l);
    c.summed_pieces().each(part, |start, len| {
        let mut sum = var(splat(0f32, len));
        for k in 0..c.topk.val() {
            let slot = token * c.topk + k;
            let expert = ids.of_one(slot);
            if expert < c.map().experts {
                let owner = owning(c.map()).owner(expert);
                let row = c.batching().of_entry(&back.from(owner), [owner, token, slot]);
                let y = s.of_one(back, &row, start, len);
                sum = y.fma(a.weights.get(slot), &sum);
            }
        }
        let sum = sum.get();
        store(l, token, start, sum);
    });
}

/// Where a group has the scales of pieces that it receives at hand.
#[derive(Clone, Copy)]
pub(super) struct Dequantiser<'a> {
    c: &'a Combine,
    scales: Option<Shared<f32>>,
    /// Words of rows of nvfp4.
    words: Option<Shared<u32>>,
}

impl<'a> Dequantiser<'a> {
    /// Room for the scales of pieces of so many messages together.
    pub fn new(c: &'a Combine, messages: u32) -> Dequantiser<'a> {
        let words = messages * c.scales_of(c.piece_len()).sent;
        let scales = c.combine_dtype.quantises().then(|| shared("return_scales", words));
        let packs = c.combine_dtype == ReturnDtype::Nvfp4;
        let words = packs.then(|| shared("return_words", messages * c.moved(c.piece_len())));
        Dequantiser { c, scales, words }
    }

    /// Pieces of rows of several ranks, from `first` on.
    pub fn of_ranks(
        &self,
        back: OpenChannel<'_, Returned>,
        rows: &IncomingSome<'_, Returned>,
        (first, count): (Val<u32>, u32),
        (start, len): (Val<u32>, u32),
    ) -> Vec<Scaled> {
        let (at, moved) = (self.c.place(start), self.c.moved(len));
        let x = rows.field(back.row).load_each(first, count, at, moved);
        let scales = back.scales.map(|scales| {
            let (at, sent) = self.words(start, len);
            rows.field(scales).load_each(first, count, at, sent)
        });
        self.scaled(x, scales, len)
    }

    /// A piece of one row, as it is summed.
    fn of_one(
        &self,
        back: OpenChannel<'_, Returned>,
        row: &Incoming<'_, Returned>,
        start: Val<u32>,
        len: u32,
    ) -> Tile<f32> {
        let x = row.field(back.row).load(self.c.place(start), self.c.moved(len));
        let scales = back.scales.map(|scales| {
            let (at, sent) = self.words(start, len);
            vec![row.field(scales).load(at, sent)]
        });
        self.scaled(vec![x], scales, len)[0].to_f32()
    }

    /// The scales of pieces of several entries' rows.
    fn each_scale(
        &self,
        messages: &IncomingEach<'_, Returned>,
        scales: Field<f32>,
        start: Val<u32>,
        len: u32,
    ) -> Vec<Tile<f32>> {
        let (at, sent) = self.words(start, len);
        messages.field(scales).load(at, sent)
    }

    /// Pieces of rows with their scales.
    pub fn scaled(&self, rows: Vec<AnyTile>, scales: Option<Vec<Tile<f32>>>, len: u32) -> Vec<Scaled> {
        let Some((scales, at_hand)) = scales.zip(self.scales) else {
            return rows.into_iter().map(|row| Scaled { row, scale: None }).collect();
        };
        if let Some(words) = self.words {
            self.unpacked((rows, scales), (words, at_hand), len)
        } else {
            self.of_bytes(rows, scales, at_hand, len)
        }
    }

    #[kernel]
    fn of_bytes(
        &self,
        rows: Vec<AnyTile>,
        scales: Vec<Tile<f32>>,
        at_hand: Shared<f32>,
        len: u32,
    ) -> Vec<Scaled> {
        let sent = self.c.scales_of(len).sent;
        for (i, scales) in (0..).zip(scales) {
            at_hand.store(i * sent, scales);
        }
        let block = arange(len) / self.c.scaled();
        let each = (0..).zip(rows).map(|(i, row)| {
            let scale = at_hand.gather(block + i * sent, true, 0.0);
            Scaled { row, scale: Some(scale) }
        });
        each.collect()
    }

    /// The same of rows of nvfp4.
    #[kernel]
    fn unpacked(
        &self,
        (rows, scales): (Vec<AnyTile>, Vec<Tile<f32>>),
        at_hand: (Shared<u32>, Shared<f32>),
        len: u32,
    ) -> Vec<Scaled> {
        let (piece, moved, count) = (self.c.scales_of(len), self.c.moved(len), rows.len() as u32);
        for (i, (row, scales)) in (0..).zip(rows.into_iter().zip(scales)) {
            at_hand.0.store(i * moved, row.typed::<u32>());
            at_hand.1.store(i * piece.sent, scales);
        }
        let each = (0..count).map(|i| of_sixteen(at_hand, (i * moved, i * piece.sent), piece));
        each.map(|(row, scale)| Scaled { row, scale: Some(scale) }).collect()
    }

    /// Words of scales that go with a piece: the first one, and how many.
    pub fn words(&self, start: Val<u32>, len: u32) -> (Val<u32>, u32) {
        (self.c.first_scale(start), self.c.scales_of(len).sent)
    }
}

/// A piece of a row that came back, and the scale of each of its elements if it has some.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    row: AnyTile,
    scale: Option<Tile<f32>>,
}

impl Scaled {
    /// The piece as it is summed.
    pub fn to_f32(self) -> Tile<f32> {
        let row = self.row.to_f32();
        self.scale.map_or(row, |scale| row * scale)
    }
}
