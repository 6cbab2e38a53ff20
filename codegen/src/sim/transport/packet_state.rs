//! Packet buffers: which packets are on their way, full or emptied, and who waits for them.

use std::ops::Range;

use smallvec::SmallVec;

use crate::ir::PACKET_BYTES;
use crate::sim::memory::{
    Event,
    runs::{Part, Runs},
    waiters::Waiters,
};
use crate::sim::schedule::AgentId;
use crate::sim::values::Tile;

/// What a run of packets is in. Packets in no run are empty and never were anything else.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Sent, not yet arrived.
    Sent(Event),
    /// Arrived, not yet taken, with the data. It stands nowhere else: only a taker reads it.
    Full(Event, Tile),
    /// Taken.
    Taken(Event),
}

/// One rank's instance of a packet buffer. Ranges count packets.
#[derive(Debug, Default)]
pub(crate) struct PacketArray {
    runs: Runs<State>,
    /// The last taking of packets, which stays while the next ones are on their way.
    takings: Runs<Event>,
    waiters: Waiters,
}

impl PacketArray {
    /// The runs that meet a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Part<'_, State>> + '_ {
        self.runs.within(range)
    }

    /// The data of packets that were sent as one.
    pub fn whole(&self, range: Range<u64>) -> Option<&Tile> {
        let run = self.runs.within(range.clone()).next()?;
        let bytes = (range.end - range.start) * u64::from(PACKET_BYTES);
        match run.state {
            State::Full(_, data) if run.range == range && data.bytes() as u64 == bytes => Some(data),
            State::Full(..) | State::Sent(_) | State::Taken(_) => None,
        }
    }

    /// Copies the data of packets; what does not come of any is zero.
    pub fn copy(&self, range: Range<u64>, to: &mut [u8]) {
        let bytes = |packets: u64| (packets * u64::from(PACKET_BYTES)) as usize;
        to.fill(0);
        for run in self.runs.within(range.clone()) {
            if let State::Full(_, data) = run.state {
                let to = &mut to[bytes(run.range.start - range.start)..bytes(run.range.end - range.start)];
                to.copy_from_slice(&data.view()[bytes(run.skipped)..][..to.len()]);
            }
        }
    }

    /// Puts a range into a state.
    pub fn set(&mut self, range: Range<u64>, state: State) {
        self.runs.set(range, state);
    }

    /// Empties packets. The takings of the packets that were there before come out, with their ranges.
    pub fn take(&mut self, range: Range<u64>, by: Event) -> SmallVec<[(Range<u64>, Event); 1]> {
        let before = self.takings.within(range.clone()).map(|part| (part.range, *part.state)).collect();
        self.takings.set(range.clone(), by);
        self.set(range, State::Taken(by));
        before
    }

    /// The first packet of a range that has not arrived.
    pub fn missing(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        for run in self.runs.within(range.clone()) {
            if run.range.start != at || !matches!(run.state, State::Full(..)) {
                return Some(at);
            }
            at = run.range.end;
        }
        (at < range.end).then_some(at)
    }

    /// Lets an agent wait for a packet.
    pub fn wait(&mut self, packet: u64, agent: AgentId) {
        self.waiters.wait(packet, agent);
    }

    /// The agents that wait for packets of a range, which wait no longer.
    pub fn wake(&mut self, range: Range<u64>) -> impl Iterator<Item = AgentId> + '_ {
        self.waiters.wake(range)
    }

    /// All agents that wait, with the packet that is missing.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, AgentId)> + '_ {
        self.waiters.iter()
    }

    /// Packets that were sent and not taken.
    pub fn untaken(&self) -> impl Iterator<Item = (Range<u64>, Event)> + '_ {
        self.runs.iter().filter_map(|(run, state)| match state {
            State::Sent(by) | State::Full(by, _) => Some((run, *by)),
            State::Taken(_) => None,
        })
    }
}

/// What arrives for a packet whose data ends in the word that stands for an empty one: the word without its top bit, which
/// is a NaN in every float type too.
pub(crate) fn not_empty(data: &mut [u8], packet_bytes: usize) {
    for packet in data.chunks_exact_mut(packet_bytes) {
        let last = &mut packet[packet_bytes - 4..];
        if last == [0xff; 4] {
            last[3] = 0x7f;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::schedule::clock::AgentNo;

    fn event(time: u32) -> Event {
        Event { agent: AgentNo::new(0, 0), time, site: 0 }
    }

    #[test]
    fn runs_are_cut_where_states_change() {
        let mut a = PacketArray::default();
        a.set(0..10, State::Full(event(1), Tile::default()));
        a.set(4..6, State::Taken(event(2)));
        let full = |part: &Part<'_, State>| matches!(part.state, State::Full(..));
        let all: Vec<_> = a.within(2..20).map(|part| (full(&part), part.range)).collect();
        assert_eq!(all, [(true, 2..4), (false, 4..6), (true, 6..10)]);
        let missing: Vec<_> = [0..4, 6..10, 3..5, 8..11].into_iter().map(|r| a.missing(r)).collect();
        assert_eq!(missing, [None, None, Some(4), Some(10)]);
        a.set(0..10, State::Sent(event(3)));
        assert_eq!(a.within(0..10).count(), 1);
        assert_eq!(a.untaken().collect::<Vec<_>>(), [(0..10, event(3))]);
    }

    #[test]
    fn data_is_whole_or_copied_in_parts() {
        let mut tile = Tile::default();
        tile.fresh::<u8>(48).iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
        let mut a = PacketArray::default();
        a.set(2..5, State::Full(event(1), tile.clone()));
        assert_eq!(a.whole(2..5).map(Tile::view::<u8>), Some(tile.view()));
        assert!(a.whole(2..4).is_none() && a.whole(2..6).is_none());
        a.set(3..4, State::Taken(event(2)));
        assert!(a.whole(4..5).is_none(), "it is a part of what was sent");
        let mut data = [9; 50];
        a.copy(2..5, &mut data);
        assert_eq!(
            (&data[..16], &data[16..32], &data[32..]),
            (&tile.view()[..16], &[0; 16][..], &[&tile.view()[32..], &[0, 0]].concat()[..])
        );
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
