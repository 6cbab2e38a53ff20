//! Introductions: what ranks have to know of each other before puts flow.
//!
//! A [`Station`] is a rank's endpoint with its channels. Its [card](Station::card) is a string of bytes that the world's own
//! introductions, which are authenticated, carry to the other ranks. A [`Book`] collects the cards of all ranks.

use crate::command::{CHANNELS, RANKS, UNIT};
use crate::endpoint::{ADDRESS, Endpoint, Region, Target};
use crate::error::{FabricError, below};
use crate::memory::Memory;

/// What cards begin with: a name and the version of the format.
const START: &[u8; 6] = b"pwfab\x01";

/// A rank's memory on a channel.
#[derive(Clone, Debug)]
pub struct Channel {
    /// What puts of this rank read.
    pub outbox: Memory,
    /// What puts of peers write.
    pub inbox: Memory,
}

/// A rank's registered memory on a channel.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub memory: Channel,
    pub outbox: Region,
    pub inbox: Region,
}

/// A rank's endpoint and registered channels, before it knows its peers.
pub struct Station {
    pub(crate) endpoint: Endpoint,
    pub(crate) rank: u16,
    pub(crate) ranks: u16,
    pub(crate) ports: Vec<Port>,
    /// What pulses read.
    pub(crate) pulse: Region,
    card: Card,
}

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    rank: u16,
    ranks: u16,
    provider: String,
    address: Vec<u8>,
    /// Where pulses go.
    pulse: Target,
    inboxes: Vec<Target>,
}

/// Why a card is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BookError {
    /// The bytes are no card of this version.
    #[error("the card of rank {rank} cannot be read: {reason}")]
    Malformed {
        /// The rank that it is said to come from.
        rank: u16,
        /// What is wrong.
        reason: &'static str,
    },
    /// Ranks do not agree.
    #[error(
        "{field} of rank {rank} is {theirs}, and that of rank {own} is {ours}: all ranks of a world need the same"
    )]
    Differs {
        /// What differs.
        field: &'static str,
        /// The rank that the card is of.
        rank: u16,
        /// What the card says.
        theirs: String,
        /// This rank.
        own: u16,
        /// What this rank has.
        ours: String,
    },
    /// The rank has a card, or is this rank, or is outside the world.
    #[error("a card of rank {rank} is not awaited: the world has {ranks} ranks, and each gives one card")]
    Unawaited {
        /// The rank.
        rank: u16,
        /// Ranks of the world.
        ranks: u16,
    },
    /// Cards are missing.
    #[error("the cards of ranks {missing:?} are missing")]
    Missing {
        /// Ranks without a card.
        missing: Vec<u16>,
    },
    /// A peer's address is refused.
    #[error("the address of rank {rank} is refused: {reason}")]
    Address {
        /// The rank.
        rank: u16,
        /// The provider's words.
        reason: FabricError,
    },
}

impl Station {
    /// Registers the channels of rank `rank` of `ranks`.
    ///
    /// # Errors
    /// A number is out of range, or the provider refuses memory.
    pub fn new(
        mut endpoint: Endpoint,
        rank: u16,
        ranks: u16,
        channels: &[Channel],
    ) -> Result<Station, FabricError> {
        below("ranks", ranks.into(), u64::from(RANKS) + 1)?;
        below("rank", rank.into(), ranks.into())?;
        below("channels", channels.len() as u64, u64::from(CHANNELS) + 1)?;
        let mut ports = vec![];
        for channel in channels {
            ports.push(Port {
                memory: channel.clone(),
                outbox: endpoint.register(&channel.outbox)?,
                inbox: endpoint.register(&channel.inbox)?,
            });
        }
        let pulse = endpoint.register(&Memory::zeroed(UNIT)?)?;
        let card = Card {
            rank,
            ranks,
            pulse: pulse.target,
            provider: endpoint.provider().to_string(),
            address: endpoint.address()?,
            inboxes: ports.iter().map(|port| port.inbox.target).collect(),
        };
        Ok(Station { endpoint, rank, ranks, ports, pulse, card })
    }

    /// What the other ranks need of this one, for [`Book::insert`]. It holds keys to this rank's inboxes: send it over an
    /// authenticated connection.
    pub fn card(&self) -> Vec<u8> {
        self.card.encode()
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Card {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = START.to_vec();
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.ranks.to_le_bytes());
        for text in [self.provider.as_bytes(), &self.address] {
            // An address has at most `ADDRESS` bytes, the name of a provider fewer.
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text);
        }
        // At most `CHANNELS`.
        bytes.push(self.inboxes.len() as u8);
        for target in [&self.pulse].into_iter().chain(&self.inboxes) {
            [target.key, target.base, target.bytes].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Card, &'static str> {
        let left = bytes.strip_prefix(START).ok_or("it does not begin as a card of this version")?;
        let mut left = Reader(left);
        let (rank, ranks) = (left.number(2)? as u16, left.number(2)? as u16);
        let length = left.number(2)? as usize;
        let provider =
            String::from_utf8(left.take(length)?.to_vec()).map_err(|_| "its provider is no text")?;
        let length = left.number(2)? as usize;
        let address = left.take(length)?.to_vec();
        if address.is_empty() || address.len() > ADDRESS {
            return Err("its address is empty or too long");
        }
        let channels = left.number(1)?;
        if channels > u64::from(CHANNELS) {
            return Err("it has more channels than there are");
        }
        let mut target = || {
            Ok::<_, &'static str>(Target {
                key: left.number(8)?,
                base: left.number(8)?,
                bytes: left.number(8)?,
            })
        };
        let pulse = target()?;
        if pulse.bytes < UNIT as u64 {
            return Err("its pulse has no room");
        }
        let inboxes = (0..channels).map(|_| target()).collect::<Result<_, _>>()?;
        if !left.0.is_empty() {
            return Err("bytes follow it");
        }
        Ok(Card { rank, ranks, provider, address, pulse, inboxes })
    }
}

