//! Messages that are received.

use super::far::InboundFar;
use super::open::{Places, check_inside, field_name, nameless, plus, times};
use super::state::TakenOnce;
use super::{Any, Declared, Field, OpenChannel, Payload, Slots, Store, Transport};
use crate::dsl::comm::{
    Arrived, ll, packets,
    protocol::{Until, wait_for_one},
};
use crate::dsl::memory::{Flags, Index, IntoIndex, buffer::cast, mem::param_of};
use crate::dsl::trace::{Made, Thing, TraceError, error::fail_at, scope::require_role, tracer::attempt};
use crate::dsl::values::{
    AnyTile, Element, FromRaw, IntoVal, Raw, Tile, Val,
    tile::{check_len, spread},
    val::{binary, compare, host},
};
use crate::ir::{BinaryOp, CompareOp, Dtype, Loc, ParamKind};

/// Messages of a channel from one rank; made by [`OpenChannel::from`].
#[must_use = "choose a slot"]
pub struct Inbound<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    sender: Val<u32>,
}

/// A message that is received. With flags it is there; otherwise loading waits for what it loads.
pub struct Incoming<'a, T: Payload> {
    reading: Reading<'a, T>,
    sender: Val<u32>,
    places: Places,
}

/// Messages of a channel from several ranks; made by [`OpenChannel::from_some`].
#[must_use = "choose a slot"]
pub struct InboundSome<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    senders: Val<u64>,
}

/// Messages in the same slot of several ranks.
pub struct IncomingSome<'a, T: Payload> {
    reading: Reading<'a, T>,
    senders: Val<u64>,
    /// The number of rank 0's slot among all.
    first: Val<u32>,
}

pub(super) struct Reading<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    /// With flags, the receipt of the wait for them.
    arrived: Option<Arrived>,
    /// Where the message is received: it can be loaded where that is known to have happened.
    made: Made,
}

impl<'a, T: Payload> Inbound<'a, T> {
    pub(super) fn new(open: OpenChannel<'a, T>, sender: Val<u32>) -> Self {
        Inbound { open, sender }
    }

    /// The message in a slot of the sender's; with flags, waits for it.
    ///
    /// # Orders
    /// With flags, all that the sender's group did before it finished the message comes before what this group does
    /// next.
    ///
    /// # Errors
    /// Ends the trace of a channel whose flags are of batches, and for a slot that is not there.
    #[track_caller]
    pub fn slot(&self, slot: impl IntoVal<u32>) -> Incoming<'a, T> {
        let loc = Loc::caller();
        let number = self.open.number(Some(self.sender), slot.val(), loc);
        let declared = &self.open.hub().declared;
        if declared.shape.batches.is_some() {
            let message = format!(
                "a message for itself, where those of channel `{}` have flags in batches",
                declared.name
            );
            fail_at(loc, message, "wait for its batch: `channel.from(rank).batch(number).slot(slot)`");
        }
        self.receive(number, number, loc)
    }

    /// Waits until the `messages` messages that the sender puts in this launch have arrived, of a far channel. All of them: puts arrive in any
    /// order, so that nothing follows from a part. One group waits for a sender.
    ///
    /// # Orders
    /// All that the putting groups did before their puts, or with [`Publish::Batch`](super::Publish::Batch) before they published, comes
    /// before what this group does next.
    ///
    /// # Errors
    /// Ends the trace of a near channel, and outside a role.
    #[track_caller]
    pub fn wait(&self, messages: impl IntoVal<u32>) -> InboundFar<'a, T> {
        let loc = Loc::caller();
        self.open.wait_far(self.sender, messages.val(), loc)
    }

    /// The message in a slot of a batch: waits for flag `number` of the batches.
    ///
    /// # Orders
    /// As [`Inbound::slot`].
    #[track_caller]
    pub fn batch(&self, number: impl IntoVal<u32>, slot: impl IntoVal<u32>) -> Incoming<'a, T> {
        let loc = Loc::caller();
        let flag = self.open.in_flags(number.val(), loc);
        let number = self.open.number(Some(self.sender), slot.val(), loc);
        self.receive(number, flag, loc)
    }

    /// The message in the slot with this number among all; with flags, waits for this one.
    fn receive(&self, number: Val<u32>, flag: Val<u32>, loc: Loc) -> Incoming<'a, T> {
        let Inbound { open, sender } = *self;
        open.require_near("a message by itself", loc);
        let places = Places::of(open.hub(), number, loc);
        let hub = open.hub();
        let value = match hub.declared.shape.counts() {
            true => host(hub.declared.shape.parts, loc),
            false => open.epoch.value,
        };
        let flag = Index::whole(flag.to_raw());
        let arrived = hub.flags.map(|f| wait_for_one(&f, sender.to_raw(), flag, value.to_raw(), loc));
        Incoming { reading: Reading::new(open, arrived, loc), sender, places }
    }
}

