//! How two processes prove to each other that they know the world's secret, which stays where it is.
//!
//! ```text
//! who listens (host)                        who connects (guest)
//!   Opening { nonce }             ->
//!                                 <-    Knock { rank, nonce, mac(secret, "guest", ..) }
//!   mac(secret, "host", ..)       ->
//! ```
//!
//! Every keyed hash (HMAC-SHA-256) is over its direction, the version, both nonces, both ranks, and the place where they
//! meet: both ends of a TCP connection, or the path of a socket. So a proof is of no use in another direction, for another
//! rank, a second time, or passed on through a third process. A stranger sees the opening and nothing else.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::secret::Secret;

/// Changes with these messages, those of the rendezvous, and what ranks say in them.
pub(super) const PROTOCOL: u32 = 3;

/// What every message here starts with, before the version.
const MAGIC: &[u8; 8] = b"peerwarp";
const HEAD: usize = 12;

pub(super) type Nonce = [u8; 32];
pub(super) type Proof = [u8; 32];

/// What is wrong with the start of what somebody says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// It is something else.
    Language,
    /// It is another version.
    Version(u32),
}

/// Whether something starts as messages do, as far as it goes.
pub(super) fn check_start(bytes: &[u8]) -> Result<(), Foreign> {
    let magic = bytes.len().min(MAGIC.len());
    if bytes[..magic] != MAGIC[..magic] {
        return Err(Foreign::Language);
    }
    match bytes.get(MAGIC.len()..HEAD).map(|v| u32::from_le_bytes(v.try_into().expect("four bytes"))) {
        None | Some(PROTOCOL) => Ok(()),
        Some(other) => Err(Foreign::Version(other)),
    }
}

/// What who listens says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub nonce: Nonce,
}

impl Opening {
    pub const BYTES: usize = HEAD + 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let bytes = [MAGIC.as_slice(), &PROTOCOL.to_le_bytes(), &self.nonce].concat();
        bytes.try_into().expect("as long as its parts")
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Opening, Foreign> {
        check_start(bytes)?;
        Ok(Opening { nonce: bytes[HEAD..].try_into().expect("the rest") })
    }
}

/// What who connects answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Knock {
    pub rank: u32,
    pub nonce: Nonce,
    pub proof: Proof,
}

impl Knock {
    pub const BYTES: usize = HEAD + 4 + 32 + 32;

    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (version, rank) = (PROTOCOL.to_le_bytes(), self.rank.to_le_bytes());
        let bytes = [MAGIC.as_slice(), &version, &rank, &self.nonce, &self.proof].concat();
        bytes.try_into().expect("as long as its parts")
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Knock, Foreign> {
        check_start(bytes)?;
        let (rank, rest) = bytes[HEAD..].split_at(4);
        let (nonce, proof) = rest.split_at(32);
        let rank = u32::from_le_bytes(rank.try_into().expect("four bytes"));
        Ok(Knock {
            rank,
            nonce: nonce.try_into().expect("32 bytes"),
            proof: proof.try_into().expect("32 bytes"),
        })
    }
}

/// Two processes that meet, as each of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting<'a> {
    /// Where, in the same words on both sides.
    pub place: &'a str,
    /// The rank that listens.
    pub host: u32,
    /// The rank that connects.
    pub guest: u32,
    pub host_nonce: Nonce,
    pub guest_nonce: Nonce,
}

/// Which side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Host,
    Guest,
}

impl Side {
    fn word(self) -> &'static str {
        match self {
            Side::Host => "host",
            Side::Guest => "guest",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Host => Side::Guest,
            Side::Guest => Side::Host,
        }
    }
}

