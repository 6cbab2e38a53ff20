//! Packet buffers: which packets are on their way, full or emptied, and who waits for them.

use std::ops::Range;

use super::agent::AgentId;
use super::runs::Runs;
use super::shadow::Event;
use super::waiters::Waiters;

/// What a run of packets is in. Packets in no run are empty and never were anything else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    /// Sent, not yet arrived.
    Sent(Event),
    /// Arrived, not yet taken.
    Full(Event),
    /// Taken.
    Taken(Event),
}

/// One rank's instance of a packet buffer. Ranges count packets.
#[derive(Debug, Default)]
pub(super) struct PacketArray {
    runs: Runs<State>,
    waiters: Waiters,
}

impl PacketArray {
    /// The runs that meet a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, State)> + '_ {
        self.runs.within(range)
    }

    /// Puts a range into a state.
    pub fn set(&mut self, range: Range<u64>, state: State) {
        self.runs.set(range, state);
    }

    /// The first packet of a range that has not arrived.
    pub fn missing(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        for (run, state) in self.runs.within(range.clone()) {
            if run.start != at || !matches!(state, State::Full(_)) {
                return Some(at);
            }
            at = run.end;
        }
        (at < range.end).then_some(at)
    }

    /// Lets an agent wait for a packet.
    pub fn wait(&mut self, packet: u64, agent: AgentId) {
        self.waiters.wait(packet, agent);
    }

    /// Those who wait for packets of a range, who wait no longer.
    pub fn wake(&mut self, range: Range<u64>) -> impl Iterator<Item = AgentId> + '_ {
        self.waiters.wake(range)
    }

    /// Everybody who waits, with the packet that is missing.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, AgentId)> + '_ {
        self.waiters.iter()
    }

    /// Packets that were sent and nobody took.
    pub fn untaken(&self) -> impl Iterator<Item = (Range<u64>, Event)> + '_ {
        self.runs.iter().filter_map(|(run, state)| match state {
            State::Sent(by) | State::Full(by) => Some((run, by)),
            State::Taken(_) => None,
        })
    }
}

/// What arrives for a packet whose data ends in the word that stands for an empty one: the word without its top bit, which
/// is a NaN in every float type too.
pub(super) fn not_empty(data: &mut [u8], packet_bytes: usize) {
    for packet in data.chunks_exact_mut(packet_bytes) {
        let last = &mut packet[packet_bytes - 4..];
        if last == [0xff; 4] {
            last[3] = 0x7f;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::AgentNo;
    use super::*;

    fn event(time: u32) -> Event {
        Event { agent: AgentNo::new(0, 0), time, site: 0 }
    }

    #[test]
    fn runs_are_cut_where_states_change() {
        let mut a = PacketArray::default();
        a.set(0..10, State::Full(event(1)));
        a.set(4..6, State::Taken(event(2)));
        let all: Vec<_> = a.within(2..20).collect();
        let (full, taken) = (State::Full(event(1)), State::Taken(event(2)));
        assert_eq!(all, [(2..4, full), (4..6, taken), (6..10, full)]);
        let missing: Vec<_> = [0..4, 6..10, 3..5, 8..11].into_iter().map(|r| a.missing(r)).collect();
        assert_eq!(missing, [None, None, Some(4), Some(10)]);
        a.set(0..10, State::Sent(event(3)));
        assert_eq!(a.within(0..10).count(), 1);
        assert_eq!(a.untaken().collect::<Vec<_>>(), [(0..10, event(3))]);
    }

    #[test]
    fn data_never_looks_empty() {
        let mut data = [0xff; 32];
        not_empty(&mut data, 16);
        assert_eq!((data[15], data[31], data[7]), (0x7f, 0x7f, 0xff));
        not_empty(&mut data, 8);
        assert_eq!(data[7], 0x7f);
    }
}
