//! The commands that kernels write, and the immediates that puts carry.
//!
//! A command is two 64-bit words, 16 bytes in all, little-endian:
//!
//! | bytes | holds |
//! |---|---|
//! | 0 to 3 | where the put reads, from the start of the channel's outbox, in units of 16 bytes |
//! | 4 to 7 | where the put writes, from the start of the peer's inbox, in units of 16 bytes |
//! | 8 and 9 | sequence: the lap of the ring plus one, modulo 65536 |
//! | 10 | bits 0 and 1: op (1 put, 2 put-and-count, 3 flush); bits 2 to 7: channel |
//! | 11 and 12 | the peer's rank |
//! | 13 to 15 | length in units of 16 bytes |
//!
//! A kernel writes the first word with a plain store, then the second word with a release store at system scope. The
//! sequence in the second word publishes the command. A flush leaves bytes 0 to 7 and 11 to 15 zero.

use std::fmt;

/// Bytes of a unit: offsets and lengths are multiples of it.
pub const UNIT: usize = 16;
/// Channels of a world at most.
pub const CHANNELS: u8 = 64;
/// Ranks of a world at most.
pub const RANKS: u16 = 1024;
/// Length of a put at most, in units: 256 MiB less one unit.
pub const LONGEST: u32 = (1 << 24) - 1;

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Copies bytes of the outbox into the peer's inbox.
    Put,
    /// The same; the peer's count of this channel and source grows by one when the bytes are there.
    PutAndCount,
    /// Puts of later commands of the ring start after all puts of earlier commands are delivered.
    Flush,
}

/// A command, as a kernel writes it into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What it asks for.
    pub op: Op,
    /// Its channel, below [`CHANNELS`].
    pub channel: u8,
    /// The rank that is written to, below [`RANKS`].
    pub peer: u16,
    /// Where the put reads, in units of the outbox.
    pub from: u32,
    /// Where the put writes, in units of the peer's inbox.
    pub to: u32,
    /// Length in units, 1 to [`LONGEST`].
    pub units: u32,
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// A field is out of range.
    #[error("{field} is {value}, and {allowed} are allowed")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Values that are allowed.
        allowed: String,
    },
    /// The put leaves a region.
    #[error("bytes {from} to {to} of the {region} are asked for, and it has {bytes}")]
    Outside {
        /// `outbox` or `inbox`.
        region: &'static str,
        /// The first byte.
        from: u64,
        /// The byte after the last one.
        to: u64,
        /// Length of the region.
        bytes: u64,
    },
}

pub(crate) fn range(
    field: &'static str,
    value: impl Into<u64>,
    least: u64,
    most: u64,
) -> Result<(), CommandError> {
    let value = value.into();
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(CommandError::Field { field, value, allowed: format!("{least} to {most}") }),
    }
}

impl Command {
    /// A flush.
    pub const FLUSH: Command = Command { op: Op::Flush, channel: 0, peer: 0, from: 0, to: 0, units: 0 };

    /// The two words, as the command with this number of a ring with so many slots. Numbers begin at 0.
    ///
    /// # Errors
    /// A field is out of range.
    pub fn encode(&self, number: u64, slots: u64) -> Result<[u64; 2], CommandError> {
        range("channel", self.channel, 0, u64::from(CHANNELS) - 1)?;
        range("peer", self.peer, 0, u64::from(RANKS) - 1)?;
        let op: u64 = match self.op {
            Op::Put => 1,
            Op::PutAndCount => 2,
            Op::Flush => 3,
        };
        match self.op {
            Op::Put | Op::PutAndCount => range("units", self.units, 1, u64::from(LONGEST))?,
            Op::Flush => range("units of a flush", self.units, 0, 0)?,
        }
        let body = u64::from(self.from) | u64::from(self.to) << 32;
        let head = u64::from(sequence(number, slots))
            | op << 16
            | u64::from(self.channel) << 18
            | u64::from(self.peer) << 24
            | u64::from(self.units) << 40;
        Ok([body, head])
    }

    /// Reads the two words. The sequence is the ring's to compare.
    ///
    /// # Errors
    /// The op or a field is out of range.
    pub fn decode([body, head]: [u64; 2]) -> Result<Command, CommandError> {
        let op = match head >> 16 & 3 {
            1 => Op::Put,
            2 => Op::PutAndCount,
            3 => Op::Flush,
            value => return Err(CommandError::Field { field: "op", value, allowed: "1 to 3".into() }),
        };
        let (channel, peer) = addressee(head);
        let command = Command {
            op,
            channel,
            peer,
            from: body as u32,
            to: (body >> 32) as u32,
            units: (head >> 40) as u32,
        };
        // The same checks as on the way in.
        command.encode(0, 1).map(|_| command)
    }
}

