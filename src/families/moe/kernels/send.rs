//! The sending half of dispatch: rows of tokens on their way to the ranks of their experts.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{at, experts_of, owners};
use super::dispatch::{TokenArgs, tokens};
use super::ids::Ids;
use super::plan::Copies;
use super::protocol::Protocol;
use super::quantise::{quantiser, scale_of_row};
use super::wire::{InboxArgs, Open};
use crate::families::moe::RowDtype;
use crate::families::quantise::{INT8_MAX, Piece, Quantiser};

/// What sends the rows of a launch.
#[derive(Clone, Copy)]
pub(super) struct Sender<'a> {
    pub c: &'a Dispatch,
    pub a: &'a TokenArgs,
    pub inbox: &'a InboxArgs,
    pub epoch: Epoch,
}

impl<'a> Sender<'a> {
    /// Sends rows, each once to every rank that its slot goes to.
    #[kernel]
    pub fn send(self, g: Group) {
        let Sender { c, a, .. } = self;
        match (c.copies(), c.protocol, c.of_node) {
            (Copies::Apart, ..) => self.send_apart(g),
            (Copies::Together, Protocol::Packets, false) => self.send_packets(g),
            (Copies::Together, Protocol::Bulk, _) => self.send_rows(g, &|open| {
                open.row.field(open.rows.row).copy(0u64, &a.x, at(open.token, c.row()), c.row());
            }),
            (Copies::Together, Protocol::Flags | Protocol::Packets, _) => {
                let quantiser = quantiser(c, a);
                self.send_rows(g, &|open| {
                    let of_row = self.scale_of_row(open.token);
                    c.pieces().each(open.part, |start, len| {
                        let x = self.load(open.token, start, len);
                        self.put(open, start, quantised(c, (quantiser, of_row), (x, None), len));
                    });
                });
            }
        }
    }

    /// The ranks that a slot's row is sent to, a bit each.
    #[kernel]
    fn destinations(self, slot: Val<u32>, g: Group) -> Val<u64> {
        let Sender { c, a, .. } = self;
        let ids = Ids::given(c, a);
        c.travel().of(&|| owners(c.map(), &ids, slot * c.slot_entries(), c.slot_entries(), g))
    }

    /// A piece of a token's row.
    fn load(self, token: Val<u32>, start: Val<u32>, len: u32) -> AnyTile {
        let Sender { c, a, .. } = self;
        let start = start * c.elements(1);
        a.x.load(at(token, c.given_row()) + start.to_u64(), c.elements(len))
    }

    /// The scale that a token's row is quantised with, where it has one for all its elements.
    fn scale_of_row(self, token: Val<u32>) -> Option<Val<f32>> {
        let Sender { c, a, .. } = self;
        let scales_rows = c.quantises() && c.dtype == RowDtype::Int8;
        let row = |start: Val<u32>, len| a.x.load(at(token, c.hidden) + start.to_u64(), len);
        scales_rows.then(|| scale_of_row((c.hidden, c.elements(c.pieces().len)), INT8_MAX, &row))
    }

    /// The scales that are given with a piece of a token's row.
    fn load_scales(self, token: Val<u32>, part: Val<u32>, piece: (Val<u32>, u32)) -> Option<AnyTile> {
        self.a.x_scale.map(|scales| self.scales_of(&scales, token, part, piece))
    }

    #[kernel]
    fn scales_of(self, from: &AnyPtr, token: Val<u32>, part: Val<u32>, piece: (Val<u32>, u32)) -> AnyTile {
        self.c.scaling().load(from, token, part, piece)
    }

    /// Puts a piece of a row, and the scales that go with it.
    fn put(self, open: &Open<'_>, start: Val<u32>, (x, scales): (AnyTile, Option<AnyTile>)) {
        open.put(start, x);
        if let Some(scales) = scales {
            self.put_scales(open, open.part, start, scales);
        }
    }

    #[kernel]
    fn put_scales(self, open: &Open<'_>, part: Val<u32>, start: Val<u32>, scales: AnyTile) {
        self.c.scaling().put(open, part, start, scales);
    }

