//! The connections between the processes of a world.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::deadline::Deadline;
use super::form::FormError;
use super::handover::{Door, Handover};
use super::launcher::Launched;
use super::rendezvous::{Card, Disagreed, Rendezvous};
use super::teams::Teams;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::ShareHandle;

/// The connections of one rank. Every call is collective: all ranks make the same ones, in the same order.
#[derive(Debug)]
pub(in crate::runtime) struct Links {
    rendezvous: Rendezvous,
    handover: Handover,
    timeout: Duration,
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
        let (mut rendezvous, cards) = Rendezvous::join(&launched.address, secret, card, timeout)?;
        // The same cards on all ranks: all of them stop here, or none.
        let teams = Teams::in_order(&cards.iter().map(|card| &card.node).collect::<Vec<_>>())?;
        let near = near(&cards, launched.rank);
        let connected = door.connect(launched.rank, secret, &near, &Deadline::after(timeout));
        let handover = settle(rendezvous.agree(connected))?;
        Ok((Links { rendezvous, handover, timeout }, cards, teams))
    }

    /// Waits for all ranks; an error on one of them becomes an error on all of them.
    pub fn agree<T>(&mut self, result: Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        settle(self.rendezvous.agree(result))
    }

    /// The values of all ranks, by rank; an error on one of them becomes an error on all of them.
    pub fn gather<T>(&mut self, result: Result<T, RuntimeError>) -> Result<Vec<T>, RuntimeError>
    where
        T: Serialize + DeserializeOwned,
    {
        settle(self.rendezvous.share(result))
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
        self.handover.lost()
    }
}

/// The cards of a rank's node.
pub(in crate::runtime) fn near(cards: &[Card], rank: u32) -> Vec<Card> {
    let node = cards.get(rank as usize).map(|card| &card.node);
    cards.iter().filter(|card| Some(&card.node) == node).cloned().collect()
}

fn settle<T, E>(result: Result<T, Disagreed<E>>) -> Result<T, RuntimeError>
where
    E: Into<RuntimeError> + fmt::Display,
{
    result.map_err(|e| match e {
        Disagreed::Own(own) => own.into(),
        Disagreed::Other(other) => FormError::into(other),
    })
}
