//! Vector clocks.
//!
//! A clock has one row a rank with the times of that rank's agents. Rows are shared and copied on write: agents that
//! synchronise end up with the same rows, so that joining clocks mostly compares pointers.

use std::rc::Rc;

/// An agent's place in the clocks: its rank, and its number there (0 is the rank's stream, that is, its host). Launches
/// of one rank are ordered, so a later launch uses the places of an earlier one again, with later times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct AgentNo(u32);

const NUMBER_BITS: u32 = 20;

impl AgentNo {
    pub fn new(rank: u32, number: u32) -> AgentNo {
        debug_assert!(number < 1 << NUMBER_BITS);
        AgentNo(rank << NUMBER_BITS | number)
    }

    pub fn rank(self) -> usize {
        (self.0 >> NUMBER_BITS) as usize
    }

    pub fn number(self) -> usize {
        (self.0 & ((1 << NUMBER_BITS) - 1)) as usize
    }
}

/// How many agents a rank may have.
pub(super) const MAX_AGENTS: u32 = 1 << NUMBER_BITS;

/// For every agent, up to which of its times its actions are ordered before the owner of the clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    rows: Vec<Rc<[u32]>>,
    /// Whether anything has been added since it was copied.
    grown: bool,
}

impl Clone for Clock {
    fn clone(&self) -> Clock {
        Clock { rows: self.rows.clone(), grown: false }
    }

    fn clone_from(&mut self, other: &Clock) {
        self.rows.clone_from(&other.rows);
        self.grown = false;
    }
}

impl Clock {
    pub fn new(ranks: usize, agents: usize) -> Clock {
        let row: Rc<[u32]> = vec![0; agents].into();
        Clock { rows: vec![row; ranks], grown: false }
    }

    pub fn get(&self, agent: AgentNo) -> u32 {
        self.rows[agent.rank()][agent.number()]
    }

    /// Whether what the agent did at that time is ordered before the owner.
    pub fn covers(&self, agent: AgentNo, time: u32) -> bool {
        time <= self.get(agent)
    }

    pub fn set(&mut self, agent: AgentNo, time: u32) {
        self.grown = true;
        let row = &mut self.rows[agent.rank()];
        Rc::make_mut(row)[agent.number()] = time;
    }

    /// As [`Clock::join`] of a clock that was copied from this one or from an earlier state of it: there is nothing to do unless it
    /// has grown.
    pub fn rejoin(&mut self, copy: &Clock) {
        if copy.grown {
            self.join(copy);
        }
    }

    /// Lets go of everything, so that nobody else copies what this alone shares. The storage stays.
    pub fn clear(&mut self) {
        self.rows.clear();
    }

    /// Orders whatever is ordered before `other` before the owner too.
    pub fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.rows.iter_mut().zip(&other.rows) {
            if Rc::ptr_eq(mine, theirs) {
                continue;
            }
            // Without branches in the loop, so that it vectorises.
            let (mut mine_less, mut theirs_less) = (false, false);
            for (&m, &t) in mine.iter().zip(theirs.iter()) {
                mine_less |= m < t;
                theirs_less |= t < m;
            }
            match (mine_less, theirs_less) {
                (false, _) => {}
                (true, false) => {
                    *mine = theirs.clone();
                    self.grown = true;
                }
                (true, true) => {
                    self.grown = true;
                    for (m, &t) in Rc::make_mut(mine).iter_mut().zip(theirs.iter()) {
                        *m = (*m).max(t);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_take_the_later_time_of_each() {
        let a = AgentNo::new(0, 2);
        let (b, c) = (AgentNo::new(1, 0), AgentNo::new(1, 3));
        let zero = Clock::new(2, 4);
        let (mut x, mut y) = (zero.clone(), zero.clone());
        x.set(a, 5);
        x.set(b, 1);
        y.set(b, 3);
        y.set(c, 7);
        x.join(&y);
        assert_eq!((x.get(a), x.get(b), x.get(c)), (5, 3, 7));
        assert_eq!((y.get(a), y.get(b), zero.get(b)), (0, 3, 0), "the others are as they were");
        assert!(x.covers(b, 3) && !x.covers(b, 4) && x.covers(c, 0));
        let (mut all, mut copy) = (x.clone(), x.clone());
        all.rejoin(&copy);
        copy.set(a, 9);
        all.rejoin(&copy);
        assert_eq!((all.get(a), all.get(c)), (9, 7));
        let mut z = zero.clone();
        z.join(&x);
        assert_eq!(z.get(c), 7);
        z.join(&zero);
        assert_eq!(z.get(c), 7);
        assert_eq!((a.rank(), a.number(), c.rank(), c.number()), (0, 2, 1, 3));
    }
}
