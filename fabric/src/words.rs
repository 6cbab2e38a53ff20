//! The words that a proxy writes and kernels poll: status, heartbeat, and the counts of arrived puts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::command::{CHANNELS, RANKS, range};
use crate::error::{FabricError, below};
use crate::fault::Status;
use crate::memory::Memory;

/// The word with the [`Status`].
const STATUS: usize = 0;
/// The word that the proxy adds to each time it goes around.
const BEAT: usize = 8;
/// The first count.
const COUNTS: usize = 16;

/// Polls between two looks at the clock.
const POLLS: u32 = 32;

/// A row of 64-bit words in host memory, which the proxy writes and kernels poll.
///
/// | word | holds |
/// |---|---|
/// | 0 | the [`Status`], 0 while all is well |
/// | 8 | heartbeat of the proxy |
/// | 16 + channel x ranks + source | puts of that source that have arrived on that channel, since the start |
#[derive(Clone, Debug)]
pub struct Words {
    memory: Memory,
    channels: u8,
    ranks: u16,
}

/// Why a wait for a count ends without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The puts did not arrive in time.
    #[error("rank {rank} sent {seen} puts on channel {channel} within {budget:?}, and {expected} are awaited; {}", proxy(.beats))]
    Late {
        /// The rank that sends.
        rank: u16,
        /// The channel.
        channel: u8,
        /// Puts that are awaited, since the start.
        expected: u64,
        /// Puts that have arrived, since the start.
        seen: u64,
        /// How long was waited.
        budget: Duration,
        /// Whether this rank's proxy ran meanwhile.
        beats: bool,
    },
    /// This rank's proxy has reported a fault.
    #[error("rank {rank} is awaited on channel {channel}, and the proxy reports: {status}")]
    Fault {
        /// The rank that is awaited.
        rank: u16,
        /// The channel.
        channel: u8,
        /// The fault.
        status: Status,
    },
    /// There is no such count.
    #[error("{0}")]
    Range(crate::command::CommandError),
}

pub(crate) fn proxy(beats: &bool) -> &'static str {
    match beats {
        true => "this rank's proxy runs",
        false => "this rank's proxy has stalled",
    }
}

impl Words {
    /// Bytes of memory that so many channels and ranks need.
    pub fn bytes(channels: u8, ranks: u16) -> usize {
        (COUNTS + usize::from(channels) * usize::from(ranks)) * 8
    }

    /// Words in this memory, which has to be zeroed.
    ///
    /// # Errors
    /// The memory is shorter than [`Words::bytes`], or there are too many channels or ranks.
    pub fn new(memory: Memory, channels: u8, ranks: u16) -> Result<Words, FabricError> {
        below("channels", channels.into(), u64::from(CHANNELS) + 1)?;
        below("ranks", ranks.into(), u64::from(RANKS) + 1)?;
        if memory.bytes() < Words::bytes(channels, ranks) {
            let allowed = "`Words::bytes` says how many are needed";
            return Err(FabricError::Memory { what: "counts", bytes: memory.bytes(), allowed });
        }
        Ok(Words { memory, channels, ranks })
    }

    /// Channels that have counts.
    pub fn channels(&self) -> u8 {
        self.channels
    }

    /// Ranks that have counts.
    pub fn ranks(&self) -> u16 {
        self.ranks
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.memory.words()[at]
    }

    fn count_word(&self, channel: u8, source: u16) -> Option<&AtomicU64> {
        let inside = channel < self.channels && source < self.ranks;
        let at = COUNTS + usize::from(channel) * usize::from(self.ranks) + usize::from(source);
        inside.then(|| self.word(at))
    }

    /// What went wrong first.
    pub fn status(&self) -> Option<Status> {
        Status::decode(self.word(STATUS).load(Ordering::Acquire))
    }

