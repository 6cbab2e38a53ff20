//! What says which rows are whose experts'.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::local_experts;
use super::dispatch::DispatchArgs;
use super::pieces::{Pieces, each_piece};
use super::records::Records;

/// Entries that a lane of the index looks at together.
const ENTRIES_A_LANE: u32 = 4;

/// The first row of every (expert, source, chunk) of this rank, in that order: prefix sums of the records' counts.
#[kernel]
pub(super) fn lay_out(c: &Dispatch, a: &DispatchArgs, b: Group, records: &Records<'_>) -> Shared<u32> {
    let most = c.map().at_most();
    let base = shared::<u32>("base", most * c.records());
    let mut rows = var(0u32);
    each_piece(most * c.records(), (most * c.records()).min(b.warps() * 32 * 8), |start, len| {
        let i = arange(len) + start;
        let count = records.count(i / c.records(), i % c.records());
        base.store(start, count.scan_sum(true) + &rows);
        rows += count.sum();
    });
    if b.index() == 0 {
        let expert = arange(most + 1);
        let start = base.gather(expert * c.records(), expert < most, &rows);
        let end = base.gather((expert + 1) * c.records(), expert + 1 < most, &rows);
        a.expert_start.store(0, start);
        a.expert_rows.store_where(0, end - start, expert < most);
    }
    base
}

/// How warps divide the entries of a record.
pub(super) fn entry_pieces(c: &Dispatch) -> Pieces {
    let row = c.record_entries();
    Pieces { row, len: row.min(32 * ENTRIES_A_LANE), shared: true }
}

/// Writes down which experts and weights the rows have that stand by token, and which rows each expert has. Nobody who
/// moves rows waits for it.
#[kernel]
pub(super) fn index(c: &Dispatch, a: &DispatchArgs, b: Group, epoch: Epoch, bank: Val<u32>) {
    let records = Records::receive(c, a, epoch, bank);
    let base = lay_out(c, a, b, &records);
    let pieces = entry_pieces(c);
    let parts = c.records() * pieces.parts();
    b.split(1, |g| {
        for i in g.strided(parts + 1) {
            if i < parts {
                let (record, part) = pieces.part(i);
                pieces.each(part, |start, len| index_entries(c, a, &records, &base, record, start, len));
            } else {
                a.n_from.store(0, records.n(arange(c.ranks) * c.chunks()));
            }
        }
    });
}

/// Writes down what is to be known of `len` entries of a record, from entry `start` on.
#[kernel]
fn index_entries(
    c: &Dispatch,
    a: &DispatchArgs,
    records: &Records<'_>,
    base: &Shared<u32>,
    record: Val<u32>,
    start: Val<u32>,
    len: u32,
) {
    let (source, chunk) = (record / c.chunks(), record % c.chunks());
    let first = chunk * c.record_entries() + start;
    let entry = arange(len) + first;
    let word = records.words(record, start, len);
    let weights = records.weights(record, start, len);
    let (expert, mine) = local_experts(c.map(), word & 0xffff);
    let row = base.gather(expert * c.records() + record, mine, 0) + (word >> 16);
    let expert = mine.select(expert.cast::<i32>(), -1);

    let to = source * (c.tokens * c.topk) + first;
    let there = entry < c.tokens * c.topk;
    if let (Some(entry_expert), Some(weight_from), Some(gather)) = (a.entry_expert, a.weight_from, a.gather) {
        if c.tokens % c.chunk == 0 {
            entry_expert.store(to, expert);
            weight_from.store(to, weights);
        } else {
            // The last record may be longer than what is left of the tokens.
            entry_expert.store_where(to, expert, there);
            weight_from.store_where(to, weights, there);
        }
        gather.scatter(row, entry / c.topk + source * c.tokens, mine);
    }
}
