//! What a channel is made of, computed from a configuration: its transport, its slots, and the parameters that follow.

use std::sync::Arc;

use peerwarp_macros::Choice;

use super::far::Publish;
use super::spare::{self, Spare};
use crate::dsl::memory::args::{Binding, ParamSpec};
use crate::dsl::trace::TraceError;
use crate::ir::{Dtype, FAR_UNIT, FarPart, Loc, ParamKind};

/// How the messages of a channel travel.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Transport {
    /// Stores, then a flag that is released after them: three trips until a message is there.
    Flags,
    /// As with flags, but what is [copied](super::Outgoing::copy) goes in bulk by way of shared memory, where the GPU can.
    Bulk,
    /// [Packets](crate::dsl::Packets) of 16 bytes: one trip, and a message is taken once.
    Packets,
    /// [LL elements](crate::dsl::Ll) in words of 8 bytes, half of which are data: one trip, and a message may be read any number of
    /// times.
    Ll,
    /// Puts of a network card to ranks of other machines: a message is put as a whole, and a receiver
    /// [waits](super::Inbound::wait) for all that a rank puts.
    Far,
}

impl Transport {
    /// Whether a flag says that a message is there.
    pub fn has_flags(self) -> bool {
        matches!(self, Transport::Flags | Transport::Bulk)
    }

    /// Whether it carries `len` elements of a type: packets are whole and hold floats; LL words are whole and hold one element of 4 bytes
    /// or two of 2.
    pub fn carries(self, len: u32, dtype: Dtype) -> bool {
        match self {
            Transport::Flags | Transport::Bulk | Transport::Far => true,
            Transport::Packets => dtype.is_float() && len.is_multiple_of(self.together(dtype)),
            Transport::Ll => dtype.per_ll_word().is_some() && len.is_multiple_of(self.together(dtype)),
        }
    }

    /// Elements of a type that travel together: what is put or loaded begins at a multiple of them and has a multiple of them.
    pub(super) fn together(self, dtype: Dtype) -> u32 {
        self.kind().transport().map_or(1, |transport| transport.unit(dtype))
    }

    /// What a field of the messages is as a parameter.
    fn kind(self) -> ParamKind {
        match self {
            Transport::Flags | Transport::Bulk => ParamKind::Symmetric,
            Transport::Packets => ParamKind::Packets,
            Transport::Ll => ParamKind::Ll,
            Transport::Far => ParamKind::Far(FarPart::Inbox),
        }
    }
}

/// Which slots a rank has for messages. A slot has one message of one sender in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slots {
    /// So many of each sender, in the order `[sender][slot]`.
    BySender(u32),
    /// So many of each sender, in the order `[slot][sender]`.
    ByNumber(u32),
    /// So many in all: what a slot is for, the kernel knows.
    Shared(u32),
}

/// Bytes of a bank up to which there are [three](ChannelShape::banks_for): to wait for credits takes a launch some 1 us, and three are
/// little beside a GPU's memory.
const SMALL_BANK: u64 = 8 << 20;

/// The shape of a channel: what `#[channel(|c| ..)]` computes from a configuration.
///
/// By default it has two banks, and credits where the transport has no flags. A protocol needs these in which every rank receives from
/// every other one in every launch. `check` explores whether they are enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelShape {
    pub(super) transport: Transport,
    pub(super) ranks: u32,
    pub(super) slots: Slots,
    pub(super) banks: u32,
    pub(super) credits: bool,
    pub(super) batches: Option<u32>,
    pub(super) read_many: bool,
    pub(super) parts: u32,
    pub(super) publish: Publish,
    /// Ranks of a node, where it is a channel between ranks of the same number on each.
    pub(super) rail: Option<u32>,
    /// How often the puts of a far channel's launch are counted apart.
    pub(super) lanes: u32,
    /// Whether each message of a far channel goes to all ranks, or all others.
    pub(super) to_all: bool,
    float_words: bool,
    names: Vec<(&'static str, &'static str)>,
}

