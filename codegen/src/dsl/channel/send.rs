//! Messages that are sent.

use super::far::Posted;
use super::open::{Places, check_inside, nameless};
use super::state::MessageState;
use super::{Any, Field, OpenChannel, Payload, Store, Transport};
use crate::dsl::comm::{Parcel, Peers, messages, protocol::send_to_at};
use crate::dsl::memory::{
    Buf, Index, IntoIndex,
    buffer::cast,
    mem::{AnyPtr, Ptr},
};
use crate::dsl::trace::{Thing, TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{AnyTile, Element, FromRaw, IntoTile, IntoVal, Raw, Val, val::host};
use crate::ir::Loc;

/// Messages of a channel to some ranks; made by [`OpenChannel::to`].
#[must_use = "choose a slot"]
pub struct Outbound<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    peers: Peers,
}

/// A message on its way: put its elements, then finish it. With flags, receivers see it once it is finished; otherwise, as it is put.
///
/// With flags a message is put by one group, or by as many as its [parts](super::ChannelShape::parts): each opens the slot for itself.
/// Without, several groups may have a message of their own to the same slot, each for other elements.
#[must_use = "put something into the message and finish it with `done`"]
pub struct Outgoing<'a, T: Payload> {
    sending: Sending<'a, T>,
    /// The number of its slot among all.
    number: Val<u32>,
    places: Places,
    /// Of a far channel, its place in the outbox.
    posted: Option<Posted>,
}

/// Several messages to the same ranks with one flag; made by [`Outbound::batch`].
#[must_use = "put messages into the batch and finish it with `done`"]
pub struct Batch<'a, T: Payload> {
    sending: Sending<'a, T>,
}

/// A message of a [`Batch`].
pub struct BatchSlot<'b, 'a, T: Payload> {
    batch: &'b Batch<'a, T>,
    places: Places,
}

/// A field of a message on its way.
#[must_use]
pub struct OutgoingField<'m, T> {
    putting: &'m dyn Putting,
    field: Field<T>,
}

/// What messages and batches have in common.
struct Sending<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    peers: Peers,
    /// With flags, what is put and not yet signalled.
    parcel: Option<Parcel>,
    /// In the trace's list.
    message: usize,
}

/// What a field is put with.
trait Putting {
    fn put(&self, store: &Store, offset: Index, value: Raw, loc: Loc);
    fn copy(&self, store: &Store, offset: Index, source: (&Buf, Index), len: u32, loc: Loc);
}

impl<'a, T: Payload> Outbound<'a, T> {
    pub(super) fn new(open: OpenChannel<'a, T>, peers: Peers) -> Self {
        Outbound { open, peers }
    }

    /// A message to a slot: of this rank's slots, where each sender has some.
    ///
    /// # Errors
    /// Ends the trace outside a role, for a slot that is not there, and where the message is never finished.
    #[track_caller]
    pub fn slot(&self, slot: impl IntoVal<u32>) -> Outgoing<'a, T> {
        let loc = Loc::caller();
        let slot = slot.val();
        let number = self.open.number(None, slot, loc);
        let places = Places::of(self.open.hub(), number, loc);
        let posted = Posted::of(&self.open, self.peers, slot, loc);
        let sending = Sending::begin(self.open, self.peers, loc);
        Outgoing { sending, number, places, posted }
    }

    /// Several messages with one flag. The channel's shape says how many [batches](super::ChannelShape::batches) there are.
    ///
    /// # Errors
    /// Ends the trace of a channel without [batches](super::ChannelShape::batches).
    #[track_caller]
    pub fn batch(&self) -> Batch<'a, T> {
        let loc = Loc::caller();
        let declared = &self.open.hub().declared;
        if declared.shape.batches.is_none() {
            let message = format!("a batch of channel `{}`, which has a flag for each slot", declared.name);
            let help = "say how many batches there are: `.batches(n)` in its `#[channel(..)]`";
            crate::dsl::trace::error::fail_at(loc, message, help);
        }
        Batch { sending: Sending::begin(self.open, self.peers, loc) }
    }
}

