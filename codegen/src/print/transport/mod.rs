//! What emitted sources do of each transport.

pub(super) mod blocks;
pub(super) mod copy;
pub(super) mod multimem;
pub(super) mod protocol;
pub(super) mod released;

mod ll;
mod packets;

use crate::ir::{Dtype, OpId, ReceiveMessages, SendMessages, Transport};

use super::PrintError;
use crate::print::emit::emitter::Emitter;

/// How many elements a step a lane holds of a tile that is sent.
pub(crate) enum Width {
    /// As many as what it is computed from.
    Any,
    /// A multiple of so many.
    Multiple(u32),
    /// So many.
    Exactly(u32),
}

/// What a transport wants of tiles that are sent.
pub(crate) fn width(transport: Transport, dtype: Dtype) -> Width {
    let unit = transport.unit(dtype);
    match transport {
        Transport::Packets => Width::Multiple(unit),
        Transport::Ll if unit > 1 => Width::Exactly(unit),
        Transport::Ll => Width::Any,
    }
}

/// Whether lanes move whole 16 bytes, so that a tile has fewer of them than elements.
pub(crate) fn is_wide(transport: Transport) -> bool {
    match transport {
        Transport::Packets => true,
        // A lane for each element, whatever the group.
        Transport::Ll => false,
    }
}

impl Emitter<'_, '_> {
    /// A tile to one rank or to each of a set.
    pub fn send_messages(&mut self, id: OpId, op: &SendMessages) -> Result<(), PrintError> {
        self.flush()?;
        match op.transport {
            Transport::Packets => self.send_packets(id, op),
            Transport::Ll => self.send_ll(id, op),
        }
    }

    /// Messages that are polled for until all of a lane's have arrived.
    pub fn receive_messages(&mut self, id: OpId, op: &ReceiveMessages) -> Result<(), PrintError> {
        self.flush()?;
        match op.transport {
            Transport::Packets => self.take_packets(id, op),
            Transport::Ll => self.read_ll(id, op),
        }
    }
}
