//! Vector clocks.
//!
//! A clock has one row a rank with the times of that rank's agents. Rows, all together, each, and in chunks, are shared and copied on write:
//! agents that synchronise end up with the same ones, so that joining clocks mostly compares pointers.

use std::rc::Rc;

/// An agent's place in the clocks: its rank, and its number there (0 is the rank's stream, that is, its host). Launches
/// of one rank are ordered, so a later launch uses the places of an earlier one again, with later times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AgentNo(u32);

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
pub(crate) const MAX_AGENTS: u32 = 1 << NUMBER_BITS;

/// Times of agents one after another: what a change copies.
type Chunk = [u32; CHUNK];
const CHUNK: usize = 64;

/// Whether any time is less in the first one, and in the second one. Without branches in the loop, so that it vectorises.
#[inline(always)]
fn less(a: &Chunk, b: &Chunk) -> (bool, bool) {
    let (mut a_less, mut b_less) = (false, false);
    for (a, b) in a.iter().zip(b) {
        a_less |= a < b;
        b_less |= b < a;
    }
    (a_less, b_less)
}

/// The same of rows, whose shared chunks are the same. Unsigned numbers are not compared side by side before AVX2.
#[multiversion::multiversion(targets("x86_64+avx2"))]
fn less_in_rows(mine: &[Rc<Chunk>], theirs: &[Rc<Chunk>]) -> (bool, bool) {
    let unlike = mine.iter().zip(theirs).filter(|(m, t)| !Rc::ptr_eq(m, t));
    unlike.map(|(m, t)| less(m, t)).fold((false, false), |a, b| (a.0 | b.0, a.1 | b.1))
}

/// The times of a rank's agents.
type Row = Rc<[Rc<Chunk>]>;

/// For every agent, up to which of its times its actions are ordered before the owner of the clock.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// By rank. All of them are shared, too: most agents end without having learnt anything.
    rows: Option<Rc<[Row]>>,
    /// Whether anything has been added since it was copied.
    grown: bool,
}

impl Clone for Clock {
    fn clone(&self) -> Clock {
        Clock { rows: self.rows.clone(), grown: false }
    }
}

impl Clock {
    pub fn new(ranks: usize, agents: usize) -> Clock {
        let chunk = Rc::new([0; CHUNK]);
        let row: Row = std::iter::repeat_n(chunk, agents.div_ceil(CHUNK)).collect();
        Clock { rows: Some(std::iter::repeat_n(row, ranks).collect()), grown: false }
    }

    fn rows(&self) -> &[Row] {
        self.rows.as_deref().unwrap_or_default()
    }

    /// A row to change, in a copy of them all if others have it.
    fn row_mut(&mut self, rank: usize) -> &mut Row {
        self.grown = true;
        &mut Rc::make_mut(self.rows.as_mut().expect("no agent changes what was cleared"))[rank]
    }

    pub fn get(&self, agent: AgentNo) -> u32 {
        self.rows()[agent.rank()][agent.number() / CHUNK][agent.number() % CHUNK]
    }

    /// Whether what the agent did at that time is ordered before the owner.
    pub fn covers(&self, agent: AgentNo, time: u32) -> bool {
        time <= self.get(agent)
    }

    pub fn set(&mut self, agent: AgentNo, time: u32) {
        let row = Rc::make_mut(self.row_mut(agent.rank()));
        Rc::make_mut(&mut row[agent.number() / CHUNK])[agent.number() % CHUNK] = time;
    }

    /// As [`Clock::join`] of a clock that was copied from this one or from an earlier state of it: there is nothing to do unless it
    /// has grown.
    pub fn rejoin(&mut self, copy: &Clock) {
        if copy.grown {
            self.join(copy);
        }
    }

    /// Whether it knows more than what it was copied from did then.
    pub fn has_grown(&self) -> bool {
        self.grown
    }

    /// Lets go of everything, so that no other clock copies what this alone shares.
    pub fn clear(&mut self) {
        self.rows = None;
    }

    /// Orders whatever is ordered before `other` before the owner too.
    pub fn join(&mut self, other: &Clock) {
        if let (Some(mine), Some(theirs)) = (&self.rows, &other.rows)
            && Rc::ptr_eq(mine, theirs)
        {
            return;
        }
        for (rank, theirs) in other.rows().iter().enumerate() {
            let mine = &self.rows()[rank];
            if Rc::ptr_eq(mine, theirs) {
                continue;
            }
            match less_in_rows(mine, theirs) {
                (false, _) => {}
                (true, false) => *self.row_mut(rank) = theirs.clone(),
                (true, true) => join_rows(Rc::make_mut(self.row_mut(rank)), theirs),
            }
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn join_rows(mine: &mut [Rc<Chunk>], theirs: &[Rc<Chunk>]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs).filter(|(m, t)| !Rc::ptr_eq(m, t)) {
        match less(mine, theirs) {
            (false, _) => {}
            (true, false) => *mine = theirs.clone(),
            (true, true) => {
                Rc::make_mut(mine).iter_mut().zip(theirs.iter()).for_each(|(m, &t)| *m = (*m).max(t))
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
        let far = AgentNo::new(0, 3 * CHUNK as u32 + 1);
        let (mut near, mut other) = (Clock::new(1, 4 * CHUNK), Clock::new(1, 4 * CHUNK));
        near.set(a, 1);
        other.set(far, 2);
        near.join(&other);
        assert_eq!((near.get(a), near.get(far), other.get(a)), (1, 2, 0));
        let mut z = zero.clone();
        z.join(&x);
        assert_eq!(z.get(c), 7);
        z.join(&zero);
        assert_eq!(z.get(c), 7);
        assert_eq!((a.rank(), a.number(), c.rank(), c.number()), (0, 2, 1, 3));
    }
}
