//! How a process that listens finds its own world's processes among all that connect.
//!
//! All who have not introduced themselves yet are heard side by side. Their number, what they may say and their time are
//! bounded. A process that does not know the world's secret is turned away and logged; no other process waits for that.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::deadline::{Cut, Deadline, Socket, fill, timespec};
use super::handshake::{Foreign, Knock, Meeting, Nonce, Opening, Session, Side, check_start};
use super::secret::{Secret, random};

/// Connections whose rank is not known yet. When there are more, the oldest has to go: ranks need milliseconds.
pub(super) const NEWCOMERS: usize = 64;

/// How long somebody who connects may take to say who they are.
pub(super) const INTRODUCTION: Duration = Duration::from_secs(5);

/// Pause when the system has no connection to give.
const PAUSE: Duration = Duration::from_millis(20);

/// Strangers of whom there is a line each in the log; the others are counted.
const LOGGED: u32 = 16;

/// Why a connection is not one of the world's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stranger {
    #[error("did not say who they are in time")]
    Silent,
    #[error("closed the connection before they said who they are")]
    HungUp,
    #[error("do not speak Peerwarp's protocol")]
    Language,
    #[error("speak version {0} of the protocol")]
    Version(u32),
    #[error("do not know the world's secret")]
    Secret,
    #[error("turned this rank away: they have another secret, or no room")]
    Refused,
    #[error("had to make room for others")]
    Crowd,
    #[error("are processes of user {0}")]
    User(u32),
    #[error("are no rank that is waited for")]
    Unawaited,
    #[error("say something that makes no sense")]
    Malformed,
}

impl From<Foreign> for Stranger {
    fn from(foreign: Foreign) -> Stranger {
        match foreign {
            Foreign::Language => Stranger::Language,
            Foreign::Version(version) => Stranger::Version(version),
        }
    }
}

/// A process that just connected.
pub(super) struct Caller<S> {
    pub stream: S,
    /// For the log.
    pub name: String,
    /// Where both are, as in [`Meeting::place`].
    pub place: String,
    /// Why they are not even asked.
    pub stranger: Option<Stranger>,
}

/// Where others connect. Does not wait for them.
pub(super) trait Entrance: AsFd {
    type Stream: Socket;

    fn accept(&self) -> io::Result<Caller<Self::Stream>>;
}

impl Entrance for TcpListener {
    type Stream = TcpStream;

    fn accept(&self) -> io::Result<Caller<TcpStream>> {
        let (stream, guest) = TcpListener::accept(self)?;
        let place = between(guest, stream.local_addr()?);
        let _ = stream.set_nodelay(true);
        Ok(Caller { stream, name: guest.to_string(), place, stranger: None })
    }
}

/// Both ends of a TCP connection, in the same words on both sides.
pub(super) fn between(guest: SocketAddr, host: SocketAddr) -> String {
    let end = |end: SocketAddr| format!("{} {}", end.ip().to_canonical(), end.port());
    format!("tcp {} {}", end(guest), end(host))
}

/// A rank that has proved that it is one.
pub(super) struct Guest<S> {
    pub rank: u32,
    pub stream: S,
    pub session: Session,
    pub name: String,
}

/// What came of waiting.
pub(super) enum Next<S> {
    /// A rank.
    Guest(Guest<S>),
    /// One of the watched connections, by its index, has something to say.
    Watched(usize),
    /// Nothing, and the time is up.
    TimeUp,
}

/// A process that did not say which rank it is yet.
struct Newcomer<S> {
    caller: Caller<S>,
    nonce: Nonce,
    heard: [u8; Knock::BYTES],
    have: usize,
    until: Instant,
}

/// Processes that were turned away: reasons, and how many of each.
pub(super) type TurnedAway = BTreeMap<String, u32>;

/// All who are at an entrance.
pub(super) struct Introductions<'a, E: Entrance> {
    entrance: &'a E,
    secret: &'a Secret,
    /// The rank whose entrance it is.
    host: u32,
    /// The oldest first.
    newcomers: Vec<Newcomer<E::Stream>>,
    turned_away: TurnedAway,
}

