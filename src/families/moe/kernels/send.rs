//! The sending half of dispatch: rows of tokens on their way to the ranks of their experts.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{at, experts_of, owners};
use super::dispatch::{TokenArgs, tokens};
use super::inbox::{InboxArgs, Row, put_row, put_scales};
use super::plan::Copies;
use super::protocol::Protocol;
use super::quantise::Quantiser;

/// Sends rows, each once to every rank that its slot goes to.
#[kernel]
pub(super) fn send(c: &Dispatch, a: &TokenArgs, arrive: &InboxArgs, g: Group, epoch: Epoch) {
    if c.copies() == Copies::Apart {
        send_apart(c, a, arrive, g, epoch);
    } else if c.protocol == Protocol::Packets {
        send_packets_to_all(c, a, arrive, g, epoch);
    } else {
        send_to_all(c, a, arrive, g, epoch);
    }
}

/// The ranks that a slot's row is sent to, a bit each.
#[kernel]
fn destinations(c: &Dispatch, a: &TokenArgs, slot: Val<u32>, g: Group) -> Val<u64> {
    let owners = || owners(c.map(), &a.ids, slot * c.slot_entries(), c.slot_entries(), g);
    if c.keeps_own() {
        let owners = owners();
        owners & !bit(rank())
    } else {
        owners()
    }
}

/// A group has a part of a row, and sends it to one rank after the other.
#[kernel]
fn send_to_all(c: &Dispatch, a: &TokenArgs, arrive: &InboxArgs, g: Group, epoch: Epoch) {
    let pieces = c.pieces();
    let quantiser = Quantiser::new(c);
    let counter = a.next_slot.map(|next| next.counter(0));
    for i in g.dynamic(tokens(c, a) * (c.token_slots() * pieces.parts()), counter) {
        let (slot, part) = pieces.part(i);
        let token = slot / c.token_slots();
        let to = destinations(c, a, slot, g);
        let rows = arrive.rows.open(epoch);
        let row = rows.to(Peers::mask(to)).slot(slot);
        if c.protocol == Protocol::Bulk {
            row.field(rows.row).copy(0u64, &a.x, at(token, c.row()), c.row());
        } else {
            pieces.each(part, |start, len| {
                let x = a.x.load(at(token, c.given_row()) + start.to_u64(), len);
                if let Some(quantiser) = quantiser {
                    put_quantised(c, &quantiser, &rows, &row, start, (x, len));
                } else {
                    put_row(&rows, &row, start, x);
                }
            });
        }
        if let Some(scales) = a.x_scale {
            each_scales(c, part, |first, n, sent| {
                let scale = scales_to_send(c, &scales, token, first, n, sent);
                put_scales(&rows, &row, first, scale);
            });
        }
        row.done();
    }
}

/// The same with packets, of which each part of a row goes for itself: it is on its way together with what says where it goes.
#[kernel]
fn send_packets_to_all(c: &Dispatch, a: &TokenArgs, arrive: &InboxArgs, g: Group, epoch: Epoch) {
    let pieces = c.pieces();
    let quantiser = Quantiser::new(c);
    for i in g.strided(tokens(c, a) * (c.token_slots() * pieces.parts())) {
        let (slot, part) = pieces.part(i);
        let token = slot / c.token_slots();
        let rows = arrive.rows.open(epoch);
        pieces.each(part, |start, len| {
            let x = a.x.load(at(token, c.given_row()) + start.to_u64(), len);
            let (x, scale) = if let Some(quantiser) = quantiser {
                let (x, scales) = quantiser.quantise(c, x, len);
                (x, Some(scales))
            } else {
                (x, a.x_scale.map(|scales| scales_of_piece(c, &scales, token, part, (start, len))))
            };
            let to = destinations(c, a, slot, g);
            let message = rows.to(Peers::mask(to)).slot(slot);
            put_row(&rows, &message, start, x);
            if let Some(scale) = scale {
                put_scales_of_piece(c, &rows, &message, part, start, scale);
            }
            message.done();
        });
    }
}

