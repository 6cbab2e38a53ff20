//! Any number of elements, tile by tile.

use super::dynamic::{Counter, Dynamic, DynamicIter};
use super::group::Group;
use crate::dsl::control::KIter;
use crate::dsl::memory::{Index, index::Part};
use crate::dsl::trace::{ScopeId, tracer::try_current};
use crate::dsl::values::{
    FromRaw, IntoVal, Raw, Tile, Val,
    tile::{arange_at, check_len},
    val::{binary, compare, host},
};
use crate::ir::{BinaryOp, CompareOp, Const, Loc};

/// `n` elements as tiles of `chunk`, the last of which may have fewer; made by [`tiles`].
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    n: Val<u32>,
    chunk: u32,
}

/// Divides `n` elements, a number of the host or of the device, into tiles of `chunk`.
///
/// [`Group::tiles`] goes through them in a loop. By their numbers they serve loops over more than that:
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
/// # let (x, y): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 4 * 1000), p.arg("y", 4 * 1000));
/// # #[kernel]
/// # fn body(x: Ptr<f32>, y: Ptr<f32>) {
/// let tiles = tiles(1000, 256);                      // of each of 4 rows
/// role("copy", 16, |b| {
///     for i in b.strided(4 * tiles.count()) {
///         let t = tiles.tile(i / 4);
///         let at = i % 4 * 1000 + t.at();
///         y.store(at, x.load(at, t.len()));
///     }
/// });
/// # }
/// # body(x, y);
/// # }).unwrap();
/// ```
///
/// # Errors
/// Ends the trace if a tile cannot have `chunk` elements.
#[track_caller]
pub fn tiles(n: impl IntoVal<u32>, chunk: u32) -> Tiles {
    check_len(Loc::caller(), chunk);
    Tiles { n: n.val(), chunk }
}

impl Tiles {
    /// How many there are.
    #[track_caller]
    pub fn count(&self) -> Val<u32> {
        self.count_at(Loc::caller())
    }

    fn count_at(&self, loc: Loc) -> Val<u32> {
        let number =
            |op, a: Val<u32>, b: u32| -> Val<u32> { binary(op, a.to_raw(), host(b, loc).to_raw(), loc) };
        // Unlike a sum that is rounded down, this does not wrap.
        let full = number(BinaryOp::Div, self.n, self.chunk);
        let rest = number(BinaryOp::Min, number(BinaryOp::Rem, self.n, self.chunk), 1);
        binary(BinaryOp::Add, full.to_raw(), rest.to_raw(), loc)
    }

    /// The one of number `i`, below [`count`](Tiles::count).
    #[track_caller]
    pub fn tile(&self, i: impl IntoVal<u32>) -> TileRange {
        self.tile_at(i.val(), Loc::caller())
    }

    fn tile_at(&self, number: Val<u32>, loc: Loc) -> TileRange {
        name(number, "tile");
        let chunk = host(self.chunk, loc);
        let first: Val<u32> = binary(BinaryOp::Mul, number.to_raw(), chunk.to_raw(), loc);
        name(first, "first");
        let whole = matches!(known(self.n), Some(n) if n.is_multiple_of(self.chunk));
        let rest = (!whole).then(|| {
            let rest: Val<u32> = binary(BinaryOp::Sub, self.n.to_raw(), first.to_raw(), loc);
            name(rest, "rest");
            rest
        });
        let rest = rest.filter(|&rest| known(rest).is_none_or(|n| n < self.chunk)).map(FromRaw::to_raw);
        TileRange { number, first, len: self.chunk, rest }
    }
}

/// The number that a value is known to be.
fn known(value: Val<u32>) -> Option<u32> {
    match try_current(|t| t.constant_of(value.to_raw())).flatten() {
        Some(Const::U32(n)) => Some(n),
        _ => None,
    }
}

/// Names what is no constant.
fn name(value: Val<u32>, name: &str) {
    if known(value).is_none() {
        crate::dsl::control::name_value(value, name);
    }
}

/// The elements that one of several [`Tiles`] has: `len()` of them from element `first()` on, or fewer at the end.
///
/// [`at()`](TileRange::at) is where to load, store, put, send and take its tiles. Elements beyond the end are then left
/// alone: what is loaded for them is 0, and nothing is stored. Memory is touched by vectors all the same.
#[derive(Clone, Copy, Debug)]
pub struct TileRange {
    number: Val<u32>,
    first: Val<u32>,
    len: u32,
    /// Elements from its first one to the end of all, where that may be fewer than its tiles have.
    rest: Option<Raw>,
}

