//! What says which rows are whose experts'.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::{first_expert, local_experts};
use super::dispatch::DispatchArgs;
use super::layout::Begins;
use super::pieces::{Pieces, each_piece};
use super::records::{Counts, Records};

/// Entries that a lane of the index looks at together.
const ENTRIES_A_LANE: u32 = 4;

/// Entries of all ranks that one warp counts sooner than a block, whose warps would meet several times.
const FEW_ENTRIES: u32 = 256;

/// The first row of every (expert, source, chunk) of this rank, in that order.
pub(super) fn base(c: &Dispatch, a: &DispatchArgs, b: Group, records: &Records<'_>) -> Shared<u32> {
    match records.counts() {
        Some(counts) => base_of_counts(c, a, b, &counts),
        None => base_of_words(c, a, b, records),
    }
}

/// The same as prefix sums of the records' counts.
#[kernel]
fn base_of_counts(c: &Dispatch, a: &DispatchArgs, b: Group, counts: &Counts<'_>) -> Shared<u32> {
    let base = shared::<u32>("base", c.map().at_most() * c.records());
    lay_out(c, a, b, &base, &|start, len| {
        let i = arange(len) + start;
        counts.of(i / c.records(), i % c.records())
    });
    base
}

/// The same where nobody else has counted: a group has a record.
#[kernel]
fn base_of_words(c: &Dispatch, a: &DispatchArgs, b: Group, records: &Records<'_>) -> Shared<u32> {
    let base = shared::<u32>("base", c.map().at_most() * c.records());
    base.store(0, splat(0u32, c.map().at_most() * c.records()));
    b.split(1, |g| {
        for record in g.strided(c.records()) {
            each_piece(c.record_entries(), entry_pieces(c).len, |start, len| {
                let (expert, mine) = records.local_experts(record, start, len);
                base.tally(expert * c.records() + record, mine);
            });
        }
    });
    lay_out(c, a, b, &base, &|start, len| base.load(start, len));
    base
}

/// Puts into `base` the sums of the counts before, and writes down where each expert's rows begin.
#[kernel]
fn lay_out(
    c: &Dispatch,
    a: &DispatchArgs,
    b: Group,
    base: &Shared<u32>,
    count: &dyn Fn(Val<u32>, u32) -> Tile<u32>,
) {
    let most = c.map().at_most();
    let mut rows = var(0u32);
    each_piece(most * c.records(), (most * c.records()).min(b.warps() * 32 * 8), |start, len| {
        let count = count(start, len);
        base.store(start, count.scan_sum(true) + &rows);
        rows += count.sum();
    });
    if !c.is_packed() {
        place_apart(c, a, b, base, rows.get());
    } else if b.index() == 0 {
        let expert = arange(most + 1);
        let start = base.gather(expert * c.records(), expert < most, &rows);
        let end = base.gather((expert + 1) * c.records(), expert + 1 < most, &rows);
        a.expert_start.store(0, start);
        a.expert_rows.store_where(0, end - start, expert < most);
    }
}

/// The same where the rows of each expert begin where the layout says, instead of where those of the expert before end, or where there
/// may be more rows than places.
#[kernel]
fn place_apart(c: &Dispatch, a: &DispatchArgs, b: Group, base: &Shared<u32>, rows: Val<u32>) {
    let most = c.map().at_most();
    let expert = arange(most + 1);
    let start = base.gather(expert * c.records(), expert < most, rows);
    let n = base.gather((expert + 1) * c.records(), expert + 1 < most, rows) - start;
    match c.room().begins {
        Begins::Aligned(align) => {
            let taken = (n + (align - 1)) / align * align;
            let first = taken.scan_sum(true);
            if align > 1 {
                move_rows(c, b, base, start, first);
            }
            let (first, placed) = if c.room().drops {
                let first = first.minimum(c.max_rows);
                (first, n.minimum(splat(c.max_rows, most + 1) - first))
            } else {
                (first, n)
            };
            write_down(c, a, b, (first, placed, n), &|| taken.sum());
        }
        Begins::Strided(stride) => {
            let first = expert * stride;
            move_rows(c, b, base, start, first);
            write_down(c, a, b, (first, n.minimum(stride), n), &|| n.max());
        }
    }
}

/// Moves the first rows of experts, from where each begins to where it is to begin.
#[kernel]
fn move_rows(c: &Dispatch, b: Group, base: &Shared<u32>, start: Tile<u32>, first: Tile<u32>) {
    let most = c.map().at_most();
    let (from, to) = (shared::<u32>("from", most + 1), shared::<u32>("to", most + 1));
    from.store(0, start);
    to.store(0, first);
    let all = most * c.records();
    each_piece(all, all.min(b.warps() * 32 * 8), |at, len| {
        let expert = (arange(len) + at) / c.records();
        let before = base.load(at, len) - from.gather(expert, true, 0);
        base.store(at, before + to.gather(expert, true, 0));
    });
}

