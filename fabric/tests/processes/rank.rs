//! What a process does as one rank: rounds of an exchange between all ranks, in which every byte is compared.
//!
//! A round's messages go to one of two banks. An outbox's bank is written again when its puts are delivered, an inbox's bank
//! when its owner has given credit. Each bank has a channel of its own, as a count says nothing about which puts arrived.

use std::time::Duration;

use peerwarp_fabric::{
    Book, Channel, Command, Endpoint, EndpointOptions, Memory, Op, Provider, Proxy, ProxyOptions, Ring,
    Station, UNIT, Words,
};

use crate::lines::{bytes, hear, hex, say};

/// Bytes that one rank sends another in a round, at most.
const SLOT: usize = 48 << 10;
/// Channels: two banks, and credits.
const CHANNELS: u8 = 3;
const CREDITS: u8 = 2;
/// Slots of a ring: few, so that rings are full at times.
const SLOTS: u64 = 4;

/// What the parent asks of a process.
#[derive(Clone, Debug)]
pub struct Job {
    pub rank: u16,
    pub ranks: u16,
    pub provider: String,
    pub rounds: u64,
    pub seed: u64,
    /// For a peer to answer a proxy. Kernels wait for twice as long.
    pub budget: Duration,
    /// What goes wrong on this rank, and in which round.
    pub fault: String,
}

const VARIABLES: [&str; 7] = ["RANK", "RANKS", "PROVIDER", "ROUNDS", "SEED", "BUDGET", "FAULT"];

impl Job {
    /// For a child's environment.
    pub fn variables(&self) -> impl Iterator<Item = (String, String)> {
        let values = [
            self.rank.to_string(),
            self.ranks.to_string(),
            self.provider.clone(),
            self.rounds.to_string(),
            self.seed.to_string(),
            self.budget.as_millis().to_string(),
            self.fault.clone(),
        ];
        VARIABLES.iter().map(|name| format!("PEERWARP_TEST_{name}")).zip(values)
    }

    /// What the parent asks of this process.
    pub fn here() -> Option<Job> {
        let mut told = VARIABLES.iter().map(|name| std::env::var(format!("PEERWARP_TEST_{name}")).ok());
        let mut next = || told.next().flatten();
        let (rank, ranks, provider) = (next()?, next()?, next()?);
        let (rounds, seed, budget, fault) = (next()?, next()?, next()?, next()?);
        Some(Job {
            rank: rank.parse().unwrap(),
            ranks: ranks.parse().unwrap(),
            provider,
            rounds: rounds.parse().unwrap(),
            seed: seed.parse().unwrap(),
            budget: Duration::from_millis(budget.parse().unwrap()),
            fault,
        })
    }

    pub fn endpoint(&self) -> EndpointOptions {
        options(self.provider.parse().unwrap())
    }
}

/// Options for a provider on this host.
pub fn options(provider: Provider) -> EndpointOptions {
    let domain = (provider == Provider::Tcp).then(|| "lo".into());
    EndpointOptions { provider: Some(provider), domain }
}

/// A number that follows from others.
pub fn mix(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9_7f4a_7c15, |state, number| {
        let x = (state ^ number).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (x ^ x >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ x >> 32
    })
}

/// Units of the puts that one rank sends another in a round: one to three puts, at times long ones.
fn puts(job: &Job, from: u16, to: u16, round: u64) -> Vec<u32> {
    let draw = |n: u64| mix(&[job.seed, 1, from.into(), to.into(), round, n]);
    let most = if draw(9).is_multiple_of(24) { SLOT / 3 / UNIT } else { 24 };
    (0..1 + draw(0) % 3).map(|n| 1 + (draw(1 + n) % most as u64) as u32).collect()
}

/// The words that one rank sends another in a round.
fn words(job: &Job, from: u16, to: u16, round: u64, units: u32) -> Vec<u64> {
    let start = mix(&[job.seed, 2, from.into(), to.into(), round]);
    (0..u64::from(units) * 2).map(|n| (start ^ n).wrapping_mul(0x2545_f491_4f6c_dd1d)).collect()
}

/// A rank that has joined.
struct Rank<'a> {
    job: &'a Job,
    proxy: Proxy,
    words: Words,
    data: Ring,
    credits: Ring,
    channels: Vec<Channel>,
    /// Commands of the ring of data at the end of each of the last two rounds.
    ends: [u64; 2],
    /// Puts that are awaited on each bank's channel from each rank.
    awaited: [Vec<u64>; 2],
}

pub fn run(job: &Job) {
    let mut rank = Rank::join(job);
    say("ready");
    assert_eq!(hear(), "go");
    let ran = (0..job.rounds).try_for_each(|round| rank.round(round)).and_then(|()| rank.drain());
    match ran {
        Ok(()) => say("rounds"),
        Err(sentence) => {
            let faults = rank.proxy.faults();
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            say(&format!("fault {sentence} | {}", faults.join(" | ")));
        }
    }
    assert_eq!(hear(), "close");
    let words = rank.words.clone();
    let closed = rank.proxy.close(Duration::from_secs(2));
    match closed {
        Ok(summary) => {
            let counts: u64 = (0..CHANNELS)
                .flat_map(|c| (0..job.ranks).map(move |r| (c, r)))
                .map(|(c, r)| words.count(c, r))
                .sum();
            assert_eq!(counts, summary.arrivals);
            say(&format!("closed {} {} {}", summary.puts, summary.bytes, summary.arrivals));
        }
        Err(e) => say(&format!("failed {e}")),
    }
}