impl ChannelShape {
    /// A channel between `ranks` ranks: those of a node, or where it is far those of all nodes. They go by their numbers there.
    pub fn new(transport: Transport, ranks: u32, slots: Slots) -> ChannelShape {
        ChannelShape {
            transport,
            ranks,
            slots,
            banks: 2,
            credits: !transport.has_flags(),
            batches: None,
            read_many: false,
            parts: 1,
            publish: Publish::Each,
            rail: None,
            lanes: 1,
            to_all: false,
            float_words: false,
            names: vec![],
        }
    }

    /// The number of launches whose messages have room, at most 3. Launches use two in turn. One suffices where a rank sends only after
    /// the receiver is done with the last launch's messages. With 3, credits have a launch's time to arrive, so that no launch waits for
    /// them: for messages that are small.
    ///
    /// # Errors
    /// Tracing fails for more than 3.
    #[must_use]
    pub fn banks(self, banks: u32) -> Self {
        ChannelShape { banks, ..self }
    }

    /// Three banks where the transport has no flags and a bank of messages of `bytes` bytes has at most 8 MiB, so that no launch waits
    /// for credits. Else two.
    #[must_use]
    pub fn banks_for(self, bytes: u64) -> Self {
        let small = self.bank_slots().saturating_mul(bytes) <= SMALL_BANK;
        let banks =
            if small && !self.transport.has_flags() && self.transport != Transport::Far { 3 } else { 2 };
        self.banks(banks)
    }

    /// As many banks as another channel has, whose credits order the reuse of this one, too.
    #[must_use]
    pub fn banks_of(self, other: &ChannelShape) -> Self {
        self.banks(other.banks)
    }

    /// Whether every rank tells every other one in each launch that it is done with the launches before: the channel's
    /// [credits](super::OpenChannel::credits). Without, something else has to keep ranks from being two launches ahead.
    #[must_use]
    pub fn credits(self, credits: bool) -> Self {
        ChannelShape { credits, ..self }
    }

    /// How many flags there are where several messages have [one](super::Outbound::batch) together: a slot each without.
    #[must_use]
    pub fn batches(self, batches: u32) -> Self {
        ChannelShape { batches: Some(batches), ..self }
    }

    /// Lets a message be read more than once: by several groups, or twice by one. Packets cannot be.
    #[must_use]
    pub fn read_many(self) -> Self {
        ChannelShape { read_many: true, ..self }
    }

    /// Lets `parts` groups put a message together, each other elements of it. Each finishes its part, and the receiver has the message when
    /// all have: with flags, these are [counts](crate::dsl::Counts), which one group of the receiver takes.
    #[must_use]
    pub fn parts(self, parts: u32) -> Self {
        ChannelShape { parts, ..self }
    }

    /// When the puts of a far channel count. Near channels have none.
    #[must_use]
    pub fn publish(self, publish: Publish) -> Self {
        ChannelShape { publish, ..self }
    }

    /// Lets a far channel join the ranks of the same number on each node, with `local_ranks` ranks a node. It has a rank for each node,
    /// named by the node's number.
    #[must_use]
    pub fn rail(self, local_ranks: u32) -> Self {
        ChannelShape { rail: Some(local_ranks), ..self }
    }

    /// Lets a far channel have so many lanes, each with counts of its own. Groups then wait for what their peers put by the same
    /// [lane](super::OpenChannel::lane), not for all that a rank puts in the launch. Each takes an engine's channel a bank.
    #[must_use]
    pub fn lanes(self, lanes: u32) -> Self {
        ChannelShape { lanes, ..self }
    }

    /// Lets each message of a far channel go to all of its ranks, or to all others. The outbox then has a place for each slot, not one for
    /// each target and slot: puts to several ranks read the same message until they are settled.
    #[must_use]
    pub fn to_all(self) -> Self {
        ChannelShape { to_all: true, ..self }
    }