impl<'a, T: Payload> Incoming<'a, T> {
    pub(super) fn new(reading: Reading<'a, T>, sender: Val<u32>, places: Places) -> Self {
        Incoming { reading, sender, places }
    }
}

impl<'a, T: Payload> InboundSome<'a, T> {
    pub(super) fn new(open: OpenChannel<'a, T>, senders: Val<u64>) -> Self {
        InboundSome { open, senders }
    }

    /// The messages in the same slot of each of the ranks; with flags, waits for all of them.
    ///
    /// # Orders
    /// As [`Inbound::slot`], for all the senders.
    ///
    /// # Errors
    /// Ends the trace where the ranks' slots are not next to each other.
    #[track_caller]
    pub fn slot(&self, slot: impl IntoVal<u32>) -> IncomingSome<'a, T> {
        let (loc, slot) = (Loc::caller(), slot.val());
        self.receive(slot, None, loc)
    }

    /// The messages in the same slot of a batch of each of the ranks; with flags, waits for those of batches `number * ranks` on, one
    /// of each rank.
    ///
    /// # Orders
    /// As [`Inbound::slot`], for all the senders.
    #[track_caller]
    pub fn batch(&self, number: impl IntoVal<u32>, slot: impl IntoVal<u32>) -> IncomingSome<'a, T> {
        let (loc, number, slot) = (Loc::caller(), number.val(), slot.val());
        self.receive(slot, Some(number), loc)
    }

    fn receive(&self, slot: Val<u32>, batch: Option<Val<u32>>, loc: Loc) -> IncomingSome<'a, T> {
        let InboundSome { open, senders } = *self;
        open.require_near("messages of several ranks at once", loc);
        let declared = &open.hub().declared;
        let (name, ranks) = (&declared.name, declared.shape.ranks);
        if !matches!(declared.shape.slots, Slots::ByNumber(_) | Slots::BySender(1)) {
            let message = format!("messages of several ranks at once, of channel `{name}`");
            let help = "their slots are next to each other with `Slots::ByNumber(n)`: say so in its `#[channel(..)]`";
            fail_at(loc, message, help);
        }
        if declared.shape.counts() {
            let message = format!("messages of several ranks at once, of channel `{name}`, which have parts");
            fail_at(
                loc,
                message,
                "what is counted is taken one by one: `channel.from(rank).slot(slot)` for each",
            );
        }
        let first = times(slot, ranks, loc);
        let arrived = open.hub().flags.map(|flags| {
            let first = match batch {
                Some(number) => open.in_flags(times(number, ranks, loc), loc),
                None => open.in_bank(first, loc),
            };
            let (first, count, only) =
                (Index::whole(first.to_raw()), host(ranks, loc).to_raw(), senders.to_raw());
            Flags { buf: flags }.wait_for(first, count, Some(only), 1, Until::Exactly(open.epoch), loc)
        });
        let first = open.in_bank(first, loc);
        IncomingSome { reading: Reading::new(open, arrived, loc), senders, first }
    }
}

impl<'a, T: Payload> Reading<'a, T> {
    pub(super) fn new(open: OpenChannel<'a, T>, arrived: Option<Arrived>, loc: Loc) -> Self {
        require_role(loc, "a message");
        let made = attempt(loc, |t| {
            t.channels[open.hub().channel].received = true;
            Ok(t.made(loc))
        });
        nameless(loc);
        Reading { open, arrived, made }
    }

    /// Checks a load of `len` elements of a field from `offset` on.
    fn check(&self, store: &Store, offset: Index, len: u32, loc: Loc) {
        check_len(loc, len);
        check_inside(self.open.hub(), store, offset, len, loc);
        attempt(loc, |t| t.reachable(self.made, Thing::Message, loc));
    }

