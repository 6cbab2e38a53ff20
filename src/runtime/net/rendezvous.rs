//! How processes come together and agree: rank 0 listens, all others connect to it and stay connected.
//!
//! Every step is collective and bounded in time. What goes wrong on one rank is told to all of them, by name; after that
//! the connections are of no use any more.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::form::FormError;

/// Changes with the messages below, and what ranks say in them.
const PROTOCOL: u32 = 2;

/// More than any message has: what says that it is longer is something else.
const LONGEST: u32 = 1 << 24;

/// How long somebody who connects may take to say who they are.
const INTRODUCTION: Duration = Duration::from_secs(2);

/// Pause between attempts to connect to a rank 0 that does not listen yet.
const RETRY: Duration = Duration::from_millis(20);

/// Who a rank is, and what has to be the same on all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Card {
    pub rank: u32,
    pub ranks: u32,
    /// Where the rank's GPU sits.
    pub bus_id: String,
    /// The socket on which it takes handles.
    pub socket: String,
    /// Versions, digests of kernel tables and configurations, the machine: whatever has to be equal, by name.
    pub facts: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
enum Message {
    Hello { protocol: u32, card: Card },
    Welcome { cards: Vec<Card> },
    Part(Value),
    All(Vec<Value>),
    Failed(FormError),
}

/// The connections of one rank.
#[derive(Debug)]
pub(in crate::runtime) struct Rendezvous {
    rank: u32,
    /// By rank, on rank 0; else the one to rank 0.
    peers: Vec<(u32, TcpStream)>,
    timeout: Duration,
    broken: Option<FormError>,
}

impl Rendezvous {
    /// Meets the other ranks at `address`, within `timeout`; yields everybody's card, by rank.
    pub fn join(address: &str, card: Card, timeout: Duration) -> Result<(Rendezvous, Vec<Card>), FormError> {
        let deadline = Deadline::after(timeout);
        let rank = card.rank;
        let (peers, cards) = match rank {
            0 => host(address, card, &deadline)?,
            _ => visit(address, card, &deadline)?,
        };
        Ok((Rendezvous { rank, peers, timeout, broken: None }, cards))
    }

    /// Everybody's value, by rank. All ranks have to call it.
    pub fn gather(&mut self, value: Value) -> Result<Vec<Value>, FormError> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let deadline = Deadline::after(self.timeout);
        let gathered =
            if self.rank == 0 { self.collect(value, &deadline) } else { self.contribute(value, &deadline) };
        if let Err(e) = &gathered {
            self.broken = Some(e.clone());
        }
        gathered
    }

    /// Waits for all ranks; if something failed on one of them, all get to know.
    pub fn agree<T, E: std::fmt::Display>(&mut self, result: Result<T, E>) -> Result<T, Disagreed<E>> {
        let (own, said) = match result {
            Ok(own) => (Some(own), Ok(())),
            Err(e) => (None, Err(e)),
        };
        self.share(said).map(|_: Vec<()>| own.expect("an error here is an error of all"))
    }

    /// Everybody's value, by rank; if something failed on one of them, all get to know.
    pub fn share<T, E>(&mut self, result: Result<T, E>) -> Result<Vec<T>, Disagreed<E>>
    where
        T: Serialize + DeserializeOwned,
        E: std::fmt::Display,
    {
        let said = result.as_ref().map_err(ToString::to_string);
        let all = self.gather(serde_json::json!(said));
        result.map_err(Disagreed::Own)?;
        let values = all.map_err(Disagreed::Other)?.into_iter().zip(0..).map(|(said, rank)| {
            match serde_json::from_value::<Result<T, String>>(said) {
                Ok(Ok(value)) => Ok(value),
                Ok(Err(reason)) => Err(Disagreed::Other(FormError::Failed { rank, reason })),
                Err(e) => Err(Disagreed::Other(malformed(rank, e))),
            }
        });
        values.collect()
    }

    fn collect(&mut self, own: Value, deadline: &Deadline) -> Result<Vec<Value>, FormError> {
        let mut all = vec![own];
        for (rank, stream) in &mut self.peers {
            match deadline.receive(*rank, stream) {
                Ok(Message::Part(value)) => all.push(value),
                Ok(_) => return Err(tell(&mut self.peers, malformed(0, "not a part"))),
                Err(e) => return Err(tell(&mut self.peers, e)),
            }
        }
        for i in 0..self.peers.len() {
            let (rank, stream) = &mut self.peers[i];
            if send(stream, &Message::All(all.clone())).is_err() {
                let lost = FormError::Lost { rank: *rank };
                return Err(tell(&mut self.peers, lost));
            }
        }
        Ok(all)
    }

    fn contribute(&mut self, own: Value, deadline: &Deadline) -> Result<Vec<Value>, FormError> {
        let (_, stream) = &mut self.peers[0];
        // Rank 0 may have gone after it said why: what it said is still to be read.
        let sent = send(stream, &Message::Part(own));
        // It waits for all others as long as this, and then says who did not come.
        match deadline.later(INTRODUCTION).receive(0, stream)? {
            Message::All(all) if sent.is_ok() => Ok(all),
            Message::Failed(e) => Err(e),
            _ => Err(malformed(0, "not all parts")),
        }
    }
}