    /// Ranks of all nodes, of a far channel.
    pub(super) fn far_ranks(&self) -> u64 {
        u64::from(self.ranks) * u64::from(self.rail.unwrap_or(1))
    }

    /// Whether its flags are counts.
    pub(super) fn counts(&self) -> bool {
        self.parts > 1 && self.transport.has_flags()
    }

    /// Lets elements of `u32` travel as packets: each holds floats, whose NaNs may become others. An integer of all ones would
    /// arrive as another number.
    #[must_use]
    pub fn float_words(self) -> Self {
        ChannelShape { float_words: true, ..self }
    }

    /// Names the parameter of a part: of a field, `arrived` or `ready`. Else it is `channel_part`, and the one field of a channel
    /// of elements has the channel's own name.
    #[must_use]
    pub fn named(mut self, part: &'static str, name: &'static str) -> Self {
        self.names.push((part, name));
        self
    }

    /// How messages travel.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// What it has that another protocol may do without.
    pub fn spares(&self) -> Vec<Spare> {
        let credits = self.credits.then_some(Spare::Credits);
        credits.into_iter().chain((self.banks > 1).then_some(Spare::SecondBank)).collect()
    }

    /// Of how many launches ago credits are awaited.
    pub(super) fn lag(&self) -> u32 {
        self.banks.saturating_sub(2)
    }

    /// Blocks that the channel's own role has: what a kernel has besides those of its other roles.
    pub fn blocks(&self) -> u32 {
        u32::from(self.credits)
    }

    /// Slots of a bank.
    pub(super) fn bank_slots(&self) -> u64 {
        match self.slots {
            Slots::BySender(n) | Slots::ByNumber(n) => u64::from(self.ranks) * u64::from(n),
            Slots::Shared(n) => n.into(),
        }
    }

    /// Slots of all banks: messages that there is room for on each rank.
    #[doc(hidden)]
    pub fn all_slots(&self) -> u64 {
        self.bank_slots() * u64::from(self.banks)
    }

    /// Slots of a far channel's outbox in a bank.
    pub(super) fn outbox_slots(&self) -> u64 {
        match self.slots {
            Slots::BySender(n) | Slots::ByNumber(n) if self.to_all => n.into(),
            Slots::BySender(_) | Slots::ByNumber(_) | Slots::Shared(_) => self.bank_slots(),
        }
    }

    /// Messages that all inboxes and outboxes of a far channel have room for on a rank.
    #[doc(hidden)]
    pub fn far_slots(&self) -> u64 {
        self.all_slots() + self.outbox_slots() * u64::from(self.banks)
    }

    /// Elements from the beginning of a field in a message to that in the next one. An engine of far channels moves [`FAR_UNIT`] bytes or
    /// several.
    pub(super) fn stride(&self, field: &FieldSpec) -> u32 {
        match self.transport {
            Transport::Far => field.len.next_multiple_of((FAR_UNIT / field.dtype.bytes()).max(1)),
            Transport::Flags | Transport::Bulk | Transport::Ll | Transport::Packets => field.len,
        }
    }

    /// Flags of a bank; counters of a far channel, one for each sender.
    pub(super) fn bank_flags(&self) -> u64 {
        match self.transport {
            Transport::Far => self.far_ranks() * u64::from(self.lanes),
            Transport::Flags | Transport::Bulk | Transport::Packets | Transport::Ll => {
                self.batches.map_or(self.bank_slots(), u64::from)
            }
        }
    }

    /// What a flag is for.
    fn signalled(&self, channel: &str) -> String {
        let what = if self.batches.is_some() { "batch of messages" } else { "message" };
        format!("{what} of `{channel}`")
    }

