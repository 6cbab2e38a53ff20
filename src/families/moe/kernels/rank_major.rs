//! What says which rows are whose experts'.

use peerwarp_codegen::dsl::prelude::*;

use super::bases::{base_of_words, bases};
use super::config::Dispatch;
use super::device::{first_expert, local_experts};
use super::dispatch::DispatchArgs;
use super::expert_major::numbered;
use super::pieces::{Pieces, each_piece};
use super::plan::Index;
use super::wire::Records;

/// Entries that a lane of the index looks at together.
const ENTRIES_A_LANE: u32 = 4;

/// How warps divide the entries of a record.
pub(super) fn entry_pieces(c: &Dispatch) -> Pieces {
    let row = c.record_entries();
    Pieces { row, len: row.min(32 * ENTRIES_A_LANE), shared: true }
}

/// Writes down which rows each expert has, where rows stand by token, and, if it does not count, what [`note_entries`] does.
/// Nobody who moves rows waits for it.
#[kernel]
pub(super) fn index(c: &Dispatch, a: &DispatchArgs, b: Group, epoch: Epoch, bank: Val<u32>) {
    let records = Records::receive(c, &a.records, epoch, bank);
    if let Some(counts) = records.counts() {
        let base = bases(c, a, b, &counts, epoch);
        b.split(1, |g| {
            each_part(c, a, g, &records, |record, start, len| {
                let (expert, mine, row) = numbered(c, &records, &base, (record, start, len));
                gather_entries(c, a, record, start, row, mine);
                let weights = records.weights(record, start, len);
                let to = Noted::at(c, (record, start, len));
                to.store(a.entry_expert, Some(noted(c, a, expert, mine)));
                to.store(a.weight_from, weights);
            });
        });
    } else if c.index() == Index::Warp {
        b.split(1, |g| {
            if g.index() == 0 {
                index_of_few(c, a, &records);
            }
        });
    } else {
        let base = base_of_words(c, a, b, &records);
        b.split(1, |g| {
            for record in g.strided(c.records()) {
                each_piece(c.record_entries(), entry_pieces(c).len, |start, len| {
                    let (expert, mine) = records.local_experts(record, start, len);
                    let row = base.tally(expert * c.records() + record, mine);
                    gather_entries(c, a, record, start, row, mine);
                });
            }
        });
    }
}

/// The same for few entries, by a warp: nobody has to be waited for. It has all of them at once, in the order in which an expert's
/// rows are.
#[kernel]
fn index_of_few(c: &Dispatch, a: &DispatchArgs, records: &Records<'_>) {
    let most = c.map().at_most();
    let base = shared::<u32>("base", most);
    base.store(0, splat(0u32, most));
    let (expert, mine) = local_experts(c.map(), records.all_words() & 0xffff);
    let before = base.tally(expert, mine);
    let count = base.load(0, most);
    let start = count.scan_sum(true);
    base.store(0, start);
    a.expert_start.store(0, start);
    a.expert_rows.store(0, count);
    a.expert_start.set(most, count.sum());
    if let Some(gather) = a.gather {
        let of_source = c.chunks() * c.record_entries();
        let entry = arange(c.records() * c.record_entries());
        let (source, entry) = (entry / of_source, entry % of_source);
        let place = base.gather(expert, mine, 0) + before;
        gather.scatter(place, entry / c.topk + source * c.tokens, mine);
    }
}

/// Writes down which weights the entries have, of rows that stand by token which experts as well, and how many tokens each rank has.
#[kernel]
pub(super) fn note_entries(c: &Dispatch, a: &DispatchArgs, g: Group, epoch: Epoch, bank: Val<u32>) {
    let records = Records::receive(c, &a.records, epoch, bank);
    each_part(c, a, g, &records, |record, start, len| {
        let experts = a.entry_expert.map(|_| records.local_experts(record, start, len));
        let weights = records.weights(record, start, len);
        let to = Noted::at(c, (record, start, len));
        to.store(a.entry_expert, experts.map(|(expert, mine)| noted(c, a, expert, mine)));
        to.store(a.weight_from, weights);
    });
}

/// Does something with parts of records, given the record, the first entry and their number, and writes down how many tokens
/// each rank has.
#[kernel]
pub(super) fn each_part(
    c: &Dispatch,
    a: &DispatchArgs,
    g: Group,
    records: &Records<'_>,
    act: impl Fn(Val<u32>, Val<u32>, u32),
) {
    let pieces = entry_pieces(c);
    let parts = c.records() * pieces.parts();
    for i in g.strided(parts + 1) {
        if i < parts {
            let (record, part) = pieces.part(i);
            pieces.each(part, |start, len| act(record, start, len));
        } else {
            a.n_from.store(0, records.n(arange(c.ranks) * c.chunks()));
        }
    }
}

/// The source of a record, and the first of its source's entries that is in it from `start` on.
fn place(c: &Dispatch, record: Val<u32>, start: Val<u32>) -> (Val<u32>, Val<u32>) {
    (record / c.chunks(), record % c.chunks() * c.record_entries() + start)
}

/// Writes down which token's row the entries of a record go to, from entry `start` on, if they are this rank's.
#[kernel]
fn gather_entries(
    c: &Dispatch,
    a: &DispatchArgs,
    record: Val<u32>,
    start: Val<u32>,
    row: Tile<u32>,
    mine: Tile<bool>,
) {
    let (source, first) = place(c, record, start);
    if let Some(gather) = a.gather {
        let entry = arange(row.len()) + first;
        gather.scatter(row, entry / c.topk + source * c.tokens, mine);
    }
}

/// Where something of entries of a record is written down, from entry `start` on.
pub(super) struct Noted {
    /// The first one's number, `[source][token][k]`.
    first: Val<u32>,
    /// Which of them there are, if the last record may be longer than what is left of the tokens.
    there: Option<Tile<bool>>,
}

impl Noted {
    #[kernel]
    pub fn at(c: &Dispatch, (record, start, len): (Val<u32>, Val<u32>, u32)) -> Noted {
        let (source, first) = place(c, record, start);
        let there = (c.tokens % c.chunk != 0).then(|| arange(len) + first < c.tokens * c.topk);
        Noted { first: source * (c.tokens * c.topk) + first, there }
    }

    /// Writes it down, if it is wanted and there.
    pub fn store<T: Element>(&self, to: Option<Ptr<T>>, of_entries: Option<Tile<T>>) {
        match (to, of_entries, self.there) {
            (Some(to), Some(of_entries), None) => to.store(self.first, of_entries),
            (Some(to), Some(of_entries), Some(there)) => to.store_where(self.first, of_entries, there),
            _ => {}
        }
    }
}

/// The expert of each entry, as it is written down. Ids are those of the sender, and so of all ranks.
#[kernel]
fn noted(c: &Dispatch, a: &DispatchArgs, expert: Tile<u32>, mine: Tile<bool>) -> Tile<i32> {
    let expert = mine.select((expert + first_expert(c.map(), rank())).cast::<i32>(), a.nobody);
    expert
}
