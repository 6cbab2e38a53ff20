//! Who runs next, for how long, and when peer stores become visible.

use std::collections::BinaryHeap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::agent::AgentId;
use crate::sim::setup::options::Strategy;

/// Somebody who can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Agent(AgentId),
    /// A rank's stream: its next launch or host step.
    Stream(u32),
}

/// Agents that the adversary lets run only when no other can.
#[derive(Clone, Copy, Debug)]
enum Starved {
    None,
    Rank(u32),
    Role(usize),
    Block(u32),
}

/// When peer stores become visible.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery {
    /// Any one, with a chance of `one_in` before each pick.
    Random { one_in: u32 },
    /// Only when no agent can run, flags before data.
    Held,
    /// The newest first, with a chance of `one_in` before each pick.
    Newest { one_in: u32 },
}

/// Priorities above this are not starved.
const FAVOURED: u64 = 1 << 40;

/// Makes every choice of a run.
#[derive(Debug)]
pub(crate) struct Scheduler {
    rng: ChaCha8Rng,
    strategy: Strategy,
    starved: Starved,
    pub delivery: Delivery,
    /// How often somebody communicates at most at a stretch.
    stretch: u32,
    ready: Vec<Task>,
    by_priority: BinaryHeap<(u64, u64, Task)>,
    picks: u64,
    /// Priority that the adversary's next change point gives: below all others.
    lowest: u64,
}

impl Scheduler {
    pub fn new(strategy: Strategy, seed: u64, ranks: u32) -> Scheduler {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let starved = match rng.random_range(0..5u32) {
            0 => Starved::Rank(rng.random_range(0..ranks.max(1))),
            1 => Starved::Role(0),
            2 => Starved::Role(1),
            3 => Starved::Block(rng.random_range(0..4)),
            _ => Starved::None,
        };
        let one_in = [1, 2, 8, 32][rng.random_range(0..4)];
        let delivery = match (strategy, rng.random_range(0..4u32)) {
            (Strategy::Random, _) => Delivery::Random { one_in },
            (Strategy::Adversarial, 0) => Delivery::Random { one_in },
            (Strategy::Adversarial, 1) => Delivery::Newest { one_in },
            (Strategy::Adversarial, _) => Delivery::Held,
        };
        let stretch = match strategy {
            Strategy::Random => [1, 4, 16][rng.random_range(0..3)],
            Strategy::Adversarial => 16,
        };
        Scheduler {
            rng,
            strategy,
            starved,
            delivery,
            stretch,
            ready: vec![],
            by_priority: BinaryHeap::new(),
            picks: 0,
            lowest: FAVOURED >> 1,
        }
    }

    /// A random number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    /// Whether something with a chance of one in `n` happens.
    pub fn chance(&mut self, one_in: u32) -> bool {
        one_in <= 1 || self.rng.random_range(0..one_in) == 0
    }

    /// The priority of a new agent, or of a stream (which has no role and block).
    pub fn priority(&mut self, rank: u32, role_and_block: Option<(usize, u32)>) -> u64 {
        if self.strategy == Strategy::Random {
            return 0;
        }
        let starved = match (self.starved, role_and_block) {
            (Starved::None, _) => false,
            (Starved::Rank(r), _) => r == rank,
            (Starved::Role(r), Some((role, _))) => r == role,
            (Starved::Block(b), Some((_, block))) => b == block,
            (Starved::Role(_) | Starved::Block(_), None) => false,
        };
        let random = FAVOURED / 2 + u64::from(self.rng.random::<u32>());
        if starved { random } else { random + FAVOURED }
    }

    /// Makes somebody ready to run.
    pub fn ready(&mut self, task: Task, priority: u64) {
        match self.strategy {
            Strategy::Random => self.ready.push(task),
            Strategy::Adversarial => self.by_priority.push((priority, u64::MAX - self.picks, task)),
        }
    }

    /// Chooses who runs next; it is not ready any more.
    pub fn pick(&mut self) -> Option<Task> {
        self.picks += 1;
        match self.strategy {
            Strategy::Random => {
                let n = self.ready.len();
                if n == 0 {
                    return None;
                }
                let at = self.below(n);
                Some(self.ready.swap_remove(at))
            }
            Strategy::Adversarial => self.by_priority.pop().map(|(_, _, task)| task),
        }
    }

    /// How often the one picked may communicate.
    pub fn stretch(&mut self) -> u32 {
        self.rng.random_range(1..=self.stretch)
    }

    /// Whether the adversary changes priorities here.
    pub fn change_point(&mut self) -> bool {
        self.strategy == Strategy::Adversarial && self.chance(32)
    }

    /// The priority of somebody who is to run after all others now.
    pub fn demoted(&mut self) -> u64 {
        self.lowest -= 1;
        self.lowest
    }

    /// How many picks were made.
    pub fn picks(&self) -> u64 {
        self.picks
    }
}