impl<'a, T: Payload> Sending<'a, T> {
    fn begin(open: OpenChannel<'a, T>, peers: Peers, loc: Loc) -> Self {
        require_role(loc, "a message");
        let hub = open.hub();
        let parcel = hub.flags.map(|_| send_to_at(peers, loc));
        let message = attempt(loc, |t| {
            t.channels[hub.channel].sent = true;
            let made = t.made(loc);
            t.messages.push(MessageState { channel: hub.channel, made, puts: vec![], done: false });
            Ok(t.messages.len() - 1)
        });
        nameless(loc);
        Sending { open, peers, parcel, message }
    }

    /// Notes a put, at a place where its message may be put to.
    fn note(&self, loc: Loc) {
        attempt(loc, |t| {
            let made = t.messages[self.message].made;
            t.reachable(made, Thing::Message, loc)?;
            let put = t.made(loc);
            t.messages[self.message].puts.push(put);
            Ok(())
        });
    }

    fn put(&self, places: &Places, store: &Store, offset: Index, value: Raw, loc: Loc) {
        let hub = self.open.hub();
        check_inside(hub, store, offset, value.len.unwrap_or(1), loc);
        self.note(loc);
        let index = places.at(store, offset, loc);
        match (store.kind.transport(), &self.parcel) {
            (Some(transport), _) => {
                let epoch = Some(self.open.epoch);
                messages::send(transport, &store.buf, self.peers, index, value, epoch, loc);
            }
            (_, Some(parcel)) => parcel.store(&store.buf, index, value, None, loc),
            (_, None) => unreachable!("symmetric memory has flags"),
        }
    }

    fn copy(&self, places: &Places, store: &Store, offset: Index, source: (&Buf, Index), len: u32, loc: Loc) {
        let hub = self.open.hub();
        let (from, first) = source;
        let Some(parcel) = self.parcel.as_ref().filter(|_| hub.declared.shape.transport == Transport::Bulk)
        else {
            let value = from.load(first, Some(len), None, loc);
            let value = AnyTile::new(value).for_buffer(&store.buf, loc);
            return self.put(places, store, offset, value, loc);
        };
        check_inside(hub, store, offset, len, loc);
        self.note(loc);
        parcel.copy_between((&store.buf, places.at(store, offset, loc)), source, len, loc);
    }

    /// Marks the messages as finished, and signals flag `number`.
    fn done(self, number: Val<u32>, loc: Loc) {
        let (hub, at) = (self.open.hub(), self.message);
        attempt(loc, |t| {
            let message = &t.messages[at];
            t.reachable(message.made, Thing::Message, loc)?;
            if message.puts.is_empty() {
                return Err(TraceError::new(
                    loc,
                    format!("a message of `{}` with nothing in it", hub.declared.name),
                    "put its elements before `done()`: receivers wait for all of them",
                )
                .note(message.made.loc, "the message begins here"));
            }
            if let Some(put) = message.puts.iter().find(|put| !t.is_inside(put.scope)) {
                return Err(TraceError::new(
                    loc,
                    "a message is finished in a branch or loop that a put of it is not in",
                    "on some paths it would not be finished, or twice: finish it where it begins",
                )
                .note(put.loc, "the put is here"));
            }
            t.messages[at].done = true;
            Ok(())
        });
        if let (Some(parcel), Some(flags)) = (self.parcel, hub.flags) {
            let value = match hub.declared.shape.counts() {
                true => host(1u32, loc),
                false => self.open.epoch.value,
            };
            parcel.signal_with(&flags, Index::whole(number.to_raw()), value.to_raw(), loc);
        }
    }
}

