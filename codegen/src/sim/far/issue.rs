//! The issue of puts and publishes, and what must be known at it.

use super::{CounterAt, FarPut, Flight, Publish, Put, Stretch, Turn};
use crate::ir::{FarReach, ParamId, Place};
use crate::sim::exec::memory::{Fault, place_name};
use crate::sim::findings::finding::FindingKind;
use crate::sim::flatten::code::Reg;
use crate::sim::memory::shadow::{Action, ClashKind, DataEpoch, Event, Who};
use crate::sim::schedule::agent::Agent;
use crate::sim::schedule::clock::Clock;
use crate::sim::schedule::world::World;

/// Pieces of a message at most.
const PIECES: u64 = 3;
/// Bytes that arrive at once, as words of a card do.
const GRAIN: u64 = 16;

/// A message in pieces, from and to, as offsets in it.
fn pieces(bytes: u64) -> Vec<(u64, u64)> {
    let each = bytes.div_ceil(PIECES).next_multiple_of(GRAIN);
    (0..bytes.div_ceil(each)).map(|i| (i * each, bytes.min((i + 1) * each))).collect()
}

impl World<'_> {
    pub(super) fn far_put(&mut self, agent: &mut Agent, put: &FarPut) -> Result<(), Fault> {
        let FarPut { peer, outbox, from, inbox, index, len, counts, counter, counted, reach } = *put;
        let (from, index) = (agent.get(from), agent.get(index));
        let size = u64::from(agent.compiled.kernel().params[inbox.index()].dtype.bytes());
        let end = |first: u64| first.saturating_add(len.into());
        self.bounds(agent, Place::Param(outbox), from, end(from))?;
        self.bounds(agent, Place::Param(inbox), index, end(index))?;
        let ranks = self.far_peers(agent, peer, reach)?;
        self.note_read(agent, Place::Param(outbox), from, end(from), size, None);
        let by = agent.event(&self.sites);
        let clock = agent.publish();
        self.progress();
        for rank in ranks {
            let counter = self.far_counter(agent, counts, rank, agent.get(counter))?;
            let source = Stretch { rank: agent.rank as usize, buffer: agent.buffer(outbox), at: from * size };
            let target = Stretch { rank, buffer: agent.buffer(inbox), at: index * size };
            let bytes = u64::from(len) * size;
            let told = &mut self.counts[agent.kernel];
            told.puts += 1;
            told.bytes[agent.rank as usize][rank] += bytes;
            let far = &mut told.far[agent.rank as usize][rank];
            (far.puts, far.bytes) = (far.puts + 1, far.bytes + bytes);
            let found = self.far_overwrites(agent, inbox, &target, bytes, by, &clock, size);
            let turn = self.far_turn(counter, agent, by, &clock, (u64::from(counted), true), found);
            self.far_tells(counter, turn, &clock);
            let put = Put {
                by,
                launch: agent.launch,
                source,
                target,
                bytes,
                counter,
                turn,
                counted,
                published: counted,
                unread: pieces(bytes),
                read: vec![],
                settled: vec![],
                rewritten: 0,
            };
            let far = &mut self.far;
            let number = far.puts.len();
            far.puts.push(put);
            far.flights.push(Flight::Put(number));
            far.outboxes.entry((source.rank, source.buffer)).or_default().push(number);
            let inbox = far.inboxes.entry((rank, target.buffer)).or_default();
            inbox.set(target.at..target.at + bytes, number);
            if !counted {
                let key = (agent.who, agent.launch, counter);
                far.unpublished.entry(key).or_default().push(number);
            }
        }
        Ok(())
    }

    /// Adds to counters behind the puts of the group.
    pub(super) fn far_publish(
        &mut self,
        agent: &mut Agent,
        (peer, counts, counter): (Option<Reg>, ParamId, Reg),
        (adds, reach): (Reg, FarReach),
    ) -> Result<(), Fault> {
        let (index, adds) = (agent.get(counter), agent.get(adds));
        let ranks = self.far_peers(agent, peer, reach)?;
        let by = agent.event(&self.sites);
        let clock = agent.publish();
        self.progress();
        for rank in ranks {
            let counter = self.far_counter(agent, counts, rank, index)?;
            self.counts[agent.kernel].signals[agent.rank as usize][rank] += 1;
            let key = (agent.who, agent.launch, counter);
            let behind = self.far.unpublished.remove(&key).unwrap_or_default();
            behind.iter().for_each(|&put| self.far.puts[put].published = true);
            let puts = behind.len() as u64;
            self.counts[agent.kernel].far[agent.rank as usize][rank].credits += u64::from(puts == 0);
            if puts > 0 && puts != adds {
                let name = self.far_name(counter);
                let message = format!(
                    "this publishes {adds} puts in {name}, and its group has put {puts} there since the publish before"
                );
                let elements = (counter.2, counter.2 + 1);
                let buffer = self.machine.buffers[counter.1].name.clone();
                self.find_at(FindingKind::CountMismatch, message, by, None, &buffer, elements);
            }
            let turn = self.far_turn(counter, agent, by, &clock, (adds, puts > 0), false);
            if puts == 0 {
                self.far_tells(counter, turn, &clock);
            }
            let far = &mut self.far;
            far.flights.push(Flight::Publish(far.publishes.len()));
            far.publishes.push(Publish { counter, adds, behind });
        }
        Ok(())
    }

    /// Adds to a turn of a counter, which the launch's first addition begins. Before that the receiver must have waited for all of the turn
    /// before it, as arrivals of two turns look alike. Returns its number.
    fn far_turn(
        &mut self,
        at: CounterAt,
        agent: &Agent,
        by: Event,
        clock: &Clock,
        (adds, data): (u64, bool),
        found: bool,
    ) -> usize {
        let who = Who { clock, event: by };
        let counter = self.far.counters.entry(at).or_default();
        let (mut early, mut start) = (None, 0);
        if let Some(last) = counter.turns.last() {
            start = last.end;
            let begins = last.launch != agent.launch;
            early = (begins && data && last.data && !Self::far_covered(last, who)).then_some(last.first);
        }
        if counter.turns.last().is_none_or(|last| last.launch != agent.launch) {
            let (clock, covered, read) = (clock.clone(), vec![], vec![]);
            counter.turns.push(Turn {
                launch: agent.launch,
                first: by,
                start,
                end: start,
                data,
                clock,
                covered,
                read,
            });
        }
        let number = counter.turns.len() - 1;
        let turn = &mut counter.turns[number];
        turn.data |= data;
        let assumed = if adds > 0 { std::mem::take(&mut turn.read) } else { vec![] };
        turn.end += adds;
        for read in assumed {
            self.far_prefix(at, read, by);
        }
        if let Some(first) = early.filter(|_| !found) {
            let name = self.far_name(at);
            let message = format!(
                "this is counted in {name}, and nothing says that rank {} has waited for what the launch before counted there: a bank \
                 needs the receiver's credit before it is used again",
                at.0
            );
            let buffer = self.machine.buffers[at.1].name.clone();
            self.find_at(FindingKind::NoCredit, message, by, Some(first), &buffer, (at.2, at.2 + 1));
        }
        number
    }

    /// Who waits for all of a turn knows what came before its puts; of a batch, what came before its last put and not what came before its
    /// publish, as an engine may let each put count itself. Who waits for a credit knows what came before it.
    fn far_tells(&mut self, at: CounterAt, turn: usize, clock: &Clock) {
        let counter = self.far.counters.get_mut(&at);
        if let Some(turn) = counter.and_then(|counter| counter.turns.get_mut(turn)) {
            turn.clock.join(clock);
        }
    }

    /// Checks that what a put overwrites has arrived and is read. Returns whether it is not.
    #[allow(clippy::too_many_arguments)]
    fn far_overwrites(
        &mut self,
        agent: &Agent,
        inbox: ParamId,
        target: &Stretch,
        bytes: u64,
        by: Event,
        clock: &Clock,
        size: u64,
    ) -> bool {
        let (from, to) = (target.at, target.at + bytes);
        let who = Who { clock, event: by };
        let mut clashes = std::mem::take(&mut self.clashes);
        if let Some(shadow) = &mut self.memory[target.rank][target.buffer].shadow {
            shadow.write(from, to, who, DataEpoch::default(), &mut clashes);
        }
        let name = place_name(agent, Place::Param(inbox));
        let range = |from: u64, to: u64| (from / size, to.div_ceil(size));
        let raced = clashes.drain(..).find_map(|clash| match clash.kind {
            ClashKind::Race { with, was } => Some((with, was, range(clash.from, clash.to))),
            ClashKind::Unwritten | ClashKind::Epoch { .. } | ClashKind::Age { .. } => None,
        });
        self.clashes = clashes;
        if let Some((with, was, (first, end))) = raced {
            let of = format!("{name}[{first}..{end}] of rank {}", target.rank);
            let (kind, message) = match was {
                Action::Read | Action::Atomic => (
                    FindingKind::NoCredit,
                    format!(
                        "{of} is put again, and nothing orders this after the read of what is there: wait for the receiver's credit"
                    ),
                ),
                Action::Write => (
                    FindingKind::DataRace,
                    format!("nothing orders this put to {of} after a put or write of another group"),
                ),
            };
            self.find_at(kind, message, by, Some(with), &name, (first, end));
            return true;
        }
        let Some(runs) = self.far.inboxes.get(&(target.rank, target.buffer)) else { return false };
        let known = |put: &Put| {
            let turns = self.far.counters.get(&put.counter).map(|counter| &counter.turns);
            turns.and_then(|turns| turns.get(put.turn)).is_some_and(|turn| Self::far_covered(turn, who))
        };
        let unknown = runs.within(from..to).find(|part| !known(&self.far.puts[*part.state]));
        let Some((covered, put)) = unknown.map(|part| (part.range, &self.far.puts[*part.state])) else {
            return false;
        };
        let (first, end) = range(covered.start, covered.end);
        let of = format!("{name}[{first}..{end}] of rank {}", target.rank);
        let (kind, message) = match put.launch == agent.launch {
            true => (
                FindingKind::DataRace,
                format!("{of} is put twice in a launch, and puts are not ordered: either may arrive last"),
            ),
            false => (
                FindingKind::NoCredit,
                format!(
                    "{of} is put again, and nothing says that the put before has arrived: wait for the receiver's credit"
                ),
            ),
        };
        let other = put.by;
        self.find_at(kind, message, by, Some(other), &name, (first, end));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_cover_a_message() {
        assert_eq!(pieces(4), [(0, 4)]);
        assert_eq!(pieces(20), [(0, 16), (16, 20)]);
        assert_eq!(pieces(256), [(0, 96), (96, 192), (192, 256)]);
    }
}
