//! Peer stores on their way: issued, not yet visible at their destination.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::clock::Clock;
use super::ll::Sent;
use super::shadow::Event;
use super::value::{Tile, runs};
use crate::ir::Dtype;

/// Data of a put.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// The low bytes of a scalar.
    Word(u64, u8),
    /// A whole tile.
    Tile(Tile),
    /// The elements of a tile that a mask selects, and the size of one.
    Masked(Tile, Tile, u8),
}

impl Payload {
    /// Bytes that the store spans in memory.
    pub fn span(&self) -> u64 {
        match self {
            Payload::Word(_, bytes) => u64::from(*bytes),
            Payload::Tile(t) | Payload::Masked(t, ..) => t.bytes() as u64,
        }
    }

    /// Writes the data to memory, which begins at the store's first byte.
    pub fn apply(&self, memory: &mut [u8]) {
        match self {
            Payload::Word(bits, bytes) => {
                memory[..*bytes as usize].copy_from_slice(&bits.to_le_bytes()[..*bytes as usize]);
            }
            Payload::Tile(t) => memory[..t.bytes()].copy_from_slice(t.view()),
            Payload::Masked(t, mask, size) => {
                let size = *size as usize;
                for (from, to) in runs(mask) {
                    memory[from * size..to * size].copy_from_slice(&t.view()[from * size..to * size]);
                }
            }
        }
    }
}

/// What is on its way.
#[derive(Debug)]
pub(super) enum Cargo {
    /// Bytes for a buffer.
    Data { buffer: usize, at: u64, payload: Payload },
    /// Packets, each of which arrives at once.
    Packets { buffer: usize, at: u64, data: Tile },
    /// LL elements.
    Ll { buffer: usize, first: u64, dtype: Dtype, data: Tile, sent: Sent },
    /// A flag.
    Flag { buffer: usize, index: u64, signal: Signal },
}

/// What a signal carries.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub value: u32,
    /// The signaller's clock. The waiter gets to know it only of a release.
    pub clock: Rc<Clock>,
    pub release: bool,
}

/// A place at the destination.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spot {
    Bytes { buffer: usize, from: u64, to: u64 },
    Flag { buffer: usize, index: u64 },
}

impl Spot {
    fn overlaps(&self, other: &Spot) -> bool {
        match (self, other) {
            (
                Spot::Bytes { buffer: a, from, to },
                Spot::Bytes { buffer: b, from: other_from, to: other_to },
            ) => a == b && from < other_to && other_from < to,
            (Spot::Flag { buffer: a, index: i }, Spot::Flag { buffer: b, index: j }) => a == b && i == j,
            (Spot::Bytes { .. }, Spot::Flag { .. }) | (Spot::Flag { .. }, Spot::Bytes { .. }) => false,
        }
    }
}

/// Bits of a place within its buffer: no machine has more memory ([`super::machine`] says so).
const PLACE_BITS: u32 = 40;

/// To which places there are stores, and how many to each. Most of the time nothing is on its way to the place that somebody
/// looks at, and this says so without a look at every store.
#[derive(Debug, Default)]
struct Places {
    /// How many begin at a place, and where the last of these ends.
    stores: BTreeMap<u64, (u32, u64)>,
    /// The most bytes that any store has spanned.
    longest: u64,
}

impl Places {
    /// One number for each byte and flag of a rank, where the spot begins and where it ends: the buffer stands in the upper bits.
    /// Comparing one number is faster than comparing several.
    fn span(spot: &Spot) -> (u64, u64) {
        let at = |sort: usize, at: u64| (sort as u64) << PLACE_BITS | at;
        match *spot {
            Spot::Bytes { buffer, from, to } => (at(2 * buffer, from), at(2 * buffer, to)),
            Spot::Flag { buffer, index } => (at(2 * buffer + 1, index), at(2 * buffer + 1, index + 1)),
        }
    }

    fn add(&mut self, spot: &Spot) {
        let (from, to) = Places::span(spot);
        self.longest = self.longest.max(to - from);
        let (stores, end) = self.stores.entry(from).or_default();
        (*stores, *end) = (*stores + 1, to.max(*end));
    }

