//! Where group barriers are needed.
//!
//! A group's lanes touch shared and global memory on their own. Wherever one lane's touch may hit what another lane
//! touched since the last barrier, and one of the two writes, a barrier goes before the later one. Control flow is
//! uniform over the group, so a barrier may stand anywhere. Waits and signals have a barrier inside; the end of a split
//! has one of the whole block.

use std::collections::{BTreeSet, HashSet};

use crate::ir::{OpId, OpKind, Region};

use super::{
    effects::{Access, Age, accesses, conflict},
    layout::Layouts,
    program::Program,
};

/// Touches since the last barrier: index into [`Walk::seen`], and how long ago.
type State = BTreeSet<(usize, Age)>;

/// The operations that need a group barrier before them.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    before: HashSet<OpId>,
}

impl Barriers {
    /// Finds where barriers are needed.
    pub fn new(p: &Program, layouts: &Layouts) -> Barriers {
        let mut walk = Walk { p, layouts, seen: vec![], barriers: Barriers::default(), loops: vec![] };
        for role in &p.kernel.roles {
            walk.region(&role.body, State::new());
        }
        walk.barriers
    }

    /// Whether the current group must meet before `op`.
    pub fn before(&self, op: OpId) -> bool {
        self.before.contains(&op)
    }
}

/// States that leave a loop's body by other ways than its end.
struct LoopExits {
    breaks: State,
    continues: State,
}

struct Walk<'p, 'k> {
    p: &'p Program<'k>,
    layouts: &'p Layouts,
    seen: Vec<Access>,
    barriers: Barriers,
    loops: Vec<LoopExits>,
}

impl Walk<'_, '_> {
    fn region(&mut self, region: &Region, mut state: State) -> State {
        for &op in &region.ops {
            state = self.op(op, state);
        }
        state
    }

    fn op(&mut self, op: OpId, state: State) -> State {
        match &self.p.kernel.op(op).kind {
            OpKind::If { then, otherwise, .. } => {
                let mut a = self.region(then, state.clone());
                a.extend(self.region(otherwise, state));
                a
            }
            OpKind::For { body, .. } => self.repeat(op, state, |w, s| (State::new(), w.region(body, s))),
            OpKind::While { header, body, .. } => self.repeat(op, state, |w, s| {
                let after_header = w.region(header, s);
                (after_header.clone(), w.region(body, after_header))
            }),
            OpKind::Split { body, .. } => {
                let inner = self.inside(body);
                if state.iter().any(|&(i, age)| inner.iter().any(|b| conflict(self.p, &self.seen[i], age, b)))
                {
                    self.barriers.before.insert(op);
                }
                self.region(body, State::new());
                State::new()
            }
            OpKind::Break { depth } => {
                let at = self.loops.len() - 1 - *depth as usize;
                self.loops[at].breaks.extend(state);
                State::new()
            }
            OpKind::Continue { depth } => {
                let at = self.loops.len() - 1 - *depth as usize;
                self.loops[at].continues.extend(state);
                State::new()
            }
            OpKind::Wait { .. }
            | OpKind::WaitAll { .. }
            | OpKind::TakePackets { .. }
            | OpKind::Signal { .. } => State::new(),
            _ => self.touch(op, state),
        }
    }

    fn touch(&mut self, op: OpId, mut state: State) -> State {
        let mine = accesses(self.p, self.layouts, op);
        let clash = |&(i, age): &(usize, Age)| mine.iter().any(|m| conflict(self.p, &self.seen[i], age, m));
        if self.barriers.before(op) || state.iter().any(clash) {
            self.barriers.before.insert(op);
            state.clear();
        }
        for m in mine {
            let at = self.seen.iter().position(|s| s.op == m.op).unwrap_or_else(|| {
                self.seen.push(m);
                self.seen.len() - 1
            });
            state.insert((at, Age::Now));
        }
        state
    }

    /// Runs a loop's round until what flows around its back edge stops growing. `round` returns the state where the
    /// loop may end before the body, and the one at the body's end.
    fn repeat(
        &mut self,
        op: OpId,
        entry: State,
        mut round: impl FnMut(&mut Self, State) -> (State, State),
    ) -> State {
        let mut start = entry;
        loop {
            self.loops.push(LoopExits { breaks: State::new(), continues: State::new() });
            let (ended, mut back) = round(self, start.clone());
            let exits = self.loops.pop().expect("pushed above");
            back.extend(exits.continues);
            let mut next = start.clone();
            next.extend(back.iter().map(|&(i, age)| (i, older(age, op))));
            if next == start {
                let mut out = ended;
                out.extend(start);
                out.extend(back);
                out.extend(exits.breaks);
                return out;
            }
            start = next;
        }
    }

    /// Everything that a region touches.
    fn inside(&self, region: &Region) -> Vec<Access> {
        let mut all = vec![];
        self.p.kernel.walk(region, &mut |id, _| all.extend(accesses(self.p, self.layouts, id)));
        all
    }
}

/// The age of a touch after the back edge of `l`.
fn older(age: Age, l: OpId) -> Age {
    match age {
        Age::Now => Age::Round(l),
        Age::Round(of) if of == l => age,
        Age::Round(_) | Age::Far => Age::Far,
    }
}