impl Meeting<'_> {
    fn mac(&self, secret: &Secret, what: &str) -> Hmac<Sha256> {
        let (version, host, guest) =
            (PROTOCOL.to_le_bytes(), self.host.to_le_bytes(), self.guest.to_le_bytes());
        let place = self.place.as_bytes();
        let parts: [&[u8]; 7] =
            [what.as_bytes(), &version, &host, &guest, &self.host_nonce, &self.guest_nonce, place];
        let mut mac = keyed(secret.expose().as_bytes());
        for part in parts {
            // With its length: no two lists of parts are the same bytes.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// Proof that a side knows the secret.
    pub fn proof(&self, secret: &Secret, of: Side) -> Proof {
        self.mac(secret, of.word()).finalize().into_bytes().into()
    }

    /// Whether a side knows the secret.
    pub fn proves(&self, secret: &Secret, of: Side, proof: &Proof) -> bool {
        self.mac(secret, of.word()).verify_slice(proof).is_ok()
    }

    /// What both sides have in common from here on.
    pub fn session(&self, secret: &Secret, side: Side) -> Session {
        let key = self.mac(secret, "session").finalize().into_bytes().into();
        Session { key, side, sent: 0, received: 0 }
    }
}

/// Marks the messages of one connection, so that no third party can change, leave out, repeat or add one.
pub(super) struct Session {
    key: [u8; 32],
    side: Side,
    sent: u64,
    received: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("side", &self.side).finish_non_exhaustive()
    }
}

impl Session {
    /// The mark of the next message that is sent.
    pub fn seal(&mut self, text: &[u8]) -> Proof {
        self.sent += 1;
        self.mac(self.side, self.sent, text).finalize().into_bytes().into()
    }

    /// Whether a message is the other side's next one.
    pub fn opens(&mut self, text: &[u8], mark: &Proof) -> bool {
        self.received += 1;
        self.mac(self.side.other(), self.received, text).verify_slice(mark).is_ok()
    }

    fn mac(&self, from: Side, number: u64, text: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed(&self.key);
        mac.update(from.word().as_bytes());
        mac.update(&number.to_le_bytes());
        mac.update(text);
        mac
    }
}

/// A hash with a key.
pub(super) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length will do")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(&text.repeat(32)).unwrap()
    }

    #[test]
    fn a_proof_holds_for_one_side_one_secret_and_one_meeting() {
        let meeting =
            Meeting { place: "tcp a b", host: 0, guest: 1, host_nonce: [1; 32], guest_nonce: [2; 32] };
        let (own, sides) = (secret("s"), [Side::Host, Side::Guest]);
        let others = [
            Meeting { place: "tcp a c", ..meeting.clone() },
            Meeting { host: 1, ..meeting.clone() },
            Meeting { guest: 2, ..meeting.clone() },
            Meeting { host: 1, guest: 0, ..meeting.clone() },
            Meeting { host_nonce: [3; 32], ..meeting.clone() },
            Meeting { guest_nonce: [3; 32], ..meeting.clone() },
            Meeting { host_nonce: [2; 32], guest_nonce: [1; 32], ..meeting.clone() },
        ];
        for side in sides {
            let proof = meeting.proof(&own, side);
            assert!(meeting.proves(&own, side, &proof));
            assert!(!meeting.proves(&own, side.other(), &proof));
            assert!(!meeting.proves(&secret("t"), side, &proof));
            for other in &others {
                assert!(!other.proves(&own, side, &proof), "{other:?}");
            }
        }
    }

    #[test]
    fn a_mark_holds_for_one_direction_one_number_and_one_meeting() {
        let meeting =
            |nonce| Meeting { place: "", host: 0, guest: 1, host_nonce: [nonce; 32], guest_nonce: [2; 32] };
        let own = secret("s");
        let of = |side| meeting(1).session(&own, side);
        let (mut host, mut guest) = (of(Side::Host), of(Side::Guest));
        let marks = [b"one", b"two"].map(|text| host.seal(text));
        assert!(guest.opens(b"one", &marks[0]) && guest.opens(b"two", &marks[1]));
        assert!(!of(Side::Guest).opens(b"two", &marks[1]), "the first is left out");
        assert!(!of(Side::Guest).opens(b"two", &marks[0]), "it is changed");
        assert!(!of(Side::Host).opens(b"one", &marks[0]), "it is sent back");
        assert!(
            !meeting(3).session(&own, Side::Guest).opens(b"one", &marks[0]),
            "it is of another connection"
        );
    }
}
