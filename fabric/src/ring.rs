//! Rings of commands between a sending role and the proxy, in host memory.
//!
//! A ring is a row of 64-bit words:
//!
//! | word | holds | written by |
//! |---|---|---|
//! | 0 | commands that are reserved, since the start | kernel |
//! | 8 | commands that the proxy has taken, since the start | proxy |
//! | 16 | leading commands that are delivered, since the start | proxy |
//! | 32 + 2 x slot | the [`Command`] in that slot, two words | kernel |
//!
//! Command `n` stands in slot `n % slots`. A kernel sends it in three steps, and [`Ring::push`] does exactly the same:
//!
//! 1. Reserve: load `taken` until `reserved - taken < slots`, for as long as the budget allows; then add one to `reserved`.
//!    Several warps do this by compare-and-swap; a single one keeps the number in a register.
//! 2. Write the command's first word.
//! 3. Publish: store the command's second word with release order at system scope.
//!
//! `delivered` is a prefix: when it has reached `n`, commands 0 to `n - 1` have left their source and are in the memory of
//! their peers. An outbox may be written again then; an inbox needs the peer's credit as well.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::command::{Command, CommandError, sequence};
use crate::error::FabricError;
use crate::fault::Status;
use crate::memory::Memory;
use crate::words::{Words, poll_within, proxy};

const RESERVED: usize = 0;
const TAKEN: usize = 8;
const DELIVERED: usize = 16;
const SLOTS: usize = 32;

/// Slots of a ring at most.
const MOST_SLOTS: u64 = 1 << 16;

/// A ring of commands. Clones share it.
#[derive(Clone, Debug)]
pub struct Ring {
    memory: Memory,
    index: u8,
    slots: u64,
}

/// Why a command cannot be sent, or is not known to be delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The proxy takes no commands.
    #[error("ring {ring} stays full for {budget:?}: the proxy has taken {taken} commands and {slots} more wait; {}", proxy(.beats))]
    Full {
        /// The ring.
        ring: u8,
        /// Its slots.
        slots: u64,
        /// Commands that the proxy has taken, since the start.
        taken: u64,
        /// How long was waited.
        budget: Duration,
        /// Whether the proxy ran meanwhile.
        beats: bool,
    },
    /// Commands are not delivered in time.
    #[error("of ring {ring} {delivered} commands are delivered within {budget:?}, and {expected} are awaited; {}", proxy(.beats))]
    Late {
        /// The ring.
        ring: u8,
        /// Commands that are awaited, since the start.
        expected: u64,
        /// Leading commands that are delivered, since the start.
        delivered: u64,
        /// How long was waited.
        budget: Duration,
        /// Whether the proxy ran meanwhile.
        beats: bool,
    },
    /// The proxy has reported a fault.
    #[error("ring {ring} takes no command, as the proxy reports: {status}")]
    Fault {
        /// The ring.
        ring: u8,
        /// The fault.
        status: Status,
    },
    /// The command makes no sense.
    #[error("a command for ring {ring} is refused: {reason}")]
    Command {
        /// The ring.
        ring: u8,
        /// What is wrong with it.
        reason: CommandError,
    },
}

impl Ring {
    /// Bytes of memory that a ring with so many slots needs.
    pub fn bytes(slots: u64) -> usize {
        usize::try_from(slots).map_or(usize::MAX, |slots| slots.saturating_mul(16).saturating_add(SLOTS * 8))
    }

    /// A ring in this memory, which has to be zeroed. `index` is its number in faults.
    ///
    /// # Errors
    /// `slots` is no power of two from 2 to 65536, or the memory is shorter than [`Ring::bytes`].
    pub fn new(memory: Memory, index: u8, slots: u64) -> Result<Ring, FabricError> {
        if !slots.is_power_of_two() || !(2..=MOST_SLOTS).contains(&slots) {
            let allowed = "powers of two from 2 to 65536".into();
            return Err(FabricError::Range { field: "slots of a ring", value: slots, allowed });
        }
        if memory.bytes() < Ring::bytes(slots) {
            let allowed = "`Ring::bytes` says how many are needed";
            return Err(FabricError::Memory { what: "a ring", bytes: memory.bytes(), allowed });
        }
        Ok(Ring { memory, index, slots })
    }

