//! What the proxy's thread does: it takes commands, posts puts, and counts what is delivered and what arrives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::book::{Book, BookError, Channel, Port, Station};
use crate::command::{Command, CommandError, Immediate, Op, PutName, RANKS, UNIT, addressee, range};
use crate::endpoint::{Endpoint, Event, Peer, Posted, Put, Region, Target};
use crate::error::FabricError;
use crate::fault::Fault;
use crate::proxy::{Outcome, Shared, StartError, Summary};
use crate::ring::Ring;
use crate::words::Words;

/// Commands that are taken from a ring before the next one has its turn.
const TURN: usize = 16;
/// Rounds without work after which the thread lets others run.
const SPINS: u32 = 16;
/// Errors of a receiver that was not ready: the put is posted again.
const NOT_READY: [i32; 2] = [crate::sys::FI_EAGAIN, crate::sys::FI_ENORX];

/// A ring, and which of its commands are delivered.
pub(crate) struct Lane {
    ring: Ring,
    window: usize,
    taken: u64,
    delivered: u64,
    /// Whether command `delivered + n` is delivered.
    done: VecDeque<bool>,
    /// A flush waits until all commands before it are delivered.
    flushes: bool,
    /// A command made no sense, and none after it is taken.
    closed: bool,
}

/// A peer.
struct Remote {
    rank: u16,
    peer: Peer,
    inboxes: Vec<Target>,
    /// Puts that are not posted yet.
    queue: VecDeque<Work>,
    posted: usize,
    /// When a put to this peer was last delivered, or the first of several was taken.
    progress: Instant,
    /// Where pulses go.
    pulse: Target,
    /// Since when a pulse has no answer.
    silent: Option<Instant>,
    /// Whether a pulse is posted.
    pulses: bool,
    /// Whether puts went to it or came from it: it has started, and there is a connection for pulses.
    known: bool,
    lost: bool,
}

/// A put that is under way.
#[derive(Clone, Copy)]
struct Work {
    lane: usize,
    number: u64,
    remote: usize,
    command: Command,
    since: Instant,
}

/// What the provider has.
#[derive(Clone, Copy)]
enum InFlight {
    Work(Work),
    /// A sign of life, to one of `remotes`.
    Pulse(usize),
}

/// The thread's state.
pub(crate) struct Carrier {
    endpoint: Option<Endpoint>,
    rank: u16,
    ranks: u16,
    ports: Vec<Port>,
    /// What pulses read.
    pulse: Region,
    /// Which of `remotes` a rank is.
    by_rank: Vec<Option<usize>>,
    remotes: Vec<Remote>,
    /// Those of `remotes` that have puts to post.
    waiting: Vec<usize>,
    lanes: Vec<Lane>,
    /// Puts that are posted, by their token.
    posted: Vec<Option<InFlight>>,
    words: Words,
    shared: Arc<Shared>,
    budget: Duration,
    summary: Summary,
    events: Vec<Event>,
}

impl Lane {
    pub fn new(ring: Ring, window: usize) -> Lane {
        let (taken, delivered) = (ring.taken(), ring.delivered());
        Lane { ring, window, taken, delivered, done: VecDeque::new(), flushes: false, closed: false }
    }

    /// The next command's number and words, if it is published and may be taken.
    fn take(&mut self) -> Option<(u64, [u64; 2])> {
        if self.flushes && self.done.is_empty() {
            self.flushes = false;
        }
        if self.flushes || self.closed || self.done.len() >= self.window {
            return None;
        }
        let number = self.taken;
        let command = self.ring.published(number)?;
        self.taken += 1;
        self.done.push_back(false);
        self.ring.set_taken(self.taken);
        Some((number, command))
    }

    /// A command is delivered.
    fn deliver(&mut self, number: u64) {
        if let Some(done) = number.checked_sub(self.delivered).and_then(|at| self.done.get_mut(at as usize)) {
            *done = true;
        }
        let before = self.delivered;
        while self.done.front() == Some(&true) {
            self.done.pop_front();
            self.delivered += 1;
        }
        if self.delivered != before {
            self.ring.set_delivered(self.delivered);
        }
    }

    /// Whether kernels have no command for the proxy. A kernel may keep `reserved` to itself.
    fn is_empty(&self) -> bool {
        self.ring.reserved() <= self.taken && self.ring.published(self.taken).is_none()
    }

    /// Commands that are not delivered, among them those that the proxy has not taken.
    fn left(&self) -> u64 {
        self.ring.reserved().max(self.taken).saturating_sub(self.delivered)
    }
}

impl Remote {
    /// Whether puts are under way to it.
    fn is_busy(&self) -> bool {
        self.posted > 0 || !self.queue.is_empty()
    }
}

