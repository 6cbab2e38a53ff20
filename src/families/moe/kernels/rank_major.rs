//! The receiving side of rank-major rows: each has the place of its source and token, and an index says which are whose experts'.

use peerwarp_codegen::dsl::prelude::*;

use super::bases::{base_of_words, bases};
use super::config::Dispatch;
use super::deliver::RowHook;
use super::device::local_experts;
use super::dispatch::{DispatchArgs, Launch};
use super::entries::{Noted, each_part, each_word, noted, place};
use super::expert_major::numbered;
use super::plan::Index;
use super::wire::{Counts, Received, Records};

/// Puts every row that arrives in the place of its source and token, if it is not there already. The words of a row's entries
/// say that it comes: a group waits for no other token's record.
#[kernel]
pub(super) fn receive(l: Launch<'_>, b: Group, hook: RowHook<'_>) {
    let Launch { c, a, epoch, .. } = l;
    let records = l.records();
    let most = records.most_tokens();
    let pieces = c.pieces();
    b.split(c.receiving_warps(), |g| {
        let delivery = l.delivery(hook);
        for i in g.strided(most * (c.ranks * pieces.parts())) {
            let (message, part) = pieces.part(i);
            let (source, token) = c.travel().arriving(message);
            let chunk = token / c.chunk;
            let in_record = token * c.topk - chunk * c.record_entries();
            let word = records.words(source * c.chunks() + chunk, in_record, c.topk);
            let (_, mine) = local_experts(c.map(), word & 0xffff);
            if mine.any() {
                let received = Received::wait(&a.inbox, source, token, epoch);
                delivery.deliver(&received, part, &|| {
                    let place = source * c.tokens + token;
                    Box::new(move |store| store(place))
                });
            }
        }
    });
}

/// Writes down which rows each expert has, where rows stand by token, and, if it does not count, what
/// [`note_entries`](super::entries::note_entries) does. No block that moves rows waits for it.
#[kernel]
pub(super) fn index(l: Launch<'_>, b: Group) {
    let Launch { c, a, .. } = l;
    let records = l.records();
    match (records.counts(), c.index()) {
        (Some(counts), _) => index_counted(l, b, &*records, &counts),
        (None, Index::Warp) => b.split(1, |g| {
            if g.index() == 0 {
                index_of_few(c, a, &*records);
            }
        }),
        (None, Index::Block) => {
            let base = base_of_words(l, b, &*records);
            each_word(c, b, &*records, &|record, start, expert, mine| {
                let row = base.tally(expert * c.records() + record, mine);
                gather_entries(c, a, record, start, row, mine);
            });
        }
    }
}

/// The same where senders have counted.
#[kernel]
fn index_counted(l: Launch<'_>, b: Group, records: &dyn Records, counts: &Counts<'_>) {
    let Launch { c, a, .. } = l;
    let base = bases(l, b, counts);
    b.split(1, |g| {
        each_part(l, g, records, |record, start, len| {
            let (expert, mine, row) = numbered(c, records, &base, (record, start, len));
            gather_entries(c, a, record, start, row, mine);
            let weights = records.weights(record, start, len);
            let to = Noted::at(c, (record, start, len));
            to.store(a.entry_expert, Some(noted(c, a, expert, mine)));
            to.store(a.weight_from, weights);
        });
    });
}

/// The same for few entries, by a warp: it waits for no other warp. It has all of them at once, in the order in which an expert's
/// rows are.
#[kernel]
fn index_of_few(c: &Dispatch, a: &DispatchArgs, records: &dyn Records) {
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