    /// Its number in faults.
    pub fn index(&self) -> u8 {
        self.index
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    /// The two words of a command.
    fn slot(&self, number: u64) -> [&AtomicU64; 2] {
        // The remainder is below 65536.
        let at = SLOTS + 2 * (number % self.slots) as usize;
        [self.word(at), self.word(at + 1)]
    }

    /// Sends a command, as a kernel does. Returns its number; [`Ring::wait_delivered`] takes that number plus one.
    ///
    /// # Errors
    /// The command makes no sense, the ring stays full, or the proxy reports a fault.
    pub fn push(&self, command: &Command, words: &Words, budget: Duration) -> Result<u64, RingError> {
        let ring = self.index;
        command.encode(0, self.slots).map_err(|reason| RingError::Command { ring, reason })?;
        let beat = words.beat();
        let reserved = poll_within(budget, || {
            if let Some(status) = words.status() {
                return Some(Err(RingError::Fault { ring, status }));
            }
            self.reserve().map(Ok)
        });
        let number = reserved.unwrap_or_else(|| {
            let (taken, beats) = (self.taken(), words.beat() != beat);
            Err(RingError::Full { ring, slots: self.slots, taken, budget, beats })
        })?;
        let [body, head] =
            command.encode(number, self.slots).map_err(|reason| RingError::Command { ring, reason })?;
        let slot = self.slot(number);
        slot[0].store(body, Ordering::Relaxed);
        slot[1].store(head, Ordering::Release);
        Ok(number)
    }

    /// Reserves a number if a slot is free.
    fn reserve(&self) -> Option<u64> {
        let word = self.word(RESERVED);
        let mut reserved = word.load(Ordering::Relaxed);
        // Acquire: the proxy has read a slot before it says so.
        while reserved.wrapping_sub(self.word(TAKEN).load(Ordering::Acquire)) < self.slots {
            let next = reserved.wrapping_add(1);
            match word.compare_exchange_weak(reserved, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(number) => return Some(number),
                Err(seen) => reserved = seen,
            }
        }
        None
    }

    /// Waits until so many leading commands are delivered, since the start.
    ///
    /// # Errors
    /// They are not delivered within the budget, or the proxy reports a fault.
    pub fn wait_delivered(&self, commands: u64, words: &Words, budget: Duration) -> Result<(), RingError> {
        let (ring, beat) = (self.index, words.beat());
        let waited = poll_within(budget, || {
            if self.delivered() >= commands {
                return Some(Ok(()));
            }
            words.status().map(|status| Err(RingError::Fault { ring, status }))
        });
        waited.unwrap_or_else(|| {
            let (delivered, beats) = (self.delivered(), words.beat() != beat);
            Err(RingError::Late { ring, expected: commands, delivered, budget, beats })
        })
    }

    /// Commands that kernels have reserved, since the start.
    pub fn reserved(&self) -> u64 {
        self.word(RESERVED).load(Ordering::Acquire)
    }

    /// Commands that the proxy has taken, since the start.
    pub fn taken(&self) -> u64 {
        self.word(TAKEN).load(Ordering::Acquire)
    }

    /// Leading commands that are delivered, since the start.
    pub fn delivered(&self) -> u64 {
        self.word(DELIVERED).load(Ordering::Acquire)
    }

    /// The command with this number, once it is published.
    pub(crate) fn published(&self, number: u64) -> Option<[u64; 2]> {
        let [body, head] = self.slot(number);
        let head = head.load(Ordering::Acquire);
        (head as u16 == sequence(number, self.slots)).then(|| [body.load(Ordering::Relaxed), head])
    }

    /// Gives slots back: so many commands are taken.
    pub(crate) fn set_taken(&self, commands: u64) {
        self.word(TAKEN).store(commands, Ordering::Release);
    }

    /// So many leading commands are delivered.
    pub(crate) fn set_delivered(&self, commands: u64) {
        self.word(DELIVERED).store(commands, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::command::Op;
    use crate::fault::Fault;

    const MOMENT: Duration = Duration::from_millis(2);

    fn ring(slots: u64) -> Ring {
        Ring::new(Memory::zeroed(Ring::bytes(slots)).unwrap(), 4, slots).unwrap()
    }

    /// What a ring is like after so many commands.
    fn starting_at(ring: Ring, number: u64) -> Ring {
        for word in [RESERVED, TAKEN, DELIVERED] {
            ring.word(word).store(number, Ordering::Relaxed);
        }
        for earlier in number.saturating_sub(ring.slots)..number {
            ring.slot(earlier)[1].store(sequence(earlier, ring.slots).into(), Ordering::Relaxed);
        }
        ring
    }

    fn words() -> Words {
        Words::new(Memory::zeroed(Words::bytes(1, 2)).unwrap(), 1, 2).unwrap()
    }

    fn put(from: u32) -> Command {
        Command { op: Op::Put, channel: 0, peer: 1, from, to: from ^ 7, units: 1 }
    }

    /// Takes a command as the proxy does.
    fn take(ring: &Ring, number: u64) -> Option<Command> {
        let command = Command::decode(ring.published(number)?).unwrap();
        ring.set_taken(number + 1);
        Some(command)
    }

    proptest! {
        /// A producer and a consumer in any order, from any lap on, also where the 16-bit sequence wraps.
        #[test]
        fn commands_come_out_in_order(
            bits in 1u32..5,
            start in prop_oneof![Just(0u64), 0u64..1 << 22, (0u64..64).prop_map(|below| (1 << 20) - below)],
            pushes in proptest::collection::vec(any::<bool>(), 1..200),
        ) {
            let slots = 1 << bits;
            let (ring, words) = (starting_at(ring(slots), start), words());
            let (mut pushed, mut taken) = (start, start);
            for push in pushes {
                if push {
                    let full = pushed - taken == slots;
                    let number = ring.push(&put(pushed as u32), &words, Duration::ZERO);
                    prop_assert_eq!(number.is_err(), full);
                    if number.is_ok() {
                        prop_assert_eq!(number, Ok(pushed));
                        pushed += 1;
                    }
                } else {
                    let command = take(&ring, taken);
                    prop_assert_eq!(command, (taken < pushed).then(|| put(taken as u32)));
                    taken += u64::from(command.is_some());
                }
            }
            prop_assert_eq!((ring.reserved(), ring.taken()), (pushed, taken));
        }
    }

    #[test]
    fn four_producers_lose_nothing() {
        let (ring, words) = (starting_at(ring(8), (1 << 19) - 100), words());
        let start = ring.reserved();
        let mut seen: Vec<u32> = std::thread::scope(|scope| {
            for producer in 0..4 {
                let (ring, words) = (&ring, &words);
                scope.spawn(move || {
                    for n in 0..250 {
                        ring.push(&put(producer * 250 + n), words, Duration::from_secs(20)).unwrap();
                    }
                });
            }
            let take = |n| poll_within(Duration::from_secs(20), || take(&ring, start + n)).unwrap().from;
            (0..1000).map(take).collect()
        });
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn a_full_ring_is_named() {
        let (ring, words) = (ring(2), words());
        for n in 0..2 {
            assert_eq!(ring.push(&put(n), &words, MOMENT), Ok(n.into()));
        }
        let error = ring.push(&put(2), &words, MOMENT).unwrap_err().to_string();
        let full = "ring 4 stays full for 2ms: the proxy has taken 0 commands and 2 more wait; this rank's proxy has stalled";
        assert_eq!(error, full);
        // The failed attempt reserved nothing.
        assert_eq!(take(&ring, 0), Some(put(0)));
        assert_eq!(ring.push(&put(2), &words, MOMENT), Ok(2));
        let late = ring.wait_delivered(1, &words, MOMENT).unwrap_err().to_string();
        assert!(
            late.starts_with("of ring 4 0 commands are delivered within 2ms, and 1 are awaited"),
            "{late}"
        );
        words.set_status(Fault::Ended.status());
        let fault = ring.push(&put(2), &words, MOMENT).unwrap_err().to_string();
        assert_eq!(
            fault,
            "ring 4 takes no command, as the proxy reports: the proxy's thread ended by itself"
        );
    }

    #[test]
    fn what_is_refused() {
        for slots in [0, 1, 3, 1 << 17] {
            assert!(Ring::new(Memory::zeroed(1 << 22).unwrap(), 0, slots).is_err(), "{slots}");
        }
        assert!(Ring::new(Memory::zeroed(4096).unwrap(), 0, 4096).is_err());
        let error = ring(2).push(&Command { units: 0, ..put(0) }, &words(), MOMENT).unwrap_err().to_string();
        assert_eq!(error, "a command for ring 4 is refused: units is 0, and 1 to 16777215 are allowed");
    }
}
