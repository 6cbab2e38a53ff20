//! Which rows the entries of slots get, where rows stand by expert.

use peerwarp_codegen::dsl::prelude::*;

use super::bases::{Base, bases, lay_out};
use super::config::Dispatch;
use super::device::local_experts;
use super::dispatch::DispatchArgs;
use super::layout::Begins;
use super::rank_major::{Noted, each_part, entry_pieces};
use super::wire::Records;

/// What a block knows of the rows of entries.
pub(super) enum Rows<'a> {
    /// What their senders have counted.
    Counted(Counted<'a>),
    /// The row of each entry of all records, which nobody else has counted.
    Each(Shared<i32>),
}

/// The first row of every (expert, source, chunk): which of them an entry gets is in its record.
pub(super) struct Counted<'a> {
    records: &'a Records<'a>,
    base: Base,
    /// Tokens of each record's source.
    n: Shared<u32>,
}

impl<'a> Rows<'a> {
    /// As soon as records have come.
    #[kernel]
    pub fn new(c: &Dispatch, a: &DispatchArgs, b: Group, records: &'a Records<'a>, epoch: Epoch) -> Rows<'a> {
        if let Some(counts) = records.counts() {
            let n = shared::<u32>("n", c.records());
            n.store(0, records.n(arange(c.records())));
            Rows::Counted(Counted { records, base: bases(c, a, b, &counts, epoch), n })
        } else {
            Rows::Each(count(c, a, b, records))
        }
    }

    /// Which of `len` entries of a record from `start` on are here, and their rows: -1 for one that is not, -2 for one that has no
    /// place.
    #[kernel]
    fn of(&self, c: &Dispatch, (record, start, len): (Val<u32>, Val<u32>, u32)) -> (Tile<bool>, Tile<i32>) {
        match self {
            Rows::Counted(Counted { records, base, .. }) => {
                let (expert, mine, row) = numbered(c, records, base, (record, start, len));
                (mine, placed(c, expert, mine, row))
            }
            Rows::Each(row_of) => {
                let row = row_of.load(record * c.record_entries() + start, len);
                (row != -1, row)
            }
        }
    }

    /// Puts the rows of a slot's entries into `rows`, and does something, if one of them is here.
    #[kernel]
    pub fn find(
        &self,
        c: &Dispatch,
        (source, slot): (Val<u32>, Val<u32>),
        rows: &Shared<i32>,
        act: impl FnOnce(),
    ) {
        let chunk = slot / (c.chunk * c.token_slots());
        let record = source * c.chunks() + chunk;
        let look = || {
            let in_record = slot * c.slot_entries() - chunk * c.record_entries();
            let (mine, row) = self.of(c, (record, in_record, c.slot_entries()));
            if mine.any() {
                rows.store(0, row);
                act();
            }
        };
        if let Rows::Counted(Counted { n, .. }) = self {
            if slot < n.get(record) * c.token_slots() {
                look();
            }
        } else {
            look();
        }
    }

    /// Writes down the row of each entry, and, if no other role does, its weight and how many tokens each rank has.
    #[kernel]
    pub fn note(&self, c: &Dispatch, a: &DispatchArgs, g: Group) {
        if let Rows::Counted(Counted { records, .. }) = self {
            each_part(c, a, g, records, |record, start, len| {
                let (_, row) = self.of(c, (record, start, len));
                let weights = records.weights(record, start, len);
                let to = Noted::at(c, (record, start, len));
                to.store(a.pos, Some(row));
                to.store(a.weight_from, weights);
            });
        } else {
            let pieces = entry_pieces(c);
            for i in g.strided(c.records() * pieces.parts()) {
                let (record, part) = pieces.part(i);
                pieces.each(part, |start, len| {
                    let (_, row) = self.of(c, (record, start, len));
                    Noted::at(c, (record, start, len)).store(a.pos, Some(row));
                });
            }
        }
    }
}

/// Counts the entries of all records, and gives each its row.
#[kernel]
fn count(c: &Dispatch, a: &DispatchArgs, b: Group, records: &Records<'_>) -> Shared<i32> {
    // Behind the last expert's first row comes the number of all rows.
    let most = c.map().at_most();
    let base = shared::<u32>("base", most + 1);
    base.store(0, splat(0u32, most + 1));
    let (expert, mine) = local_experts(c.map(), records.all_words() & 0xffff);
    let before = base.tally(expert, mine);
    base.store(0, base.load(0, most + 1).scan_sum(true));
    lay_out(c, a, b, (&base, 1), base.get(most));
    let row = base.gather(expert, mine, 0) + before;
    let row_of = shared::<i32>("row_of", c.records() * c.record_entries());
    row_of.store(0, placed(c, expert, mine, row));
    row_of
}

/// The experts of `len` entries of a record from `start` on, which are here, and their numbers among the rows of all experts.
#[kernel]
pub(super) fn numbered(
    c: &Dispatch,
    records: &Records<'_>,
    base: &Base,
    (record, start, len): (Val<u32>, Val<u32>, u32),
) -> (Tile<u32>, Tile<bool>, Tile<u32>) {
    let word = records.words(record, start, len);
    let (expert, mine) = local_experts(c.map(), word & 0xffff);
    let row = base.gather(expert * c.records() + record, mine) + (word >> 16);
    (expert, mine, row)
}

/// Entries' numbers among the rows of all experts, as [`Rows::of`] has them.
#[kernel]
fn placed(c: &Dispatch, expert: Tile<u32>, mine: Tile<bool>, row: Tile<u32>) -> Tile<i32> {
    let place = row.cast::<i32>();
    let place = if c.room().drops {
        let placed = match c.room().begins {
            Begins::Aligned(_) => row < c.max_rows,
            Begins::Strided(stride) => row < (expert + 1) * stride,
        };
        mine.select(placed.select(place, -2), -1)
    } else {
        mine.select(place, -1)
    };
    place
}
