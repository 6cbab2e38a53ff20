//! Channels: one parameter that owns inboxes, banks, flags and credits.

mod credits;
mod far;
mod open;
mod receive;
mod send;
mod shape;
mod spare;
mod state;

use std::marker::PhantomData;
use std::sync::Arc;

pub use far::{InboundFar, InboundOthers, Publish};
pub use open::OpenChannel;
pub use receive::{
    Inbound, InboundSome, Incoming, IncomingEach, IncomingEachField, IncomingField, IncomingSome,
    IncomingSomeField,
};
pub use send::{Batch, BatchSlot, Outbound, Outgoing, OutgoingField};
pub(crate) use shape::Declared;
pub use shape::{ChannelShape, FieldSpec, Slots, Transport};
pub use spare::{Spare, without};
pub(crate) use state::{ChannelState, MessageState, TakenOnce, at_end};

use crate::dsl::comm::counts::Counts;
use crate::dsl::memory::{
    Buf, Flags,
    args::{Binder, ParamSpec},
};
use crate::dsl::trace::{TraceError, error::raise};
use crate::dsl::values::Element;
use crate::ir::{Dtype, ParamKind};

/// A channel: messages between ranks, whichever way they travel. `T` is what a message is: elements of a type, or a struct of
/// [fields](Field) that travel together (`#[derive(Message)]`).
///
/// It is one parameter of a kernel, and owns what its messages need: inboxes, their banks, flags, packets or LL words, and credits. The
/// author says what goes to whom in which slot, and takes it there; the transport, which the configuration chooses, decides the rest.
///
/// ```
/// # use peerwarp_codegen::dsl::{TraceMeta, prelude::*, trace_args};
/// struct Gather { ranks: u32, words: u32, transport: Transport }
///
/// #[derive(KernelArgs)]
/// #[args(config = Gather)]
/// struct GatherArgs {
///     #[len(|c| u64::from(c.words))] x: Ptr<f32>,
///     #[len(|c| u64::from(c.words * c.ranks))] out: Ptr<f32>,
///     /// The words of all ranks, a message of each.
///     #[channel(|c| ChannelShape::new(c.transport, c.ranks, Slots::BySender(1)))]
///     #[len(|c| c.words)]
///     words: Channel<f32>,
///     epoch: EpochWord,
/// }
///
/// /// Sends each rank's words to all ranks.
/// #[kernel]
/// fn gather(c: &Gather, a: &GatherArgs) {
///     let words = a.words.open(a.epoch.begin());
///     role("send", 1, |_| {
///         let message = words.to(Peers::all()).slot(0);
///         message.put(0, a.x.load(0, c.words));
///         message.done();
///     });
///     role("receive", 4, |b| {
///         for from in b.strided(c.ranks) {
///             let message = words.from(from).slot(0);
///             a.out.store(from * c.words, message.load(0, c.words));
///         }
///     });
///     words.credits();
/// }
///
/// for transport in [Transport::Flags, Transport::Bulk, Transport::Packets, Transport::Ll] {
///     let config = Gather { ranks: 8, words: 256, transport };
///     trace_args::<GatherArgs>(TraceMeta::new("gather", 8, 32, 4), &config, gather)?;
/// }
/// # Ok::<(), TraceError>(())
/// ```
///
/// An `Option` of a channel is `Some` where its `#[len(..)]` is not 0.
///
/// Messages need an open channel, because opening it chooses the bank:
///
/// ```compile_fail
/// # use peerwarp_codegen::dsl::prelude::*;
/// fn too_early(words: Channel<f32>) -> Tile<f32> {
///     words.from(0).slot(0).load(0, 256)
/// }
/// ```
///
/// # Slots
/// A slot has one message of one sender in a launch; [`Slots`] says how many there are. A message has as many elements as `#[len(..)]`
/// says, or each of its fields. What is put and loaded are tiles of them.
///
/// # Reuse
/// A message of the next launch must not reach a slot that is still being read. Two things see to it. *Banks*: launches use two in turn,
/// by the epoch's parity. *Credits*: where the transport has no flags, receiving orders nothing but the data. So a block of
/// [`OpenChannel::credits`] signals every rank that this one is done with earlier launches. Both are properties of the declaration,
/// [`ChannelShape::banks`] and [`ChannelShape::credits`], and `check` explores whether they are enough.
pub struct Channel<T: Payload> {
    fields: T::Fields,
    hub: Hub,
}