/// Channel and peer of a command's second word, whatever else is wrong with it.
pub(crate) fn addressee(head: u64) -> (u8, u16) {
    ((head >> 18 & 0x3f) as u8, (head >> 24 & 0xffff) as u16)
}

/// What publishes the command with this number. No slot holds it before: memory starts as zeros, and the slot's earlier lap
/// has another one.
pub(crate) fn sequence(number: u64, slots: u64) -> u16 {
    (number / slots).wrapping_add(1) as u16
}

/// What a put brings beside its bytes: 10 bits of rank and 6 bits of channel. It fits providers with 16-bit immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The channel.
    pub channel: u8,
    /// The rank that sends.
    pub source: u16,
}

/// Bytes of an [`Immediate`].
pub(crate) const IMMEDIATE_BYTES: usize = 2;

impl Immediate {
    /// The immediate as a number.
    pub fn encode(self) -> u64 {
        u64::from(self.channel) << 10 | u64::from(self.source)
    }

    /// Reads what arrived; bits above the 16 are ignored.
    pub fn decode(data: u64) -> Immediate {
        Immediate { channel: (data >> 10 & 0x3f) as u8, source: (data & 0x3ff) as u16 }
    }
}

/// The name of a put in faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutName {
    /// The rank that is written to.
    pub peer: u16,
    /// Its channel.
    pub channel: u8,
    /// The ring that it came from.
    pub ring: u8,
    /// Its number among the ring's commands, from 0.
    pub number: u64,
}

impl fmt::Display for PutName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PutName { peer, channel, ring, number } = self;
        write!(f, "put {number} of ring {ring} to rank {peer} on channel {channel}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn commands() -> impl Strategy<Value = Command> {
        let puts = (any::<bool>(), 0..CHANNELS, 0..RANKS, any::<u32>(), any::<u32>(), 1..=LONGEST);
        let puts = puts.prop_map(|(count, channel, peer, from, to, units)| {
            let op = if count { Op::PutAndCount } else { Op::Put };
            Command { op, channel, peer, from, to, units }
        });
        prop_oneof![9 => puts, 1 => Just(Command::FLUSH)]
    }

    proptest! {
        #[test]
        fn commands_survive(command in commands(), number: u64, slots in (1u32..17).prop_map(|bits| 1u64 << bits)) {
            let words = command.encode(number, slots).unwrap();
            prop_assert_eq!(Command::decode(words), Ok(command));
            prop_assert_eq!(words[1] as u16, sequence(number, slots));
            // Neither the slot's earlier lap nor fresh memory look published.
            prop_assert_ne!(sequence(number, slots), sequence(number.wrapping_sub(slots), slots));
            prop_assert!(number >= slots || sequence(number, slots) != 0);
        }

        #[test]
        fn no_words_panic(words: [u64; 2]) {
            if let Ok(command) = Command::decode(words) {
                prop_assert_eq!(command.encode(0, 1).unwrap()[1] >> 16, words[1] >> 16);
            }
        }

        #[test]
        fn immediates_survive(channel in 0..CHANNELS, source in 0..RANKS, above: u32) {
            let immediate = Immediate { channel, source };
            prop_assert!(immediate.encode() <= 0xffff);
            prop_assert_eq!(Immediate::decode(immediate.encode() | u64::from(above) << 16), immediate);
        }
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let command = Command {
            op: Op::PutAndCount,
            channel: 5,
            peer: 0x0201,
            from: 0x1413_1211,
            to: 0x2423_2221,
            units: 0x33_3231,
        };
        let words = command.encode(3 * 8 + 1, 8).unwrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected =
            [0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 4, 0, 2 | 5 << 2, 0x01, 0x02, 0x31, 0x32, 0x33];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn fields_are_refused_by_name() {
        let command = Command { op: Op::Put, channel: 0, peer: 0, from: 0, to: 0, units: 1 };
        let words = |command: Command| command.encode(0, 8).unwrap_err().to_string();
        assert_eq!(words(Command { channel: 64, ..command }), "channel is 64, and 0 to 63 are allowed");
        assert_eq!(words(Command { peer: 1024, ..command }), "peer is 1024, and 0 to 1023 are allowed");
        assert_eq!(words(Command { units: 0, ..command }), "units is 0, and 1 to 16777215 are allowed");
        assert_eq!(
            words(Command { units: 1, ..Command::FLUSH }),
            "units of a flush is 1, and 0 to 0 are allowed"
        );
        assert_eq!(Command::decode([0, 0]).unwrap_err().to_string(), "op is 0, and 1 to 3 are allowed");
    }
}
