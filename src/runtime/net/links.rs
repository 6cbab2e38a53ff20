//! The connections between the processes of a world.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::deadline::Deadline;
use super::form::FormError;
use super::handover::{Door, Handover};
use super::launcher::Launched;
use super::ledger::Ledger;
use super::rendezvous::{Card, Disagreed, Rendezvous, malformed};
use super::teams::Teams;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::ShareHandle;

/// The connections of one rank. Every call is collective: all ranks make the same ones, in the same order.
#[derive(Debug)]
pub(in crate::runtime) struct Links {
    /// None of a process that takes the place of another one.
    rendezvous: Option<Rendezvous>,
    pub(super) handover: Handover,
    pub(super) rank: u32,
    pub(super) timeout: Duration,
    /// How this process was started.
    pub(super) launched: Launched,
    /// What it said of itself.
    pub(super) card: Card,
}

impl Links {
    /// Meets the other ranks; yields the cards of all, by rank, and the nodes that they are on. The card's socket is filled in here.
    pub fn join(
        launched: &Launched,
        mut card: Card,
        timeout: Duration,
    ) -> Result<(Links, Vec<Card>, Teams), RuntimeError> {
        let door = Door::open()?;
        card.socket = door.path().display().to_string();
        let secret = &launched.secret;
        let (mut rendezvous, cards) = Rendezvous::join(&launched.address, secret, card.clone(), timeout)?;
        // The same cards on all ranks: all of them stop here, or none.
        let teams = Teams::in_order(&cards.iter().map(|card| &card.node).collect::<Vec<_>>())?;
        let near = near(&cards, launched.rank);
        let connected = door.connect(launched.rank, secret, &near, &Deadline::after(timeout));
        let handover = settle(rendezvous.agree(connected))?;
        let (rank, launched, rendezvous) = (launched.rank, launched.clone(), Some(rendezvous));
        Ok((Links { rendezvous, handover, rank, timeout, launched, card }, cards, teams))
    }

    /// The page on which ranks of its node, so many from `first` on, say who goes on.
    pub fn ledger(&mut self, first: u32, ranks: u32) -> Result<Ledger, RuntimeError> {
        let deadline = Deadline::after(self.timeout);
        let file = self.handover.of_first(self.rank, || Ledger::create(all_of(ranks)), &deadline);
        let open = |file: OwnedFd| Ledger::open(file, self.rank - first);
        self.agree(file.and_then(open).map_err(RuntimeError::from))
    }

    /// Goes over to a view: from here on only its ranks meet, of those of one node.
    pub fn go_over(&mut self, view: u32, goes_on: impl Fn(u32) -> bool) {
        self.handover.go_over(view, goes_on);
    }

    /// The number of the view in which it speaks.
    pub fn view(&self) -> u32 {
        self.handover.view()
    }

    /// The other ranks of its node that go on, in order.
    pub fn near_ranks(&self) -> Vec<u32> {
        self.handover.ranks().collect()
    }

    /// Those of a process that knows no other one yet, and takes a rank's place later.
    pub fn alone(launched: &Launched, card: Card, timeout: Duration) -> Links {
        let (rank, launched, handover) = (launched.rank, launched.clone(), Handover::alone());
        Links { rendezvous: None, handover, rank, timeout, launched, card }
    }

    /// Whether it knows no other process yet.
    pub fn is_alone(&self) -> bool {
        self.rendezvous.is_none() && self.near_ranks().is_empty()
    }

    /// Waits for all ranks; an error on one of them becomes an error on all of them.
    pub fn agree<T>(&mut self, result: Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        if let (0, Some(rendezvous)) = (self.handover.view(), &mut self.rendezvous) {
            return settle(rendezvous.agree(result));
        }
        let (own, said) = match result {
            Ok(own) => (Some(own), Ok(())),
            Err(e) => (None, Err(e)),
        };
        self.gather::<()>(said)?;
        Ok(own.expect("an error here is an error of all"))
    }

    /// The values of all ranks, by rank; an error on one of them becomes an error on all of them.
    pub fn gather<T>(&mut self, result: Result<T, RuntimeError>) -> Result<Vec<T>, RuntimeError>
    where
        T: Serialize + DeserializeOwned,
    {
        let deadline = Deadline::after(self.timeout);
        self.gather_until(result, &deadline)
    }

    /// The same within another time.
    pub(super) fn gather_until<T>(
        &mut self,
        result: Result<T, RuntimeError>,
        deadline: &Deadline,
    ) -> Result<Vec<T>, RuntimeError>
    where
        T: Serialize + DeserializeOwned,
    {
        if let (0, Some(rendezvous)) = (self.handover.view(), &mut self.rendezvous) {
            return settle(rendezvous.share(result));
        }
        let said = serde_json::to_vec(&result.as_ref().map_err(ToString::to_string));
        let said = said.map_err(|e| malformed(self.rank, e))?;
        let all = self.handover.gather(self.rank, said, deadline);
        result?;
        let value = |(rank, said): (u32, Vec<u8>)| match serde_json::from_slice::<Result<T, String>>(&said) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(reason)) => Err(FormError::Failed { rank, reason }.into()),
            Err(e) => Err(malformed(rank, e).into()),
        };
        all?.into_iter().map(value).collect()
    }

    /// Gives every other rank of its node a handle, and takes theirs.
    pub fn exchange(
        &mut self,
        handles: &[ShareHandle],
        bytes: u64,
    ) -> Result<Vec<(u32, u64, ShareHandle)>, RuntimeError> {
        Ok(self.handover.exchange(handles, bytes, &Deadline::after(self.timeout))?)
    }

    /// A rank of its node whose process is gone, if there is one.
    pub fn lost(&self) -> Option<u32> {
        self.handover.lost().first().copied()
    }

    /// The ranks of its node whose processes are gone.
    pub fn all_lost(&self) -> Vec<u32> {
        self.handover.lost()
    }
}

/// So many ranks, as a mask.
pub(in crate::runtime) fn all_of(ranks: u32) -> u64 {
    u64::MAX >> (64 - ranks.clamp(1, 64))
}

/// The cards of a rank's node.
pub(in crate::runtime) fn near(cards: &[Card], rank: u32) -> Vec<Card> {
    let node = cards.get(rank as usize).map(|card| &card.node);
    cards.iter().filter(|card| Some(&card.node) == node).cloned().collect()
}

pub(super) fn settle<T, E>(result: Result<T, Disagreed<E>>) -> Result<T, RuntimeError>
where
    E: Into<RuntimeError> + fmt::Display,
{
    result.map_err(|e| match e {
        Disagreed::Own(own) => own.into(),
        Disagreed::Other(other) => FormError::into(other),
    })
}