/// Why ranks do not agree.
#[derive(Debug)]
pub(in crate::runtime) enum Disagreed<E> {
    /// It failed on this rank.
    Own(E),
    /// It failed on another rank, or another rank is gone.
    Other(FormError),
}

fn malformed(rank: u32, reason: impl ToString) -> FormError {
    FormError::Malformed { rank, reason: reason.to_string() }
}

/// Tells all ranks why there is no world. Who does not listen any more needs no telling.
fn tell(peers: &mut [(u32, TcpStream)], error: FormError) -> FormError {
    for (_, stream) in peers {
        let _ = send(stream, &Message::Failed(error.clone()));
    }
    error
}

type Met = (Vec<(u32, TcpStream)>, Vec<Card>);

/// Rank 0: waits for all others, and tells everybody who is there.
fn host(address: &str, own: Card, deadline: &Deadline) -> Result<Met, FormError> {
    let listen =
        |reason: io::Error| FormError::Listen { address: address.into(), reason: reason.to_string() };
    let listener = TcpListener::bind(address).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let ranks = own.ranks;
    let mut peers: Vec<(u32, TcpStream)> = vec![];
    let mut cards = BTreeMap::from([(0, own)]);
    while (cards.len() as u32) < ranks {
        let Some(ready) = deadline.wait_for(&listener, &peers).map_err(listen)? else {
            let missing = (0..ranks).filter(|r| !cards.contains_key(r)).collect();
            return Err(tell(&mut peers, FormError::Missing { missing, waited: deadline.timeout }));
        };
        if let Some(rank) = ready {
            // They have nothing to say before they are welcomed.
            return Err(tell(&mut peers, FormError::Lost { rank }));
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        // Whoever does not introduce themselves is not one of us.
        let Some((card, mut stream)) = introduced(stream, deadline) else { continue };
        if let Err(e) = fits(&cards, &card) {
            let _ = send(&mut stream, &Message::Failed(e.clone()));
            return Err(tell(&mut peers, e));
        }
        peers.push((card.rank, stream));
        cards.insert(card.rank, card);
    }
    peers.sort_by_key(|(rank, _)| *rank);
    let cards: Vec<Card> = cards.into_values().collect();
    for i in 0..peers.len() {
        let (rank, stream) = &mut peers[i];
        if send(stream, &Message::Welcome { cards: cards.clone() }).is_err() {
            let lost = FormError::Lost { rank: *rank };
            return Err(tell(&mut peers, lost));
        }
    }
    Ok((peers, cards))
}

/// The card of somebody who connected, if they have one.
fn introduced(stream: TcpStream, deadline: &Deadline) -> Option<(Card, TcpStream)> {
    let mut stream = stream;
    stream.set_nonblocking(false).ok()?;
    let soon = Deadline::after(INTRODUCTION.min(deadline.left()));
    match soon.receive(0, &mut stream) {
        Ok(Message::Hello { protocol: PROTOCOL, card }) => Some((card, stream)),
        Ok(Message::Hello { protocol, card }) => {
            let e = mismatch("protocol", card.rank, protocol, 0, PROTOCOL);
            let _ = send(&mut stream, &Message::Failed(e));
            None
        }
        _ => None,
    }
}

/// Whether a newcomer fits those who are there.
fn fits(there: &BTreeMap<u32, Card>, new: &Card) -> Result<(), FormError> {
    let own = &there[&0];
    if new.ranks != own.ranks {
        return Err(mismatch("world size", new.rank, new.ranks, 0, own.ranks));
    }
    if there.contains_key(&new.rank) {
        return Err(FormError::SameRank { rank: new.rank });
    }
    if new.rank >= own.ranks {
        return Err(malformed(new.rank, format!("a rank of a world of {}", own.ranks)));
    }
    let none = || "not known".to_owned();
    for field in own.facts.keys().chain(new.facts.keys()) {
        let (a, b) = (new.facts.get(field), own.facts.get(field));
        if a != b {
            let value = |v: Option<&String>| v.cloned().unwrap_or_else(none);
            return Err(mismatch(field, new.rank, value(a), 0, value(b)));
        }
    }
    match there.values().find(|card| card.bus_id == new.bus_id) {
        None => Ok(()),
        Some(other) => Err(FormError::SameGpu { a: other.rank, b: new.rank, bus_id: new.bus_id.clone() }),
    }
}

fn mismatch(
    field: &str,
    rank: u32,
    value: impl ToString,
    other_rank: u32,
    other: impl ToString,
) -> FormError {
    let (value, other) = (value.to_string(), other.to_string());
    FormError::Mismatch { field: field.into(), rank, value, other_rank, other }
}

/// All other ranks: connects to rank 0, and waits to be welcomed.
fn visit(address: &str, card: Card, deadline: &Deadline) -> Result<Met, FormError> {
    let mut stream = connect(address, deadline)?;
    if send(&mut stream, &Message::Hello { protocol: PROTOCOL, card }).is_err() {
        return Err(FormError::Lost { rank: 0 });
    }
    // Rank 0 waits as long as this for the others, and then says who is missing.
    match deadline.later(INTRODUCTION).receive(0, &mut stream)? {
        Message::Welcome { cards } => Ok((vec![(0, stream)], cards)),
        Message::Failed(e) => Err(e),
        _ => Err(malformed(0, "not a welcome")),
    }
}

fn connect(address: &str, deadline: &Deadline) -> Result<TcpStream, FormError> {
    let mut reason = "no attempt was made".to_owned();
    while !deadline.left().is_zero() {
        let found = address.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        match found {
            Err(e) => reason = e.to_string(),
            Ok(all) => {
                for one in all {
                    match TcpStream::connect_timeout(&one, deadline.left().max(RETRY)) {
                        Ok(stream) => {
                            let _ = stream.set_nodelay(true);
                            return Ok(stream);
                        }
                        Err(e) => reason = e.to_string(),
                    }
                }
            }
        }
        std::thread::sleep(RETRY);
    }
    Err(FormError::NoAnswer { address: address.into(), waited: deadline.timeout, reason })
}

fn send(stream: &mut TcpStream, message: &Message) -> io::Result<()> {
    let text = serde_json::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(INTRODUCTION))?;
    stream.write_all(&[&length.to_le_bytes(), text.as_slice()].concat())
}

