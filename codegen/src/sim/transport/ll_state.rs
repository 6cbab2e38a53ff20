//! LL buffers: what was sent last to each element, which agents read it, and which wait.

use std::ops::Range;

use crate::sim::memory::{Event, runs::Runs, waiters::Waiters};
use crate::sim::schedule::AgentId;

/// A tile that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub epoch: u32,
    pub by: Event,
    /// The last reading by each agent that read of it.
    pub readers: Vec<Event>,
    /// A later sending to any of its elements, from when it is on its way.
    pub superseded: Option<Event>,
}

/// One rank's instance of an LL buffer. Ranges count elements.
#[derive(Debug, Default)]
pub(crate) struct LlArray {
    /// The number in `sent` of what each element has.
    runs: Runs<u32>,
    pub sent: Vec<Sent>,
    waiters: Waiters,
}

impl LlArray {
    /// What an element has.
    pub fn at(&self, index: u64) -> Option<u32> {
        self.run_at(index).map(|(_, sent)| sent)
    }

    /// The same, with the elements that have it too.
    pub fn run_at(&self, index: u64) -> Option<(Range<u64>, u32)> {
        self.runs.at(index).map(|(run, &sent)| (run, sent))
    }

    /// The epoch that an element has.
    pub fn epoch(&self, index: u64) -> u32 {
        self.at(index).map_or(0, |at| self.sent[at as usize].epoch)
    }

    /// What the elements of a range have.
    pub fn within(&self, range: Range<u64>) -> Vec<u32> {
        let mut all: Vec<u32> = self.runs.within(range).map(|run| *run.state).collect();
        all.dedup();
        all
    }

    /// Elements arrive. Agents that waited for any of them wait no longer.
    pub fn arrive(&mut self, range: Range<u64>, sent: Sent) -> impl Iterator<Item = AgentId> + '_ {
        self.runs.set(range.clone(), self.sent.len() as u32);
        self.sent.push(sent);
        self.waiters.wake(range)
    }

    /// Notes that an agent has read of something that was sent.
    pub fn read(&mut self, sent: u32, by: Event) {
        let readers = &mut self.sent[sent as usize].readers;
        match readers.iter_mut().rev().find(|r| r.agent == by.agent) {
            Some(last) => *last = by,
            None => readers.push(by),
        }
    }

    pub fn wait(&mut self, index: u64, agent: AgentId) {
        self.waiters.wait(index, agent);
    }

    /// All agents that wait, with the element that is missing.
    pub fn waiting(&self) -> impl Iterator<Item = (u64, AgentId)> + '_ {
        self.waiters.iter()
    }
}