impl Work {
    fn name(&self, lane: &Lane) -> PutName {
        let Command { peer, channel, .. } = self.command;
        PutName { peer, channel, ring: lane.ring.index(), number: self.number }
    }
}

impl Carrier {
    pub fn new(
        station: Station,
        book: Book,
        lanes: Vec<Lane>,
        words: Words,
        shared: Arc<Shared>,
        budget: Duration,
    ) -> Result<Carrier, StartError> {
        let Station { mut endpoint, rank, ranks, ports, pulse, .. } = station;
        let mut by_rank = vec![None; usize::from(RANKS)];
        let (mut remotes, now) = (vec![], Instant::now());
        for entry in book.peers()? {
            let rank = entry.rank;
            let peer = endpoint.add_peer(&entry.address);
            let peer = peer.map_err(|reason| BookError::Address { rank, reason })?;
            by_rank[usize::from(rank)] = Some(remotes.len());
            remotes.push(Remote {
                rank,
                peer,
                inboxes: entry.inboxes,
                queue: VecDeque::new(),
                posted: 0,
                progress: now,
                pulse: entry.pulse,
                silent: None,
                pulses: false,
                known: false,
                lost: false,
            });
        }
        Ok(Carrier {
            posted: vec![None; endpoint.depth()],
            endpoint: Some(endpoint),
            rank,
            ranks,
            ports,
            pulse,
            by_rank,
            remotes,
            waiting: vec![],
            lanes,
            words,
            shared,
            budget,
            summary: Summary::default(),
            events: vec![],
        })
    }