/// A point in time up to which is waited.
#[derive(Debug)]
pub(in crate::runtime) struct Deadline {
    timeout: Duration,
    end: Instant,
}

impl Deadline {
    pub fn after(timeout: Duration) -> Deadline {
        Deadline { timeout, end: Instant::now() + timeout }
    }

    fn later(&self, by: Duration) -> Deadline {
        Deadline { timeout: self.timeout, end: self.end + by }
    }

    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits until somebody connects (`None` inside), or a connection has something to say (its rank). `None` when the
    /// time is up.
    fn wait_for(
        &self,
        listener: &TcpListener,
        peers: &[(u32, TcpStream)],
    ) -> io::Result<Option<Option<u32>>> {
        loop {
            let left = self.left();
            if left.is_zero() {
                return Ok(None);
            }
            let fds = std::iter::once(listener.as_fd()).chain(peers.iter().map(|(_, s)| s.as_fd()));
            let mut fds: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let gone = fds.iter().skip(1).position(|fd| !fd.revents().is_empty());
            if let Some(at) = gone {
                return Ok(Some(Some(peers[at].0)));
            }
            if !fds[0].revents().is_empty() {
                return Ok(Some(None));
            }
        }
    }

    /// The next message of a rank.
    fn receive(&self, rank: u32, stream: &mut TcpStream) -> Result<Message, FormError> {
        let mut length = [0; 4];
        self.read(rank, stream, &mut length)?;
        let length = u32::from_le_bytes(length);
        if length > LONGEST {
            return Err(malformed(rank, format!("a message of {length} bytes")));
        }
        let mut text = vec![0; length as usize];
        self.read(rank, stream, &mut text)?;
        serde_json::from_slice(&text).map_err(|e| malformed(rank, e))
    }

    fn read(&self, rank: u32, stream: &mut TcpStream, mut bytes: &mut [u8]) -> Result<(), FormError> {
        while !bytes.is_empty() {
            let left = self.left();
            if left.is_zero() {
                return Err(FormError::Late { rank, waited: self.timeout });
            }
            let read = stream.set_read_timeout(Some(left)).and_then(|()| stream.read(bytes));
            match read {
                Ok(0) => return Err(FormError::Lost { rank }),
                Ok(n) => bytes = &mut bytes[n..],
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    _ => return Err(FormError::Lost { rank }),
                },
            }
        }
        Ok(())
    }
}

pub(in crate::runtime) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
pub(super) mod tests;
