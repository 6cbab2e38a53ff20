//! Open channels: a launch's bank, and where messages are in it.

use super::receive::{Inbound, InboundSome, IncomingEach};
use super::send::Outbound;
use super::shape::Slots;
use super::{Channel, Hub, Payload, Store, Transport};
use crate::dsl::comm::Peers;
use crate::dsl::groups::group::{local_rank_at, node_at, rank_at};
use crate::dsl::memory::{Epoch, Index};
use crate::dsl::trace::{Nameable, TraceError, tracer::attempt};
use crate::dsl::values::{
    FromRaw, IntoVal, Raw, Val,
    val::{binary, host},
};
use crate::ir::{BinaryOp, Const, Dtype, Loc, ParamKind};

/// A channel in a launch; made by [`Channel::open`].
pub struct OpenChannel<'a, T: Payload> {
    pub(super) channel: &'a Channel<T>,
    pub(super) epoch: Epoch,
    /// The first slot and the first flag of this launch's bank, and the first slot of its outbox, if there are several banks.
    bank: Option<[Val<u32>; 3]>,
    /// Of the lanes of a far channel, the one that is meant.
    pub(super) lane: Option<Val<u32>>,
}

impl<T: Payload> Clone for OpenChannel<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Payload> Copy for OpenChannel<'_, T> {}

impl<T: Payload> std::ops::Deref for OpenChannel<'_, T> {
    type Target = T::Fields;
    fn deref(&self) -> &T::Fields {
        &self.channel.fields
    }
}

impl<T: Payload> Channel<T> {
    /// The channel in the launch with this epoch, which selects the bank.
    ///
    /// # Errors
    /// Ends the trace where the channel's credits are declared and [`OpenChannel::credits`] is not called.
    #[track_caller]
    pub fn open(&self, epoch: Epoch) -> OpenChannel<'_, T> {
        let loc = Loc::caller();
        let Hub { channel, declared, .. } = &self.hub;
        let shape = &declared.shape;
        let bank = (shape.banks > 1).then(|| {
            // Epochs that wrap around go on with these remainders.
            let (op, by) = if shape.banks == 2 { (BinaryOp::And, 1) } else { (BinaryOp::Rem, shape.banks) };
            let turn = binary(op, epoch.value.to_raw(), host(by, loc).to_raw(), loc);
            let first = |len| times(turn, len as u32, loc);
            let (slots, flags) = (first(shape.bank_slots()), first(shape.bank_flags()));
            [slots, flags, if shape.to_all { first(shape.outbox_slots()) } else { slots }]
        });
        attempt(loc, |t| {
            t.channels[*channel].opened.get_or_insert(loc);
            // Before the roles they are values that all of these are given: the names are theirs in emitted source.
            if t.open.len() == 1 {
                let bank = bank.map(|[slots, ..]| (slots, "bank"));
                for (value, name) in [Some((epoch.value, "epoch")), bank].into_iter().flatten() {
                    t.builder.kernel.values[value.to_raw().id.index()]
                        .name
                        .get_or_insert_with(|| name.into());
                }
            }
            Ok(())
        });
        nameless(loc);
        OpenChannel { channel: self, epoch, bank, lane: None }
    }
}

