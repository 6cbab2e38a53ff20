//! Sending of messages that say by themselves that they have arrived, whatever their transport.

use super::protocol::Peers;
use crate::dsl::memory::{Buf, Epoch, Index, mem::param_of};
use crate::dsl::trace::{TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{FromRaw, Raw};
use crate::ir::{CommOp, Loc, SendMessages, Transport};

/// Fails unless so many elements are whole messages.
pub(crate) fn whole(
    transport: Transport,
    buf: &Buf,
    len: u32,
    name: &str,
    loc: Loc,
) -> Result<(), TraceError> {
    let unit = transport.unit(buf.dtype);
    if len.is_multiple_of(unit) {
        return Ok(());
    }
    let (moves, help) = transport.traits().whole;
    let message = format!("{len} elements of `{name}`, {moves} {unit}");
    Err(TraceError::new(loc, message, format!("use a multiple of {unit} elements{help}")))
}

/// Sends a tile to the elements from an index on of the ranks' instances, with the epoch where the transport has one.
pub(crate) fn send(
    transport: Transport,
    buf: &Buf,
    to: Peers,
    index: Index,
    value: Raw,
    epoch: Option<Epoch>,
    loc: Loc,
) {
    let epoch = epoch.filter(|_| transport.traits().has_epoch).map(|e| e.value.to_raw());
    require_role(loc, "sending");
    attempt(loc, |t| {
        let len = value.len.unwrap_or(1);
        whole(transport, buf, len, &buf.name(t), loc)?;
        let count = index.part.first_only(t, len, transport.traits().several, loc)?;
        let index = buf.at(t, index, if count.is_some() { 0 } else { len.into() }, loc)?;
        let value = t.use_value(value.trace, value.id, loc)?;
        let epoch = epoch.map(|e| t.use_value(e.trace, e.id, loc)).transpose()?;
        let target = to.target(t, loc)?;
        let buffer = param_of(buf).expect("messages are a parameter");
        t.push(
            CommOp::SendMessages(SendMessages { transport, buffer, target, index, value, epoch, count }),
            loc,
        );
        Ok(())
    });
}
