//! Flag arrays: values, and the agents that signalled and saw them.

use std::rc::Rc;

use super::shadow::Event;
use super::waiters::Waiters;
use super::wire::Signal;
use crate::sim::schedule::{AgentId, Clock};

/// A flag that was signalled at least once.
#[derive(Debug)]
pub(crate) struct Flag {
    pub value: u32,
    pub by: Event,
    /// The step of the signalling rank's program.
    pub step: u32,
    /// What the signal orders before it: nothing for a relaxed one.
    pub released: Option<Rc<Clock>>,
    /// The waits that this value satisfied.
    pub seen: Vec<Event>,
    /// Of a count, signals of other ranks than `by`.
    pub others: Vec<Event>,
    /// Of a count, the wait that has last set it back to zero.
    pub taken: Option<Event>,
}

impl Flag {
    /// What a signal leaves.
    pub fn of(signal: &Signal, by: Event, released: Option<Rc<Clock>>) -> Flag {
        Flag {
            value: signal.value,
            by,
            step: signal.step,
            released,
            seen: vec![],
            others: vec![],
            taken: None,
        }
    }

    /// A signal that adds to a count. The take joins what each addition releases.
    fn add(&mut self, signal: &Signal, by: Event, released: Option<Rc<Clock>>) {
        let first = self.value == 0;
        self.step = if first { signal.step } else { self.step.min(signal.step) };
        if !first && self.by.agent.rank() != by.agent.rank() {
            self.others.push(self.by);
        }
        self.value = self.value.wrapping_add(signal.value);
        self.released = match (self.released.take(), released) {
            (Some(mut before), Some(now)) => {
                Rc::make_mut(&mut before).join(&now);
                Some(before)
            }
            (before, now) => before.or(now),
        };
        self.by = by;
        self.seen.clear();
    }

    /// A wait takes a count.
    pub fn take(&mut self, wait: Event) {
        *self =
            Flag { value: 0, released: None, seen: vec![wait], others: vec![], taken: Some(wait), ..*self };
    }
}

/// One rank's instance of a flag array.
#[derive(Debug, Default)]
pub(crate) struct FlagArray {
    /// Number of the flag in `flags` plus one, by index; zero for a flag never signalled.
    slots: Vec<u32>,
    pub flags: Vec<Flag>,
    /// The index of each of `flags`.
    indices: Vec<u64>,
    /// Who waits for which flag.
    waiters: Waiters,
    /// Whether waits are content with later epochs, so that no agent has to see each signal.
    pub grows: bool,
}

impl FlagArray {
    pub fn new(len: u64) -> FlagArray {
        FlagArray { slots: vec![0; len as usize], ..FlagArray::default() }
    }

    pub fn value(&self, index: u64) -> u32 {
        self.get(index).map_or(0, |f| f.value)
    }

    pub fn get(&self, index: u64) -> Option<&Flag> {
        let slot = *self.slots.get(index as usize)?;
        slot.checked_sub(1).map(|s| &self.flags[s as usize])
    }

    pub fn get_mut(&mut self, index: u64) -> Option<&mut Flag> {
        let slot = *self.slots.get(index as usize)?;
        slot.checked_sub(1).map(|s| &mut self.flags[s as usize])
    }

    /// Sets a flag, returns what it was before and who waits for it.
    pub fn set(&mut self, index: u64, flag: Flag) -> (Option<Flag>, Vec<AgentId>) {
        let waiters = self.waiters.wake(index..index + 1).collect();
        let slot = &mut self.slots[index as usize];
        if let Some(at) = slot.checked_sub(1) {
            return (Some(std::mem::replace(&mut self.flags[at as usize], flag)), waiters);
        }
        self.flags.push(flag);
        self.indices.push(index);
        *slot = self.flags.len() as u32;
        (None, waiters)
    }

    /// Adds to a count; returns the wait that took it before, and who waits for it.
    pub fn add(
        &mut self,
        index: u64,
        signal: &Signal,
        by: Event,
        released: Option<Rc<Clock>>,
    ) -> (Option<Event>, Vec<AgentId>) {
        if let Some(count) = self.get_mut(index) {
            count.add(signal, by, released);
            let taken = count.taken;
            return (taken, self.waiters.wake(index..index + 1).collect());
        }
        (None, self.set(index, Flag::of(signal, by, released)).1)
    }

    pub fn wait(&mut self, index: u64, agent: AgentId) {
        self.waiters.wait(index, agent);
    }

    /// All agents that wait, with the flag waited for.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, AgentId)> + '_ {
        self.waiters.iter()
    }

    /// Flags whose last value was not awaited, where each has to be.
    pub fn unseen(&self) -> impl Iterator<Item = (u64, &Flag)> + '_ {
        let all = self.indices.iter().copied().zip(&self.flags);
        all.filter(|(_, f)| f.seen.is_empty() && !self.grows)
    }
}

/// Whether epoch `a` comes after `b`; epochs wrap around, and 0 comes before all.
pub(crate) fn newer(a: u32, b: u32) -> bool {
    a != b && a != 0 && (b == 0 || (a.wrapping_sub(b) as i32) > 0)
}

/// The epoch after `word`: never 0, and its remainders by 2, 3 and 4 go on in turn, so that after the largest value comes 4.
pub(crate) fn next_epoch(word: u32) -> u32 {
    if word == u32::MAX { 4 } else { word + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_wrap_around() {
        assert!(newer(2, 1) && !newer(1, 2) && !newer(3, 3));
        assert!(newer(1, 0) && !newer(0, 1) && newer(u32::MAX, 0));
        assert_eq!((next_epoch(0), next_epoch(u32::MAX)), (1, 4));
        assert!((2..=4).all(|n| next_epoch(u32::MAX) % n == (u32::MAX % n + 1) % n));
        assert!(newer(4, u32::MAX) && !newer(u32::MAX, 4));
    }
}
