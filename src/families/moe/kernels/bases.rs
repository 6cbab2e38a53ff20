//! Where rows of experts begin.

use peerwarp_codegen::dsl::prelude::*;

use super::bases_in_memory::BaseArgs;
use super::config::Dispatch;
use super::dispatch::Launch;
use super::entries::each_word;
use super::pieces::each_piece;
use super::placing::Placing;
use super::wire::{Counts, Records};

/// The first rows of (expert, source, chunk) of these numbers, in that order, where a mask holds, else 0.
pub(super) type Base<'a> = Box<dyn Fn(Tile<u32>, Tile<bool>) -> Tile<u32> + 'a>;

/// The bases of this rank: computed here, or by the block that has them in memory.
#[kernel]
pub(super) fn bases<'a>(l: Launch<'a>, b: Group, counts: &Counts<'_>) -> Base<'a> {
    if let BaseArgs { base: Some(base), based: Some(based) } = &l.a.bases {
        based.from(0).wait(0, l.epoch);
        Box::new(|number, mask| base.gather(number, mask, 0))
    } else {
        let base = base_of_counts(l, b, counts);
        Box::new(move |number, mask| base.gather(number, mask, 0))
    }
}

/// The first row of every (expert, source, chunk) of this rank, in that order: prefix sums of the records' counts.
#[kernel]
fn base_of_counts(l: Launch<'_>, b: Group, counts: &Counts<'_>) -> Shared<u32> {
    let c = l.c;
    let base = shared::<u32>("base", c.map().at_most() * c.records());
    lay_out_counts(l, b, base, &|start, len| count_of(c, counts, (start, len)))
}

/// The same where this block counts: a group has a record.
#[kernel]
pub(super) fn base_of_words(l: Launch<'_>, b: Group, records: &dyn Records) -> Shared<u32> {
    let c = l.c;
    let base = shared::<u32>("base", c.map().at_most() * c.records());
    base.store(0, splat(0u32, c.map().at_most() * c.records()));
    each_word(c, b, records, &|record, _, expert, mine| {
        base.tally(expert * c.records() + record, mine);
    });
    lay_out_counts(l, b, base, &|start, len| base.load(start, len))
}

/// Puts the bases of counts into `base`, and writes down where each expert's rows begin.
#[kernel]
fn lay_out_counts(
    l: Launch<'_>,
    b: Group,
    base: Shared<u32>,
    count: &dyn Fn(Val<u32>, u32) -> Tile<u32>,
) -> Shared<u32> {
    let rows = add_up(l.c, b, count, &|start, sums| base.store(start, sums));
    lay_out(l, b, (&base, l.c.records()), rows);
    base
}

/// Counts of (expert, record), by their first number and how many.
#[kernel]
pub(super) fn count_of(c: &Dispatch, counts: &Counts<'_>, (start, len): (Val<u32>, u32)) -> Tile<u32> {
    let i = arange(len) + start;
    counts(i / c.records(), i % c.records())
}

/// Stores the sums of the counts before each (expert, record), and says what all come to.
#[kernel]
pub(super) fn add_up(
    c: &Dispatch,
    b: Group,
    count: &dyn Fn(Val<u32>, u32) -> Tile<u32>,
    store: &dyn Fn(Val<u32>, Tile<u32>),
) -> Val<u32> {
    let all = c.map().at_most() * c.records();
    let mut rows = var(0u32);
    each_piece(all, all.min(b.warps() * 32 * 8), |start, len| {
        let count = count(start, len);
        store(start, count.scan_sum(true) + &rows);
        rows += count.sum();
    });
    rows.get()
}

/// Writes down where each expert's rows begin, of which `base` has the first ones of `records` parts of each, and how many there are
/// in all.
#[kernel]
pub(super) fn lay_out(l: Launch<'_>, b: Group, (base, records): (&Shared<u32>, u32), rows: Val<u32>) {
    let Launch { c, a, .. } = l;
    if !c.is_packed() {
        place_apart(l, b, (base, records), rows);
    } else if b.index() == 0 {
        let most = c.map().at_most();
        let expert = arange(most + 1);
        let start = base.gather(expert * records, expert < most, rows);
        let end = base.gather((expert + 1) * records, expert + 1 < most, rows);
        a.expert_start.store(0, start);
        a.expert_rows.store_where(0, end - start, expert < most);
    }
}

/// The same where experts' rows begin elsewhere than where those of the expert before end, or where there may be more rows than places.
#[kernel]
fn place_apart(l: Launch<'_>, b: Group, (base, records): (&Shared<u32>, u32), rows: Val<u32>) {
    let Launch { c, a, .. } = l;
    let Placing { beginning, fit } = c.room().placing();
    let most = c.map().at_most();
    let expert = arange(most + 1);
    let start = base.gather(expert * records, expert < most, rows);
    let n = base.gather((expert + 1) * records, expert + 1 < most, rows) - start;
    let taken = beginning.taken(n);
    let first = beginning.first(expert, taken, 0u32.val());
    beginning.unless_packed(&|| move_rows(c, b, (base, records), start, first));
    let (first, placed) = fit.cut(first, n);
    if b.index() == 0 {
        a.expert_start.store(0, first);
        a.expert_rows.store_where(0, placed, arange(most + 1) < most);
        if let (Some(overflow), Some(for_all)) = (a.overflow, a.needed) {
            overflow.set(0, (n - placed).sum());
            for_all.set(0, beginning.needed(taken));
        }
    }
}

/// Moves the first rows of experts, from where each begins to where it is to begin.
#[kernel]
fn move_rows(
    c: &Dispatch,
    b: Group,
    (base, records): (&Shared<u32>, u32),
    start: Tile<u32>,
    first: Tile<u32>,
) {
    let most = c.map().at_most();
    let (from, to) = (shared::<u32>("from", most + 1), shared::<u32>("to", most + 1));
    from.store(0, start);
    to.store(0, first);
    let all = most * records;
    each_piece(all, all.min(b.warps() * 32 * 8), |at, len| {
        let expert = (arange(len) + at) / records;
        let before = base.load(at, len) - from.gather(expert, true, 0);
        base.store(at, before + to.gather(expert, true, 0));
    });
}
