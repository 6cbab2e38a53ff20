//! Peer stores on their way: issued, not yet visible at their destination.

use std::collections::VecDeque;
use std::rc::Rc;

use smallvec::SmallVec;

use super::places::Places;
use super::shadow::Event;
use crate::sim::schedule::Clock;
use crate::sim::transport::Letter;
use crate::sim::values::{Tile, value::runs};

/// Data of a put.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// The low bytes of a scalar.
    Word(u64, u8),
    /// A whole tile.
    Tile(Tile),
    /// The elements of a tile that a mask selects, and the size of one.
    Masked(Box<(Tile, Tile)>, u8),
}

impl Payload {
    /// Bytes that the store spans in memory.
    pub fn span(&self) -> u64 {
        match self {
            Payload::Word(_, bytes) => u64::from(*bytes),
            Payload::Tile(t) => t.bytes() as u64,
            Payload::Masked(masked, _) => masked.0.bytes() as u64,
        }
    }

    /// Writes the data to memory, which begins at the store's first byte.
    pub fn apply(&self, memory: &mut [u8]) {
        match self {
            Payload::Word(bits, bytes) => {
                memory[..*bytes as usize].copy_from_slice(&bits.to_le_bytes()[..*bytes as usize]);
            }
            Payload::Tile(t) => memory[..t.bytes()].copy_from_slice(t.view()),
            Payload::Masked(masked, size) => {
                let ((t, mask), size) = (&**masked, *size as usize);
                for (from, to) in runs(mask) {
                    memory[from * size..to * size].copy_from_slice(&t.view()[from * size..to * size]);
                }
            }
        }
    }
}

/// What is on its way.
#[derive(Debug)]
pub(crate) enum Cargo {
    /// Bytes for a buffer.
    Data { buffer: usize, at: u64, payload: Payload },
    /// Messages that say by themselves that they have arrived.
    Messages { buffer: usize, letter: Letter },
    /// A flag.
    Flag { buffer: usize, index: u64, signal: Signal },
}

/// What a signal carries.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    pub value: u32,
    /// The step of the signalling rank's program.
    pub step: u32,
    /// The signaller's clock. The waiter gets to know it only of a release.
    pub clock: Rc<Clock>,
    pub release: bool,
    /// Whether the value is added to what is there.
    pub adds: bool,
}

/// A place at the destination.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
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

/// A store on its way.
#[derive(Debug)]
pub(crate) struct Pending {
    pub by: Event,
    pub spot: Spot,
    pub cargo: Cargo,
}

/// The same on a wire. Many are looked at for each that arrives, so what it carries stands elsewhere.
#[derive(Clone, Copy, Debug)]
struct Issued {
    by: Event,
    spot: Spot,
}

impl Issued {
    fn is_flag(&self) -> bool {
        matches!(self.spot, Spot::Flag { .. })
    }
}

/// The stores on their way to one rank.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Numbers of stores, in the order they were issued. Any may be taken out of the middle, and the others close up: that moves
    /// little only because numbers are small.
    queue: VecDeque<u32>,
    /// By number; of those that have arrived as they were.
    issued: Vec<Issued>,
    cargo: Vec<Option<Cargo>>,
    unused: Vec<u32>,
    /// How many of them are flags.
    flags: usize,
    places: Places,
}

impl Wire {
    pub fn push(&mut self, p: Pending) {
        let Pending { by, spot, cargo } = p;
        let issued = Issued { by, spot };
        let number = match self.unused.pop() {
            Some(number) => {
                (self.issued[number as usize], self.cargo[number as usize]) = (issued, Some(cargo));
                number
            }
            None => {
                self.issued.push(issued);
                self.cargo.push(Some(cargo));
                self.cargo.len() as u32 - 1
            }
        };
        self.flags += usize::from(issued.is_flag());
        self.places.add(number, &spot);
        self.queue.push_back(number);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn take(&mut self, at: usize) -> Option<Pending> {
        let number = self.queue.remove(at)?;
        self.loaded(number)
    }

    /// All of them, in order.
    pub fn take_all(&mut self) -> Vec<Pending> {
        self.take_where(|_, _| true)
    }

    /// What was taken out of the queue, with its cargo.
    fn loaded(&mut self, number: u32) -> Option<Pending> {
        let Issued { by, spot } = self.issued[number as usize];
        self.flags -= usize::from(self.issued[number as usize].is_flag());
        self.places.remove(number, &spot);
        self.unused.push(number);
        let cargo = self.cargo[number as usize].take()?;
        Some(Pending { by, spot, cargo })
    }

    /// The first flag at or after a position, from the start if there is none.
    pub fn flag_from(&self, start: usize) -> Option<usize> {
        if self.flags == 0 {
            return None;
        }
        let n = self.queue.len();
        (start..n).chain(0..start.min(n)).find(|&i| self.issued[self.queue[i] as usize].is_flag())
    }

    /// Takes the stores that are ordered before the owner of a clock, in the order they were issued.
    pub fn take_ordered(&mut self, clock: &Clock) -> Vec<Pending> {
        self.take_where(|_, p| clock.covers(p.by.agent, p.by.time))
    }

    /// As [`Wire::take_ordered`], of an agent itself or ordered before it, but only those to a place.
    pub fn take_to(&mut self, place: &Spot, after: impl Fn(Event) -> bool) -> Vec<Pending> {
        let ordered = |number: &u32| {
            let p = &self.issued[*number as usize];
            p.spot.overlaps(place) && after(p.by)
        };
        let meant: SmallVec<[u32; 8]> = self.places.near(place).filter(ordered).collect();
        if meant.is_empty() {
            return vec![];
        }
        self.take_where(|number, _| meant.contains(&number))
    }

    fn take_where(&mut self, take: impl Fn(u32, &Issued) -> bool) -> Vec<Pending> {
        let (issued, mut taken) = (&self.issued, vec![]);
        self.queue.retain(|&number| {
            let meant = take(number, &issued[number as usize]);
            if meant {
                taken.push(number);
            }
            !meant
        });
        taken.into_iter().filter_map(|number| self.loaded(number)).collect()
    }
}
