//! Puts of one rank that land here: late, out of order or never, as the card's manners are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Instant;

use crate::cuda::Gpu;
use crate::error::CardError;
use crate::journal;
use crate::manners::{Fate, Judge, Manners};
use crate::region::{Memory, Regions};
use crate::ring::{Message, Ring};

/// Messages that land in one step, at most. Where puts overtake each other it is one, so that a kernel meets each prefix.
const STEP: usize = 64;

/// A message and when it lands. Those of one time land in the order of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Instant,
    number: u64,
}

/// What another rank puts here.
pub struct Incoming {
    source: usize,
    ring: Ring,
    judge: Judge,
    /// Messages that have been given back to the source.
    head: u64,
    /// Messages from `head` on that have been seen: the end of their bytes, and whether they are done with.
    seen: VecDeque<(u64, bool)>,
    due: BinaryHeap<Reverse<Due>>,
    /// When the message before lands, unless it never does.
    before: Option<Instant>,
    /// When the last message of each context lands.
    latest: BTreeMap<u32, Instant>,
    /// Contexts that lost a put: nothing that has to follow it lands.
    broken: BTreeSet<u32>,
    /// Messages that the GPU is copying, and the batches that do.
    copying: VecDeque<(u64, u64)>,
    step: usize,
}

/// Whether a message landed.
enum Landing {
    /// It did.
    Done,
    /// The GPU is at it.
    Copying,
    /// This rank has yet to register the region.
    ToCome,
}

impl Incoming {
    /// Puts of rank `source` to `rank`, from a ring that has seen none.
    pub fn new(ring: Ring, source: usize, rank: usize, manners: Manners) -> Incoming {
        Incoming {
            source,
            ring,
            judge: Judge::new(manners, source, rank),
            head: 0,
            seen: VecDeque::new(),
            due: BinaryHeap::new(),
            before: None,
            latest: BTreeMap::new(),
            broken: BTreeSet::new(),
            copying: VecDeque::new(),
            step: if manners.reorder.is_some() { 1 } else { STEP },
        }
    }

    /// Sees new messages, lets those land that are due, and gives their slots and bytes back.
    ///
    /// # Errors
    /// A message names bytes or a signal that do not exist; [`CardError::Cuda`].
    pub fn step(
        &mut self,
        now: Instant,
        regions: &mut Regions,
        gpu: Option<&mut Gpu>,
    ) -> Result<(), CardError> {
        self.see(now);
        self.land(now, regions, gpu)?;
        let mut freed = None;
        while let Some((end, _)) = self.seen.pop_front_if(|(_, is_done)| *is_done) {
            self.head += 1;
            freed = Some(end);
        }
        if let Some(freed) = freed {
            self.ring.release(self.head, freed);
        }
        Ok(())
    }

    fn see(&mut self, now: Instant) {
        let tail = self.ring.tail();
        for number in self.head + self.seen.len() as u64..tail {
            let message = self.ring.message(number);
            let at = if message.continues { self.before } else { self.decide(&message, now) };
            self.before = at;
            self.seen.push_back((message.end(), at.is_none()));
            self.due.extend(at.map(|at| Reverse(Due { at, number })));
        }
    }

    /// When a message lands, if it does.
    fn decide(&mut self, message: &Message, now: Instant) -> Option<Instant> {
        let context = message.context;
        let late = match self.judge.fate(message.bytes > 0) {
            Fate::Lost(put) => {
                journal::say(&format!("put {put} of rank {} never lands, as asked for", self.source));
                self.broken.insert(context);
                return None;
            }
            Fate::Late(late) => late,
        };
        if message.is_ordered && self.broken.contains(&context) {
            journal::say(&format!("rank {}: what has to follow a lost put never lands either", self.source));
            return None;
        }
        let latest = self.latest.entry(context).or_insert(now);
        let at = now + late;
        let at = if message.is_ordered { at.max(*latest) } else { at };
        *latest = at.max(*latest);
        Some(at)
    }

    fn land(&mut self, now: Instant, regions: &mut Regions, gpu: Option<&mut Gpu>) -> Result<(), CardError> {
        let applied = gpu.as_deref().map_or(0, Gpu::applied);
        while let Some((_, number)) = self.copying.pop_front_if(|(batch, _)| *batch <= applied) {
            self.done(number);
        }
        let mut copying = vec![];
        for _ in 0..self.step {
            let Some(Reverse(due)) = self.due.peek().copied().filter(|due| due.0.at <= now) else { break };
            match self.apply(&self.ring.message(due.number), regions, gpu.as_deref())? {
                Landing::ToCome => break,
                Landing::Done => self.done(due.number),
                Landing::Copying => copying.push(due.number),
            }
            self.due.pop();
        }
        if let (false, Some(gpu)) = (copying.is_empty(), gpu) {
            let batch = gpu.end_applied()?;
            self.copying.extend(copying.into_iter().map(|number| (batch, number)));
        }
        Ok(())
    }

    fn done(&mut self, number: u64) {
        if let Some((_, is_done)) = self.seen.get_mut((number - self.head) as usize) {
            *is_done = true;
        }
    }

    /// Writes a message's bytes, then its signal.
    fn apply(
        &self,
        message: &Message,
        regions: &mut Regions,
        gpu: Option<&Gpu>,
    ) -> Result<Landing, CardError> {
        let (region, offset) = message.target;
        let signals = message.signal.map_or(0, |(signals, ..)| signals);
        if message.bytes > 0 && regions.is_to_come(region) || regions.is_to_come(signals) {
            return Ok(Landing::ToCome);
        }
        let mut landing = Landing::Done;
        if message.bytes > 0 {
            let place = regions.get(region)?.place(offset, message.bytes)?;
            let (from, bytes) = (self.ring.data(message.position), message.bytes as usize);
            match place.memory {
                // SAFETY: the region has the bytes; the source does not write its own before they are given back.
                Memory::Host => unsafe { std::ptr::copy_nonoverlapping(from, place.address.as_ptr(), bytes) },
                Memory::Gpu => {
                    let gpu = gpu.ok_or(CardError::NoGpu)?;
                    // SAFETY: as above; they are given back when the batch is applied.
                    unsafe { gpu.write(place.address, from, bytes) }?;
                    landing = Landing::Copying;
                }
            }
        }
        if let Some((signals, offset, value)) = message.signal {
            let region = regions.get(signals)?;
            if region.signal(offset)?.memory == Memory::Gpu {
                landing = Landing::Copying;
            }
            region.grow(offset, value, gpu)?;
        }
        Ok(landing)
    }
}