    /// Goes around until the owner ends it.
    pub fn run(mut self) -> Outcome {
        let (mut beat, mut idle) = (0u64, 0u32);
        let mut last = Instant::now();
        let (pause, look) = (self.budget / 4, self.budget / 16);
        let mut next_look = last + look;
        loop {
            while self.shared.stalled() {
                std::thread::yield_now();
            }
            beat = beat.wrapping_add(1);
            self.words.set_beat(beat);
            let now = Instant::now();
            if now.duration_since(last) > pause {
                // This rank itself did not run: peers get their time anew.
                self.summary.stalls += 1;
                for remote in &mut self.remotes {
                    (remote.progress, remote.silent) = (now, remote.silent.map(|_| now));
                }
            }
            last = now;
            let worked = self.take(now) | self.post() | self.poll(now);
            if now >= next_look {
                next_look = now + look;
                self.look(now);
            }
            if let Some(until) = self.shared.until()
                && (self.is_finished() || now >= until)
            {
                return self.end();
            }
            idle = if worked { 0 } else { idle.saturating_add(1) };
            match idle < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }

    /// Takes commands from the rings.
    fn take(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for lane in 0..self.lanes.len() {
            for _ in 0..TURN {
                let Some((number, words)) = self.lanes[lane].take() else { break };
                worked = true;
                match self.check(words) {
                    // It is delivered when all commands before it are: `delivered` is a prefix.
                    Ok((Command { op: Op::Flush, .. }, _)) => {
                        self.lanes[lane].flushes = true;
                        self.lanes[lane].deliver(number);
                    }
                    Ok((command, Some(remote))) => {
                        self.enqueue(Work { lane, number, remote, command, since: now });
                    }
                    Ok((command, None)) => {
                        self.put_to_itself(&command);
                        self.lanes[lane].deliver(number);
                    }
                    Err(reason) => {
                        let (channel, peer) = addressee(words[1]);
                        let ring = self.lanes[lane].ring.index();
                        self.lanes[lane].closed = true;
                        let put = PutName { peer, channel, ring, number };
                        self.report(Fault::Command { put, reason });
                    }
                }
            }
        }
        worked
    }

    /// The command, and which of `remotes` it is for; none if it is for this rank.
    fn check(&self, words: [u64; 2]) -> Result<(Command, Option<usize>), CommandError> {
        let command = Command::decode(words)?;
        if command.op == Op::Flush {
            return Ok((command, None));
        }
        let Some(port) = self.ports.get(usize::from(command.channel)) else {
            let allowed = format!("channels below {}", self.ports.len());
            return Err(CommandError::Field { field: "channel", value: command.channel.into(), allowed });
        };
        let remote = self.by_rank.get(usize::from(command.peer)).copied().flatten();
        let inbox = match remote {
            Some(remote) => self.remotes[remote].inboxes[usize::from(command.channel)],
            None if command.peer == self.rank => port.inbox.target,
            None => {
                let allowed = format!("ranks below {}", self.ranks);
                return Err(CommandError::Field { field: "peer", value: command.peer.into(), allowed });
            }
        };
        let unit = UNIT as u64;
        let regions =
            [("outbox", command.from, port.outbox.target.bytes), ("inbox", command.to, inbox.bytes)];
        for (region, from, bytes) in regions {
            let from = u64::from(from) * unit;
            let to = from + u64::from(command.units) * unit;
            if to > bytes {
                return Err(CommandError::Outside { region, from, to, bytes });
            }
        }
        let longest = self.endpoint.as_ref().map_or(u64::MAX, Endpoint::longest) / unit;
        range("units", command.units, 1, longest)?;
        Ok((command, remote))
    }

    /// A put of this rank to itself: a copy, which is counted at once.
    fn put_to_itself(&mut self, command: &Command) {
        let Command { op, channel, from, to, units, .. } = *command;
        let Channel { outbox, inbox } = &self.ports[usize::from(channel)].memory;
        let [from, to, bytes] = [from, to, units].map(|units| units as usize * UNIT);
        outbox.copy(from, bytes, inbox, to);
        self.summary.puts += 1;
        self.summary.bytes += bytes as u64;
        if op == Op::PutAndCount {
            self.arrive(Immediate { channel, source: self.rank });
        }
    }

    fn enqueue(&mut self, work: Work) {
        let remote = &mut self.remotes[work.remote];
        if remote.lost {
            // Its fault is reported. The command is never delivered, and neither is the ring's prefix.
            return;
        }
        if remote.queue.is_empty() {
            if remote.posted == 0 {
                remote.progress = remote.progress.max(work.since);
            }
            self.waiting.push(work.remote);
        }
        remote.queue.push_back(work);
    }

    /// Posts puts for as long as the provider takes them, from one peer after the other.
    fn post(&mut self) -> bool {
        let mut worked = false;
        let mut at = 0;
        while let Some(&index) = self.waiting.get(at) {
            let Some(work) = self.remotes[index].queue.front().copied() else {
                self.waiting.swap_remove(at);
                continue;
            };
            let Some(endpoint) = &mut self.endpoint else { return worked };
            match post(endpoint, &self.ports, &self.remotes[index], &work, self.rank) {
                Ok(Posted::Token(token)) => {
                    worked = true;
                    self.posted[token as usize] = Some(InFlight::Work(work));
                    self.remotes[index].queue.pop_front();
                    self.remotes[index].posted += 1;
                }
                Ok(Posted::Busy) => at += 1,
                Err(e) => {
                    let put = work.name(&self.lanes[work.lane]);
                    self.lose(index, Fault::Failed { put, reason: e.to_string() });
                }
            }
        }
        // The next round begins with another peer.
        if self.waiting.len() > 1 {
            self.waiting.rotate_left(1);
        }
        worked
    }

    /// Makes the provider progress, and takes in what happened.
    fn poll(&mut self, now: Instant) -> bool {
        if self.shared.unplugged() && self.endpoint.is_some() {
            self.lose_endpoint("it was closed".into());
        }
        let Some(endpoint) = &mut self.endpoint else { return false };
        let mut events = std::mem::take(&mut self.events);
        if let Err(e) = endpoint.poll(&mut events) {
            self.lose_endpoint(e.to_string());
        }
        let worked = !events.is_empty();
        for event in events.drain(..) {
            match event {
                Event::Arrived(data) => self.arrive(Immediate::decode(data)),
                Event::Delivered(token) => match self.completed(token) {
                    Some(InFlight::Work(work)) => {
                        self.summary.puts += 1;
                        self.summary.bytes += u64::from(work.command.units) * UNIT as u64;
                        self.lanes[work.lane].deliver(work.number);
                        self.answer(work.remote, now);
                    }
                    Some(InFlight::Pulse(remote)) => self.answer(remote, now),
                    None => {}
                },
                Event::Failed { token, errno, reason } => match self.completed(token) {
                    Some(InFlight::Work(work)) if NOT_READY.contains(&errno) => self.enqueue(work),
                    Some(InFlight::Work(work)) => {
                        let put = work.name(&self.lanes[work.lane]);
                        self.lose(work.remote, Fault::Failed { put, reason });
                    }
                    // It counts as unanswered: the peer may be about to close, as this rank is.
                    Some(InFlight::Pulse(_)) | None => {}
                },
            }
        }
        self.events = events;
        worked
    }

    /// Takes back what the provider is done with.
    fn completed(&mut self, token: u32) -> Option<InFlight> {
        let completed = self.posted.get_mut(token as usize)?.take()?;
        match completed {
            InFlight::Work(work) => self.remotes[work.remote].posted -= 1,
            InFlight::Pulse(remote) => self.remotes[remote].pulses = false,
        }
        Some(completed)
    }

    /// A peer took something in.
    fn answer(&mut self, remote: usize, now: Instant) {
        let remote = &mut self.remotes[remote];
        (remote.progress, remote.silent, remote.known) = (now, None, true);
    }

    fn arrive(&mut self, immediate: Immediate) {
        if self.words.add_count(immediate.channel, immediate.source) {
            self.summary.arrivals += 1;
            if let Some(remote) = self.by_rank[usize::from(immediate.source)] {
                self.remotes[remote].known = true;
            }
        } else {
            let (channels, ranks) = (self.words.channels(), self.ranks);
            self.report(Fault::Arrival { immediate, channels, ranks });
        }
    }

    /// Looks for peers that take too long, and sends pulses to idle ones.
    fn look(&mut self, now: Instant) {
        let budget = self.budget;
        let expired = |since: Instant| now.duration_since(since) > budget;
        for index in 0..self.remotes.len() {
            let remote = &self.remotes[index];
            if remote.lost {
                continue;
            }
            let late = remote.is_busy() && expired(remote.progress);
            let silent = remote.silent.is_some_and(|since| expired(since.max(remote.progress)));
            if late || silent {
                let rank = remote.rank;
                let oldest = self.oldest(|work| work.remote == index);
                let fault = oldest.map_or(Fault::Silent { rank, budget }, |put| Fault::Late { put, budget });
                self.lose(index, fault);
            } else if self.shared.until().is_none() {
                self.send_pulse(index, now);
            }
        }
    }

    /// Sends a pulse to a peer that has been idle.
    fn send_pulse(&mut self, index: usize, now: Instant) {
        let (remote, region) = (&mut self.remotes[index], self.pulse);
        if !remote.known
            || remote.is_busy()
            || remote.pulses
            || now.duration_since(remote.progress) < self.budget / 4
        {
            return;
        }
        remote.silent.get_or_insert(now);
        let (peer, target, bytes) = (remote.peer, remote.pulse, UNIT as u64);
        let pulse = Put { peer, region, from: 0, target, to: 0, bytes, immediate: None };
        // One that is refused counts as unanswered.
        if let Some(endpoint) = &mut self.endpoint
            && let Ok(Posted::Token(token)) = endpoint.put(&pulse)
        {
            self.posted[token as usize] = Some(InFlight::Pulse(index));
            remote.pulses = true;
        }
    }

    /// The oldest put under way of those that suit.
    fn oldest(&self, suits: impl Fn(&Work) -> bool) -> Option<PutName> {
        let queued = self.remotes.iter().flat_map(|remote| &remote.queue);
        let posted = self.posted.iter().flatten().filter_map(|in_flight| match in_flight {
            InFlight::Work(work) => Some(work),
            InFlight::Pulse(_) => None,
        });
        let all = posted.chain(queued).filter(|work| suits(work));
        let oldest = all.min_by_key(|work| (work.since, work.lane, work.number))?;
        Some(oldest.name(&self.lanes[oldest.lane]))
    }

    /// Gives a peer up. Puts that are posted stay until the provider gives them back.
    fn lose(&mut self, index: usize, fault: Fault) {
        let remote = &mut self.remotes[index];
        remote.queue.clear();
        if !std::mem::replace(&mut remote.lost, true) {
            self.report(fault);
        }
    }

    fn lose_endpoint(&mut self, reason: String) {
        self.report(Fault::Endpoint { put: self.oldest(|_| true), reason });
        self.endpoint = None;
        self.posted.fill(None);
        for remote in &mut self.remotes {
            (remote.lost, remote.posted) = (true, 0);
            remote.queue.clear();
        }
    }

    fn report(&self, fault: Fault) {
        self.shared.report(fault, &self.words);
    }

    /// Whether there is nothing left that can be delivered.
    fn is_finished(&self) -> bool {
        let waits = |remote: &Remote| !remote.lost && remote.is_busy();
        let closed = |lane: &Lane| lane.closed || lane.is_empty();
        let any_lost = self.remotes.iter().any(|remote| remote.lost);
        !self.remotes.iter().any(waits)
            && self.lanes.iter().all(|lane| closed(lane) || (any_lost && lane.flushes))
    }

    fn end(self) -> Outcome {
        let left = self.lanes.iter().map(Lane::left).sum();
        Outcome { summary: self.summary, left, oldest: self.oldest(|_| true) }
    }
}

/// Posts one put.
fn post(
    endpoint: &mut Endpoint,
    ports: &[Port],
    remote: &Remote,
    work: &Work,
    source: u16,
) -> Result<Posted, FabricError> {
    let Command { op, channel, from, to, units, .. } = work.command;
    let bytes = |units: u32| u64::from(units) * UNIT as u64;
    endpoint.put(&Put {
        peer: remote.peer,
        region: ports[usize::from(channel)].outbox,
        from: bytes(from),
        target: remote.inboxes[usize::from(channel)],
        to: bytes(to),
        bytes: bytes(units),
        immediate: (op == Op::PutAndCount).then(|| Immediate { channel, source }.encode()),
    })
}