/// A group has a part of a row and a rank, so that none waits for what others get. The part is loaded if its row is there, whether
/// or not it goes to the rank, and `n` has its token: so it is on its way together with what says so.
#[kernel]
fn send_apart(c: &Dispatch, a: &TokenArgs, arrive: &InboxArgs, g: Group, epoch: Epoch) {
    let pieces = c.pieces();
    let quantiser = Quantiser::new(c);
    for i in g.strided(c.slots() * pieces.parts() * c.ranks) {
        let to = (i + rank()) % c.ranks;
        let piece = i / c.ranks;
        let (slot, part) = pieces.part(piece);
        let token = slot / c.token_slots();
        if token < a.rows_there {
            let rows = arrive.rows.open(epoch);
            let message = rows.to(Peers::rank(to)).slot(slot);
            pieces.each(part, |start, len| {
                let x = a.x.load(at(token, c.given_row()) + start.to_u64(), len);
                let scale = a.x_scale.map(|scales| scales_of_piece(c, &scales, token, part, (start, len)));
                let ids = a.ids.load(slot * c.slot_entries(), c.slot_entries());
                let (_, owned) = experts_of(c.map(), to, ids.cast::<u32>());
                if owned.any() & (token < tokens(c, a)) {
                    if let Some(quantiser) = quantiser {
                        put_quantised(c, &quantiser, &rows, &message, start, (x, len));
                    } else {
                        put_row(&rows, &message, start, x);
                        if let Some(scale) = scale {
                            put_scales_of_piece(c, &rows, &message, part, start, scale);
                        }
                    }
                }
            });
            message.done();
        }
    }
}

/// Puts a piece of a row as it is quantised, and its scales.
#[kernel]
fn put_quantised(
    c: &Dispatch,
    quantiser: &Quantiser,
    rows: &OpenChannel<'_, Row>,
    message: &Outgoing<'_, Row>,
    start: Val<u32>,
    (x, len): (AnyTile, u32),
) {
    let (x, scales) = quantiser.quantise(c, x, len);
    put_row(rows, message, start, x);
    put_scales(rows, message, start / c.scaled(), scales);
}

/// Does something with each of the scales that go with a part of a row, given the first word, how many there are, and how many
/// travel.
#[kernel]
fn each_scales(c: &Dispatch, part: Val<u32>, mut act: impl FnMut(Val<u32>, u32, u32)) {
    if c.scales_apart() {
        c.pieces().each(part, |start, len| act(start / c.scaled(), c.scales_of(len), c.sent_scales_of(len)));
    } else {
        c.pieces().once(part, || act(0u32.val(), c.scales(), c.sent_scales()));
    }
}

/// Words of a token's scales from word `first` on: `n` of them, and zeros after them as far as they travel.
#[kernel]
pub(super) fn scales_to_send(
    c: &Dispatch,
    scales: &AnyPtr,
    token: Val<u32>,
    first: Val<u32>,
    n: u32,
    sent: u32,
) -> AnyTile {
    let first = at(token, c.scales()) + first.to_u64();
    if sent == n { scales.load(first, n) } else { scales.load_where(first, arange(sent) < n) }
}

/// The scales that go with a piece of a token's row, given its first element and its length. Their load is on its way together with
/// that of the piece.
#[kernel]
fn scales_of_piece(
    c: &Dispatch,
    scales: &AnyPtr,
    token: Val<u32>,
    part: Val<u32>,
    (start, len): (Val<u32>, u32),
) -> AnyTile {
    if c.scales_apart() {
        scales_to_send(c, scales, token, start / c.scaled(), c.scales_of(len), c.sent_scales_of(len))
    } else {
        let here = (arange(c.sent_scales()) < c.scales()) & (part == 0);
        scales.load_where(at(token, c.scales()), here)
    }
}

/// Puts them.
#[kernel]
fn put_scales_of_piece(
    c: &Dispatch,
    rows: &OpenChannel<'_, Row>,
    message: &Outgoing<'_, Row>,
    part: Val<u32>,
    start: Val<u32>,
    scales: AnyTile,
) {
    if c.scales_apart() {
        put_scales(rows, message, start / c.scaled(), scales);
    } else {
        c.pieces().once(part, || put_scales(rows, message, 0u32.val(), scales));
    }
}