/// Writes down where each expert's rows begin, how many have a place, and what that leaves out of `n`.
#[kernel]
fn write_down(
    c: &Dispatch,
    a: &DispatchArgs,
    b: Group,
    (first, placed, n): (Tile<u32>, Tile<u32>, Tile<u32>),
    needed: &dyn Fn() -> Val<u32>,
) {
    let most = c.map().at_most();
    if b.index() == 0 {
        a.expert_start.store(0, first);
        a.expert_rows.store_where(0, placed, arange(most + 1) < most);
        if let (Some(overflow), Some(for_all)) = (a.overflow, a.needed) {
            overflow.set(0, (n - placed).sum());
            for_all.set(0, needed());
        }
    }
}

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
        let base = base_of_counts(c, a, b, &counts);
        b.split(1, |g| {
            each_part(c, a, g, &records, |record, start, len| {
                let (expert, mine, row) = numbered(c, &records, &base, (record, start, len));
                gather_entries(c, a, record, start, row, mine);
                note(c, a, &records, (record, start, expert.len()), a.entry_expert, || {
                    noted(c, a, expert, mine)
                });
            });
        });
    } else if c.records() * c.record_entries() <= FEW_ENTRIES {
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

/// Writes down which experts and weights the entries have of rows that stand by token, and how many tokens each rank has.
#[kernel]
pub(super) fn note_entries(c: &Dispatch, a: &DispatchArgs, g: Group, epoch: Epoch, bank: Val<u32>) {
    let records = Records::receive(c, &a.records, epoch, bank);
    each_part(c, a, g, &records, |record, start, len| {
        let (expert, mine) = records.local_experts(record, start, len);
        note(c, a, &records, (record, start, expert.len()), a.entry_expert, || noted(c, a, expert, mine));
    });
}

/// Writes down the row of each entry, where rows stand by expert, their weights, and how many tokens each rank has. It is the last groups
/// that do, which have no row to bring where there are few.
#[kernel]
pub(super) fn note_rows(c: &Dispatch, a: &DispatchArgs, g: Group, records: &Records<'_>, base: &Shared<u32>) {
    let parts = parts_of_all(c);
    let numbers = (parts + 1).next_multiple_of(g.count());
    for i in g.strided(numbers) {
        let i = (numbers - 1) - i;
        if i <= parts {
            on_part(c, a, records, i, |record, start, len| {
                let (_, row) = rows_of(c, records, base, record, start, len);
                note(c, a, records, (record, start, len), a.pos, || row);
            });
        }
    }
}

/// Which of `len` entries of a record from `start` on are here, and their rows: -1 for one that is not, -2 for one that has no place.
#[kernel]
pub(super) fn rows_of(
    c: &Dispatch,
    records: &Records<'_>,
    base: &Shared<u32>,
    record: Val<u32>,
    start: Val<u32>,
    len: u32,
) -> (Tile<bool>, Tile<i32>) {
    let (expert, mine, row) = numbered(c, records, base, (record, start, len));
    let row = if c.room().drops {
        let placed = match c.room().begins {
            Begins::Aligned(_) => row < c.max_rows,
            Begins::Strided(stride) => row < (expert + 1) * stride,
        };
        mine.select(placed.select(row.cast::<i32>(), -2), -1)
    } else {
        mine.select(row.cast::<i32>(), -1)
    };
    (mine, row)
}

/// The experts of `len` entries of a record from `start` on, which are here, and their numbers among the rows of all experts.
#[kernel]
fn numbered(
    c: &Dispatch,
    records: &Records<'_>,
    base: &Shared<u32>,
    (record, start, len): (Val<u32>, Val<u32>, u32),
) -> (Tile<u32>, Tile<bool>, Tile<u32>) {
    let word = records.words(record, start, len);
    let (expert, mine) = local_experts(c.map(), word & 0xffff);
    let row = base.gather(expert * c.records() + record, mine, 0) + (word >> 16);
    (expert, mine, row)
}

/// Parts of all records together.
fn parts_of_all(c: &Dispatch) -> u32 {
    c.records() * entry_pieces(c).parts()
}

/// Does something with parts of records, given the record, the first entry and their number, and writes down how many tokens
/// each rank has.
#[kernel]
fn each_part(
    c: &Dispatch,
    a: &DispatchArgs,
    g: Group,
    records: &Records<'_>,
    act: impl Fn(Val<u32>, Val<u32>, u32),
) {
    for i in g.strided(parts_of_all(c) + 1) {
        on_part(c, a, records, i, &act);
    }
}

/// The same with the `i`-th part. After the last one come the tokens.
#[kernel]
fn on_part(
    c: &Dispatch,
    a: &DispatchArgs,
    records: &Records<'_>,
    i: Val<u32>,
    act: impl Fn(Val<u32>, Val<u32>, u32),
) {
    let pieces = entry_pieces(c);
    if i < parts_of_all(c) {
        let (record, part) = pieces.part(i);
        pieces.each(part, |start, len| act(record, start, len));
    } else {
        a.n_from.store(0, records.n(arange(c.ranks) * c.chunks()));
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

/// Writes down something of each entry of a record, from entry `start` on, and its weight.
#[kernel]
fn note(
    c: &Dispatch,
    a: &DispatchArgs,
    records: &Records<'_>,
    (record, start, len): (Val<u32>, Val<u32>, u32),
    notes: Option<Ptr<i32>>,
    of_entries: impl FnOnce() -> Tile<i32>,
) {
    let (source, first) = place(c, record, start);
    let weights = records.weights(record, start, len);
    let to = source * (c.tokens * c.topk) + first;
    let there = arange(len) + first < c.tokens * c.topk;
    // The last record may be longer than what is left of the tokens.
    let whole = c.tokens % c.chunk == 0;
    let of_entries = of_entries();
    if let Some(notes) = notes {
        if whole { notes.store(to, of_entries) } else { notes.store_where(to, of_entries, there) }
    }
    if let (Some(weight_from), Some(weights)) = (a.weight_from, weights) {
        if whole { weight_from.store(to, weights) } else { weight_from.store_where(to, weights, there) }
    }
}

/// The expert of each entry, as it is written down. Ids are those of the sender, and so of all ranks.
#[kernel]
fn noted(c: &Dispatch, a: &DispatchArgs, expert: Tile<u32>, mine: Tile<bool>) -> Tile<i32> {
    let expert = mine.select((expert + first_expert(c.map(), rank())).cast::<i32>(), a.nobody);
    expert
}
