//! The receiving side of expert-major rows: each entry has a row among those of its expert.

use peerwarp_codegen::dsl::prelude::*;

use super::bases::{Base, bases, lay_out};
use super::config::Dispatch;
use super::deliver::RowHook;
use super::device::local_experts;
use super::dispatch::Launch;
use super::entries::{Noted, each_part, entry_pieces, place};
use super::wire::{Arriving, Given, Received, Records};

/// Writes down where every row belongs, and puts it there when it arrives.
#[kernel]
pub(super) fn receive(l: Launch<'_>, b: Group, hook: RowHook<'_>) {
    let Launch { c, a, epoch, .. } = l;
    let records = l.records();
    let rows_of = rows(l, b, &*records);
    let pieces = c.pieces();

    b.split(c.group_warps, |g| {
        rows_of.note(l, g);
        let rows = shared::<i32>("rows", c.slot_entries());
        let delivery = l.delivery(hook);
        let put = |source: Val<u32>, slot: Val<u32>, part: Val<u32>, row: &dyn Fn() -> Box<dyn Arriving>| {
            find(c, &*rows_of, (source, slot), &rows, &|| {
                delivery.deliver(&*row(), part, &|| Box::new(|act| each_place(&rows, act)));
            });
        };
        // What others send is in flight meanwhile.
        c.travel().stay(&|| {
            for i in g.dynamic(c.slots() * pieces.parts(), a.next_row.map(|next| next.counter(1))) {
                let (slot, part) = pieces.part(i);
                put(rank(), slot, part, &|| {
                    Box::new(Given { c, a: &a.tokens, token: slot / c.token_slots() })
                });
            }
        });
        for i in
            g.dynamic(c.slots() * c.destinations() * pieces.parts(), a.next_row.map(|next| next.counter(0)))
        {
            let (message, part) = pieces.part(i);
            let (source, slot) = c.travel().arriving(message);
            put(source, slot, part, &|| Box::new(Received::wait(&a.inbox, source, slot, epoch)));
        }
    });
}

/// Writes down the row of each entry as [`receive`] does, and where each row comes from: the number of its token among those of all ranks.
/// Each group has a share, and signals `noted` then.
#[kernel]
pub(super) fn note_places(l: Launch<'_>, g: Group, from: &Ptr<u32>, noted: &BlockFlags) {
    let Launch { c, a, epoch, .. } = l;
    let records = l.records();
    let rows_of = rows(l, g, &*records);
    each_part(l, g, &*records, |record, start, len| {
        let (mine, row) = rows_of.of(c, (record, start, len));
        let to = Noted::at(c, (record, start, len));
        to.store(a.pos, Some(row));
        to.store(a.weight_from, records.weights(record, start, len));
        let (source, first) = place(c, record, start);
        let token = (arange(len) + first) / c.topk;
        from.scatter(row.cast::<u32>(), token + source * c.tokens, mine);
    });
    noted.signal(g.index(), epoch);
}

/// Does something with each row that is not negative.
#[kernel]
fn each_place(rows: &Shared<i32>, act: &dyn Fn(Val<u32>)) {
    for k in 0..(rows.len() as u32).val() {
        let row = rows.get(k);
        if row >= 0 {
            act(row.cast::<u32>());
        }
    }
}

/// The rows of entries, as a block knows them.
trait Rows {
    /// Which of `len` entries of a record from `start` on are here, and their rows: -1 for one that is not, -2 for one that has no
    /// place.
    fn of(&self, c: &Dispatch, entries: (Val<u32>, Val<u32>, u32)) -> (Tile<bool>, Tile<i32>);

    /// Does something with a slot, whose record is given with it, if its source has the token.
    fn if_there(&self, c: &Dispatch, at: (Val<u32>, Val<u32>), act: &dyn Fn());

    /// Writes down the row of each entry, and, if no other role does, its weight and how many tokens each rank has.
    fn note(&self, l: Launch<'_>, g: Group);
}

/// The first row of every (expert, source, chunk): which of them an entry gets is in its record, whose sender counts.
struct Counted<'a> {
    records: &'a dyn Records,
    base: Base<'a>,
    /// Tokens of each record's source.
    n: Shared<u32>,
}

/// The row of each entry of all records, which this block counts.
struct Each(Shared<i32>);