impl TileRange {
    /// Where its elements are in a buffer that begins with the first of all. For a buffer that does not, add the offset.
    pub fn at(&self) -> Index {
        Index { raw: self.first.to_raw(), part: Part { len: Some(self.len), count: self.rest, mask: None } }
    }

    /// Where they are in memory that has this tile's elements only, with room for a whole one: in a message of a channel, or in
    /// shared memory. Add an offset where they don't begin with its first element.
    #[track_caller]
    pub fn local(&self) -> Index {
        Index { raw: host(0u32, Loc::caller()).to_raw(), part: self.at().part }
    }

    /// Elements of its tiles: the number that [`tiles`] was given, for the last one too.
    #[allow(clippy::len_without_is_empty)] // no tile is empty
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Its number, from 0.
    pub fn number(&self) -> Val<u32> {
        self.number
    }

    /// Its first element.
    pub fn first(&self) -> Val<u32> {
        self.first
    }

    /// How many elements it has: fewer than [`len`](TileRange::len) if it is the last one and they don't fill it.
    #[track_caller]
    pub fn count(&self) -> Val<u32> {
        let loc = Loc::caller();
        let len = host(self.len, loc);
        self.rest.map_or(len, |rest| binary(BinaryOp::Min, rest, len.to_raw(), loc))
    }

    /// Which elements of its tiles it has, for what is calculated with those beyond the end.
    #[track_caller]
    pub fn mask(&self) -> Tile<bool> {
        let loc = Loc::caller();
        let end = self.rest.unwrap_or_else(|| host(self.len, loc).to_raw());
        compare(CompareOp::Lt, arange_at(self.len, loc).to_raw(), end, loc)
    }
}

impl Group {
    /// The work of this group when `n` elements, a number of the host or of the device, are dealt to the groups of the role
    /// in tiles of `chunk`. Use it in `for` in a `#[kernel]` function: one body for all of them, also for the last one,
    /// which may have fewer elements.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
    /// # let (x, y): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 1000), p.arg("y", 1000));
    /// # #[kernel]
    /// # fn body(x: Ptr<f32>, y: Ptr<f32>) {
    /// role("double", 16, |b| {
    ///     for t in b.tiles(1000, 256) {
    ///         y.store(t.at(), 2.0 * x.load(t.at(), t.len()));
    ///     }
    /// });
    /// # }
    /// # body(x, y);
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Ends the trace if a tile cannot have `chunk` elements.
    #[track_caller]
    pub fn tiles(&self, n: impl IntoVal<u32>, chunk: u32) -> GroupTiles {
        let tiles = tiles(n, chunk);
        GroupTiles { tiles, numbers: self.dynamic(tiles.count_at(Loc::caller()), None), group: *self }
    }
}

/// Tiles dealt to the groups of a role, to be used in `for`; see [`Group::tiles`].
#[derive(Clone, Copy, Debug)]
pub struct GroupTiles {
    tiles: Tiles,
    numbers: Dynamic,
    group: Group,
}

impl GroupTiles {
    /// The same under dynamic scheduling, if there is a counter: each goes to whichever group is free, as with
    /// [`Group::dynamic`].
    #[track_caller]
    pub fn dynamic(self, counter: Option<Counter>) -> GroupTiles {
        let n = self.tiles.count_at(Loc::caller());
        GroupTiles { numbers: self.group.dynamic(n, counter), ..self }
    }
}

impl KIter for GroupTiles {
    type Item = TileRange;
    type Iter = TilesIter;
    fn sweep(self, name: &'static str, loc: Loc) -> (TilesIter, Option<ScopeId>) {
        let (numbers, scope) = self.numbers.sweep(name, loc);
        (TilesIter { numbers, tiles: self.tiles, loc }, scope)
    }
}

/// Yields the range of a group's turn once; asked again, it ends the loop.
#[derive(Debug)]
pub struct TilesIter {
    numbers: DynamicIter,
    tiles: Tiles,
    loc: Loc,
}

impl Iterator for TilesIter {
    type Item = TileRange;

    fn next(&mut self) -> Option<TileRange> {
        self.numbers.next().map(|number| self.tiles.tile_at(number, self.loc))
    }
}