    /// A group has a row, and sends it to one rank after the other.
    #[kernel]
    fn send_rows(self, g: Group, put: &dyn Fn(&Open<'_>)) {
        let Sender { c, a, inbox, epoch } = self;
        let pieces = c.pieces();
        let counter = a.next_slot.map(|next| next.counter(0));
        for i in g.dynamic(tokens(c, a) * (c.token_slots() * pieces.parts()), counter) {
            let (slot, part) = pieces.part(i);
            let token = slot / c.token_slots();
            let to = self.destinations(slot, g);
            let send = || {
                let rows = inbox.rows.open(epoch);
                let open = Open { row: rows.to(Peers::mask(to)).slot(slot), rows, token, part };
                put(&open);
                if let Some(scales) = a.x_scale {
                    c.scaling().each(part, &|words| {
                        let scale = words.load(c, &scales, token);
                        open.put_scales(words.first, scale);
                    });
                }
                open.done();
            };
            self.if_there(to, &send);
        }
    }

    /// Sends a row that goes to some rank. In one node's part, a row that goes to none may not be in memory.
    #[kernel]
    fn if_there(self, to: Val<u64>, send: &dyn Fn()) {
        if !self.c.of_node {
            send();
        } else if to != 0 {
            send();
        }
    }

    /// A group has a part of a row, which is a packet for itself: its load is in flight together with those that say where it goes.
    #[kernel]
    fn send_packets(self, g: Group) {
        let Sender { c, a, inbox, epoch } = self;
        let pieces = c.pieces();
        let quantiser = quantiser(c, a);
        for i in g.strided(tokens(c, a) * (c.token_slots() * pieces.parts())) {
            let (slot, part) = pieces.part(i);
            let token = slot / c.token_slots();
            let rows = inbox.rows.open(epoch);
            pieces.each(part, |start, len| {
                let x = self.load(token, start, len);
                let (x, scales) =
                    quantised(c, (quantiser, None), (x, self.load_scales(token, part, (start, len))), len);
                let to = self.destinations(slot, g);
                let open = Open { row: rows.to(Peers::mask(to)).slot(slot), rows, token, part };
                self.put(&open, start, (x, scales));
                open.done();
            });
        }
    }

    /// A group has a part of a row and a rank, so that no rank waits for another's copy. The part is loaded if its row is there, whether
    /// or not it goes to the rank, and `n` has its token: so that load is in flight together with those that say so.
    #[kernel]
    fn send_apart(self, g: Group) {
        let Sender { c, a, inbox, epoch } = self;
        let (pieces, given) = (c.pieces(), Ids::given(c, a));
        let quantiser = quantiser(c, a);
        for i in g.strided(c.slots() * pieces.parts() * c.ranks) {
            let to = (i + rank()) % c.ranks;
            let piece = i / c.ranks;
            let (slot, part) = pieces.part(piece);
            let token = slot / c.token_slots();
            if token < a.rows_there {
                let rows = inbox.rows.open(epoch);
                let open = Open { row: rows.to(Peers::rank(to)).slot(slot), rows, token, part };
                let of_row = self.scale_of_row(token);
                pieces.each(part, |start, len| {
                    let x = self.load(token, start, len);
                    let scale = self.load_scales(token, part, (start, len));
                    let ids = given.load(slot * c.slot_entries(), c.slot_entries());
                    let entry = || arange(c.slot_entries()) + slot * c.slot_entries();
                    let (_, owned) = experts_of(c.map(), to, given.placed(given.named(ids), entry));
                    if owned.any() & (token < tokens(c, a)) {
                        self.put(&open, start, quantised(c, (quantiser, of_row), (x, scale), len));
                    }
                });
                open.done();
            }
        }
    }
}

/// A piece of a row as it is sent, and its scales: as they are given, or as the kernel quantises.
fn quantised(
    c: &Dispatch,
    (quantiser, of_row): (Option<Quantiser>, Option<Val<f32>>),
    (x, scales): (AnyTile, Option<AnyTile>),
    len: u32,
) -> (AnyTile, Option<AnyTile>) {
    let Some(quantiser) = quantiser else { return (x, scales) };
    let (scales, sent) = (c.scales_of(len), c.sent_scales_of(len));
    let piece = Piece { len: c.elements(len), scales, sent, of_row };
    let (x, scales) = quantiser.quantise(x, piece);
    (x, Some(scales))
}
