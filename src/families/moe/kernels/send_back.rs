//! The sending half of combine.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, OutgoingField};

use super::combine::CombineArgs;
use super::combine_config::Combine;
use super::device::at;
use super::layout::Layout;
use super::plan::Begin;
use super::protocol::Protocol;

/// A slot that was received, whose row goes back.
#[derive(Clone, Copy)]
struct Slot {
    /// Whose it is.
    source: Val<u32>,
    /// Its number among the source's.
    number: Val<u32>,
    /// Its first entry.
    entry: Val<u32>,
    /// Which of its entries have rows here, where those are summed: a bit each.
    placed: Option<Val<u32>>,
}

impl Slot {
    #[kernel]
    fn new(c: &Combine, a: &CombineArgs, g: Group, source: Val<u32>, number: Val<u32>) -> Slot {
        let entry = source * (c.tokens * c.topk) + number * c.slot_entries();
        let placed = c.sums_at_owner().then(|| placed(c, a, g, entry));
        Slot { source, number, entry, placed }
    }

    /// Whether this rank has something to send for it.
    #[kernel]
    fn is_here(&self, c: &Combine, a: &CombineArgs) -> Val<bool> {
        match self.placed {
            Some(placed) if !c.room().drops => placed != 0,
            _ => {
                let entries = here(a).load(self.entry, c.slot_entries());
                let owned = are_here(c, a, entries);
                owned.any()
            }
        }
    }
}

/// What says which entries are here.
fn here(a: &CombineArgs) -> Ptr<i32> {
    a.pos.or(a.entry_expert).expect("either says which entries are here")
}

/// Which of some entries are here, given what says so.
#[kernel]
fn are_here(c: &Combine, a: &CombineArgs, entries: Tile<i32>) -> Tile<bool> {
    if a.entry_expert.is_some() {
        entries != a.nobody
    } else if c.room().drops {
        // One that has no place contributes nothing, and its token's owner waits all the same.
        entries != -1
    } else {
        entries >= 0
    }
}

/// Sends back what belongs to each slot that was received: a row, or the weighted sum of this rank's rows of it.
#[kernel]
pub(super) fn send(c: &Combine, a: &CombineArgs, g: Group, back: OpenChannel<'_, Any>) {
    if c.batch > 1 {
        send_batches(c, a, g, back);
    } else {
        send_each(c, a, g, back);
    }
}

/// Where the n-th row or batch goes, and its number among those that go there. Each rank begins with itself, or with the next one, so
/// that they do not all send to one.
#[kernel]
fn destination(c: &Combine, nth: Val<u32>) -> (Val<u32>, Val<u32>) {
    let (to, number) = (nth % c.destinations(), nth / c.destinations());
    let source = if c.keeps_own() { (to + (rank() + 1)) % c.ranks } else { (nth + rank()) % c.ranks };
    (source, number)
}

/// Each row, or piece of one, for itself.
#[kernel]
fn send_each(c: &Combine, a: &CombineArgs, g: Group, back: OpenChannel<'_, Any>) {
    let pieces = c.sent_pieces();
    let counter = a.next_send.map(|next| next.counter(0));
    for i in g.dynamic(c.tokens * c.token_slots() * c.destinations() * pieces.parts(), counter) {
        let (row, part) = pieces.part(i);
        let (source, number) = destination(c, row);
        // What dispatch says of entries, it says of those of tokens that are not there too: few need not wait for their number as well.
        if c.layout == Layout::RankMajor || c.begin() == Begin::Early {
            send_slot(c, a, back, &Slot::new(c, a, g, source, number), part);
        } else if number < a.n_from.get(source) * c.token_slots() {
            send_slot(c, a, back, &Slot::new(c, a, g, source, number), part);
        }
    }
}

/// A part of a slot's row, if the slot is here.
#[kernel]
fn send_slot(c: &Combine, a: &CombineArgs, back: OpenChannel<'_, Any>, slot: &Slot, part: Val<u32>) {
    let row = back.to(Peers::rank(slot.source)).slot(slot.number);
    if slot.is_here(c, a) {
        send_row(c, a, slot, part, row.elements());
        row.done();
    }
}