    fn remove(&mut self, spot: &Spot) {
        if let Entry::Occupied(mut stores) = self.stores.entry(Places::span(spot).0) {
            stores.get_mut().0 -= 1;
            if stores.get().0 == 0 {
                stores.remove();
            }
        }
    }

    /// Whether any store may meet a place.
    fn meet(&self, spot: &Spot) -> bool {
        let (from, to) = Places::span(spot);
        self.stores.range(from.saturating_sub(self.longest)..to).any(|(_, &(_, end))| end > from)
    }
}

/// A store on its way.
#[derive(Debug)]
pub(super) struct Pending {
    pub by: Event,
    pub spot: Spot,
    pub cargo: Cargo,
}

/// The same in a queue. Many are looked at for each that arrives, so what it carries stands elsewhere: in `Wire::cargo`, under a
/// number.
#[derive(Debug)]
struct Queued {
    by: Event,
    spot: Spot,
    cargo: u32,
}

impl Queued {
    fn is_flag(&self) -> bool {
        matches!(self.spot, Spot::Flag { .. })
    }
}

/// The stores on their way to one rank, in the order they were issued.
#[derive(Debug, Default)]
pub(super) struct Wire {
    queue: VecDeque<Queued>,
    cargo: Vec<Option<Cargo>>,
    unused: Vec<u32>,
    /// How many of them are flags.
    flags: usize,
    places: Places,
}

impl Wire {
    pub fn push(&mut self, p: Pending) {
        let Pending { by, spot, cargo } = p;
        let number = match self.unused.pop() {
            Some(number) => {
                self.cargo[number as usize] = Some(cargo);
                number
            }
            None => {
                self.cargo.push(Some(cargo));
                self.cargo.len() as u32 - 1
            }
        };
        let queued = Queued { by, spot, cargo: number };
        self.flags += usize::from(queued.is_flag());
        self.places.add(&queued.spot);
        self.queue.push_back(queued);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn take(&mut self, at: usize) -> Option<Pending> {
        let queued = self.queue.remove(at)?;
        self.loaded(queued)
    }

    /// All of them, in order.
    pub fn take_all(&mut self) -> Vec<Pending> {
        self.take_where(|_| true)
    }

    /// What was taken out of the queue, with its cargo.
    fn loaded(&mut self, taken: Queued) -> Option<Pending> {
        self.flags -= usize::from(taken.is_flag());
        self.places.remove(&taken.spot);
        self.unused.push(taken.cargo);
        let cargo = self.cargo[taken.cargo as usize].take()?;
        Some(Pending { by: taken.by, spot: taken.spot, cargo })
    }

    /// The first flag at or after a position, from the start if there is none.
    pub fn flag_from(&self, start: usize) -> Option<usize> {
        if self.flags == 0 {
            return None;
        }
        let n = self.queue.len();
        (start..n).chain(0..start.min(n)).find(|&i| self.queue[i].is_flag())
    }

    /// Takes the stores that are ordered before the owner of a clock, in the order they were issued.
    pub fn take_ordered(&mut self, clock: &Clock) -> Vec<Pending> {
        self.take_where(|p| clock.covers(p.by.agent, p.by.time))
    }

    /// As [`Wire::take_ordered`], of an agent itself or ordered before it, but only those to a place.
    pub fn take_to(&mut self, place: &Spot, after: impl Fn(Event) -> bool) -> Vec<Pending> {
        if !self.places.meet(place) {
            return vec![];
        }
        self.take_where(|p| p.spot.overlaps(place) && after(p.by))
    }

    fn take_where(&mut self, take: impl Fn(&Queued) -> bool) -> Vec<Pending> {
        if !self.queue.iter().any(&take) {
            return vec![];
        }
        let all = std::mem::take(&mut self.queue);
        let (taken, left) = all.into_iter().partition::<VecDeque<_>, _>(take);
        self.queue = left;
        taken.into_iter().filter_map(|queued| self.loaded(queued)).collect()
    }
}