impl<'a, E: Entrance> Introductions<'a, E> {
    pub fn new(entrance: &'a E, secret: &'a Secret, host: u32) -> Self {
        Introductions { entrance, secret, host, newcomers: vec![], turned_away: BTreeMap::new() }
    }

    /// Waits for the next rank, or until one of the watched connections has something to say.
    pub fn next(&mut self, watched: &[BorrowedFd<'_>], deadline: &Deadline) -> io::Result<Next<E::Stream>> {
        loop {
            self.expire();
            if deadline.left().is_zero() {
                return Ok(Next::TimeUp);
            }
            let ready = self.poll(watched, deadline)?;
            let (own, watched) = ready.split_at(1 + self.newcomers.len());
            if let Some(at) = watched.iter().position(|&ready| ready) {
                return Ok(Next::Watched(at));
            }
            // The latest first: an earlier one's index stays what it is when one goes.
            for at in (0..self.newcomers.len()).rev().filter(|at| own[1 + at]) {
                if let Some(guest) = self.hear(at) {
                    return Ok(Next::Guest(guest));
                }
            }
            if own[0] {
                self.admit();
            }
        }
    }

    /// Which of the entrance, the newcomers and the watched have something to say.
    fn poll(&self, watched: &[BorrowedFd<'_>], deadline: &Deadline) -> io::Result<Vec<bool>> {
        let oldest = self.newcomers.first().map(|n| n.until.saturating_duration_since(Instant::now()));
        let left = oldest.unwrap_or(Duration::MAX).min(deadline.left());
        let own = self.newcomers.iter().map(|n| n.caller.stream.as_fd());
        let fds = std::iter::once(self.entrance.as_fd()).chain(own).chain(watched.iter().copied());
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(rustix::io::Errno::INTR) => Ok(vec![false; fds.len()]),
            Err(e) => Err(e.into()),
        }
    }

    /// Somebody connects.
    fn admit(&mut self) {
        let caller = match self.entrance.accept() {
            Ok(caller) => caller,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {
                return;
            }
            Err(_) => {
                // Too many open files, say.
                self.turn_away_oldest();
                return std::thread::sleep(PAUSE);
            }
        };
        match caller.stranger {
            Some(stranger) => self.turned_away(&caller.name, stranger),
            None => self.open(caller),
        }
    }

    /// Says the opening to somebody.
    pub fn open(&mut self, mut caller: Caller<E::Stream>) {
        let opened = caller.stream.set_nonblocking(true).and_then(|()| random()).and_then(|nonce| {
            // Fits what a connection takes at first.
            caller.stream.write_all(&Opening { nonce }.encode()).map(|()| nonce)
        });
        let Ok(nonce) = opened else { return self.turned_away(&caller.name, Stranger::HungUp) };
        if self.newcomers.len() == NEWCOMERS {
            self.turn_away_oldest();
        }
        let until = Instant::now() + INTRODUCTION;
        self.newcomers.push(Newcomer { caller, nonce, heard: [0; Knock::BYTES], have: 0, until });
    }

    fn turn_away_oldest(&mut self) {
        if !self.newcomers.is_empty() {
            self.turn_away(0, Stranger::Crowd);
        }
    }

    fn expire(&mut self) {
        while self.newcomers.first().is_some_and(|n| n.until <= Instant::now()) {
            self.turn_away(0, Stranger::Silent);
        }
    }

    /// Hears a newcomer further; yields them if they are a rank.
    pub fn hear(&mut self, at: usize) -> Option<Guest<E::Stream>> {
        let newcomer = &mut self.newcomers[at];
        match newcomer.caller.stream.read(&mut newcomer.heard[newcomer.have..]) {
            Ok(0) => return self.turn_away(at, Stranger::HungUp),
            Ok(bytes) => newcomer.have += bytes,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return None;
            }
            Err(_) => return self.turn_away(at, Stranger::HungUp),
        }
        if let Err(foreign) = check_start(&newcomer.heard[..newcomer.have]) {
            return self.turn_away(at, foreign.into());
        }
        if newcomer.have < Knock::BYTES {
            return None;
        }
        match introduced(self.secret, self.host, newcomer) {
            Err(stranger) => self.turn_away(at, stranger),
            Ok((rank, session)) => {
                let Caller { stream, name, .. } = self.newcomers.remove(at).caller;
                Some(Guest { rank, stream, session, name })
            }
        }
    }

