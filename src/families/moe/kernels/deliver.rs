//! Rows on their way into the output: stored where they belong, as they are or as a hook makes them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

use super::config::Dispatch;
use super::device::at;
use super::dispatch::Launch;
use super::scales::Words;
use super::wire::Arriving;

/// An elementwise function of rows that the receiver runs: an activation, a scaling, a quantisation.
pub type RowHook<'a> = &'a dyn Fn(Tile<f32>) -> Tile<f32>;

/// Which hook a dispatch kernel has.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Hook {
    /// None: rows are moved as they are.
    #[choice(name = "raw")]
    None,
    /// The benchmark's stand-in expert, `x * (1 + rank)`.
    Expert,
    /// The one that a family of one's own passes to [`dispatch_with`](super::dispatch_with).
    Custom,
}

/// The benchmark's stand-in expert.
pub(super) fn stand_in_expert(row: Tile<f32>) -> Tile<f32> {
    row * (rank().to_f32() + 1.0)
}

/// Does something with each place of a row.
pub(super) type Places<'a> = Box<dyn Fn(&dyn Fn(Val<u32>)) + 'a>;

/// What a group does with rows that arrive.
pub(super) trait Delivery {
    /// Stores a part of a row in its places.
    fn deliver<'a>(&self, row: &dyn Arriving, part: Val<u32>, places: &dyn Fn() -> Places<'a>);
}

impl<'a> Launch<'a> {
    /// What a group does with rows.
    pub fn delivery(self, hook: RowHook<'a>) -> Box<dyn Delivery + 'a> {
        let Launch { c, a, .. } = self;
        match (a.rows, c.hook) {
            (None, _) => match a.row_scale {
                None => Box::new(Left),
                Some(to) => Box::new(Scaled { c, to }),
            },
            (Some(rows), Hook::None) => Box::new(Moved { c, rows, row_scale: a.row_scale }),
            (Some(rows), Hook::Expert | Hook::Custom) => {
                Box::new(Stored { c, rows, hooked: Hooked::new(c, hook) })
            }
        }
    }
}

/// Rows are in their places when they arrive.
struct Left;

impl Delivery for Left {
    fn deliver<'a>(&self, _: &dyn Arriving, _: Val<u32>, _: &dyn Fn() -> Places<'a>) {}
}

/// Rows are in their places when they arrive, and their scales are not.
struct Scaled<'a> {
    c: &'a Dispatch,
    to: AnyPtr,
}

impl Delivery for Scaled<'_> {
    fn deliver<'a>(&self, row: &dyn Arriving, part: Val<u32>, places: &dyn Fn() -> Places<'a>) {
        let places = places();
        self.c.scaling().each(part, &|words| {
            if let Some(scales) = row.scales(words) {
                places(&|row| words.store(self.c, &self.to, row, scales));
            }
        });
    }
}

/// Rows are stored as they are, and their scales.
struct Moved<'a> {
    c: &'a Dispatch,
    rows: AnyPtr,
    row_scale: Option<AnyPtr>,
}

impl Delivery for Moved<'_> {
    #[kernel]
    fn deliver<'a>(&self, row: &dyn Arriving, part: Val<u32>, places: &dyn Fn() -> Places<'a>) {
        let (Moved { c, rows, row_scale }, places) = (self, places());
        let scaling = row_scale.map(|to| (c.scaling(), to));
        let store = |to: &AnyPtr, words: Words| {
            if let Some(scales) = row.scales(words) {
                places(&|row| words.store(c, to, row, scales));
            }
        };
        c.pieces().each(part, |start, len| {
            let x = row.piece(start, len);
            places(&|row| rows.store(at(row, c.row()) + start.to_u64(), x));
            if let Some((scaling, to)) = &scaling {
                scaling.with_piece(start, len, &|words| store(to, words));
            }
        });
        if let Some((scaling, to)) = &scaling {
            scaling.with_row(part, &|words| store(to, words));
        }
    }
}

/// What a hook makes of rows is stored.
struct Stored<'a> {
    c: &'a Dispatch,
    rows: AnyPtr,
    hooked: Hooked<'a>,
}

impl Delivery for Stored<'_> {
    #[kernel]
    fn deliver<'a>(&self, row: &dyn Arriving, part: Val<u32>, places: &dyn Fn() -> Places<'a>) {
        let (Stored { c, rows, hooked }, places) = (self, places());
        c.pieces().each(part, |start, len| {
            let y = hooked.piece(row, start, len);
            places(&|row| rows.store_f32(at(row, c.row()) + start.to_u64(), y));
        });
    }
}

/// A hook, and what it needs of a row besides a piece.
pub(super) struct Hooked<'a> {
    c: &'a Dispatch,
    hook: RowHook<'a>,
    /// Room for the scales of a piece, where rows have some: each lane needs those of its elements.
    scales: Option<Shared<f32>>,
}

impl<'a> Hooked<'a> {
    /// A group's.
    pub fn new(c: &'a Dispatch, hook: RowHook<'a>) -> Hooked<'a> {
        let scales = (c.scales_at_hand() > 0).then(|| shared::<f32>("scales", c.scales_at_hand()));
        Hooked { c, hook, scales }
    }

    /// What the hook makes of a piece of a row.
    #[kernel]
    pub fn piece(&self, row: &dyn Arriving, start: Val<u32>, len: u32) -> Tile<f32> {
        let Hooked { c, hook, scales } = self;
        let x = row.piece(start, len).to_f32();
        if let (Some(scales), Some(arrived)) = (scales, row.scales(Words::of_piece(c, start, len))) {
            scales.store(0, arrived.to_f32());
            hook(x * scales.gather(arange(len) / c.scaled(), true, 0.0))
        } else {
            hook(x)
        }
    }
}
