//! Bases that shared memory has no room for: one block computes them in this rank's memory, for all that receive.

use peerwarp_codegen::dsl::prelude::*;

use super::bases::{add_up, count_of};
use super::config::Dispatch;
use super::dispatch::Launch;
use super::pieces::each_piece;
use super::placing::Placing;

/// Bases in memory.
#[derive(KernelArgs, Clone)]
#[args(config = Dispatch)]
pub struct BaseArgs {
    /// The first row of each entry of a record, `[expert][source][chunk]`.
    #[len(|c| if c.keeps_bases_in_memory() { u64::from(c.map().at_most()) * u64::from(c.records()) } else { 0 })]
    pub base: Option<Ptr<u32>>,
    /// The bases of a launch are there.
    #[len(|c| u64::from(c.keeps_bases_in_memory()))]
    pub based: Option<BlockFlags>,
}

/// Computes the bases, writes down where each expert's rows begin, and signals the blocks that wait for the bases.
#[kernel]
pub(super) fn lay_out_in_memory(l: Launch<'_>, b: Group) {
    let Launch { c, a, epoch, .. } = l;
    let records = l.records();
    if let (Some(base), Some(based), Some(counts)) = (a.bases.base, a.bases.based, records.counts()) {
        let count = |start, len| count_of(c, &counts, (start, len));
        let rows = add_up(c, b, &count, &|start, sums| base.store(start, sums));
        lay_out_in_parts(l, b, &base, rows);
        based.signal(0, epoch);
    }
}

/// Goes through the experts part by part: moves their bases to where the layout has them, and writes down where each expert's rows
/// begin and how many have a place. Before it, an expert's rows begin where those of the expert before end.
#[kernel]
fn lay_out_in_parts(l: Launch<'_>, b: Group, base: &Ptr<u32>, rows: Val<u32>) {
    let Launch { c, a, .. } = l;
    let most = c.map().at_most();
    let Placing { beginning, fit } = c.room().placing();
    let mut before = var(0u32);
    // How many rows have no place, and the `max_rows` with which all would have one.
    let mut missing = a.overflow.map(|_| (var(0u32), var(0u32)));
    let by = shared::<u32>("by", c.laid_out_at_once());
    each_piece(most + 1, c.laid_out_at_once(), |start, len| {
        let expert = arange(len) + start;
        let begin = base.gather(expert * c.records(), expert < most, rows);
        let n = base.gather((expert + 1) * c.records(), expert + 1 < most, rows) - begin;
        let taken = beginning.taken(n);
        let first = beginning.first(expert, taken, before.get());
        before += taken.sum();
        beginning.unless_packed(&|| {
            by.store(0, first - begin);
            move_bases(c, b, base, &by, (start, len));
        });
        let (first, placed) = fit.cut(first, n);
        a.expert_start.store(start, first);
        a.expert_rows.store_where(start, placed, expert < most);
        if let Some((unplaced, needed)) = &mut missing {
            unplaced.set(unplaced.get() + (n - placed).sum());
            needed.set(beginning.needed_by_both(needed.get(), beginning.needed(taken)));
        }
    });
    if let (Some(overflow), Some(for_all), Some((unplaced, needed))) = (a.overflow, a.needed, &missing) {
        overflow.set(0, unplaced.get());
        for_all.set(0, needed.get());
    }
}

/// Moves the bases of some experts, each expert's by as many rows.
#[kernel]
fn move_bases(c: &Dispatch, b: Group, base: &Ptr<u32>, by: &Shared<u32>, (start, experts): (Val<u32>, u32)) {
    let (most, records) = (c.map().at_most(), c.records());
    let all = experts * records;
    each_piece(all, all.min(b.warps() * 32 * 8), |at, len| {
        let i = arange(len) + at;
        let number = i + start * records;
        let there = number < most * records;
        let moved = base.gather(number, there, 0) + by.gather(i / records, true, 0);
        base.scatter(number, moved, there);
    });
}
