//! Connections between the ranks of a world on several nodes, for what they need of each other before puts flow.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use hmac::{Hmac, Mac};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::channel::LONGEST;
use super::form::FormError;
use super::handshake::{Nonce, Proof, keyed};
use super::introductions::NEWCOMERS;
use super::launcher::{Launched, NODE_VARIABLE};
use super::rendezvous::{Card, Disagreed, Rendezvous, malformed};
use super::secret::{Secret, random};
use super::teams::{RANKS, Teams};
use crate::runtime::world::FORM_TIMEOUT;
use crate::runtime::{RuntimeError, reach};

/// Bytes around a rank's bytes in an exchange, at most.
const AROUND: usize = 256;

/// Most bytes of JSON for a byte.
const DIGITS: usize = 4;

/// Open files of rank 0 beside its connections.
const FILES: u64 = 64;

/// How the ranks of a world on several nodes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapOptions {
    /// How long ranks wait for each other whenever they have to come together.
    pub timeout: Duration,
    /// What has to be the same on all ranks, by name. Versions of Peerwarp are compared without being told.
    pub facts: BTreeMap<String, String>,
}

impl Default for BootstrapOptions {
    fn default() -> BootstrapOptions {
        BootstrapOptions { timeout: FORM_TIMEOUT, facts: BTreeMap::new() }
    }
}

/// A rank's connections in a world on several nodes.
///
/// Rank 0 listens at [`Launched::address`]; all others connect to it by TCP, and prove the world's secret in both directions.
/// Ranks then tell each other their nodes. All methods that take `&mut self` are collective: all ranks call the same ones in the
/// same order. Each ends within [`BootstrapOptions::timeout`] and a few seconds, with an error that names a rank or an address.
/// After an error the connections are of no use.
///
/// Each rank's bytes in an [exchange](Bootstrap::exchange) are sealed with a key of this world: bytes of another world, another
/// rank or an earlier exchange are refused. They are not encrypted.
///
/// ```no_run
/// use peerwarp::runtime::{Bootstrap, BootstrapOptions, Launched, RuntimeError};
///
/// # fn card() -> Vec<u8> { vec![] }
/// let launched = Launched::here()?.expect("a launcher starts this program");
/// let mut bootstrap = Bootstrap::join(&launched, &BootstrapOptions::default())?;
/// println!("{} nodes of {} ranks", bootstrap.teams().nodes(), bootstrap.teams().local_ranks());
/// let cards = bootstrap.exchange(&card())?; // one of each rank, for its network card
/// // .. puts flow ..
/// bootstrap.agree(Ok::<_, RuntimeError>(()))?; // all ranks have finished
/// # Ok::<(), RuntimeError>(())
/// ```
#[derive(Debug)]
pub struct Bootstrap {
    rank: u32,
    teams: Teams,
    rendezvous: Rendezvous,
    seals: Seals,
    /// Exchanges so far.
    exchanges: u64,
}

/// What ranks tell each other of themselves.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// The same on ranks of one node.
    pub node: String,
    /// Drawn for this world.
    pub nonce: Nonce,
}

/// A rank's bytes in an exchange.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    bytes: Vec<u8>,
    seal: Proof,
}

/// Seals what ranks say in one world.
pub(super) struct Seals {
    key: Proof,
    ranks: u32,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seals(..)")
    }
}

impl Seals {
    /// Of the world of these ranks. Each rank's nonce is part of the key: a rank that replays what it once heard has another.
    pub fn new(secret: &Secret, introductions: &[Introduction]) -> Seals {
        let ranks = introductions.len() as u32;
        let mut mac = keyed(secret.expose().as_bytes());
        mac.update(b"peerwarp bootstrap");
        mac.update(&ranks.to_le_bytes());
        for Introduction { node, nonce } in introductions {
            mac.update(nonce);
            // With its length: no two lists are the same bytes.
            mac.update(&(node.len() as u64).to_le_bytes());
            mac.update(node.as_bytes());
        }
        Seals { key: mac.finalize().into_bytes().into(), ranks }
    }

    fn mac(&self, rank: u32, exchange: u64, bytes: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed(&self.key);
        mac.update(&self.ranks.to_le_bytes());
        mac.update(&rank.to_le_bytes());
        mac.update(&exchange.to_le_bytes());
        mac.update(bytes);
        mac
    }

    /// A rank's bytes in an exchange.
    pub fn close(&self, rank: u32, exchange: u64, bytes: &[u8]) -> Part {
        let seal = self.mac(rank, exchange, bytes).finalize().into_bytes().into();
        Part { bytes: bytes.to_vec(), seal }
    }

    /// The bytes of a rank, if they are its own in this exchange.
    pub fn open(&self, rank: u32, exchange: u64, part: Part) -> Result<Vec<u8>, FormError> {
        match self.mac(rank, exchange, &part.bytes).verify_slice(&part.seal) {
            Ok(()) => Ok(part.bytes),
            Err(_) => Err(malformed(rank, "bytes of another rank, another exchange or another world")),
        }
    }
}