impl<'a, T: Payload> OpenChannel<'a, T> {
    /// Messages to these ranks.
    pub fn to(&self, peers: Peers) -> Outbound<'a, T> {
        Outbound::new(*self, peers)
    }

    /// Messages from this rank.
    #[track_caller]
    pub fn from(&self, sender: impl IntoVal<u32>) -> Inbound<'a, T> {
        Inbound::new(*self, sender.val())
    }

    /// Messages from several ranks at once: from ranks with their bit set.
    #[track_caller]
    pub fn from_some(&self, senders: impl IntoVal<u64>) -> InboundSome<'a, T> {
        InboundSome::new(*self, senders.val())
    }

    /// Messages in slots of several senders, given as (sender, slot), that come without flags: messages with their bit set.
    ///
    /// # Errors
    /// Ends the trace of a channel that has flags.
    #[track_caller]
    pub fn from_each(
        &self,
        messages: impl IntoIterator<Item = (Val<u32>, Val<u32>)>,
        mask: impl IntoVal<u64>,
    ) -> IncomingEach<'a, T> {
        IncomingEach::new(*self, messages.into_iter().collect(), mask.val(), Loc::caller())
    }

    /// The same channel by one of its [lanes](super::ChannelShape::lanes). Puts and publishes through it are counted in that lane, and waits through it
    /// wait for that lane's count. A channel without `lane` is lane 0.
    ///
    /// # Errors
    /// Ends the trace of a channel without lanes, and for a lane that is not there.
    #[track_caller]
    pub fn lane(&self, lane: impl IntoVal<u32>) -> OpenChannel<'a, T> {
        let (loc, lane) = (Loc::caller(), lane.val());
        let declared = &self.hub().declared;
        let lanes = declared.shape.lanes;
        attempt(loc, |t| match t.constant_of(lane.to_raw()) {
            _ if declared.shape.transport != Transport::Far => Err(TraceError::new(
                loc,
                format!("a lane of channel `{}`, which is near", declared.name),
                "leave it out: each message of a near channel is taken by itself",
            )),
            Some(Const::U32(i)) if i >= lanes => Err(TraceError::new(
                loc,
                format!("lane {i} of channel `{}`, which has {lanes}", declared.name),
                "lanes go from 0 on: say how many there are by `.lanes(n)` in its `#[channel(..)]`",
            )),
            _ => Ok(()),
        });
        OpenChannel { lane: Some(lane), ..*self }
    }

    pub(super) fn hub(&self) -> &'a Hub {
        &self.channel.hub
    }

    /// This rank's number among those of the channel.
    fn own_number(&self, loc: Loc) -> Val<u32> {
        let shape = &self.hub().declared.shape;
        match (shape.transport == Transport::Far, shape.rail) {
            (true, Some(_)) => node_at(loc),
            (true, None) => rank_at(loc),
            (false, _) => local_rank_at(loc),
        }
    }

    /// The number of a sender's slot among all.
    pub(super) fn number(&self, sender: Option<Val<u32>>, slot: Val<u32>, loc: Loc) -> Val<u32> {
        let shape = &self.hub().declared.shape;
        let ranks = shape.ranks;
        self.check_slot(slot, loc);
        let sender = || sender.unwrap_or_else(|| self.own_number(loc));
        let number = match shape.slots {
            Slots::BySender(n) => plus(times(sender(), n, loc), slot, loc),
            Slots::ByNumber(_) => plus(times(slot, ranks, loc), sender(), loc),
            Slots::Shared(_) => slot,
        };
        self.in_bank(number, loc)
    }

    /// The number of a flag among all: where flags are not slots', of a batch.
    pub(super) fn in_flags(&self, number: Val<u32>, loc: Loc) -> Val<u32> {
        match self.bank {
            Some([_, bank, _]) => plus(number, bank, loc),
            None => number,
        }
    }

    pub(super) fn in_bank(&self, number: Val<u32>, loc: Loc) -> Val<u32> {
        match self.bank {
            Some([bank, ..]) => plus(number, bank, loc),
            None => number,
        }
    }

    /// The number of a message's place in the outbox, which has one for each slot: it goes to all ranks.
    pub(super) fn in_outbox(&self, slot: Val<u32>, loc: Loc) -> Val<u32> {
        self.check_slot(slot, loc);
        match self.bank {
            Some([.., bank]) => plus(slot, bank, loc),
            None => slot,
        }
    }

    fn check_slot(&self, slot: Val<u32>, loc: Loc) {
        let declared = &self.hub().declared;
        let (Slots::BySender(most) | Slots::ByNumber(most) | Slots::Shared(most)) = declared.shape.slots;
        attempt(loc, |t| match t.constant_of(slot.to_raw()) {
            Some(Const::U32(i)) if i >= most => Err(TraceError::new(
                loc,
                format!("slot {i} of channel `{}`, which has {most}", declared.name),
                format!(
                    "slots go from 0 to {}: check the `Slots` of its `#[channel(..)]`",
                    most.saturating_sub(1)
                ),
            )),
            _ => Ok(()),
        });
    }
}