impl<T: Payload> Putting for Outgoing<'_, T> {
    fn put(&self, store: &Store, offset: Index, value: Raw, loc: Loc) {
        if let Some(posted) = &self.posted {
            check_inside(self.sending.open.hub(), store, offset, value.len.unwrap_or(1), loc);
            self.sending.note(loc);
            return posted.store(store, offset, value, loc);
        }
        self.sending.put(&self.places, store, offset, value, loc);
    }
    fn copy(&self, store: &Store, offset: Index, source: (&Buf, Index), len: u32, loc: Loc) {
        if self.posted.is_some() {
            let (from, first) = source;
            let value = from.load(first, Some(len), None, loc);
            return self.put(store, offset, AnyTile::new(value).for_buffer(&store.buf, loc), loc);
        }
        self.sending.copy(&self.places, store, offset, source, len, loc);
    }
}

impl<T: Payload> Putting for BatchSlot<'_, '_, T> {
    fn put(&self, store: &Store, offset: Index, value: Raw, loc: Loc) {
        self.batch.sending.put(&self.places, store, offset, value, loc);
    }
    fn copy(&self, store: &Store, offset: Index, source: (&Buf, Index), len: u32, loc: Loc) {
        self.batch.sending.copy(&self.places, store, offset, source, len, loc);
    }
}

impl<T: Payload> Outgoing<'_, T> {
    /// A field of the message.
    pub fn field<F>(&self, field: Field<F>) -> OutgoingField<'_, F> {
        OutgoingField { putting: self, field }
    }

    /// Finishes the message. With flags this signals its slot on every target, after all that was put by all lanes. A far message is put
    /// now, all of it. Otherwise there is nothing left to do.
    ///
    /// # Orders
    /// With flags, all that this group did before comes before what the receiver does once it has the message.
    ///
    /// # Errors
    /// Ends the trace of a channel whose flags are of batches.
    #[track_caller]
    pub fn done(self) {
        let loc = Loc::caller();
        let declared = &self.sending.open.hub().declared;
        if declared.shape.batches.is_some() {
            let message = format!(
                "a message for itself, where those of channel `{}` have flags in batches",
                declared.name
            );
            crate::dsl::trace::error::fail_at(loc, message, "open a batch: `channel.to(peers).batch()`");
        }
        let Outgoing { sending, number, places, posted } = self;
        let (hub, peers) = (sending.open.hub(), sending.peers);
        sending.done(number, loc);
        if let Some(posted) = posted {
            posted.put(hub, peers, &places, loc);
        }
    }
}

impl<'a, T: Payload> Batch<'a, T> {
    /// A message of the batch.
    #[track_caller]
    pub fn slot(&self, slot: impl IntoVal<u32>) -> BatchSlot<'_, 'a, T> {
        let loc = Loc::caller();
        let open = self.sending.open;
        let number = open.number(None, slot.val(), loc);
        BatchSlot { batch: self, places: Places::of(open.hub(), number, loc) }
    }

    /// Finishes the batch: signals flag `number` of the batches on every target, after all messages.
    ///
    /// # Orders
    /// As [`Outgoing::done`].
    #[track_caller]
    pub fn done(self, number: impl IntoVal<u32>) {
        let loc = Loc::caller();
        let number = self.sending.open.in_flags(number.val(), loc);
        self.sending.done(number, loc);
    }
}

impl<T: Payload> BatchSlot<'_, '_, T> {
    /// A field of the message.
    pub fn field<F>(&self, field: Field<F>) -> OutgoingField<'_, F> {
        OutgoingField { putting: self, field }
    }
}

impl<T: Element> OutgoingField<'_, T> {
    /// Puts a tile to the field's elements from element `offset` on.
    ///
    /// # Errors
    /// Ends the trace beyond the field's end, and where a transport moves no such piece: packets and LL words are
    /// whole.
    #[track_caller]
    pub fn put(&self, offset: impl IntoIndex, tile: impl IntoTile<T>) {
        self.putting.put(&self.field.store, offset.index(), tile.tile().to_raw(), Loc::caller());
    }

    /// Puts the `len` elements of `source` from element `from` on to those from element `offset` on, as they are. With
    /// [`Transport::Bulk`] nothing goes through registers, where the GPU copies in bulk.
    #[track_caller]
    pub fn copy(&self, offset: impl IntoIndex, source: &Ptr<T>, from: impl IntoIndex, len: u32) {
        let (loc, from) = (Loc::caller(), from.index());
        self.putting.copy(&self.field.store, offset.index(), (&source.buf, from), len, loc);
    }
}