/// Handles of the same channel.
impl<T: Payload<Fields: Clone>> Clone for Channel<T> {
    fn clone(&self) -> Self {
        Channel { fields: self.fields.clone(), hub: self.hub.clone() }
    }
}

/// A channel whose element type the configuration chooses (`#[dtype(|c| ..)]`).
pub type AnyChannel = Channel<Any>;

/// Elements of a type that the configuration chooses: `Channel<Any>`, `Field<Any>`.
#[derive(Clone, Copy, Debug)]
pub struct Any;

/// A field of messages, `len` elements of `T` each; of [`AnyField`] the configuration chooses the type.
#[derive(Debug)]
pub struct Field<T> {
    pub(super) store: Store,
    _t: PhantomData<T>,
}

/// A field of messages whose element type the configuration chooses (`#[dtype(|c| ..)]`).
pub type AnyField = Field<Any>;

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Field<T> {}

impl<T> Field<T> {
    /// Elements in a message.
    #[allow(clippy::len_without_is_empty)] // no field is empty
    pub fn len(&self) -> u32 {
        self.store.len
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.store.buf.dtype
    }
}

/// Where a field of all messages is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Store {
    pub buf: Buf,
    pub kind: ParamKind,
    /// Elements in a message.
    pub len: u32,
    /// Elements from the beginning of a message to that of the next.
    pub stride: u32,
    /// Its number among the fields of its channel.
    pub field: usize,
    pub channel: usize,
    /// Where it waits to be put, of a far channel.
    pub outbox: Option<Buf>,
}

/// What all fields of a channel have in common.
#[derive(Clone, Debug)]
pub(super) struct Hub {
    /// In the trace's list.
    pub channel: usize,
    pub declared: Arc<Declared>,
    /// Flags, or counts.
    pub flags: Option<Buf>,
    /// The counters of a far channel.
    pub far: Option<Buf>,
    pub credits: Option<credits::Credits>,
    pub stores: Vec<Store>,
}

/// What a message can be: elements of a type, or a struct with `#[derive(Message)]`.
pub trait Payload: Sized {
    /// The handles of a message's fields.
    type Fields;
    /// The handles, taken in the order of the fields.
    #[doc(hidden)]
    fn bind(fields: &mut Fields<'_>) -> Self::Fields;
}

/// A struct of fields that travel together; implemented by `#[derive(Message)]`.
///
/// ```
/// # use peerwarp_codegen::dsl::prelude::*;
/// # struct Config { hidden: u32, scales: u32, dtype: peerwarp_codegen::ir::Dtype }
/// #[derive(Message)]
/// #[message(config = Config)]
/// struct Row {
///     /// A row.
///     #[len(|c| c.hidden)]
///     #[dtype(|c| c.dtype)]
///     row: AnyField,
///     /// Its scales, where it has some.
///     #[len(|c| c.scales)]
///     scales: Option<Field<f32>>,
/// }
/// ```
pub trait Message: Payload<Fields = Self> {
    /// The config that decides lengths and element types.
    type Config: ?Sized;
    /// The fields under a config, in the order of the struct.
    fn fields(config: &Self::Config) -> Vec<FieldSpec>;
}

macro_rules! elements {
    ($($t:ty)*) => {
        $(impl Payload for $t {
            type Fields = Field<$t>;
            fn bind(fields: &mut Fields<'_>) -> Field<$t> {
                fields.next()
            }
        })*
    };
}
elements!(i32 u32 u64 f32 half::f16 half::bf16 super::F8 Any);

/// Hands out the fields of a channel; for `#[derive(Message)]`.
#[doc(hidden)]
#[derive(Debug)]
pub struct Fields<'a> {
    binder: &'a mut Binder,
    declared: &'a Declared,
    channel: usize,
    next: usize,
    stores: Vec<Store>,
}