    /// The order of flags.
    fn order(&self) -> String {
        let bank = self.bank_order();
        let flags = match (self.batches, self.slots) {
            (Some(_), _) => "[batch]",
            (None, Slots::BySender(1)) => "[sender]",
            (None, Slots::BySender(_)) => "[sender][slot]",
            (None, Slots::ByNumber(_)) => "[slot][sender]",
            (None, Slots::Shared(_)) => "[slot]",
        };
        format!("{bank}{flags}")
    }

    /// The order of banks.
    fn bank_order(&self) -> &'static str {
        match self.banks {
            1 => "",
            2 => "[parity]",
            _ => "[bank]",
        }
    }

    /// What a field of the messages is as a parameter.
    pub(super) fn kind(&self) -> ParamKind {
        self.transport.kind()
    }

    fn name(&self, channel: &str, part: &str) -> String {
        match self.names.iter().find(|n| n.0 == part) {
            Some((_, name)) => (*name).to_owned(),
            None if part.is_empty() => channel.to_owned(),
            None => format!("{channel}_{part}"),
        }
    }
}

/// A field of the messages of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name in the author's struct; empty for the elements of a channel of elements.
    pub name: &'static str,
    /// Elements in a message: a field of none is not there.
    pub len: u32,
    /// Element type.
    pub dtype: Dtype,
    /// Whether the configuration chooses that.
    pub any: bool,
    /// First paragraph of the field's doc comment.
    pub doc: String,
}

/// A channel of a kernel, as its parameters were made from it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub name: String,
    pub shape: ChannelShape,
    pub fields: Vec<FieldSpec>,
}

impl Declared {
    /// The parameters of a channel: its fields that are there, its flags, its credits.
    pub fn params(name: &str, shape: ChannelShape, fields: Vec<FieldSpec>, doc: &str) -> Vec<ParamSpec> {
        let shape = spare::explored(name, shape);
        let declared = Arc::new(Declared { name: name.to_owned(), shape, fields });
        let Declared { shape, fields, .. } = &*declared;
        let spec = |part: &str, kind, dtype, len, doc: String| ParamSpec {
            name: shape.name(name, part),
            kind,
            dtype,
            len,
            columns: None,
            doc,
            binding: Binding::State,
            rows: None,
            channel: Some(declared.clone()),
        };
        let mut params = vec![];
        for f in fields.iter().filter(|f| f.len > 0) {
            let len = shape.all_slots().saturating_mul(shape.stride(f).into());
            let doc = if f.doc.is_empty() { doc } else { &f.doc };
            params.push(spec(f.name, shape.transport.kind(), f.dtype, len, doc.to_owned()));
            if shape.transport == Transport::Far {
                let of = if f.name.is_empty() { "outbox".to_owned() } else { format!("{}_outbox", f.name) };
                let len = shape.outbox_slots() * u64::from(shape.banks) * u64::from(shape.stride(f));
                let target = if shape.to_all { "" } else { "[target]" };
                let doc =
                    format!("Messages of `{name}` on their way, `{}{target}[slot]`.", shape.bank_order());
                params.push(spec(&of, ParamKind::Far(FarPart::Outbox), f.dtype, len, doc));
            }
        }
        if shape.transport == Transport::Far {
            let len = shape.bank_flags() * u64::from(shape.banks);
            let lanes = if shape.lanes > 1 { "[lane]" } else { "" };
            let doc = format!("Puts of `{name}` that have arrived, `{}{lanes}[sender]`.", shape.bank_order());
            params.push(spec("arrived", ParamKind::Far(FarPart::Counts), Dtype::U32, len, doc));
        }
        if shape.transport.has_flags() {
            let len = shape.bank_flags() * u64::from(shape.banks);
            let (kind, what) = match shape.counts() {
                true => (ParamKind::Counts, "Each part of a"),
                false => (ParamKind::Flags, "A"),
            };
            let doc = format!("{what} {} has arrived, `{}`.", shape.signalled(name), shape.order());
            params.push(spec("arrived", kind, Dtype::U32, len, doc));
        }
        if shape.credits {
            let doc = format!("A rank is done with what `{name}` brought in earlier launches, `[rank]`.");
            let (kind, len) = match shape.transport {
                Transport::Far => (ParamKind::Far(FarPart::Counts), shape.far_ranks()),
                Transport::Flags | Transport::Bulk | Transport::Packets | Transport::Ll => {
                    (ParamKind::Flags, shape.ranks.into())
                }
            };
            params.push(spec("ready", kind, Dtype::U32, len, doc));
        }
        params
    }

