//! How processes come together and agree: rank 0 listens, all others connect to it and stay connected.
//!
//! Every step is collective and bounded in time. An error of one rank reaches all of them, with its name; after that
//! the connections are of no use any more.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::channel::{Channel, Message};
use super::deadline::Deadline;
use super::form::FormError;
use super::introductions::{INTRODUCTION, Introductions, Next, Stranger, between, introduce};
use super::secret::Secret;

/// Pause between attempts to connect to a rank 0 that does not listen yet.
const RETRY: Duration = Duration::from_millis(20);

/// Pause after somebody answered who is not rank 0.
const REFUSED: Duration = Duration::from_millis(200);

/// Less than this is too short for an attempt to mean something.
const HURRY: Duration = Duration::from_secs(1);

/// Who a rank is, and what has to be the same on all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Card {
    pub rank: u32,
    pub ranks: u32,
    /// Where the rank's GPU sits; empty if ranks need not know.
    pub bus_id: String,
    /// Which computer it is on; empty if ranks need not know.
    #[serde(default)]
    pub machine: String,
    /// The same on ranks that reach each other's memory; empty if ranks need not know.
    #[serde(default)]
    pub node: String,
    /// The socket on which it takes handles; empty if it takes none.
    pub socket: String,
    /// Whether ranks may have one GPU together.
    #[serde(default)]
    pub share_gpus: bool,
    /// Versions, digests of kernel tables and configurations, the machine: whatever has to be equal, by name.
    pub facts: BTreeMap<String, String>,
}

/// The connections of one rank.
#[derive(Debug)]
pub(in crate::runtime) struct Rendezvous {
    rank: u32,
    ranks: u32,
    /// By rank, on rank 0; else the one to rank 0.
    peers: Vec<(u32, Channel)>,
    timeout: Duration,
    broken: Option<FormError>,
}

impl Rendezvous {
    /// Meets the other ranks, who know the secret too, at `address`, within `timeout`; yields the cards of all, by rank.
    pub fn join(
        address: &str,
        secret: &Secret,
        card: Card,
        timeout: Duration,
    ) -> Result<(Rendezvous, Vec<Card>), FormError> {
        let deadline = Deadline::after(timeout);
        let (rank, ranks) = (card.rank, card.ranks);
        let (peers, cards) = match rank {
            0 => host(address, secret, card, &deadline)?,
            _ => visit(address, secret, card, &deadline)?,
        };
        Ok((Rendezvous { rank, ranks, peers, timeout, broken: None }, cards))
    }

    /// The values of all ranks, by rank. All ranks have to call it.
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