/// What is left of a card.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], &'static str> {
        let (taken, left) = self.0.split_at_checked(bytes).ok_or("it is cut short")?;
        self.0 = left;
        Ok(taken)
    }

    /// A little-endian number of up to 8 bytes.
    fn number(&mut self, bytes: usize) -> Result<u64, &'static str> {
        Ok(self.take(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// The cards of a world.
#[derive(Clone, Debug)]
pub struct Book {
    own: Card,
    cards: Vec<Option<Card>>,
}

/// What a proxy knows of a peer.
pub(crate) struct Entry {
    pub rank: u16,
    pub address: Vec<u8>,
    pub pulse: Target,
    pub inboxes: Vec<Target>,
}

impl Book {
    /// A book that has this rank's own card only.
    pub fn new(station: &Station) -> Book {
        Book { own: station.card.clone(), cards: vec![None; station.ranks.into()] }
    }

    /// Adds the card of another rank.
    ///
    /// # Errors
    /// The bytes are no card, or the ranks do not agree on the world, the provider or the channels.
    pub fn insert(&mut self, rank: u16, bytes: &[u8]) -> Result<(), BookError> {
        let own = &self.own;
        let place = self.cards.get_mut(usize::from(rank)).filter(|place| place.is_none() && rank != own.rank);
        let place = place.ok_or(BookError::Unawaited { rank, ranks: own.ranks })?;
        let card = Card::decode(bytes).map_err(|reason| BookError::Malformed { rank, reason })?;
        let same = |field, theirs: String, ours: String| match theirs == ours {
            true => Ok(()),
            false => Err(BookError::Differs { field, rank, theirs, own: own.rank, ours }),
        };
        same("the provider", card.provider.clone(), own.provider.clone())?;
        same("the number of ranks", card.ranks.to_string(), own.ranks.to_string())?;
        same("the number of channels", card.inboxes.len().to_string(), own.inboxes.len().to_string())?;
        if card.rank != rank {
            return Err(BookError::Malformed { rank, reason: "it says that it is another rank's" });
        }
        *place = Some(card);
        Ok(())
    }

    /// Ranks whose cards are missing.
    pub fn missing(&self) -> Vec<u16> {
        let missing =
            |(rank, card): (u16, &Option<Card>)| (card.is_none() && rank != self.own.rank).then_some(rank);
        (0..).zip(&self.cards).filter_map(missing).collect()
    }

    /// The peers of a complete book.
    pub(crate) fn peers(self) -> Result<Vec<Entry>, BookError> {
        let missing = self.missing();
        if !missing.is_empty() {
            return Err(BookError::Missing { missing });
        }
        let entry = |Card { rank, address, pulse, inboxes, .. }| Entry { rank, address, pulse, inboxes };
        Ok(self.cards.into_iter().flatten().map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card(rank: u16) -> Card {
        let inboxes =
            vec![Target { key: 1 << 40, base: 2, bytes: 3 }, Target { key: 4, base: 5, bytes: u64::MAX }];
        let pulse = Target { key: 9, base: 8, bytes: 4096 };
        Card { rank, ranks: 3, provider: "tcp".into(), address: vec![2, 0, 7], pulse, inboxes }
    }

    fn book() -> Book {
        Book { own: card(1), cards: vec![None; 3] }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, at in 0usize..100, cut in 0usize..100, byte: u8) {
            let _ = Card::decode(&bytes);
            let mut whole = card(2).encode();
            let at = at % whole.len();
            whole[at] = byte;
            if let Ok(read) = Card::decode(&whole) {
                prop_assert_eq!(read.encode(), whole.clone());
            }
            prop_assert!(cut >= whole.len() || Card::decode(&whole[..cut]).is_err());
        }
    }

    #[test]
    fn a_book_collects_all_cards() {
        let mut book = book();
        assert_eq!(book.missing(), [0, 2]);
        book.insert(2, &card(2).encode()).unwrap();
        assert_eq!(book.clone().peers().err(), Some(BookError::Missing { missing: vec![0] }));
        book.insert(0, &card(0).encode()).unwrap();
        let peers = book.peers().unwrap();
        assert_eq!(peers.iter().map(|p| p.rank).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(peers[1].inboxes, card(2).inboxes);
    }

    #[test]
    fn cards_are_refused_by_name() {
        let refused = |rank: u16, card: Card| book().insert(rank, &card.encode()).unwrap_err().to_string();
        let other = Card { provider: "shm".into(), ..card(2) };
        let words =
            "the provider of rank 2 is shm, and that of rank 1 is tcp: all ranks of a world need the same";
        assert_eq!(refused(2, other), words);
        let fewer = Card { inboxes: vec![], ..card(2) };
        assert!(
            refused(2, fewer).starts_with("the number of channels of rank 2 is 0, and that of rank 1 is 2")
        );
        assert!(refused(2, Card { ranks: 4, ..card(2) }).starts_with("the number of ranks of rank 2 is 4"));
        assert!(refused(2, card(0)).contains("it is another rank's"));
        for rank in [1, 3] {
            assert!(refused(rank, card(rank)).starts_with(&format!("a card of rank {rank} is not awaited")));
        }
        let mut book = book();
        book.insert(2, &card(2).encode()).unwrap();
        assert!(book.insert(2, &card(2).encode()).is_err());
        let mut long = card(2).encode();
        long.push(0);
        let error = book.insert(0, &long).unwrap_err().to_string();
        assert_eq!(error, "the card of rank 0 cannot be read: bytes follow it");
    }
}