    /// Notes that elements are loaded, which may happen once unless the channel says otherwise.
    fn note(&self, store: &Store, index: Index, loc: Loc) {
        let hub = self.open.hub();
        if hub.declared.shape.read_many {
            return;
        }
        attempt(loc, |t| {
            let buffer = param_of(&store.buf).expect("fields are parameters");
            let index = t.use_value(index.raw.trace, index.raw.id, loc)?;
            let before =
                t.taken.iter().find(|b| b.buffer == buffer && b.index == index && t.is_open(b.made.scope));
            if let Some(before) = before {
                let what = field_name(hub, store);
                return Err(TraceError::new(
                    loc,
                    format!("a message of {what} is read twice"),
                    "a message is read once: keep the tile; or say `.read_many()` in its `#[channel(..)]`, which rules out packets",
                )
                .note(before.made.loc, "it is read here"));
            }
            let made = t.made(loc);
            t.taken.push(TakenOnce { buffer, index, made });
            Ok(())
        });
    }

    /// Elements from an index on, of messages that `sender` sends.
    fn load(&self, store: &Store, index: Index, len: u32, sender: Val<u32>, loc: Loc) -> Raw {
        self.note(store, index, loc);
        match self.open.hub().declared.shape.transport {
            Transport::Packets => {
                packets::take(&store.buf, vec![(index, sender.to_raw())], len, None, loc)[0]
            }
            Transport::Ll => {
                let always = host(true, loc).to_raw();
                ll::load(&store.buf, index, len, [sender.to_raw(), always], self.open.epoch, loc)
            }
            Transport::Flags | Transport::Bulk | Transport::Far => {
                store.buf.load(index, Some(len), self.arrived.as_ref(), loc)
            }
        }
    }

    /// The same of several messages, each with its sender and the number of its slot among all: zeros of those that are not there.
    /// `mask` has a bit for each.
    fn load_each(
        &self,
        (store, offset, len): (&Store, Index, u32),
        messages: impl Iterator<Item = (Val<u32>, Val<u32>)>,
        there: impl Fn(u32, Val<u32>) -> Val<bool>,
        mask: impl FnOnce() -> Val<u64>,
        loc: Loc,
    ) -> Vec<Raw> {
        self.check(store, offset, len, loc);
        let hub = self.open.hub();
        let place = |(sender, number)| (Places::of(hub, number, loc).at(store, offset, loc), sender);
        let tiles: Vec<(Index, Val<u32>)> = messages.map(place).collect();
        for (index, _) in &tiles {
            self.note(store, *index, loc);
        }
        if store.kind == ParamKind::Packets {
            let tiles = tiles.into_iter().map(|(index, sender)| (index, sender.to_raw())).collect();
            return packets::take(&store.buf, tiles, len, Some(mask().to_raw()), loc);
        }
        let load = |(i, (index, sender)): (u32, (Index, Val<u32>))| {
            let there = there(i, sender).to_raw();
            if store.kind == ParamKind::Ll {
                return ll::load(&store.buf, index, len, [sender.to_raw(), there], self.open.epoch, loc);
            }
            let zero = cast(spread(host(0f32, loc).to_raw(), len, loc), store.buf.dtype, loc);
            let there = index.part.spread(there, len, loc);
            store.buf.load_masked(Index::whole(index.raw), there, zero, self.arrived.as_ref(), loc)
        };
        (0..).zip(tiles).map(load).collect()
    }
}

/// Whether a set of ranks has this one.
fn has(set: Val<u64>, rank: Val<u32>, loc: Loc) -> Val<bool> {
    let shift = rank.cast_at::<u64>(loc);
    let bit = binary::<Val<u64>>(BinaryOp::Shl, host(1u64, loc).to_raw(), shift.to_raw(), loc);
    let both = binary::<Val<u64>>(BinaryOp::And, set.to_raw(), bit.to_raw(), loc);
    compare(CompareOp::Ne, both.to_raw(), host(0u64, loc).to_raw(), loc)
}

/// What a field of one message is loaded with.
trait Getting {
    fn get(&self, store: &Store, offset: Index, len: u32, loc: Loc) -> Raw;
}

impl<T: Payload> Getting for Incoming<'_, T> {
    fn get(&self, store: &Store, offset: Index, len: u32, loc: Loc) -> Raw {
        self.reading.check(store, offset, len, loc);
        let index = self.places.at(store, offset, loc);
        self.reading.load(store, index, len, self.sender, loc)
    }
}