    /// The values of all ranks, by rank; if something failed on one of them, all get to know.
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
        for (rank, channel) in &mut self.peers {
            match channel.receive(*rank, deadline) {
                Ok(Message::Part(value)) => all.push(value),
                Ok(_) => {
                    let error = malformed(*rank, "not a part");
                    return Err(tell(&mut self.peers, error));
                }
                Err(e) => return Err(tell(&mut self.peers, e)),
            }
        }
        tell_all(&mut self.peers, &Message::All(all.clone()))?;
        Ok(all)
    }

    fn contribute(&mut self, own: Value, deadline: &Deadline) -> Result<Vec<Value>, FormError> {
        let ranks = self.ranks as usize;
        let (_, channel) = &mut self.peers[0];
        // Rank 0 may have gone after it said why: what it said is still to be read.
        let sent = channel.send(&Message::Part(own));
        // It waits for all others as long as this, and then says who did not come.
        match channel.receive(0, &deadline.later(INTRODUCTION))? {
            Message::All(all) if sent.is_ok() && all.len() == ranks => Ok(all),
            Message::All(all) => Err(malformed(0, format!("{} parts of {ranks} ranks", all.len()))),
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

pub(super) fn malformed(rank: u32, reason: impl ToString) -> FormError {
    FormError::Malformed { rank, reason: reason.to_string() }
}

/// Tells all ranks why there is no world. Who does not listen any more needs no telling.
fn tell(peers: &mut [(u32, Channel)], error: FormError) -> FormError {
    for (_, channel) in peers {
        let _ = channel.send(&Message::Failed(error.clone()));
    }
    error
}

/// Sends all ranks a message; if one is gone, all others get to know.
fn tell_all(peers: &mut [(u32, Channel)], message: &Message) -> Result<(), FormError> {
    for i in 0..peers.len() {
        let (rank, channel) = &mut peers[i];
        if channel.send(message).is_err() {
            let lost = FormError::Lost { rank: *rank };
            return Err(tell(peers, lost));
        }
    }
    Ok(())
}

type Met = (Vec<(u32, Channel)>, Vec<Card>);

/// Rank 0: waits for all others, and tells each rank which ranks are there.
fn host(address: &str, secret: &Secret, own: Card, deadline: &Deadline) -> Result<Met, FormError> {
    let listen =
        |reason: io::Error| FormError::Listen { address: address.into(), reason: reason.to_string() };
    let listener = TcpListener::bind(address).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let place = listener.local_addr().map_err(listen)?.to_string();
    let ranks = own.ranks;
    let mut introductions = Introductions::new(&listener, secret, 0);
    let mut peers: Vec<(u32, Channel)> = vec![];
    let mut cards = BTreeMap::from([(0, own)]);
    while (cards.len() as u32) < ranks {
        let watched: Vec<_> = peers.iter().map(|(_, channel)| channel.as_fd()).collect();
        let guest = match introductions.next(&watched, deadline).map_err(listen)? {
            Next::Guest(guest) => guest,
            // They have nothing to say before they are welcomed.
            Next::Watched(at) => {
                let lost = FormError::Lost { rank: peers[at].0 };
                return Err(tell(&mut peers, lost));
            }
            Next::TimeUp => {
                let missing = (0..ranks).filter(|r| !cards.contains_key(r)).collect();
                let (waited, turned_away) = (deadline.timeout(), introductions.all_turned_away());
                let place = place.clone();
                return Err(tell(&mut peers, FormError::Missing { missing, place, waited, turned_away }));
            }
        };
        let mut channel = Channel::new(guest.stream, guest.session);
        // It knows the secret, and says this at once.
        let card = match channel.receive(guest.rank, &deadline.within(INTRODUCTION)) {
            Ok(Message::Hello(card)) if card.rank == guest.rank => card,
            Ok(_) | Err(FormError::Malformed { .. }) => {
                introductions.turned_away(&guest.name, Stranger::Malformed);
                continue;
            }
            Err(_) => {
                introductions.turned_away(&guest.name, Stranger::HungUp);
                continue;
            }
        };
        if let Err(e) = fits(&cards, &card) {
            let _ = channel.send(&Message::Failed(e.clone()));
            return Err(tell(&mut peers, e));
        }
        peers.push((card.rank, channel));
        cards.insert(card.rank, card);
    }
    peers.sort_by_key(|(rank, _)| *rank);
    let cards: Vec<Card> = cards.into_values().collect();
    tell_all(&mut peers, &Message::Welcome(cards.clone()))?;
    Ok((peers, cards))
}

/// Whether a newcomer fits the ranks that are there.
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
    if new.share_gpus != own.share_gpus {
        return Err(mismatch("share_gpus", new.rank, new.share_gpus, 0, own.share_gpus));
    }
    let place = |card: &Card| (card.machine.clone(), card.bus_id.clone());
    let same = there.values().find(|card| place(card) == place(new));
    match same.filter(|_| !new.bus_id.is_empty()) {
        None => Ok(()),
        Some(_) if own.share_gpus => Ok(()),
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
fn visit(address: &str, secret: &Secret, card: Card, deadline: &Deadline) -> Result<Met, FormError> {
    let mut channel = connect(address, secret, card.rank, deadline)?;
    if channel.send(&Message::Hello(card.clone())).is_err() {
        return Err(FormError::Lost { rank: 0 });
    }
    // Rank 0 waits as long as this for the others, and then says who is missing.
    match channel.receive(0, &deadline.later(INTRODUCTION))? {
        Message::Welcome(cards) => {
            complete(&cards, &card)?;
            Ok((vec![(0, channel)], cards))
        }
        Message::Failed(e) => Err(e),
        _ => Err(malformed(0, "not a welcome")),
    }
}

/// Whether the cards that rank 0 hands out are those of a world, with this rank in it.
pub(super) fn complete(cards: &[Card], own: &Card) -> Result<(), FormError> {
    if cards.len() != own.ranks as usize {
        return Err(malformed(0, format!("{} cards of {} ranks", cards.len(), own.ranks)));
    }
    if let Some((rank, card)) = (0..).zip(cards).find(|(rank, card)| card.rank != *rank) {
        return Err(malformed(0, format!("the card of rank {} in place of rank {rank}'s", card.rank)));
    }
    if cards[own.rank as usize] != *own {
        return Err(malformed(0, format!("a card of rank {} that is not its own", own.rank)));
    }
    let mut there = BTreeMap::from([(0, cards[0].clone())]);
    for card in &cards[1..] {
        fits(&there, card)?;
        there.insert(card.rank, card.clone());
    }
    Ok(())
}

/// Connects to rank 0, wherever the address leads, and makes sure that it is rank 0.
fn connect(address: &str, secret: &Secret, rank: u32, deadline: &Deadline) -> Result<Channel, FormError> {
    // What the last attempt at each address came to; first, why there is no address.
    let mut reasons: BTreeMap<Option<SocketAddr>, String> = BTreeMap::new();
    while !deadline.left().is_zero() {
        let mut pause = RETRY;
        let found = address.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        match &found {
            Err(e) => drop(reasons.insert(None, e.to_string())),
            Ok(_) => drop(reasons.remove(&None)),
        }
        for one in found.unwrap_or_default() {
            let is_hurried = deadline.left() < HURRY;
            let unmet = match connect_to(one, secret, rank, deadline) {
                Ok(channel) => return Ok(channel),
                Err(unmet) => unmet,
            };
            let reason = unmet.at(one);
            if let Unmet::Stranger(_) = unmet {
                pause = REFUSED;
                if reasons.get(&Some(one)) != Some(&reason) {
                    log::warn!("rank {rank}: {reason}");
                }
            }
            // An attempt without time says nothing of the other side.
            if !(is_hurried && unmet.is_silence() && reasons.contains_key(&Some(one))) {
                reasons.insert(Some(one), reason);
            }
        }
        std::thread::sleep(pause.min(deadline.left()));
    }
    let reason = match reasons.is_empty() {
        true => "no attempt was made".to_owned(),
        false => reasons.into_values().collect::<Vec<_>>().join("; "),
    };
    Err(FormError::NoAnswer { address: address.into(), waited: deadline.timeout(), reason })
}

/// Why an attempt to reach rank 0 failed.
enum Unmet {
    Io(io::Error),
    Stranger(Stranger),
}

impl Unmet {
    /// Whether the other side has not answered at all.
    fn is_silence(&self) -> bool {
        match self {
            Unmet::Io(e) => e.kind() == io::ErrorKind::TimedOut,
            Unmet::Stranger(stranger) => *stranger == Stranger::Silent,
        }
    }

    /// What is wrong at an address.
    fn at(&self, address: SocketAddr) -> String {
        match self {
            Unmet::Stranger(stranger) => format!("the processes that listen at {address} {stranger}"),
            Unmet::Io(e) => match e.kind() {
                io::ErrorKind::ConnectionRefused => format!("nothing listens at {address}"),
                io::ErrorKind::TimedOut => format!(
                    "{address} gives no answer, not even a refusal: a firewall drops what is sent there, or the machine is down"
                ),
                io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
                    format!("this machine has no route to {address}")
                }
                _ => format!("{address}: {e}"),
            },
        }
    }
}

fn connect_to(
    address: SocketAddr,
    secret: &Secret,
    rank: u32,
    deadline: &Deadline,
) -> Result<Channel, Unmet> {
    let soon = deadline.within(INTRODUCTION);
    let mut stream = TcpStream::connect_timeout(&address, soon.left().max(RETRY)).map_err(Unmet::Io)?;
    let (own, other) = (stream.local_addr().map_err(Unmet::Io)?, stream.peer_addr().map_err(Unmet::Io)?);
    if own == other {
        // The system chose the very port at which no process listens.
        return Err(Unmet::Io(io::ErrorKind::ConnectionRefused.into()));
    }
    let _ = stream.set_nodelay(true);
    let session = introduce(&mut stream, &between(own, other), secret, (rank, 0), &soon);
    Ok(Channel::new(stream, session.map_err(Unmet::Stranger)?))
}

#[cfg(test)]
#[path = "rendezvous_tests.rs"]
pub(super) mod tests;
