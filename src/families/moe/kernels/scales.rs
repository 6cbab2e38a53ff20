//! Scales of rows: which words of them go with a piece of a row, or with all of it, and where they stand in the output.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

use super::config::Dispatch;
use super::device::at;
use super::layout::{Begins, Room};
use super::wire::Open;

/// The order of the scales that dispatch yields. A word is an f32 scale, or four scales of a byte.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum ScaleLayout {
    /// `[row][word]`.
    Row,
    /// `[word][row]`, the rows of each word followed by as many as make a multiple of 4: 16 bytes, as TMA wants it.
    Column,
    /// `[128 rows][word][row % 32][row / 32 % 4]`: tiles of 128 rows by four scales, as block-scaled tensor cores take them. Scales are
    /// bytes.
    #[choice(name = "128x4")]
    Tiles,
}

/// Rows of a tile of [`ScaleLayout::Tiles`].
const TILE_ROWS: u64 = 128;

/// Rows that the rows of a column of [`ScaleLayout::Column`] are a multiple of.
const COLUMN_ROWS: u64 = 4;

/// Where the scales of rows stand in the output. Rows of a fixed stride have a matrix of scales for each expert, all others one.
#[derive(Clone, Copy, Debug)]
pub struct ScaleRoom {
    layout: ScaleLayout,
    /// Words of a row.
    words: u64,
    /// Rows of a matrix.
    rows: u64,
    /// Matrices.
    matrices: u64,
}

impl ScaleRoom {
    pub(super) fn of(layout: ScaleLayout, room: Room, words: u32) -> ScaleRoom {
        let rows = match room.begins {
            Begins::Strided(stride) => u64::from(stride),
            Begins::Aligned(_) => room.places,
        };
        ScaleRoom { layout, words: words.into(), rows, matrices: room.places / rows.max(1) }
    }

    /// Rows of a matrix, and as many as make it whole.
    fn whole_rows(&self) -> u64 {
        match self.layout {
            ScaleLayout::Row => self.rows,
            ScaleLayout::Column => self.rows.next_multiple_of(COLUMN_ROWS),
            ScaleLayout::Tiles => self.rows.next_multiple_of(TILE_ROWS),
        }
    }

    /// Words in all.
    pub fn all_words(&self) -> u64 {
        self.matrices * self.whole_rows() * self.words
    }

    /// Matrices, the rows of each without and with those that make it whole, and the words of a row.
    pub fn shape(&self) -> [u64; 4] {
        [self.matrices, self.rows, self.whole_rows(), self.words]
    }

    /// Where a word of a row's scales is.
    pub fn place(&self, row: u64, word: u64) -> u64 {
        let (matrix, row) = (row / self.rows, row % self.rows);
        let (first, step) = match self.layout {
            ScaleLayout::Row => (row * self.words, 1),
            ScaleLayout::Column => (row, self.whole_rows()),
            ScaleLayout::Tiles => {
                (row / TILE_ROWS * (self.words * TILE_ROWS) + row % 32 * 4 + row / 32 % 4, TILE_ROWS)
            }
        };
        matrix * (self.words * self.whole_rows()) + first + word * step
    }

    /// The first word of a row's scales, and how many words further each next one is.
    fn first_and_step(&self, row: Val<u32>) -> (Val<u32>, u32) {
        let (rows, words, whole) = (self.rows as u32, self.words as u32, self.whole_rows() as u32);
        let (matrix, row) = if self.matrices == 1 { (None, row) } else { (Some(row / rows), row % rows) };
        let (first, step) = match self.layout {
            ScaleLayout::Row => (row * words, 1),
            ScaleLayout::Column => (row, whole),
            ScaleLayout::Tiles => {
                let tile = TILE_ROWS as u32;
                (row / tile * (words * tile) + row % 32 * 4 + row / 32 % 4, tile)
            }
        };
        (matrix.map_or(first, |matrix| matrix * (words * whole) + first), step)
    }
}

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
            ScaleLayout::Column | ScaleLayout::Tiles => scatter(c, (scales, row), first, (n, sent), words),
        }
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

/// Stores words where the layout of scales has them.
#[kernel]
fn scatter(
    c: &Dispatch,
    (scales, row): (&AnyPtr, Val<u32>),
    first: Val<u32>,
    (n, sent): (u32, u32),
    words: AnyTile,
) {
    let (base, step) = c.scale_room().first_and_step(row);
    let word = arange(sent);
    scales.scatter((word + first) * step + base, words, word < n);
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
        ScaleRoom::of(self.scale_layout, self.room(), self.scales())
    }

    /// What the scales of its rows go with.
    pub(super) fn scaling(&self) -> Box<dyn Scales + '_> {
        if self.scales_apart() { Box::new(OfPieces(self)) } else { Box::new(OfRow(self)) }
    }
}
