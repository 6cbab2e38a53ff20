//! Products in pairs: two neighbouring blocks multiply by the same rows, each rows of its own.

use std::collections::VecDeque;

use super::matrix::narrow;
use crate::ir::Place;
use crate::sim::findings::FindingKind;
use crate::sim::flatten::insns::Dot;
use crate::sim::memory::Event;
use crate::sim::schedule::{Agent, World};

/// What a product has in common with that of the other block: the right operand with its first row, and the columns.
type Common = (Place, [u64; 3]);

/// The products that one block of a pair has begun before the other one.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The block's number in its role.
    pub block: u32,
    pub products: VecDeque<(Common, Event)>,
}

impl World<'_> {
    /// Notes a product of a block, if it is of a pair, or compares it with that of the other block.
    pub(super) fn pair(&mut self, agent: &Agent, dot: &Dot) {
        if !dot.paired {
            return;
        }
        let event = agent.event(&self.sites);
        let common = (dot.b.place, [dot.b.row, dot.from, dot.count].map(|reg| narrow(agent, reg)));
        let block = agent.block_in_role;
        let ahead = self.pairs.entry((agent.launch, agent.role, block / 2)).or_default();
        if ahead.products.is_empty() {
            ahead.block = block;
        }
        if ahead.block == block {
            ahead.products.push_back((common, event));
            return;
        }
        let Some((theirs, at)) = ahead.products.pop_front().filter(|(theirs, _)| *theirs != common) else {
            return;
        };
        let said = |(_, [row, from, count]): Common| format!("rows from {row} on, columns [{from}; {count}]");
        let message = format!(
            "block {block} multiplies by {}, and block {} by {}: blocks of a pair multiply by the same",
            said(common),
            block ^ 1,
            said(theirs)
        );
        self.find(FindingKind::PairsDiffer, message, event, Some(at));
    }
}