    /// Puts of a source that have arrived on a channel, since the start; 0 outside the world.
    pub fn count(&self, channel: u8, source: u16) -> u64 {
        self.count_word(channel, source).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// How often the proxy went around.
    pub fn beat(&self) -> u64 {
        self.word(BEAT).load(Ordering::Relaxed)
    }

    /// Waits until so many puts of a source have arrived, since the start: what a receiving role does.
    ///
    /// Returns the count. A kernel polls the same word with acquire loads at system scope.
    ///
    /// # Errors
    /// The count does not arrive within the budget, or the proxy reports a fault.
    pub fn wait_count(
        &self,
        channel: u8,
        source: u16,
        at_least: u64,
        budget: Duration,
    ) -> Result<u64, WaitError> {
        let most = |limit: u64| limit.saturating_sub(1);
        range("channel", channel, 0, most(self.channels.into())).map_err(WaitError::Range)?;
        range("source", source, 0, most(self.ranks.into())).map_err(WaitError::Range)?;
        let beat = self.beat();
        let waited = poll_within(budget, || {
            let seen = self.count(channel, source);
            if seen >= at_least {
                return Some(Ok(seen));
            }
            self.status().map(|status| Err(WaitError::Fault { rank: source, channel, status }))
        });
        waited.unwrap_or_else(|| {
            let (seen, beats) = (self.count(channel, source), self.beat() != beat);
            Err(WaitError::Late { rank: source, channel, expected: at_least, seen, budget, beats })
        })
    }

    /// Stores a fault, unless an earlier one is there.
    pub(crate) fn set_status(&self, status: Status) {
        let _ = self.word(STATUS).compare_exchange(0, status.encode(), Ordering::Release, Ordering::Relaxed);
    }

    /// Stores the heartbeat.
    pub(crate) fn set_beat(&self, beat: u64) {
        self.word(BEAT).store(beat, Ordering::Relaxed);
    }

    /// Adds an arrived put; false if there is no such count. Only the proxy stores counts.
    pub(crate) fn add_count(&self, channel: u8, source: u16) -> bool {
        let Some(word) = self.count_word(channel, source) else { return false };
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        true
    }
}

/// Polls until there is something or the budget is used up. At least one poll comes after the end of the budget.
pub(crate) fn poll_within<T>(budget: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        for _ in 0..POLLS {
            if let Some(found) = poll() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= budget {
            return poll();
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Fault, FaultKind};

    fn words() -> Words {
        Words::new(Memory::zeroed(Words::bytes(2, 3)).unwrap(), 2, 3).unwrap()
    }

    #[test]
    fn counts_are_apart() {
        let words = words();
        assert!(words.add_count(1, 2) && words.add_count(1, 2) && words.add_count(0, 0));
        assert!(!words.add_count(2, 0) && !words.add_count(0, 3));
        let all = [0, 1].map(|channel| [0, 1, 2].map(|source| words.count(channel, source)));
        assert_eq!(all, [[1, 0, 0], [0, 0, 2]]);
        assert_eq!(words.wait_count(1, 2, 1, Duration::ZERO), Ok(2));
        assert_eq!((words.status(), words.beat()), (None, 0));
    }

    #[test]
    fn a_late_count_is_named() {
        let words = words();
        words.add_count(1, 2);
        let budget = Duration::from_millis(5);
        let late = words.wait_count(1, 2, 4, budget).unwrap_err().to_string();
        assert_eq!(
            late,
            "rank 2 sent 1 puts on channel 1 within 5ms, and 4 are awaited; this rank's proxy has stalled"
        );
        let far = words.wait_count(1, 3, 1, budget).unwrap_err().to_string();
        assert_eq!(far, "source is 3, and 0 to 2 are allowed");
    }

    #[test]
    fn a_fault_ends_a_wait_and_the_first_one_stays() {
        let words = words();
        words.set_status(Fault::Ended.status());
        words.set_status(Status { kind: FaultKind::Late, put: None });
        let error = words.wait_count(0, 1, 1, Duration::from_secs(100)).unwrap_err();
        assert_eq!(
            error,
            WaitError::Fault { rank: 1, channel: 0, status: Status { kind: FaultKind::Ended, put: None } }
        );
    }

    #[test]
    fn short_memory_is_refused() {
        assert!(Words::new(Memory::zeroed(64).unwrap(), 64, 1024).is_err());
        assert!(Words::new(Memory::zeroed(64).unwrap(), 65, 1).is_err());
    }
}