impl<'a> Rank<'a> {
    fn join(job: &'a Job) -> Rank<'a> {
        let ranks = usize::from(job.ranks);
        let endpoint = Endpoint::open(&job.endpoint()).unwrap();
        let channel = |bytes: usize| Channel {
            outbox: Memory::zeroed(bytes).unwrap(),
            inbox: Memory::zeroed(bytes).unwrap(),
        };
        let channels = vec![channel(SLOT * ranks), channel(SLOT * ranks), channel(UNIT * ranks)];
        let station = Station::new(endpoint, job.rank, job.ranks, &channels).unwrap();
        say(&format!("card {}", hex(&station.card())));
        let cards = hear();
        let mut book = Book::new(&station);
        for (rank, card) in (0..).zip(cards.split(' ')).filter(|(rank, _)| *rank != job.rank) {
            book.insert(rank, &bytes(card)).unwrap();
        }
        let ring = |index| Ring::new(Memory::zeroed(Ring::bytes(SLOTS)).unwrap(), index, SLOTS).unwrap();
        let (data, credits) = (ring(0), ring(1));
        let memory = Memory::zeroed(Words::bytes(CHANNELS, job.ranks)).unwrap();
        let words = Words::new(memory, CHANNELS, job.ranks).unwrap();
        let options = ProxyOptions { budget: job.budget, ..ProxyOptions::default() };
        let rings = vec![data.clone(), credits.clone()];
        let proxy = Proxy::start(station, book, rings, words.clone(), &options).unwrap();
        let awaited = [vec![0; ranks], vec![0; ranks]];
        Rank { job, proxy, words, data, credits, channels, ends: [0; 2], awaited }
    }

    fn peers(&self) -> impl Iterator<Item = u16> + use<> {
        // Ranks begin with different peers.
        let (rank, ranks) = (self.job.rank, self.job.ranks);
        (1..ranks).map(move |n| (rank + n) % ranks)
    }

    /// One exchange, or the sentence that says what went wrong.
    fn round(&mut self, round: u64) -> Result<(), String> {
        let job = self.job;
        self.go_wrong(round);
        let (bank, wait) = ((round % 2) as usize, job.budget * 2);
        let draw = mix(&[job.seed, 3, job.rank.into(), round]);
        if draw.is_multiple_of(16) {
            std::thread::sleep(Duration::from_micros(draw % 1000));
        }
        let said = |e: &dyn std::fmt::Display| e.to_string();
        // The puts of two rounds ago have left this bank of the outbox.
        self.data.wait_delivered(self.ends[bank], &self.words, wait).map_err(|e| said(&e))?;
        for peer in self.peers() {
            // The peer has read what this rank put into its inbox two rounds ago.
            self.words.wait_count(CREDITS, peer, round.saturating_sub(1), wait).map_err(|e| said(&e))?;
            let mut at = 0;
            let puts = puts(job, job.rank, peer, round);
            let message = words(job, job.rank, peer, round, puts.iter().sum());
            self.channels[bank].outbox.write(usize::from(peer) * SLOT, &message);
            for units in puts {
                let place = |rank: u16| usize::from(rank) * SLOT / UNIT + at;
                let (from, to) = (place(peer) as u32, place(job.rank) as u32);
                let command = Command { op: Op::PutAndCount, channel: bank as u8, peer, from, to, units };
                let number = self.data.push(&command, &self.words, wait).map_err(|e| said(&e))?;
                self.ends[bank] = number + 1;
                at += units as usize;
            }
        }
        for peer in self.peers() {
            let puts = puts(job, peer, job.rank, round);
            let awaited = &mut self.awaited[bank][usize::from(peer)];
            *awaited += puts.len() as u64;
            let count = self.words.wait_count(bank as u8, peer, *awaited, wait).map_err(|e| said(&e))?;
            assert_eq!(count, *awaited, "rank {peer} put into a bank that has no credit, in round {round}");
            let expected = words(job, peer, job.rank, round, puts.iter().sum());
            let mut got = vec![0; expected.len()];
            self.channels[bank].inbox.read(usize::from(peer) * SLOT, &mut got);
            assert!(got == expected, "bytes of rank {peer} differ in round {round}");
            let (from, to) = (0, job.rank.into());
            let credit = Command { op: Op::PutAndCount, channel: CREDITS, peer, from, to, units: 1 };
            self.credits.push(&credit, &self.words, wait).map_err(|e| said(&e))?;
        }
        Ok(())
    }

    /// Waits until all is delivered: a peer that has closed takes in nothing.
    fn drain(&self) -> Result<(), String> {
        let wait = |ring: &Ring| ring.wait_delivered(ring.reserved(), &self.words, self.job.budget * 2);
        [&self.data, &self.credits].into_iter().try_for_each(wait).map_err(|e| e.to_string())
    }

    /// What the parent asked this rank to suffer.
    fn go_wrong(&self, round: u64) {
        match self.job.fault.split_once(' ') {
            Some(("unplug", at)) if at.parse() == Ok(round) => self.proxy.unplug(),
            // For good: the thread is held up until the process ends.
            Some(("stall", at)) if at.parse() == Ok(round) => std::mem::forget(self.proxy.stall()),
            _ => {}
        }
    }
}
