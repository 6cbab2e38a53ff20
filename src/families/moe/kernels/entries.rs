//! What is written down of entries: the experts, the weights and the rows of all ranks' entries, and each rank's tokens.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{local_experts, owning};
use super::dispatch::{DispatchArgs, Launch};
use super::pieces::{Pieces, each_piece};
use super::wire::Records;

/// Entries that a lane looks at together.
const ENTRIES_A_LANE: u32 = 4;

/// How warps divide the entries of a record.
pub(super) fn entry_pieces(c: &Dispatch) -> Pieces {
    let row = c.record_entries();
    Pieces { row, len: row.min(32 * ENTRIES_A_LANE), shared: true }
}

/// Writes down which weights the entries have, of rows that stand by token which experts as well, and how many tokens each rank has.
#[kernel]
pub(super) fn note_entries(l: Launch<'_>, g: Group) {
    let Launch { c, a, .. } = l;
    let records = l.records();
    each_part(l, g, &*records, |record, start, len| {
        let experts =
            a.entry_expert.map(|_| local_experts(c.map(), records.words(record, start, len) & 0xffff));
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
    l: Launch<'_>,
    g: Group,
    records: &dyn Records,
    act: impl Fn(Val<u32>, Val<u32>, u32),
) {
    let Launch { c, a, .. } = l;
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

/// Does something with parts of records, given the record, the first entry, and which experts of this rank the entries go to. A warp has
/// a record.
#[kernel]
pub(super) fn each_word(
    c: &Dispatch,
    b: Group,
    records: &dyn Records,
    act: &dyn Fn(Val<u32>, Val<u32>, Tile<u32>, Tile<bool>),
) {
    b.split(1, |g| {
        for record in g.strided(c.records()) {
            each_piece(c.record_entries(), entry_pieces(c).len, |start, len| {
                let (expert, mine) = local_experts(c.map(), records.words(record, start, len) & 0xffff);
                act(record, start, expert, mine);
            });
        }
    });
}

/// The source of a record, and the first of its source's entries that is in it from `start` on.
pub(super) fn place(c: &Dispatch, record: Val<u32>, start: Val<u32>) -> (Val<u32>, Val<u32>) {
    (record / c.chunks(), record % c.chunks() * c.record_entries() + start)
}

/// The index of the first note on a record's entries, `[source][token][k]`. Only entries that exist have notes.
pub(super) struct Noted(Index);

impl Noted {
    /// From entry `start` of a record on. The last record may be longer than what is left of the tokens.
    #[kernel]
    pub fn at(c: &Dispatch, (record, start, len): (Val<u32>, Val<u32>, u32)) -> Noted {
        let (source, first) = place(c, record, start);
        let whole = c.tokens % c.chunk == 0;
        let there = (!whole).then(|| arange(len) + first < c.tokens * c.topk);
        Noted(only(source * (c.tokens * c.topk) + first, there))
    }

    /// Writes it down, if it is wanted.
    pub fn store<T: Element>(&self, to: Option<Ptr<T>>, of_entries: Option<Tile<T>>) {
        if let (Some(to), Some(of_entries)) = (to, of_entries) {
            to.store(self.0, of_entries);
        }
    }
}

/// What begins at an element, of a part of it if there is a mask.
fn only(first: Val<u32>, mask: Option<Tile<bool>>) -> Index {
    mask.map_or(first.index(), |mask| first.only(mask))
}

/// The expert of each entry, as it is written down. Ids are those of the sender, and so of all ranks.
#[kernel]
pub(super) fn noted(c: &Dispatch, a: &DispatchArgs, expert: Tile<u32>, mine: Tile<bool>) -> Tile<i32> {
    let expert = mine.select(id(c, a, expert).cast::<i32>(), a.empty_id);
    expert
}

/// The ids of this rank's experts, by their numbers here.
fn id(c: &Dispatch, a: &DispatchArgs, expert: Tile<u32>) -> Tile<u32> {
    let id = expert + owning(c.map()).first(rank());
    a.node_first.map_or(id, |first| id + first.get(0))
}