    /// Whether messages can travel so, in a kernel for so many nodes with so many ranks each.
    pub fn check(&self, (nodes, local): (u32, u32), loc: Loc) -> Result<(), TraceError> {
        let Declared { name, shape, fields } = self;
        let wrong = |message: String, help: String| Err(TraceError::new(loc, message, help));
        let (ranks, of) = match (shape.transport == Transport::Far, shape.rail) {
            (false, Some(_)) => {
                return wrong(
                    format!("channel `{name}` is near, and has a rail"),
                    "leave `.rail(..)` out: it reaches the ranks of a node".to_owned(),
                );
            }
            (true, Some(each)) if each != local => {
                let message = format!("the rail of channel `{name}` is for {each} ranks a node, of {local}");
                return wrong(message, format!("say `.rail({local})`: the configuration's ranks of a node"));
            }
            (true, Some(_)) => (nodes, "a rail"),
            (false, None) if nodes > 1 => (local, "a node"),
            (true, None) | (false, None) => (nodes * local, "a world"),
        };
        if shape.ranks != ranks {
            return wrong(
                format!("channel `{name}` is between {} ranks, in {of} of {ranks}", shape.ranks),
                "give `ChannelShape::new` the configuration's ranks".to_owned(),
            );
        }
        if !(1..=3).contains(&shape.banks) {
            return wrong(
                format!("channel `{name}` has {} banks", shape.banks),
                "a channel has 2 or 3 banks, which launches use in turn, or 1".to_owned(),
            );
        }
        if shape.all_slots() > u64::from(u32::MAX) {
            return wrong(
                format!("channel `{name}` has {} slots", shape.all_slots()),
                "slots of all banks are numbered with 32 bits: send longer messages".to_owned(),
            );
        }
        if shape.read_many && shape.transport == Transport::Packets {
            return wrong(
                format!("messages of channel `{name}` are read more than once, and travel as packets"),
                "a packet is taken once: let them travel as LL elements or with flags".to_owned(),
            );
        }
        if shape.parts == 0 {
            return wrong(
                format!("messages of channel `{name}` have no parts"),
                "a message has at least one part: leave `.parts(..)` out".to_owned(),
            );
        }
        if shape.read_many && shape.parts > 1 {
            return wrong(
                format!(
                    "messages of channel `{name}` have {} parts and are read more than once",
                    shape.parts
                ),
                "what is counted is taken once: let one group read a message, or leave `.parts(..)` out"
                    .to_owned(),
            );
        }
        if shape.transport == Transport::Far {
            self.check_far(loc)?;
        } else if shape.lanes != 1 {
            return wrong(
                format!("channel `{name}` has lanes, and is near"),
                "leave `.lanes(..)` out: each message of a near channel is taken by itself".to_owned(),
            );
        } else if shape.to_all {
            return wrong(
                format!("messages of channel `{name}` go to all ranks by their shape, and it is near"),
                "leave `.to_all()` out: a near channel has no outbox".to_owned(),
            );
        } else if shape.publish == Publish::Batch {
            return wrong(
                format!("channel `{name}` publishes batches, and is near"),
                "leave `.publish(..)` out: each message of a near channel is signalled".to_owned(),
            );
        }
        if shape.batches.is_some() && !shape.transport.has_flags() {
            return wrong(
                format!("channel `{name}` has batches, and no flags"),
                "several messages share a flag: without flags each is sent for itself".to_owned(),
            );
        }
        for field in fields.iter().filter(|f| f.len > 0) {
            self.check_field(field, loc)?;
        }
        Ok(())
    }

