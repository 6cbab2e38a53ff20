//! Where rows of experts begin at their rank, and which of them have a place.

use peerwarp_codegen::dsl::prelude::*;

use super::layout::{Begins, Room};

/// The places of a rank's rows.
pub(super) struct Placing {
    /// Where experts' rows begin.
    pub beginning: Box<dyn Beginning>,
    /// Which rows have a place.
    pub fit: Box<dyn Fit>,
}

impl Room {
    /// Its places.
    pub(super) fn placing(self) -> Placing {
        let (beginning, fit): (Box<dyn Beginning>, Box<dyn Fit>) = match (self.begins, self.drops) {
            (Begins::Aligned(align), false) => (Box::new(Aligned(align)), Box::new(All)),
            (Begins::Aligned(align), true) => (Box::new(Aligned(align)), Box::new(First(self.places as u32))),
            (Begins::Strided(stride), _) => (Box::new(Strided(stride)), Box::new(FirstOfEach(stride))),
        };
        Placing { beginning, fit }
    }
}

/// Where experts' rows begin.
pub(super) trait Beginning {
    /// The places that experts take, each of which has `n` rows.
    fn taken(&self, n: Tile<u32>) -> Tile<u32>;

    /// The first places of experts that take so many, where those before them take `before`.
    fn first(&self, expert: Tile<u32>, taken: Tile<u32>, before: Val<u32>) -> Tile<u32>;

    /// Moves rows from where those of the expert before end, unless they begin there.
    fn unless_packed(&self, move_rows: &dyn Fn()) {
        move_rows();
    }

    /// The `max_rows` that holds all rows of experts that take so many places.
    fn needed(&self, taken: Tile<u32>) -> Val<u32>;

    /// The `max_rows` that holds all rows of two parts of the experts, each of which needs so many.
    fn needed_by_both(&self, one: Val<u32>, other: Val<u32>) -> Val<u32>;
}

/// At multiples of a number, one expert's right after those of the one before.
struct Aligned(u32);

impl Beginning for Aligned {
    #[kernel]
    fn taken(&self, n: Tile<u32>) -> Tile<u32> {
        let taken = (n + (self.0 - 1)) / self.0 * self.0;
        taken
    }

    #[kernel]
    fn first(&self, _: Tile<u32>, taken: Tile<u32>, before: Val<u32>) -> Tile<u32> {
        let first = taken.scan_sum(true) + before;
        first
    }

    fn unless_packed(&self, move_rows: &dyn Fn()) {
        if self.0 > 1 {
            move_rows();
        }
    }

    fn needed(&self, taken: Tile<u32>) -> Val<u32> {
        taken.sum()
    }

    fn needed_by_both(&self, one: Val<u32>, other: Val<u32>) -> Val<u32> {
        one + other
    }
}

/// So many places for each expert.
struct Strided(u32);

impl Beginning for Strided {
    fn taken(&self, n: Tile<u32>) -> Tile<u32> {
        n
    }

    #[kernel]
    fn first(&self, expert: Tile<u32>, _: Tile<u32>, _: Val<u32>) -> Tile<u32> {
        let first = expert * self.0;
        first
    }

    fn needed(&self, taken: Tile<u32>) -> Val<u32> {
        taken.max()
    }

    fn needed_by_both(&self, one: Val<u32>, other: Val<u32>) -> Val<u32> {
        one.max(other)
    }
}

/// Which rows have a place.
pub(super) trait Fit {
    /// Where experts' rows begin, and how many have a place, of experts that would begin at `first` and have `n`.
    fn cut(&self, first: Tile<u32>, n: Tile<u32>) -> (Tile<u32>, Tile<u32>);

    /// Which of these rows of these experts have a place.
    fn holds(&self, expert: Tile<u32>, row: Tile<u32>) -> Tile<bool>;

    /// Which of a token's entries are here, given the rows that dispatch has written down. One that has no place contributes nothing,
    /// and its token's rank waits all the same.
    #[kernel]
    fn are_here(&self, entries: Tile<i32>) -> Tile<bool> {
        entries != -1
    }

    /// Whether some entry of a token is here, given which have places, a bit each, and how to ask for any.
    fn any_is_here(&self, _placed: Val<u32>, any: &dyn Fn() -> Val<bool>) -> Val<bool> {
        any()
    }
}

/// All rows.
struct All;

impl Fit for All {
    fn cut(&self, first: Tile<u32>, n: Tile<u32>) -> (Tile<u32>, Tile<u32>) {
        (first, n)
    }

    fn holds(&self, _: Tile<u32>, row: Tile<u32>) -> Tile<bool> {
        splat(true, row.len())
    }

    #[kernel]
    fn are_here(&self, entries: Tile<i32>) -> Tile<bool> {
        entries >= 0
    }

    #[kernel]
    fn any_is_here(&self, placed: Val<u32>, _: &dyn Fn() -> Val<bool>) -> Val<bool> {
        placed != 0
    }
}

/// So many rows of all experts.
struct First(u32);

impl Fit for First {
    #[kernel]
    fn cut(&self, first: Tile<u32>, n: Tile<u32>) -> (Tile<u32>, Tile<u32>) {
        let first = first.minimum(self.0);
        (first, n.minimum(splat(self.0, n.len()) - first))
    }

    #[kernel]
    fn holds(&self, _: Tile<u32>, row: Tile<u32>) -> Tile<bool> {
        row < self.0
    }
}

/// So many rows of each expert.
struct FirstOfEach(u32);

impl Fit for FirstOfEach {
    fn cut(&self, first: Tile<u32>, n: Tile<u32>) -> (Tile<u32>, Tile<u32>) {
        (first, n.minimum(self.0))
    }

    #[kernel]
    fn holds(&self, expert: Tile<u32>, row: Tile<u32>) -> Tile<bool> {
        row < (expert + 1) * self.0
    }
}