impl OutgoingField<'_, Any> {
    /// Puts a tile of the field's element type to its elements from element `offset` on, as it is.
    #[track_caller]
    pub fn put(&self, offset: impl IntoIndex, tile: AnyTile) {
        let loc = Loc::caller();
        let offset = offset.index();
        let tile = tile.for_buffer(&self.field.store.buf, loc);
        self.putting.put(&self.field.store, offset, tile, loc);
    }

    /// Puts an `f32` tile, rounded to the field's element type.
    #[track_caller]
    pub fn put_f32(&self, offset: impl IntoIndex, tile: impl IntoTile<f32>) {
        let loc = Loc::caller();
        let (offset, tile) = (offset.index(), tile.tile().to_raw());
        self.putting.put(&self.field.store, offset, cast(tile, self.field.dtype(), loc), loc);
    }

    /// Puts the `len` elements of `source` from element `from` on to those from element `offset` on, as they are. With
    /// [`Transport::Bulk`] nothing goes through registers, where the GPU copies in bulk.
    #[track_caller]
    pub fn copy(&self, offset: impl IntoIndex, source: &AnyPtr, from: impl IntoIndex, len: u32) {
        let (loc, from) = (Loc::caller(), from.index());
        self.putting.copy(&self.field.store, offset.index(), (&source.buf, from), len, loc);
    }
}

/// What a message of a channel of elements has without naming a field.
macro_rules! of_elements {
    ($message:ident $(<$($l:lifetime),+>)?) => {
        impl<T: Element + Payload<Fields = Field<T>>> $message<$($($l,)+)? T> {
            /// Puts a tile to the message's elements from element `offset` on.
            #[track_caller]
            pub fn put(&self, offset: impl IntoIndex, tile: impl IntoTile<T>) {
                self.elements().put(offset, tile);
            }

            /// Puts elements of this rank's memory as they are; see [`OutgoingField::copy`].
            #[track_caller]
            pub fn copy(&self, offset: impl IntoIndex, source: &Ptr<T>, from: impl IntoIndex, len: u32) {
                self.elements().copy(offset, source, from, len);
            }
        }

        impl $message<$($($l,)+)? Any> {
            /// Puts a tile of the channel's element type to the message's elements from element `offset` on, as it is.
            #[track_caller]
            pub fn put(&self, offset: impl IntoIndex, tile: AnyTile) {
                self.elements().put(offset, tile);
            }

            /// Puts an `f32` tile, rounded to the channel's element type.
            #[track_caller]
            pub fn put_f32(&self, offset: impl IntoIndex, tile: impl IntoTile<f32>) {
                self.elements().put_f32(offset, tile);
            }

            /// Puts elements of this rank's memory as they are; see [`OutgoingField::copy`].
            #[track_caller]
            pub fn copy(&self, offset: impl IntoIndex, source: &AnyPtr, from: impl IntoIndex, len: u32) {
                self.elements().copy(offset, source, from, len);
            }
        }
    };
}
of_elements!(Outgoing<'_>);
of_elements!(BatchSlot<'_, '_>);

impl<T: Payload<Fields = Field<T>>> Outgoing<'_, T> {
    /// The message's elements, as what a message of a batch has too.
    pub fn elements(&self) -> OutgoingField<'_, T> {
        self.field(*self.sending.open)
    }
}

impl<T: Payload<Fields = Field<T>>> BatchSlot<'_, '_, T> {
    /// The message's elements, as what a message for itself has too.
    pub fn elements(&self) -> OutgoingField<'_, T> {
        self.field(*self.batch.sending.open)
    }
}