/// Rows of several tokens with one flag, which says that those are there that this rank has. So a group waits for its
/// stores once for all of them. A batch of which this rank has nothing has no flag, as nobody waits for it.
#[kernel]
fn send_batches(c: &Combine, a: &CombineArgs, g: Group, back: OpenChannel<'_, Any>) {
    let i = arange(c.batch * c.topk);
    let counter = a.next_send.map(|next| next.counter(0));
    for number in g.dynamic(c.batches() * c.destinations(), counter) {
        let (source, batch) = destination(c, number);
        let first = batch * c.batch;
        let n = a.n_from.get(source);
        let end = (first + c.batch).min(n);
        let entries = (end.max(first) - first) * c.topk;
        let entry = (source * c.tokens + first) * c.topk;
        let owned = are_here(c, a, here(a).load_where(entry, i < entries, 0)) & (i < entries);
        if owned.any() {
            let rows = back.to(Peers::rank(source)).batch();
            for number in first * c.token_slots()..end * c.token_slots() {
                let slot = Slot::new(c, a, g, source, number);
                let row = rows.slot(number);
                if slot.is_here(c, a) {
                    send_row(c, a, &slot, 0u32.val(), row.elements());
                }
            }
            rows.done(batch * c.ranks + rank());
        }
    }
}

/// A part of a slot's row.
#[kernel]
fn send_row(c: &Combine, a: &CombineArgs, slot: &Slot, part: Val<u32>, to: OutgoingField<'_, Any>) {
    if c.protocol == Protocol::Bulk {
        to.copy(0u64, &a.y, at(row_of_y(c, a, slot), c.hidden), c.hidden);
    } else if let (Some(weights), Some(placed)) = (a.weight_from, slot.placed) {
        c.sent_pieces().each(part, |start, len| {
            let sum = owned_sum(c, a, &weights, (slot.entry, placed), start, len);
            to.put_f32(start.to_u64(), sum);
        });
    } else {
        c.sent_pieces().each(part, |start, len| {
            let y = a.y.load(at(row_of_y(c, a, slot), c.hidden) + start.to_u64(), len);
            to.put(start.to_u64(), y);
        });
    }
}

/// The row of `y` that goes back for a slot as it is.
#[kernel]
fn row_of_y(c: &Combine, a: &CombineArgs, slot: &Slot) -> Val<u32> {
    if c.layout.by_expert() { row_of_entry(c, a, slot.entry) } else { slot.source * c.tokens + slot.number }
}

/// The row that dispatch has given an entry that is here.
#[kernel]
fn row_of_entry(c: &Combine, a: &CombineArgs, entry: Val<u32>) -> Val<u32> {
    let row = here(a).get(entry).cast::<u32>();
    // A dispatch that has given up may have left anything.
    if c.begin() == Begin::Early { row.min(c.room().places as u32 - 1) } else { row }
}

/// Which of a token's entries have rows here, a bit each.
#[kernel]
pub(super) fn placed(c: &Combine, a: &CombineArgs, g: Group, entry: Val<u32>) -> Val<u32> {
    if g.reduces_at_once(c.topk) {
        let there = here(a).load(entry, c.topk) >= 0;
        there.select(splat(1u32, c.topk) << arange(c.topk), 0).or_all()
    } else {
        let mut placed = var(0u32);
        for k in 0..c.topk.val() {
            if here(a).get(entry + k) >= 0 {
                placed |= 1u32.val() << k;
            }
        }
        placed.get()
    }
}

/// A piece of the weighted sum of the rows that this rank has of a token, in the order of k. Several are on their way together, of
/// those that are here.
#[kernel]
pub(super) fn owned_sum(
    c: &Combine,
    a: &CombineArgs,
    weights: &Ptr<f32>,
    (entry, placed): (Val<u32>, Val<u32>),
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let mut sum = var(splat(0f32, len));
    let mut left = var(placed);
    let start_of = |k: Val<u32>| {
        let row = row_of_entry(c, a, k);
        at(row, c.hidden) + start.to_u64()
    };
    while left != 0 {
        let rows = (0..c.rows_in_flight().min(c.topk)).map(|i| {
            let bits = left.get();
            left &= bits - 1;
            if i == 0 {
                let k = entry + bits.trailing_zeros();
                let y = a.y.load(start_of(k), len);
                (y, weights.get(k))
            } else {
                let there = bits != 0;
                let k = entry + there.select(bits.trailing_zeros(), 0);
                let y = a.y.load_if(start_of(k), len, there);
                (y, there.select(weights.get(k), 0.0))
            }
        });
        for (y, weight) in rows.collect::<Vec<_>>() {
            sum = y.to_f32().fma(weight, &sum);
        }
    }
    sum.get()
}
