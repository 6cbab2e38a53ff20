//! The ring through which one rank puts into another: messages in order, and bytes beside them.
//!
//! The source writes bytes, then their message, then `tail`. The owner of the segment reads messages below `tail`, and gives
//! slots and bytes back by `head` and `freed`. Each of the three words has one writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::segment::Mapping;

/// Messages that a ring holds.
pub const SLOTS: u64 = 2048;
/// Bytes that a ring holds beside its messages.
pub const DATA: u64 = 8 << 20;
/// Bytes of a message, at most: longer puts are cut.
pub const LONGEST: u64 = 1 << 20;
/// Bytes of a whole ring.
pub const RING_BYTES: usize = SLOTS_AT * 8 + SLOTS as usize * 64 + DATA as usize;

const ALIGN: u64 = 128;
// Places in a ring, in words of 8 bytes.
const TAIL: usize = 0;
const HEAD: usize = 16;
const FREED: usize = 17;
const SLOTS_AT: usize = 512;

/// A part of a put, on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes, up to [`LONGEST`].
    pub bytes: u64,
    /// The region where they land, and where in it.
    pub target: (u64, u64),
    /// What signal grows after them: its region, its byte there, and by how much.
    pub signal: Option<(u64, u64, u64)>,
    /// The context whose order counts.
    pub context: u32,
    /// Whether it lands after all earlier messages of its context.
    pub is_ordered: bool,
    /// Whether it belongs to the same put as the message before.
    pub continues: bool,
    /// Where its bytes are, counted from the ring's beginning of time.
    pub position: u64,
}

impl Message {
    fn encode(&self) -> [u64; 8] {
        let (region, offset, value) = self.signal.unwrap_or((0, 0, 0));
        let flags =
            u64::from(self.context) << 2 | u64::from(self.is_ordered) << 1 | u64::from(self.continues);
        [self.bytes, self.target.0, self.target.1, region, offset, value, flags, self.position]
    }

    fn decode(words: [u64; 8]) -> Message {
        let [bytes, to, at, region, offset, value, flags, position] = words;
        Message {
            bytes,
            target: (to, at),
            signal: (region != 0).then_some((region, offset, value)),
            context: (flags >> 2) as u32,
            is_ordered: flags & 2 != 0,
            continues: flags & 1 != 0,
            position,
        }
    }

    /// Where the bytes of the next message may begin.
    pub fn end(&self) -> u64 {
        self.position + self.bytes.next_multiple_of(ALIGN)
    }
}

/// A ring in a segment.
pub struct Ring {
    mapping: Arc<Mapping>,
    /// Its first byte in the segment.
    at: usize,
}

impl Ring {
    /// The ring that begins at a byte of a segment, of [`RING_BYTES`] bytes.
    pub fn new(mapping: Arc<Mapping>, at: usize) -> Ring {
        Ring { mapping, at }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        &self.mapping.words()[self.at / 8 + word]
    }

    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.mapping.address().wrapping_add(self.at)
    }

    /// The address of a message's bytes.
    pub fn data(&self, position: u64) -> *mut u8 {
        self.address().wrapping_add(RING_BYTES - DATA as usize + (position % DATA) as usize)
    }

    /// Source: where so many bytes of message number `tail` go, if there is room after `position`.
    pub fn place(&self, tail: u64, position: u64, bytes: u64) -> Option<u64> {
        let (head, freed) =
            (self.word(HEAD).load(Ordering::Acquire), self.word(FREED).load(Ordering::Acquire));
        let left = DATA - position % DATA;
        // Bytes of a message lie in one piece.
        let position = if left < bytes { position + left } else { position };
        (tail - head < SLOTS && position + bytes.next_multiple_of(ALIGN) - freed <= DATA).then_some(position)
    }

    /// Source: hands over message number `tail`, whose bytes are written.
    pub fn publish(&self, tail: u64, message: &Message) {
        let at = SLOTS_AT + (tail % SLOTS) as usize * 8;
        for (n, word) in message.encode().into_iter().enumerate() {
            self.word(at + n).store(word, Ordering::Relaxed);
        }
        self.word(TAIL).store(tail + 1, Ordering::Release);
    }

    /// Owner: how many messages have been handed over.
    pub fn tail(&self) -> u64 {
        self.word(TAIL).load(Ordering::Acquire)
    }

    /// Owner: a message that has been handed over.
    pub fn message(&self, number: u64) -> Message {
        let at = SLOTS_AT + (number % SLOTS) as usize * 8;
        Message::decode(std::array::from_fn(|n| self.word(at + n).load(Ordering::Relaxed)))
    }

    /// Owner: gives back messages below `head`, and their bytes below `freed`.
    pub fn release(&self, head: u64, freed: u64) {
        self.word(FREED).store(freed, Ordering::Release);
        self.word(HEAD).store(head, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Listener;

    fn message(bytes: u64, position: u64) -> Message {
        Message {
            bytes,
            target: (3, 640),
            signal: Some((2, 8, 128)),
            context: 5,
            is_ordered: true,
            continues: false,
            position,
        }
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        let segment = Listener::new().unwrap().open(2).unwrap();
        let ring = segment.ring(1);
        let sent = [
            message(100, 0),
            Message { signal: None, is_ordered: false, continues: true, ..message(0, 128) },
        ];
        for (number, message) in (0..).zip(&sent) {
            ring.publish(number, message);
        }
        assert_eq!((ring.tail(), segment.ring(0).tail()), (2, 0));
        assert_eq!([ring.message(0), ring.message(1)], sent);
        assert_eq!((sent[0].end(), sent[1].end()), (128, 128));
    }

    #[test]
    fn room_is_slots_and_bytes() {
        let segment = Listener::new().unwrap().open(1).unwrap();
        let ring = segment.ring(0);
        assert_eq!(ring.place(SLOTS - 1, 0, LONGEST), Some(0));
        assert_eq!(ring.place(SLOTS, 0, 0), None);
        // Bytes that do not fit before the end begin at the start.
        assert_eq!(ring.place(8, DATA - 128, 256), None);
        ring.release(8, 256);
        assert_eq!(ring.place(8, DATA - 128, 256), Some(DATA));
        assert_eq!(ring.place(8, DATA - 128, 128), Some(DATA - 128));
        assert_eq!(ring.place(8, DATA - 128, 384), None);
        assert_eq!(ring.place(SLOTS + 7, DATA, 0), Some(DATA));
        // The last byte of the last ring lies in the segment.
        let last = ring.data(DATA - 1).addr() - segment.mapping().address().addr();
        assert_eq!(last, segment.mapping().bytes() - 1);
    }
}
