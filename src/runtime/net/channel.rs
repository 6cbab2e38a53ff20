//! Messages between two processes that know each other.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::deadline::{Cut, Deadline, Socket, fill};
use super::form::FormError;
use super::handshake::{Proof, Session};
use super::rendezvous::{Card, malformed};

/// More bytes than any message has: what says that it is longer is something else.
pub(super) const LONGEST: u32 = 1 << 24;

/// How long a message may take to be sent.
const SENDING: Duration = Duration::from_secs(5);

/// What ranks say to rank 0, and what it says to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    /// A rank, to rank 0.
    Hello(Card),
    /// All ranks, from rank 0.
    Welcome(Vec<Card>),
    /// What a rank has to say, to rank 0.
    Part(Value),
    /// What all ranks had to say, from rank 0.
    All(Vec<Value>),
    /// Why there is no world, or no longer, from rank 0.
    Failed(FormError),
}

impl Message {
    /// As it is sent.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(io::Error::other)
    }

    /// As it was sent.
    pub fn decode(text: &[u8]) -> Result<Message, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

/// A connection between rank 0 and another rank, after both have proved that they know the world's secret.
#[derive(Debug)]
pub(super) struct Channel<S = TcpStream> {
    stream: S,
    session: Session,
}

impl<S: Socket> AsFd for Channel<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<S: Socket> Channel<S> {
    pub fn new(stream: S, session: Session) -> Channel<S> {
        Channel { stream, session }
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let text = message.encode()?;
        let length = u32::try_from(text.len()).ok().filter(|&length| length <= LONGEST);
        let length = length.ok_or_else(|| io::Error::other("a message that no process would read"))?;
        let mark = self.session.seal(&text);
        self.stream.set_write_timeout(Some(SENDING))?;
        self.stream.write_all(&[&length.to_le_bytes(), text.as_slice(), &mark].concat())
    }

    /// The next message of the rank at the other end.
    pub fn receive(&mut self, rank: u32, deadline: &Deadline) -> Result<Message, FormError> {
        let cut = |cut| match cut {
            Cut::Late => FormError::Late { rank, waited: deadline.timeout() },
            Cut::Gone => FormError::Lost { rank },
        };
        let mut length = [0; 4];
        fill(&mut self.stream, &mut length, deadline).map_err(cut)?;
        let length = u32::from_le_bytes(length);
        if length > LONGEST {
            return Err(malformed(rank, format!("a message of {length} bytes")));
        }
        let mut text = vec![];
        self.read(length as usize, &mut text, deadline).map_err(cut)?;
        let mut mark: Proof = [0; 32];
        fill(&mut self.stream, &mut mark, deadline).map_err(cut)?;
        if !self.session.opens(&text, &mark) {
            return Err(malformed(rank, "a message that was changed on its way"));
        }
        Message::decode(&text).map_err(|e| malformed(rank, e))
    }

    /// Reads so many bytes, for which no more is allocated than comes.
    pub(super) fn read(&mut self, length: usize, text: &mut Vec<u8>, deadline: &Deadline) -> Result<(), Cut> {
        let mut piece = [0; 1 << 14];
        while text.len() < length {
            let piece = &mut piece[..(length - text.len()).min(1 << 14)];
            fill(&mut self.stream, piece, deadline)?;
            text.extend_from_slice(piece);
        }
        Ok(())
    }
}
