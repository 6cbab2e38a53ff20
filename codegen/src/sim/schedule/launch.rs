//! What runs: a rank's program, a launch of it, the launch's blocks, and who they were.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::clock::{AgentNo, Clock};
use crate::ir::ParamId;
use crate::sim::memory::Block as Memory;
use crate::sim::setup::{Bound, Step};

/// A rank's program in progress.
#[derive(Debug)]
pub(crate) struct Stream {
    pub who: AgentNo,
    pub time: u32,
    pub clock: Clock,
    /// The step to do next, or being done.
    pub step: usize,
    pub program: Vec<ProgramStep>,
    pub launch: Option<Launch>,
    /// Epoch words that the launch before has advanced.
    pub advanced: Vec<usize>,
    pub priority: u64,
}

/// A step of a rank's program, by its number, and the next step that launches the same kernel on the same buffers, or 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramStep {
    pub number: u32,
    pub again: u32,
}

impl ProgramStep {
    /// The steps of a program. Scalars may differ from launch to launch.
    pub fn all(program: &[Step]) -> Vec<ProgramStep> {
        let mut later: HashMap<(usize, Vec<Option<usize>>), u32> = HashMap::new();
        let mut steps = vec![];
        for (number, step) in program.iter().enumerate().rev() {
            let again = match step {
                Step::Launch { kernel, params } => {
                    later.insert((*kernel, buffers(params).collect()), number as u32).unwrap_or(0)
                }
                Step::Host { .. } => 0,
            };
            steps.push(ProgramStep { number: number as u32, again });
        }
        steps.reverse();
        steps
    }
}

/// The buffers that parameters stand for, in order.
fn buffers(params: &[Bound]) -> impl Iterator<Item = Option<usize>> + '_ {
    params.iter().map(|p| match *p {
        Bound::Buffer(b) => Some(b),
        Bound::Scalar(_) => None,
    })
}

/// A launch in progress.
#[derive(Debug)]
pub(crate) struct Launch {
    pub kernel: usize,
    pub step: ProgramStep,
    pub params: Arc<[Bound]>,
    /// Number among all launches of the run.
    pub number: usize,
    /// What is ordered before the launch, and before its end.
    pub start: Rc<Clock>,
    pub end: Clock,
    pub next_block: u32,
    /// Blocks of which anybody runs, and how many of the roles of each run of those that have several.
    pub running: u32,
    pub left: HashMap<u32, u32>,
    pub blocks: u32,
    /// What runs in blocks: one for each role that a block is of.
    pub teams: u32,
    /// Epoch words that advance when the last of them begins, with the number of those that have.
    pub begun: Vec<(usize, u32)>,
}

impl Launch {
    /// Counts what begins an epoch of the word in a block; how many have.
    pub fn begins(&mut self, word: usize) -> u32 {
        let at = self.begun.iter().position(|b| b.0 == word).unwrap_or_else(|| {
            self.begun.push((word, 0));
            self.begun.len() - 1
        });
        self.begun[at].1 += 1;
        self.begun[at].1
    }

    /// A role of a block has ended.
    pub fn ends(&mut self, block: u32) {
        if let Some(left) = self.left.get_mut(&block) {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.left.remove(&block);
        }
        self.running -= 1;
    }

    /// The buffers that its parameters stand for, in order.
    pub fn buffers(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        buffers(&self.params)
    }

    /// Whether a parameter stands for the buffer.
    pub fn is_bound(&self, param: ParamId, buffer: usize) -> bool {
        matches!(self.params[param.index()], Bound::Buffer(b) if b == buffer)
    }
}

/// Who had a number of a rank's, from a time on.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub number: usize,
    pub from: u32,
    pub launch: usize,
    pub role: usize,
    pub block: u32,
    pub group: Option<u32>,
}

/// A running block.
#[derive(Debug)]
pub(crate) struct RunningBlock {
    /// Instances of the shared arrays that were accessed, by array and group.
    pub shared: Vec<Vec<Option<Memory>>>,
    /// Groups of a split that are not done.
    pub groups: u32,
    /// What the block knew at the split, as long as they are not.
    pub known: Option<Rc<Clock>>,
    /// Those that are, with the times at which they ended, until somebody needs to be ordered after them.
    pub ended: SmallVec<[(AgentNo, u32); 8]>,
}
