//! Statements that communicate: puts, signals and waits, copies, and messages of each transport.

pub(super) mod blocks;
pub(super) mod copy;
pub(super) mod far;
pub(super) mod multimem;
pub(super) mod protocol;
pub(super) mod released;

mod ll;
mod packets;

use crate::ir::{OpId, ReceiveMessages, SendMessages, Transport};
use crate::print::emit::Emitter;
use crate::print::text::PrintError;

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
