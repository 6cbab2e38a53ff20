//! The sending half of combine: each row with a flag or as packets, or rows of several tokens with one flag.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Inbound, InboundSome, IncomingSome};

use super::combine::Launch;
use super::combine_config::Combine;
use super::outputs::{Outputs, Slot, here};
use super::returned::{Back, Quantising, Returned};

/// Sends back what belongs to each slot that was received: a row, or the weighted sum of this rank's rows of it.
pub(super) fn send(l: Launch<'_>, g: Group) {
    l.c.batching().send(l, &*l.outputs(), g);
}

/// Which rows come back together.
pub(super) trait Batching {
    /// Sends rows back.
    fn send(&self, l: Launch<'_>, outputs: &dyn Outputs, g: Group);

    /// A token's rows of several ranks.
    fn of_token<'a>(&self, rows: &InboundSome<'a, Returned>, token: Val<u32>) -> IncomingSome<'a, Returned>;

    /// The row of an entry, whose owner, token and slot these are.
    fn of_entry<'a>(&self, rows: &Inbound<'a, Returned>, at: [Val<u32>; 3]) -> Incoming<'a, Returned>;
}

impl Combine {
    /// Which rows come back together.
    pub(super) fn batching(&self) -> Box<dyn Batching + '_> {
        if self.batch > 1 { Box::new(Batches(self)) } else { Box::new(Each) }
    }
}

/// The slot of a number among its source's.
#[kernel]
fn slot<'a>(
    l: Launch<'_>,
    outputs: &'a dyn Outputs,
    g: Group,
    (source, number): (Val<u32>, Val<u32>),
) -> Box<dyn Slot + 'a> {
    let entry = source * (l.c.tokens * l.c.topk) + number * l.c.slot_entries();
    outputs.slot(g, source, number, entry)
}

/// Each row, or piece of one, for itself.
struct Each;

impl Batching for Each {
    #[kernel]
    fn send(&self, l: Launch<'_>, outputs: &dyn Outputs, g: Group) {
        let Launch { c, a, .. } = l;
        let pieces = c.sent_pieces();
        let counter = a.next_send.map(|next| next.counter(0));
        let quantising = c.quantising(false);
        for i in g.dynamic(c.tokens * c.token_slots() * c.destinations() * pieces.parts(), counter) {
            let (row, part) = pieces.part(i);
            let (source, number) = c.travel().returning(row);
            outputs.if_there(source, number, &|| {
                send_slot(l, outputs, g, (source, number), (part, &*quantising));
            });
        }
    }

    fn of_token<'a>(&self, rows: &InboundSome<'a, Returned>, token: Val<u32>) -> IncomingSome<'a, Returned> {
        rows.slot(token)
    }

    fn of_entry<'a>(
        &self,
        rows: &Inbound<'a, Returned>,
        [.., slot]: [Val<u32>; 3],
    ) -> Incoming<'a, Returned> {
        rows.slot(slot)
    }
}

/// A part of a slot's row, if the slot is here.
#[kernel]
fn send_slot(
    l: Launch<'_>,
    outputs: &dyn Outputs,
    g: Group,
    (source, number): (Val<u32>, Val<u32>),
    (part, quantising): (Val<u32>, &dyn Quantising),
) {
    let Launch { c, back, .. } = l;
    let slot = slot(l, outputs, g, (source, number));
    let row = back.to(Peers::rank(source)).slot(number);
    if slot.is_here() {
        let scales = back.scales.map(|scales| row.field(scales));
        quantising.put(&Back { c, row: row.field(back.row), scales }, part, &*slot);
        row.done();
    }
}

/// Rows of several tokens with one flag, which says that those are there that this rank has. So a group waits for its
/// stores once for all of them. A batch of which this rank has nothing has no flag, and its tokens' rank waits for none.
struct Batches<'a>(&'a Combine);

impl Batching for Batches<'_> {
    #[kernel]
    fn send(&self, l: Launch<'_>, outputs: &dyn Outputs, g: Group) {
        let Launch { c, a, back } = l;
        let i = arange(c.batch * c.topk);
        let quantising = c.quantising(false);
        let counter = a.next_send.map(|next| next.counter(0));
        for number in g.dynamic(c.batches() * c.destinations(), counter) {
            let (source, batch) = c.travel().returning(number);
            let first = batch * c.batch;
            let n = a.n_from.get(source);
            let end = (first + c.batch).min(n);
            let entries = (end.max(first) - first) * c.topk;
            let entry = (source * c.tokens + first) * c.topk;
            let owned = outputs.are_here(here(l).load_where(entry, i < entries, 0)) & (i < entries);
            if owned.any() {
                let rows = back.to(Peers::rank(source)).batch();
                for number in first * c.token_slots()..end * c.token_slots() {
                    let slot = slot(l, outputs, g, (source, number));
                    let row = rows.slot(number);
                    if slot.is_here() {
                        let scales = back.scales.map(|scales| row.field(scales));
                        let to = Back { c, row: row.field(back.row), scales };
                        quantising.put(&to, 0u32.val(), &*slot);
                    }
                }
                rows.done(batch * c.ranks + rank());
            }
        }
    }

    fn of_token<'a>(&self, rows: &InboundSome<'a, Returned>, token: Val<u32>) -> IncomingSome<'a, Returned> {
        rows.batch(token / self.0.batch, token)
    }

    fn of_entry<'a>(
        &self,
        rows: &Inbound<'a, Returned>,
        [owner, token, slot]: [Val<u32>; 3],
    ) -> Incoming<'a, Returned> {
        rows.batch(token / self.0.batch * self.0.ranks + owner, slot)
    }
}