/// The rows of entries, as soon as records have arrived.
#[kernel]
fn rows<'a>(l: Launch<'a>, b: Group, records: &'a dyn Records) -> Box<dyn Rows + 'a> {
    let c = l.c;
    if let Some(counts) = records.counts() {
        let n = shared::<u32>("n", c.records());
        n.store(0, records.n(arange(c.records())));
        Box::new(Counted { records, base: bases(l, b, &counts), n })
    } else {
        Box::new(Each(count(l, b, records)))
    }
}

impl Rows for Counted<'_> {
    #[kernel]
    fn of(&self, c: &Dispatch, entries: (Val<u32>, Val<u32>, u32)) -> (Tile<bool>, Tile<i32>) {
        let (expert, mine, row) = numbered(c, self.records, &self.base, entries);
        (mine, placed(c, expert, mine, row))
    }

    #[kernel]
    fn if_there(&self, c: &Dispatch, (record, slot): (Val<u32>, Val<u32>), act: &dyn Fn()) {
        if slot < self.n.get(record) * c.token_slots() {
            act();
        }
    }

    #[kernel]
    fn note(&self, l: Launch<'_>, g: Group) {
        let Launch { c, a, .. } = l;
        each_part(l, g, self.records, |record, start, len| {
            let (_, row) = self.of(c, (record, start, len));
            let weights = self.records.weights(record, start, len);
            let to = Noted::at(c, (record, start, len));
            to.store(a.pos, Some(row));
            to.store(a.weight_from, weights);
        });
    }
}

impl Rows for Each {
    #[kernel]
    fn of(&self, c: &Dispatch, (record, start, len): (Val<u32>, Val<u32>, u32)) -> (Tile<bool>, Tile<i32>) {
        let row = self.0.load(record * c.record_entries() + start, len);
        (row != -1, row)
    }

    fn if_there(&self, _: &Dispatch, _: (Val<u32>, Val<u32>), act: &dyn Fn()) {
        act();
    }

    #[kernel]
    fn note(&self, l: Launch<'_>, g: Group) {
        let Launch { c, a, .. } = l;
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

/// Puts the rows of a slot's entries into `rows`, and does something, if one of them is here.
#[kernel]
fn find(
    c: &Dispatch,
    rows_of: &dyn Rows,
    (source, slot): (Val<u32>, Val<u32>),
    rows: &Shared<i32>,
    act: &dyn Fn(),
) {
    let chunk = slot / (c.chunk * c.token_slots());
    let record = source * c.chunks() + chunk;
    rows_of.if_there(c, (record, slot), &|| {
        let in_record = slot * c.slot_entries() - chunk * c.record_entries();
        let (mine, row) = rows_of.of(c, (record, in_record, c.slot_entries()));
        if mine.any() {
            rows.store(0, row);
            act();
        }
    });
}

/// Counts the entries of all records, and gives each its row.
#[kernel]
fn count(l: Launch<'_>, b: Group, records: &dyn Records) -> Shared<i32> {
    let c = l.c;
    // Behind the last expert's first row comes the number of all rows.
    let most = c.map().at_most();
    let base = shared::<u32>("base", most + 1);
    base.store(0, splat(0u32, most + 1));
    let (expert, mine) = local_experts(c.map(), records.all_words() & 0xffff);
    let before = base.tally(expert, mine);
    base.store(0, base.load(0, most + 1).scan_sum(true));
    lay_out(l, b, (&base, 1), base.get(most));
    let row = base.gather(expert, mine, 0) + before;
    let row_of = shared::<i32>("row_of", c.records() * c.record_entries());
    row_of.store(0, placed(c, expert, mine, row));
    row_of
}

/// The experts of `len` entries of a record from `start` on, which are here, and their numbers among the rows of all experts.
#[kernel]
pub(super) fn numbered(
    c: &Dispatch,
    records: &dyn Records,
    base: &Base<'_>,
    (record, start, len): (Val<u32>, Val<u32>, u32),
) -> (Tile<u32>, Tile<bool>, Tile<u32>) {
    let word = records.words(record, start, len);
    let (expert, mine) = local_experts(c.map(), word & 0xffff);
    let row = base(expert * c.records() + record, mine) + (word >> 16);
    (expert, mine, row)
}

/// Entries' numbers among the rows of all experts, as [`Rows::of`].
#[kernel]
fn placed(c: &Dispatch, expert: Tile<u32>, mine: Tile<bool>, row: Tile<u32>) -> Tile<i32> {
    let place = row.cast::<i32>();
    let placed = c.room().placing().fit.holds(expert, row);
    let place = mine.select(placed.select(place, -2), -1);
    place
}