    fn turn_away(&mut self, at: usize, stranger: Stranger) -> Option<Guest<E::Stream>> {
        let newcomer = self.newcomers.remove(at);
        self.turned_away(&newcomer.caller.name, stranger);
        None
    }

    /// Counts and logs somebody who was turned away.
    pub fn turned_away(&mut self, name: &str, stranger: Stranger) {
        let before: u32 = self.turned_away.values().sum();
        if before < LOGGED {
            log::warn!("rank {}: turned {name} away: they {stranger}", self.host);
        } else if before == LOGGED {
            log::warn!("rank {}: turns more away, without a line for each", self.host);
        }
        let count = self.turned_away.entry(stranger.to_string()).or_default();
        *count = count.saturating_add(1);
    }

    /// How many have not said who they are yet.
    #[cfg(test)]
    pub fn newcomers(&self) -> usize {
        self.newcomers.len()
    }

    /// How many were turned away, by reason.
    pub fn all_turned_away(&self) -> TurnedAway {
        self.turned_away.clone()
    }
}

/// The rank of a process that said all, if it knows the secret; it gets the proof that this rank does, too.
fn introduced<S: Socket>(
    secret: &Secret,
    host: u32,
    newcomer: &mut Newcomer<S>,
) -> Result<(u32, Session), Stranger> {
    let knock = Knock::decode(&newcomer.heard)?;
    let meeting = Meeting {
        place: &newcomer.caller.place,
        host,
        guest: knock.rank,
        host_nonce: newcomer.nonce,
        guest_nonce: knock.nonce,
    };
    if !meeting.proves(secret, Side::Guest, &knock.proof) {
        return Err(Stranger::Secret);
    }
    let stream = &mut newcomer.caller.stream;
    stream.write_all(&meeting.proof(secret, Side::Host)).map_err(|_| Stranger::HungUp)?;
    stream.set_nonblocking(false).map_err(|_| Stranger::HungUp)?;
    Ok((knock.rank, meeting.session(secret, Side::Host)))
}

/// Introduces rank `guest` to who listens at the other end of a connection, which has to be rank `host`.
pub(super) fn introduce(
    stream: &mut impl Socket,
    place: &str,
    secret: &Secret,
    (guest, host): (u32, u32),
    deadline: &Deadline,
) -> Result<Session, Stranger> {
    let cut = |cut| match cut {
        Cut::Late => Stranger::Silent,
        Cut::Gone => Stranger::HungUp,
    };
    let mut opening = [0; Opening::BYTES];
    fill(stream, &mut opening, deadline).map_err(cut)?;
    let host_nonce = Opening::decode(&opening)?.nonce;
    let guest_nonce = random().map_err(|_| Stranger::HungUp)?;
    let meeting = Meeting { place, host, guest, host_nonce, guest_nonce };
    let knock = Knock { rank: guest, nonce: guest_nonce, proof: meeting.proof(secret, Side::Guest) };
    stream.set_write_timeout(Some(INTRODUCTION)).map_err(|_| Stranger::HungUp)?;
    stream.write_all(&knock.encode()).map_err(|_| Stranger::HungUp)?;
    let mut proof = [0; 32];
    fill(stream, &mut proof, deadline).map_err(|e| match e {
        Cut::Late => Stranger::Silent,
        // Who turns a rank away says nothing.
        Cut::Gone => Stranger::Refused,
    })?;
    match meeting.proves(secret, Side::Host, &proof) {
        true => Ok(meeting.session(secret, Side::Guest)),
        false => Err(Stranger::Secret),
    }
}
