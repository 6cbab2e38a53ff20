//! What the tracer knows about channels, and what it can check only at the end.

use std::sync::Arc;

use super::far::Publish;
use super::shape::{Declared, Transport};
use super::{Hub, Store};
use crate::dsl::trace::{Made, Thing, Trace, TraceError};
use crate::ir::{Loc, ParamId, ValueId};

/// A channel of the kernel that is traced.
#[derive(Debug)]
pub(crate) struct ChannelState {
    pub declared: Arc<Declared>,
    /// Where it is opened.
    pub opened: Option<Loc>,
    pub sent: bool,
    pub received: bool,
    /// Whether the role of its credits is there.
    pub credits: bool,
    /// Whether a far channel is settled and its batches are published.
    pub settled: bool,
    pub published: bool,
}

impl Trace {
    /// Notes a channel of the kernel, whose parts are declared one by one.
    pub fn declare_channel(&mut self, declared: &Arc<Declared>, loc: Loc) -> Result<(), TraceError> {
        if self.channels.iter().any(|c| Arc::ptr_eq(&c.declared, declared)) {
            return Ok(());
        }
        if self.channels.iter().any(|c| c.declared.name == declared.name) {
            let message = format!("two channels are named `{}`", declared.name);
            return Err(TraceError::new(loc, message, "rename one of them"));
        }
        let kernel = &self.builder.kernel;
        declared.check((kernel.nodes, kernel.ranks), loc)?;
        let declared = declared.clone();
        self.channels.push(ChannelState {
            declared,
            opened: None,
            sent: false,
            received: false,
            credits: false,
            settled: false,
            published: false,
        });
        Ok(())
    }

    /// Fails unless a field is one of a channel's.
    pub(super) fn same_channel(&self, store: &Store, hub: &Hub, loc: Loc) -> Result<(), TraceError> {
        self.same_trace(store.buf.trace, Thing::Buffer, loc)?;
        if store.channel == hub.channel {
            return Ok(());
        }
        let name = |channel: usize| &self.channels[channel].declared.name;
        Err(TraceError::new(
            loc,
            format!("a field of channel `{}` in a message of `{}`", name(store.channel), name(hub.channel)),
            "take the fields of the message's own channel: `message.field(channel.row)`",
        ))
    }
}

/// A message that is sent.
#[derive(Debug)]
pub(crate) struct MessageState {
    pub channel: usize,
    pub made: Made,
    pub puts: Vec<Made>,
    pub done: bool,
}

/// A load from a message that may be read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenOnce {
    pub buffer: ParamId,
    pub index: ValueId,
    pub made: Made,
}

/// The checks at the end of a trace.
pub(crate) fn at_end(t: &Trace) -> Result<(), TraceError> {
    if let Some(m) = t.messages.iter().find(|m| !m.done) {
        let name = &t.channels[m.channel].declared.name;
        return Err(TraceError::new(
            m.made.loc,
            format!("this message of `{name}` is never finished"),
            "call `message.done()` when everything is put: with flags, receivers see it only then",
        ));
    }
    if let Some(error) = t.channels.iter().find_map(|c| far_at_end(c, t.builder.kernel.loc)) {
        return Err(error);
    }
    let lacking = |c: &&ChannelState| c.declared.shape.credits && c.sent && c.received && !c.credits;
    match t.channels.iter().find(lacking) {
        None => Ok(()),
        Some(c) => Err(TraceError::new(
            c.opened.unwrap_or(t.builder.kernel.loc),
            format!("channel `{}` has credits, and no block gives them", c.declared.name),
            "call `credits()` of the open channel beside the roles; or say `.credits(false)` in its `#[channel(..)]`, where \
             something else keeps ranks from being two launches ahead",
        )),
    }
}

/// What a far channel that is sent to lacks.
fn far_at_end(c: &ChannelState, kernel: Loc) -> Option<TraceError> {
    if c.declared.shape.transport != Transport::Far || !c.sent {
        return None;
    }
    let (name, loc) = (&c.declared.name, c.opened.unwrap_or(kernel));
    if c.declared.shape.publish == Publish::Batch && !c.published {
        let message = format!("the batches of far channel `{name}` are never published");
        let help = "call `publish(peers, n)` behind the last put of each group; or let each put count itself, `Publish::Each`";
        return Some(TraceError::new(loc, message, help));
    }
    (!c.settled).then(|| {
        let message = format!("far channel `{name}` is never settled");
        let help = "the end of a kernel completes no put: call `settle()` in the sending role, before the outbox is stored to again";
        TraceError::new(loc, message, help)
    })
}