/// What a field of several messages is loaded with.
trait GettingEach {
    fn get_each(
        &self,
        store: &Store,
        first: Val<u32>,
        count: u32,
        offset: Index,
        len: u32,
        loc: Loc,
    ) -> Vec<Raw>;
}

impl<T: Payload> GettingEach for IncomingSome<'_, T> {
    fn get_each(
        &self,
        store: &Store,
        first: Val<u32>,
        count: u32,
        offset: Index,
        len: u32,
        loc: Loc,
    ) -> Vec<Raw> {
        let senders = (0..count).map(|i| plus(first, host(i, loc), loc)).collect::<Vec<_>>();
        let messages = senders.into_iter().map(|sender| (sender, plus(self.first, sender, loc)));
        let there = |_, sender| has(self.senders, sender, loc);
        let mask = || {
            let first = first.cast_at::<u64>(loc).to_raw();
            binary(BinaryOp::Shr, self.senders.to_raw(), first, loc)
        };
        self.reading.load_each((store, offset, len), messages, there, mask, loc)
    }
}

/// A field of a received message.
#[must_use]
pub struct IncomingField<'m, F> {
    message: &'m dyn Getting,
    field: Field<F>,
}

/// A field of several received messages.
#[must_use]
pub struct IncomingSomeField<'m, F> {
    messages: &'m dyn GettingEach,
    field: Field<F>,
}

/// What a field of messages of any senders is loaded with.
trait GettingAll {
    fn get_all(&self, store: &Store, offset: Index, len: u32, loc: Loc) -> Vec<Raw>;
}

impl<T: Payload> GettingAll for IncomingEach<'_, T> {
    fn get_all(&self, store: &Store, offset: Index, len: u32, loc: Loc) -> Vec<Raw> {
        self.get(store, offset, len, loc)
    }
}

/// A field of messages of several senders.
#[must_use]
pub struct IncomingEachField<'m, F> {
    messages: &'m dyn GettingAll,
    field: Field<F>,
}

/// Messages of several senders that are loaded together; made by [`OpenChannel::from_each`].
pub struct IncomingEach<'a, T: Payload> {
    reading: Reading<'a, T>,
    /// Each sender, and the number of its slot among all.
    messages: Vec<(Val<u32>, Val<u32>)>,
    mask: Val<u64>,
}

impl<'a, T: Payload> IncomingEach<'a, T> {
    pub(super) fn new(
        open: OpenChannel<'a, T>,
        messages: Vec<(Val<u32>, Val<u32>)>,
        mask: Val<u64>,
        loc: Loc,
    ) -> Self {
        open.require_near("messages of any senders at once", loc);
        let Declared { name, shape, .. } = &*open.hub().declared;
        if shape.transport.has_flags() {
            let message = format!("messages of any senders at once, of channel `{name}`, which has flags");
            fail_at(
                loc,
                message,
                "wait for each: `channel.from(sender).slot(slot)`, or for one slot of several: `from_some`",
            );
        }
        let number = |(sender, slot)| (sender, open.number(Some(sender), slot, loc));
        let messages = messages.into_iter().map(number).collect();
        IncomingEach { reading: Reading::new(open, None, loc), messages, mask }
    }

    fn get(&self, store: &Store, offset: Index, len: u32, loc: Loc) -> Vec<Raw> {
        let there = |i, _| has(self.mask, host(i, loc), loc);
        let messages = self.messages.iter().copied();
        self.reading.load_each((store, offset, len), messages, there, || self.mask, loc)
    }
}

impl<T: Element + Payload<Fields = Field<T>>> IncomingEach<'_, T> {
    /// The `len` elements from element `offset` on of each message, all on their way together: zeros for those that are not received.
    #[track_caller]
    pub fn load(&self, offset: impl IntoIndex, len: u32) -> Vec<Tile<T>> {
        let tiles = self.get(&self.reading.open.store, offset.index(), len, Loc::caller());
        tiles.into_iter().map(Tile::from_raw).collect()
    }
}

