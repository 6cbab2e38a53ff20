//! What a rank does when it knows the others: rounds of puts, each compared and credited.

use std::time::Duration;

use peerwarp_fabric::{
    Book, Channel, Command, Endpoint, EndpointOptions, Memory, Op, Proxy, ProxyOptions, Ring, Station,
    Summary, UNIT, Words,
};

use crate::{Arguments, Failure};

/// The channel of messages. Outbox and inbox have a slot for each rank.
const DATA: u8 = 0;
/// The channel of credits, after which a slot of an inbox may be written again.
const CREDIT: u8 = 1;
const CHANNELS: u8 = 2;
/// Slots of the ring of commands.
const SLOTS: u64 = 1024;

/// A rank's memory and endpoint, before it knows the others.
pub struct Opened {
    station: Station,
    data: Channel,
    rank: u16,
    ranks: u16,
    /// Bytes of a put.
    bytes: usize,
    /// How long a kernel would wait: longer than a proxy, which names a dead peer first.
    wait: Duration,
}

impl Opened {
    /// Opens the network, and registers this rank's memory.
    pub fn new(arguments: &Arguments, rank: u32, ranks: u32) -> Result<Opened, Failure> {
        let Arguments { provider, domain, .. } = arguments.clone();
        let bytes = arguments.bytes as usize;
        if bytes == 0 || !bytes.is_multiple_of(UNIT) {
            return Err(format!("--bytes {bytes}: a multiple of {UNIT}").into());
        }
        let endpoint = Endpoint::open(&EndpointOptions { provider, domain })?;
        let channel = |slot: usize| -> Result<Channel, Failure> {
            let bytes = slot * ranks as usize;
            Ok(Channel { outbox: Memory::zeroed(bytes)?, inbox: Memory::zeroed(bytes)? })
        };
        let (data, credits) = (channel(bytes)?, channel(UNIT)?);
        let (rank, ranks) = (u16::try_from(rank)?, u16::try_from(ranks)?);
        let station = Station::new(endpoint, rank, ranks, &[data.clone(), credits])?;
        Ok(Opened { station, data, rank, ranks, bytes, wait: arguments.budget() * 2 })
    }

    /// What the other ranks need of this one.
    pub fn card(&self) -> Vec<u8> {
        self.station.card()
    }

    /// Starts the proxy, with the cards of all ranks.
    pub fn start(self, cards: &[Vec<u8>], peers: Vec<u32>) -> Result<Rank, Failure> {
        let Opened { station, data, rank, ranks, bytes, wait } = self;
        let mut book = Book::new(&station);
        for (other, card) in (0..).zip(cards).filter(|(other, _)| *other != rank) {
            book.insert(other, card)?;
        }
        let ring = Ring::new(Memory::zeroed(Ring::bytes(SLOTS))?, 0, SLOTS)?;
        let words = Words::new(Memory::zeroed(Words::bytes(CHANNELS, ranks))?, CHANNELS, ranks)?;
        let options = ProxyOptions { budget: wait / 2, ..ProxyOptions::default() };
        let proxy = Proxy::start(station, book, vec![ring.clone()], words.clone(), &options)?;
        let peers = peers.into_iter().map(u16::try_from).collect::<Result<_, _>>()?;
        Ok(Rank { proxy, ring, words, data, rank, peers, bytes, wait })
    }
}

/// A rank with a running proxy.
pub struct Rank {
    proxy: Proxy,
    ring: Ring,
    words: Words,
    data: Channel,
    rank: u16,
    peers: Vec<u16>,
    bytes: usize,
    wait: Duration,
}

impl Rank {
    /// Rounds of puts. Says so after the first one.
    pub fn rounds(&self, rounds: u64) -> Result<(), Failure> {
        for round in 0..rounds {
            self.round(round)?;
            if round == 0 {
                println!("rank {}: first round done", self.rank);
            }
        }
        Ok(())
    }

    fn round(&self, round: u64) -> Result<(), Failure> {
        let units = (self.bytes / UNIT) as u32;
        for &peer in &self.peers {
            let slot = usize::from(peer) * self.bytes;
            self.data.outbox.write(slot, &self.words_of(self.rank, peer, round));
            self.put(DATA, peer, u32::from(peer) * units, u32::from(self.rank) * units, units)?;
        }
        for &peer in &self.peers {
            self.words.wait_count(DATA, peer, round + 1, self.wait)?;
            let mut arrived = vec![0; self.bytes / 8];
            self.data.inbox.read(usize::from(peer) * self.bytes, &mut arrived);
            if arrived != self.words_of(peer, self.rank, round) {
                return Err(format!("bytes of rank {peer} differ in round {round}").into());
            }
            self.put(CREDIT, peer, 0, u32::from(self.rank), 1)?;
        }
        for &peer in &self.peers {
            self.words.wait_count(CREDIT, peer, round + 1, self.wait)?;
        }
        // The outbox is written again in the next round.
        Ok(self.ring.wait_delivered(self.ring.reserved(), &self.words, self.wait)?)
    }

    fn put(&self, channel: u8, peer: u16, from: u32, to: u32, units: u32) -> Result<(), Failure> {
        let command = Command { op: Op::PutAndCount, channel, peer, from, to, units };
        self.ring.push(&command, &self.words, self.wait)?;
        Ok(())
    }

    /// What one rank sends another in a round.
    fn words_of(&self, from: u16, to: u16, round: u64) -> Vec<u64> {
        let start = u64::from(from) << 48 | u64::from(to) << 32 | round;
        let word = |n: u64| (start ^ n << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..self.bytes as u64 / 8).map(word).collect()
    }

    /// Ends the proxy. All ranks have finished.
    pub fn close(self) -> Result<Summary, Failure> {
        Ok(self.proxy.close(self.wait)?)
    }
}
