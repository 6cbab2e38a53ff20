//! Who waits for which element.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sim::schedule::AgentId;

/// Agents by the first element that each of them misses, and by when they came.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    agents: BTreeMap<(u64, u32), AgentId>,
    /// How many have ever waited: agents that wait for one element are woken in the order in which they came.
    came: u32,
}

impl Waiters {
    pub fn wait(&mut self, element: u64, agent: AgentId) {
        self.agents.insert((element, self.came), agent);
        self.came = self.came.wrapping_add(1);
    }

    /// The agents that wait for an element of a range, which wait no longer.
    pub fn wake(&mut self, range: Range<u64>) -> impl Iterator<Item = AgentId> + '_ {
        self.agents.extract_if((range.start, 0)..(range.end, 0), |_, _| true).map(|(_, agent)| agent)
    }

    /// All agents that wait, with the element.
    pub fn iter(&self) -> impl Iterator<Item = (u64, AgentId)> + '_ {
        self.agents.iter().map(|(&(element, _), &agent)| (element, agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_wake_agents_that_wait_there() {
        let mut waiters = Waiters::default();
        waiters.wait(4, 8);
        waiters.wait(0, 7);
        waiters.wait(4, 9);
        assert_eq!(waiters.wake(1..4).count(), 0);
        assert_eq!(waiters.iter().collect::<Vec<_>>(), [(0, 7), (4, 8), (4, 9)]);
        assert_eq!(waiters.wake(0..5).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(waiters.iter().count(), 0);
    }
}