    /// What a far channel cannot have.
    fn check_far(&self, loc: Loc) -> Result<(), TraceError> {
        let Declared { name, shape, .. } = self;
        let (what, help) = match shape {
            ChannelShape { lanes: 0, .. } => ("has no lanes", "leave `.lanes(..)` out: it has one"),
            ChannelShape { banks: 3.., .. } => (
                "has 3 banks",
                "it has 2, which launches use in turn, or 1: its credits are awaited in the launch that gives them",
            ),
            ChannelShape { batches: Some(_), .. } => (
                "has flags for batches",
                "say `.publish(Publish::Batch)`, and `publish(peers, n)` behind the last put",
            ),
            ChannelShape { parts: 2.., .. } => (
                "has messages in parts",
                "a put is of a whole message: let one group finish it, or let messages be shorter",
            ),
            ChannelShape { slots: Slots::Shared(_), .. } => {
                ("has slots that senders share", "let each sender have some: `Slots::BySender(n)`")
            }
            ChannelShape { .. } => return Ok(()),
        };
        Err(TraceError::new(loc, format!("far channel `{name}` {what}"), help))
    }

    fn check_field(&self, field: &FieldSpec, loc: Loc) -> Result<(), TraceError> {
        let FieldSpec { len, dtype, any, .. } = *field;
        let of = self.field(field);
        match self.shape.transport {
            Transport::Flags | Transport::Bulk | Transport::Far => Ok(()),
            Transport::Packets => {
                let packet = self.shape.transport.together(dtype);
                let words = any && dtype == Dtype::U32;
                let carried = dtype.is_float() || words && self.shape.float_words;
                if !carried {
                    let message = format!("{of} is of {dtype}, and travels as packets");
                    let help = match words {
                        true => {
                            "packets carry floats: let integers travel as LL elements or with flags; \
                             `ChannelShape::float_words` is for words that hold floats"
                        }
                        false => "packets carry floats: let integers travel as LL elements or with flags",
                    };
                    return Err(TraceError::new(loc, message, help));
                }
                if !len.is_multiple_of(packet) {
                    let message = format!("{of} has {len} elements a message, which are no whole packets");
                    let help =
                        format!("a packet has {packet} of {dtype}: let messages have a multiple of that");
                    return Err(TraceError::new(loc, message, help));
                }
                Ok(())
            }
            Transport::Ll if dtype.per_ll_word().is_some() => {
                let word = self.shape.transport.together(dtype);
                if !len.is_multiple_of(word) {
                    let message = format!("{of} has {len} elements a message, which are no whole LL words");
                    let help =
                        format!("an LL word has {word} of {dtype}: let messages have a multiple of that");
                    return Err(TraceError::new(loc, message, help));
                }
                let elements = self.shape.all_slots().saturating_mul(len.into());
                if elements <= u64::from(u32::MAX) {
                    return Ok(());
                }
                let message = format!("{of} has {elements} LL elements");
                let help = "LL elements are numbered with 32 bits: let large messages travel as packets or with flags";
                Err(TraceError::new(loc, message, help))
            }
            Transport::Ll => {
                let message = format!("{of} is of {dtype}, and travels as LL elements");
                let help = "an LL word has 4 bytes of data: f32, i32 or u32, or two of f16 or bf16";
                Err(TraceError::new(loc, message, help))
            }
        }
    }

    /// A field in a message.
    pub fn field(&self, field: &FieldSpec) -> String {
        match field.name {
            "" => format!("channel `{}`", self.name),
            part => format!("field `{part}` of channel `{}`", self.name),
        }
    }
}