impl IncomingEach<'_, Any> {
    /// The `len` elements from element `offset` on of each message, all on their way together: zeros for those that are not received.
    #[track_caller]
    pub fn load(&self, offset: impl IntoIndex, len: u32) -> Vec<AnyTile> {
        let tiles = self.get(&self.reading.open.store, offset.index(), len, Loc::caller());
        tiles.into_iter().map(AnyTile::new).collect()
    }
}

impl<T: Payload> Incoming<'_, T> {
    /// A field of the message.
    pub fn field<F>(&self, field: Field<F>) -> IncomingField<'_, F> {
        IncomingField { message: self, field }
    }
}

impl<T: Payload> IncomingSome<'_, T> {
    /// A field of the messages.
    pub fn field<F>(&self, field: Field<F>) -> IncomingSomeField<'_, F> {
        IncomingSomeField { messages: self, field }
    }
}

impl<T: Payload> IncomingEach<'_, T> {
    /// A field of the messages.
    pub fn field<F>(&self, field: Field<F>) -> IncomingEachField<'_, F> {
        IncomingEachField { messages: self, field }
    }
}

/// Loads of a field of messages, and of messages of elements without a name of the field, as tiles of their type.
macro_rules! loads {
    ([$($field:tt)*] [$($message:tt)*] $element:ty => $tile:ty, $made:path) => {
        impl $($field)* IncomingEachField<'_, $element> {
            /// The `len` elements from element `offset` on of each message, all on their way together: zeros for those that are not received.
            #[track_caller]
            pub fn load(&self, offset: impl IntoIndex, len: u32) -> Vec<$tile> {
                let tiles = self.messages.get_all(&self.field.store, offset.index(), len, Loc::caller());
                tiles.into_iter().map($made).collect()
            }
        }

        impl $($field)* IncomingField<'_, $element> {
            /// The `len` elements of the field from element `offset` on, in its type. Without flags, waits for them.
            ///
            /// # Errors
            /// Ends the trace for a second load of the same elements, unless the channel's shape says
            /// [`read_many`](super::ChannelShape::read_many).
            #[track_caller]
            pub fn load(&self, offset: impl IntoIndex, len: u32) -> $tile {
                $made(self.message.get(&self.field.store, offset.index(), len, Loc::caller()))
            }
        }

        impl $($field)* IncomingSomeField<'_, $element> {
            /// The `len` elements from element `offset` on of the messages of ranks `first` to `first + count`, all on their way
            /// together: zeros for those that are not received.
            #[track_caller]
            pub fn load_each(
                &self,
                first: impl IntoVal<u32>,
                count: u32,
                offset: impl IntoIndex,
                len: u32,
            ) -> Vec<$tile> {
                let (loc, first) = (Loc::caller(), first.val());
                let tiles = self.messages.get_each(&self.field.store, first, count, offset.index(), len, loc);
                tiles.into_iter().map($made).collect()
            }
        }

        impl $($message)* Incoming<'_, $element> {
            /// The `len` elements of the message from element `offset` on, in its type. Without flags, waits for them.
            #[track_caller]
            pub fn load(&self, offset: impl IntoIndex, len: u32) -> $tile {
                self.field(*self.reading.open).load(offset, len)
            }
        }

        impl $($message)* IncomingSome<'_, $element> {
            /// Elements of several ranks' messages, see [`IncomingSomeField::load_each`].
            #[track_caller]
            pub fn load_each(
                &self,
                first: impl IntoVal<u32>,
                count: u32,
                offset: impl IntoIndex,
                len: u32,
            ) -> Vec<$tile> {
                self.field(*self.reading.open).load_each(first, count, offset, len)
            }
        }
    };
}
loads!([<T: Element>] [<T: Element + Payload<Fields = Field<T>>>] T => Tile<T>, Tile::from_raw);
loads!([] [] Any => AnyTile, AnyTile::new);

impl IncomingField<'_, Any> {
    /// The same as `f32`.
    #[track_caller]
    pub fn load_f32(&self, offset: impl IntoIndex, len: u32) -> Tile<f32> {
        let loc = Loc::caller();
        let raw = self.message.get(&self.field.store, offset.index(), len, loc);
        Tile::from_raw(cast(raw, Dtype::F32, loc))
    }
}

impl Incoming<'_, Any> {
    /// The same as `f32`.
    #[track_caller]
    pub fn load_f32(&self, offset: impl IntoIndex, len: u32) -> Tile<f32> {
        self.field(*self.reading.open).load_f32(offset, len)
    }
}