/// Where a message's fields begin: computed with the message, so that what is put in a loop has it at hand.
#[derive(Debug)]
pub(super) struct Places {
    /// Of each field, with 32 bits, if those do, and with 64.
    first: Vec<(Option<Raw>, Raw)>,
}

impl Places {
    pub fn of(hub: &Hub, number: Val<u32>, loc: Loc) -> Places {
        let wide: Val<u64> = number.cast_at(loc);
        let first = hub.stores.iter().map(|store| {
            let narrow =
                (store.buf.len <= u64::from(u32::MAX)).then(|| times(number, store.stride, loc).to_raw());
            let stride = host(u64::from(store.stride), loc).to_raw();
            (narrow, binary::<Val<u64>>(BinaryOp::Mul, wide.to_raw(), stride, loc).to_raw())
        });
        let first = first.collect();
        nameless(loc);
        Places { first }
    }

    /// The element `offset` of a message's field, in the field's buffer. An offset of 64 bits makes it one of 64 bits.
    pub fn at(&self, store: &Store, offset: Index, loc: Loc) -> Index {
        let Index { raw: mut offset, part } = offset;
        let mut dtype = attempt(loc, |t| Ok(t.ty(t.use_value(offset.trace, offset.id, loc)?).dtype));
        let (narrow, wide) = self.first[store.field];
        // Indices of LL elements have 32 bits, whatever the offset.
        if store.kind == ParamKind::Ll && dtype == Dtype::U64 {
            (offset, dtype) = (Val::<u64>::from_raw(offset).cast_at::<u32>(loc).to_raw(), Dtype::U32);
        }
        let raw = match (narrow, dtype) {
            (Some(first), Dtype::U32) => binary::<Val<u32>>(BinaryOp::Add, first, offset, loc).to_raw(),
            (_, Dtype::U32) => {
                let offset = Val::<u32>::from_raw(offset).cast_at::<u64>(loc);
                binary::<Val<u64>>(BinaryOp::Add, wide, offset.to_raw(), loc).to_raw()
            }
            _ => binary::<Val<u64>>(BinaryOp::Add, wide, offset, loc).to_raw(),
        };
        Index { raw, part }
    }
}

/// Checks an access to `len` elements of a message's field from `offset` on, as far as they are known.
pub(super) fn check_inside(hub: &Hub, store: &Store, offset: Index, len: u32, loc: Loc) {
    attempt(loc, |t| {
        t.same_channel(store, hub, loc)?;
        let first = match t.constant_of(offset.raw) {
            Some(Const::U32(i)) => u64::from(i),
            Some(Const::U64(i)) => i,
            _ => 0,
        };
        let end = first.saturating_add(len.into());
        let of = field_name(hub, store);
        let transport = hub.declared.shape.transport;
        let together = transport.together(store.buf.dtype);
        if !first.is_multiple_of(together.into()) {
            let what = if transport == Transport::Packets { "packets" } else { "LL words" };
            return Err(TraceError::new(
                loc,
                format!("element {first} of a message of {of}, which moves {what} of {together}"),
                format!("begin at a multiple of {together} elements"),
            ));
        }
        if end <= u64::from(store.len) {
            return Ok(());
        }
        Err(TraceError::new(
            loc,
            format!("elements {first} to {end} of a message of {of}, which has {}", store.len),
            "offsets count from the beginning of the message: check the length it is declared with",
        ))
    });
}

/// A field in a message.
pub(super) fn field_name(hub: &Hub, store: &Store) -> String {
    let there: Vec<_> = hub.declared.fields.iter().filter(|f| f.len > 0).collect();
    hub.declared.field(there[store.field])
}

pub(super) fn plus(a: Val<u32>, b: Val<u32>, loc: Loc) -> Val<u32> {
    binary(BinaryOp::Add, a.to_raw(), b.to_raw(), loc)
}

pub(super) fn times(a: Val<u32>, n: u32, loc: Loc) -> Val<u32> {
    binary(BinaryOp::Mul, a.to_raw(), host(n, loc).to_raw(), loc)
}

/// Keeps a `let` from naming a value that only helped to make what it binds.
pub(super) fn nameless(loc: Loc) {
    attempt(loc, |t| {
        t.yielded.push(Nameable::Nothing);
        Ok(())
    });
}