impl Bootstrap {
    /// Meets the other ranks. Ranks of a host are a node, unless [`Launched::node`] names it.
    ///
    /// # Errors
    /// Ranks do not come, differ in a fact or do not know the secret; nodes have different numbers of ranks; or the system
    /// allows rank 0 fewer open files than there are ranks.
    pub fn join(launched: &Launched, options: &BootstrapOptions) -> Result<Bootstrap, RuntimeError> {
        launched.check(RANKS)?;
        let (rank, ranks) = (launched.rank, launched.ranks);
        if rank == 0 {
            check_files(ranks, getrlimit(Resource::Nofile).current)?;
        }
        let node = node(launched, reach::machine())?;
        let own = [("peerwarp", env!("CARGO_PKG_VERSION")), ("meeting", "nodes")];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let facts = options.facts.clone().into_iter().chain(own).collect();
        let card = Card { rank, ranks, facts, ..Card::default() };
        let (mut rendezvous, _) =
            Rendezvous::join(&launched.address, &launched.secret, card, options.timeout)?;
        let nonce = random().map_err(|e| RuntimeError::invalid("random numbers of the system", e, "needed"));
        let own = nonce.map(|nonce| Introduction { node, nonce });
        let nonce = own.as_ref().ok().map(|one| one.nonce);
        let introductions: Vec<Introduction> = settle::<_, RuntimeError>(rendezvous.share(own))?;
        // A list of an earlier world would give that world's key.
        if introductions.get(rank as usize).map(|one| one.nonce) != nonce {
            return Err(malformed(0, format!("an introduction of rank {rank} that is not its own")).into());
        }
        let teams = Teams::by_node(&introductions.iter().map(|one| &one.node).collect::<Vec<_>>())?;
        let seals = Seals::new(&launched.secret, &introductions);
        Ok(Bootstrap { rank, teams, rendezvous, seals, exchanges: 0 })
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The world's ranks, by node and by rail.
    pub fn teams(&self) -> &Teams {
        &self.teams
    }

    /// Most bytes of each rank in an exchange: 4 MiB by the number of ranks, less 64.
    pub fn room(&self) -> usize {
        room(self.teams.ranks())
    }

    /// The bytes of all ranks, by rank. All ranks call it; their bytes may have different lengths, up to [`Bootstrap::room`].
    ///
    /// # Errors
    /// A rank has too many bytes, is gone, does not come in time, or its bytes are not what it says in this exchange.
    pub fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, RuntimeError> {
        self.exchanges += 1;
        let room = self.room();
        let part = match own.len() <= room {
            true => Ok(self.seals.close(self.rank, self.exchanges, own)),
            false => {
                let allowed = format!("at most {room} for each of {} ranks", self.teams.ranks());
                Err(RuntimeError::invalid("bytes of an exchange", own.len(), allowed))
            }
        };
        let parts: Vec<Part> = settle(self.rendezvous.share(part))?;
        let open = |(part, rank)| Ok(self.seals.open(rank, self.exchanges, part)?);
        parts.into_iter().zip(0..).map(open).collect()
    }

    /// Waits for all ranks; an error on one of them becomes an error on all of them. All ranks call it.
    ///
    /// # Errors
    /// This rank's own, or a [`FormError`] that names a rank that failed, is gone or does not come in time.
    pub fn agree<T, E>(&mut self, result: Result<T, E>) -> Result<T, E>
    where
        E: From<RuntimeError> + Display,
    {
        settle(self.rendezvous.agree(result))
    }
}

fn settle<T, E: From<RuntimeError>>(result: Result<T, Disagreed<E>>) -> Result<T, E> {
    result.map_err(|e| match e {
        Disagreed::Own(own) => own,
        Disagreed::Other(other) => RuntimeError::from(other).into(),
    })
}

/// Most bytes of each of so many ranks in an exchange: all of them are one message.
fn room(ranks: u32) -> usize {
    (LONGEST as usize / ranks as usize).saturating_sub(AROUND) / DIGITS
}

/// Fails unless rank 0 may have a connection with each rank.
pub(in crate::runtime) fn check_files(ranks: u32, limit: Option<u64>) -> Result<(), RuntimeError> {
    let needed = u64::from(ranks) + NEWCOMERS as u64 + FILES;
    match limit {
        Some(limit) if limit < needed => {
            let allowed = format!("at least {needed} on rank 0, for {ranks} ranks (`ulimit -n {needed}`)");
            Err(RuntimeError::invalid("open files", limit, allowed))
        }
        _ => Ok(()),
    }
}

/// What a rank's node is known by: no name of a node is a machine's.
pub(in crate::runtime) fn node(launched: &Launched, machine: String) -> Result<String, RuntimeError> {
    match &launched.node {
        Some(name) => Ok(format!("node {name}")),
        None if !machine.is_empty() => Ok(format!("machine {machine}")),
        None => {
            let allowed = "a name of this rank's node, as the system has no /proc/sys/kernel/random/boot_id";
            Err(RuntimeError::invalid(NODE_VARIABLE, "", allowed))
        }
    }
}

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