impl Fields<'_> {
    /// The next field.
    #[allow(clippy::should_implement_trait)] // the type is chosen by the caller
    pub fn next<T>(&mut self) -> Field<T> {
        let at = self.next;
        self.next_if_there().unwrap_or_else(|| {
            let field = self.declared.field(&self.declared.fields[at]);
            let message = format!("{field} has no elements in a message");
            raise(TraceError::new(
                self.binder.loc(),
                message,
                "let its `#[len(..)]` be at least 1, or make it an `Option`",
            ))
        })
    }

    /// The next field, if it has elements.
    pub fn next_if_there<T>(&mut self) -> Option<Field<T>> {
        let spec = &self.declared.fields[self.next];
        self.next += 1;
        if spec.len == 0 {
            return None;
        }
        let bound = self.binder.next_part();
        let (kind, field) = (self.declared.shape.kind(), self.stores.len());
        let far = self.declared.shape.transport == Transport::Far;
        let outbox = far.then(|| Buf::param(self.binder.next_part()));
        let (buf, stride) = (Buf::param(bound), self.declared.shape.stride(spec));
        let store = Store { buf, kind, len: spec.len, stride, field, channel: self.channel, outbox };
        self.stores.push(store);
        Some(Field { store, _t: PhantomData })
    }
}

impl<T: Payload> Channel<T> {
    /// The handle of a declared channel.
    #[doc(hidden)]
    pub fn bind(binder: &mut Binder, name: &str) -> Channel<T> {
        let (channel, declared) = binder.channel(name);
        let mut fields = Fields { binder, declared: &declared, channel, next: 0, stores: vec![] };
        let handles = T::bind(&mut fields);
        let stores = fields.stores;
        let flags = declared.shape.transport.has_flags().then(|| match declared.shape.counts() {
            true => binder.next::<Counts>().buf,
            false => binder.next::<Flags>().buf,
        });
        let far = (declared.shape.transport == Transport::Far).then(|| Buf::param(binder.next_part()));
        let credits = declared.shape.credits.then(|| credits::Credits::bind(binder, &declared.shape));
        Channel { fields: handles, hub: Hub { channel, declared, flags, far, credits, stores } }
    }

    /// The handle of a channel, if it is declared: of one that the config leaves out, none.
    #[doc(hidden)]
    pub fn bind_if_declared(binder: &mut Binder, name: &str) -> Option<Channel<T>> {
        binder.has_channel(name).then(|| Channel::bind(binder, name))
    }

    /// How messages travel.
    pub fn transport(&self) -> Transport {
        self.hub.declared.shape.transport
    }
}

impl<T: Payload + Element> Channel<T> {
    /// The parameters of a channel of elements, `len` a message.
    #[doc(hidden)]
    pub fn params(name: &str, shape: ChannelShape, len: u32, doc: &str) -> Vec<ParamSpec> {
        let doc = doc.to_owned();
        Declared::params(name, shape, vec![FieldSpec { name: "", len, dtype: T::DTYPE, any: false, doc }], "")
    }
}

impl Channel<Any> {
    /// The parameters of a channel of elements of a type that the configuration chooses, `len` a message.
    #[doc(hidden)]
    pub fn params_of(name: &str, shape: ChannelShape, len: u32, dtype: Dtype, doc: &str) -> Vec<ParamSpec> {
        let doc = doc.to_owned();
        Declared::params(name, shape, vec![FieldSpec { name: "", len, dtype, any: true, doc }], "")
    }
}

impl<M: Message> Channel<M> {
    /// The parameters of a channel of messages with several fields.
    #[doc(hidden)]
    pub fn params_for(name: &str, shape: ChannelShape, config: &M::Config, doc: &str) -> Vec<ParamSpec> {
        Declared::params(name, shape, M::fields(config), doc)
    }
}
