//! Scales of rows: which words of them go with a piece of a row, or with all of it, and where they stand in the output.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::at;
use super::layout::Begins;
use super::wire::Open;

pub use crate::families::scales::{ScaleLayout, ScaleRoom};

/// Words of a row's scales.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// The first one.
    pub first: Val<u32>,
    /// How many there are.
    pub n: u32,
    /// How many travel: zeros after them fill a packet.
    pub sent: u32,
}

impl Words {
    /// Those of a piece of a row.
    pub fn of_piece(c: &Dispatch, start: Val<u32>, len: u32) -> Words {
        Words { first: start / c.scaled(), n: c.scales_of(len), sent: c.sent_scales_of(len) }
    }

    fn of_row(c: &Dispatch) -> Words {
        Words { first: 0u32.val(), n: c.scales(), sent: c.sent_scales() }
    }

    /// These words of a token's scales, and zeros after them as far as they travel.
    pub fn load(self, c: &Dispatch, scales: &AnyPtr, token: Val<u32>) -> AnyTile {
        let Words { first, n, sent } = self;
        load(c, scales, token, first, (n, sent))
    }

    /// Stores the words that exist as the scales of a row.
    pub fn store(self, c: &Dispatch, scales: &AnyPtr, row: Val<u32>, words: AnyTile) {
        let Words { first, n, sent } = self;
        match c.scale_layout {
            ScaleLayout::Row => store(c, (scales, row), first, (n, sent), words),
            ScaleLayout::Column | ScaleLayout::Tiles => self.scatter(&c.scale_room(), scales, row, words),
        }
    }

    /// Stores the words that exist where a room has them of a row.
    #[kernel]
    pub fn scatter(self, room: &ScaleRoom, scales: &AnyPtr, row: Val<u32>, words: AnyTile) {
        let Words { first, n, sent } = self;
        let (base, step) = room.first_and_step(row);
        let word = arange(sent);
        scales.scatter((word + first) * step + base, words, word < n);
    }
}

#[kernel]
fn load(c: &Dispatch, scales: &AnyPtr, token: Val<u32>, first: Val<u32>, (n, sent): (u32, u32)) -> AnyTile {
    let first = at(token, c.scales()) + first.to_u64();
    if sent == n { scales.load(first, n) } else { scales.load_where(first, arange(sent) < n) }
}

#[kernel]
fn store(
    c: &Dispatch,
    (scales, row): (&AnyPtr, Val<u32>),
    first: Val<u32>,
    (n, sent): (u32, u32),
    words: AnyTile,
) {
    let to = at(row, c.scales()) + first.to_u64();
    if sent == n {
        scales.store(to, words);
    } else {
        scales.store_where(to, words, arange(sent) < n);
    }
}

/// What the scales of rows go with.
pub(super) trait Scales {
    /// Does something with the words of a part of a row.
    fn each(&self, part: Val<u32>, act: &dyn Fn(Words));

    /// Does something with the words of a piece of a row, where words go with pieces.
    fn with_piece(&self, start: Val<u32>, len: u32, act: &dyn Fn(Words));

    /// Does something with the words of a row, where they go with its first part.
    fn with_row(&self, part: Val<u32>, act: &dyn Fn(Words));

    /// Loads the words that go with a piece of a token's row, so that both loads are in flight together.
    fn load(&self, from: &AnyPtr, token: Val<u32>, part: Val<u32>, piece: (Val<u32>, u32)) -> AnyTile;

    /// Puts the words that go with a piece of a row.
    fn put(&self, open: &Open<'_>, part: Val<u32>, start: Val<u32>, words: AnyTile);
}

/// Scales that go with the piece of a row that they are of: a hook needs them with it, and a sender that quantises has them with it.
struct OfPieces<'a>(&'a Dispatch);

impl Scales for OfPieces<'_> {
    fn each(&self, part: Val<u32>, act: &dyn Fn(Words)) {
        self.0.pieces().each(part, |start, len| self.with_piece(start, len, act));
    }

    fn with_piece(&self, start: Val<u32>, len: u32, act: &dyn Fn(Words)) {
        act(Words::of_piece(self.0, start, len));
    }

    fn with_row(&self, _: Val<u32>, _: &dyn Fn(Words)) {}

    fn load(&self, from: &AnyPtr, token: Val<u32>, _: Val<u32>, (start, len): (Val<u32>, u32)) -> AnyTile {
        Words::of_piece(self.0, start, len).load(self.0, from, token)
    }

    fn put(&self, open: &Open<'_>, _: Val<u32>, start: Val<u32>, words: AnyTile) {
        open.put_scales(start / self.0.scaled(), words);
    }
}

/// Scales of a row that go with its first part.
struct OfRow<'a>(&'a Dispatch);

impl Scales for OfRow<'_> {
    fn each(&self, part: Val<u32>, act: &dyn Fn(Words)) {
        self.with_row(part, act);
    }

    fn with_piece(&self, _: Val<u32>, _: u32, _: &dyn Fn(Words)) {}

    fn with_row(&self, part: Val<u32>, act: &dyn Fn(Words)) {
        self.0.pieces().once(part, || act(Words::of_row(self.0)));
    }

    #[kernel]
    fn load(&self, from: &AnyPtr, token: Val<u32>, part: Val<u32>, _: (Val<u32>, u32)) -> AnyTile {
        let c = self.0;
        let here = (arange(c.sent_scales()) < c.scales()) & (part == 0);
        from.load_where(at(token, c.scales()), here)
    }

    fn put(&self, open: &Open<'_>, part: Val<u32>, _: Val<u32>, words: AnyTile) {
        self.0.pieces().once(part, || open.put_scales(0u32.val(), words));
    }
}

impl Dispatch {
    /// Where the scales of rows stand in the output.
    pub fn scale_room(&self) -> ScaleRoom {
        let room = self.room();
        let rows = match room.begins {
            Begins::Strided(stride) => u64::from(stride),
            Begins::Aligned(_) => room.places,
        };
        ScaleRoom::new(self.scale_layout, self.scales(), (rows, room.places / rows.max(1)))
    }

    /// What the scales of its rows go with.
    pub(super) fn scaling(&self) -> Box<dyn Scales + '_> {
        if self.scales_apart() { Box::new(OfPieces(self)) } else { Box::new(OfRow(self)) }
    }
}
