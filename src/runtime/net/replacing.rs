//! How a process that takes the place of one that is gone meets the others, which go on.
//!
//! The active rank of the lowest number listens where rank 0 did when the world was formed. The newcomer goes there, proves that it
//! knows the secret, and learns at which doors the others wait for it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::deadline::Deadline;
use super::form::FormError;
use super::handover::Door;
use super::introductions::INTRODUCTION;
use super::ledger::{Ledger, View};
use super::links::{Links, settle};
use super::rendezvous::{Card, Rendezvous, malformed};
use crate::runtime::RuntimeError;

/// What has to be the same for the one that listens and the one that comes, beside what has to be the same on all ranks.
const PLACE: &str = "rank that is replaced";

/// What a rank has when another one takes a place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::runtime) struct Present {
    /// Who it is, and its door.
    card: Card,
    /// The allocations that it shares, in their order: number and bytes.
    pub allocations: Vec<(u32, u64)>,
    /// The number of the next one.
    pub next: u32,
}

impl Present {
    /// Of a rank that has these allocations, and gives the next one a number.
    pub fn new(allocations: Vec<(u32, u64)>, next: u32) -> Present {
        Present { card: Card::default(), allocations, next }
    }
}

/// What the newcomer gets to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Welcome {
    view: u32,
    active: u64,
    there: Vec<Present>,
}

/// What either side of the meeting says.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Said {
    Welcome(Welcome),
    Newcomer(Present),
}

impl Links {
    /// Lets a newcomer in as `rank`: yields what it has, on all ranks that are there.
    ///
    /// # Errors
    /// It does not come, or does not fit; the others do not call this.
    pub fn admit(
        &mut self,
        rank: u32,
        (ledger, view): (&Ledger, View),
        own: Present,
    ) -> Result<Present, RuntimeError> {
        let door = Door::open();
        let said =
            door.as_ref().map(|door| Present { card: self.card_at(door), ..own }).map_err(Clone::clone);
        let there: Vec<Present> = self.gather(said.map_err(RuntimeError::from))?;
        let (door, host) = (door?, there[0].card.rank);
        let met = if host == self.rank {
            let welcome = Welcome { view: view.number, active: view.active, there };
            self.meet((0, host, rank), Said::Welcome(welcome)).map(Some)
        } else {
            Ok(None)
        };
        // The others wait as long as the one that listens, and then hear why no process came.
        let late = Deadline::after(self.timeout).later(INTRODUCTION);
        let met = self.gather_until(met, &late)?.into_iter().flatten().next();
        let Some(Said::Newcomer(newcomer)) = met else {
            return Err(malformed(host, "not what a newcomer has").into());
        };
        let deadline = Deadline::after(self.timeout);
        let peers = door.admit(self.rank, &self.launched.secret, vec![rank], &deadline)?;
        self.handover.with(view.number, peers);
        if host == self.rank {
            self.handover.give(rank, ledger.file()?)?;
        }
        Ok(newcomer)
    }

    /// Takes the place of its rank: yields what the first of the others has, the page on which they decide, and the last view there.
    ///
    /// # Errors
    /// No rank listens, this process does not fit, or a rank is gone.
    pub fn take_place(&mut self, own: Present) -> Result<(Present, Ledger, View), RuntimeError> {
        let (rank, deadline) = (self.rank, Deadline::after(self.timeout));
        let door = Door::open()?;
        let own = Present { card: self.card_at(&door), ..own };
        let Said::Welcome(Welcome { view, active, there }) = self.meet((1, 0, rank), Said::Newcomer(own))?
        else {
            return Err(malformed(0, "not a welcome").into());
        };
        let Some(first) = there.first().cloned() else { return Err(malformed(0, "no ranks").into()) };
        let mut peers = vec![];
        for Present { card, .. } in &there {
            peers.push((card.rank, door.visit(rank, &self.launched.secret, card, &deadline)?));
        }
        self.handover.with(view, peers);
        let file: OwnedFd = self.handover.file_of(first.card.rank, &deadline)?;
        let ledger = Ledger::take_over(file, rank)?;
        Ok((first, ledger, View { number: view, active }))
    }

    fn card_at(&self, door: &Door) -> Card {
        Card { socket: door.path().display().to_string(), ..self.card.clone() }
    }

    /// Meets the other side, as the one that listens, 0, or the one that comes, 1: what that says.
    fn meet(&self, (side, host, newcomer): (u32, u32, u32), said: Said) -> Result<Said, RuntimeError> {
        let place = BTreeMap::from([(PLACE.to_owned(), newcomer.to_string())]);
        let facts = self.card.facts.clone().into_iter().chain(place).collect();
        let card = Card { rank: side, ranks: 2, socket: String::new(), facts, ..self.card.clone() };
        let (address, secret) = (&self.launched.address, &self.launched.secret);
        let met = Rendezvous::join(address, secret, card, self.timeout).map_err(RuntimeError::from);
        let met = met.and_then(|(mut rendezvous, _)| settle(rendezvous.share(Ok::<_, RuntimeError>(said))));
        let both: Vec<Said> = met.map_err(|e| of_world(e, [host, newcomer]))?;
        both.into_iter().nth(1 - side as usize).ok_or_else(|| malformed(host, "one side of two").into())
    }
}

/// An error of the meeting of two, with the ranks of the world.
fn of_world(error: RuntimeError, ranks: [u32; 2]) -> RuntimeError {
    let of = |rank: u32| ranks.get(rank as usize).copied().unwrap_or(rank);
    let RuntimeError::Form(error) = error else { return error };
    RuntimeError::Form(match error {
        FormError::Missing { missing, place, waited, turned_away } => {
            FormError::Missing { missing: missing.into_iter().map(of).collect(), place, waited, turned_away }
        }
        FormError::Mismatch { field, rank, value, other_rank, other } => {
            FormError::Mismatch { field, rank: of(rank), value, other_rank: of(other_rank), other }
        }
        FormError::SameGpu { a, b, bus_id } => FormError::SameGpu { a: of(a), b: of(b), bus_id },
        FormError::Lost { rank } => FormError::Lost { rank: of(rank) },
        FormError::Late { rank, waited } => FormError::Late { rank: of(rank), waited },
        FormError::Failed { rank, reason } => FormError::Failed { rank: of(rank), reason },
        FormError::Malformed { rank, reason } => FormError::Malformed { rank: of(rank), reason },
        other => other,
    })
}
