//! Where group barriers are needed.
//!
//! A group's lanes touch shared and global memory on their own. Wherever one lane's touch may hit what another lane
//! touched since the last barrier, and one of the two writes, a barrier goes before the later one. Control flow is
//! uniform over the group, so a barrier may stand anywhere. Waits, signals, tickets, tallies and multiplications have a barrier inside; the end of a split
//! has one of the whole block. Reductions that all lanes meet for serve as barriers where one is needed after them: the
//! emitter then writes what came before them before them.

use std::collections::{BTreeSet, HashSet};

use super::{
    Form, Forms,
    effects::{Access, Age, accesses, conflict},
};
use crate::ir::{CommOp, ControlOp, Dtype, MatrixOp, MemoryOp, OpId, OpKind, ReduceOp, Region, ValueOp};
use crate::print::analysis::Program;
use crate::print::layout::Layouts;

/// Touches since the last barrier: index into [`Walk::seen`], how long ago, and a reduction since then that may serve as
/// the barrier.
type State = BTreeSet<(usize, Age, Option<OpId>)>;

/// The operations that need a group barrier before them.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    before: HashSet<OpId>,
    meetings: HashSet<OpId>,
}

impl Barriers {
    /// Finds where barriers are needed.
    pub fn new(p: &Program, layouts: &Layouts, forms: &Forms) -> Barriers {
        let mut walk = Walk { p, layouts, forms, seen: vec![], barriers: Barriers::default(), loops: vec![] };
        for role in &p.kernel.roles {
            walk.region(&role.body, State::new());
        }
        walk.barriers
    }

    /// Whether the current group must meet before `op`.
    pub fn before(&self, op: OpId) -> bool {
        self.before.contains(&op)
    }

    /// Whether the reduction `op` serves as a barrier: what stands before it must be written before it.
    pub fn meets(&self, op: OpId) -> bool {
        self.meetings.contains(&op)
    }
}

/// Whether all lanes of the group meet in an operation, so that what each did to memory before is there for every lane
/// after: `any` and `all` always, other reductions where they hand values from warp to warp. Scans are not counted.
fn is_meeting(p: &Program, op: OpId) -> bool {
    let OpKind::Value(value) = &p.kernel.op(op).kind else { return false };
    match value {
        ValueOp::Reduce { op: ReduceOp::And | ReduceOp::Or, a, .. }
            if p.kernel.ty(*a).dtype == Dtype::Bool =>
        {
            true
        }
        ValueOp::Reduce { .. } => p.lanes(op) > p.kernel.warp_size,
        any!(given, by_element, spreads) | ValueOp::Scan { .. } => false,
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
    forms: &'p Forms,
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
            OpKind::Control(control) => self.control(op, control, state),
            OpKind::Comm(comm) => match comm {
                any!(signals, waits, far) | CommOp::ReceiveMessages(_) => State::new(),
                any!(puts) | CommOp::SendMessages(_) => self.touch(op, state),
            },
            OpKind::Matrix(matrix) => match matrix {
                // Its lanes meet before they bring anything, and read a list before they meet.
                MatrixOp::Dot(dot) => {
                    if dot.a.list.is_some() {
                        self.touch(op, state);
                    }
                    self.touch(op, State::new())
                }
                MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => state,
                MatrixOp::LoadMatrix(_) | MatrixOp::LoadRow(_) | MatrixOp::StoreMatrix(_) => {
                    self.touch(op, state)
                }
            },
            OpKind::Memory(memory) => match memory {
                MemoryOp::Tally { .. } | MemoryOp::Ticket { .. } => {
                    self.touch(op, state);
                    State::new()
                }
                any!(loads, stores) | MemoryOp::Atomic { .. } => self.touch(op, state),
            },
            kind @ OpKind::Value(_) => {
                let live = kind.outs().iter().any(|v| self.forms.of(*v) != Form::Dead);
                if live && is_meeting(self.p, op) {
                    return state.into_iter().map(|(i, age, met)| (i, age, met.or(Some(op)))).collect();
                }
                self.touch(op, state)
            }
        }
    }

    fn control(&mut self, op: OpId, control: &ControlOp, state: State) -> State {
        match control {
            ControlOp::If { then, otherwise, .. } => {
                let mut a = self.region(then, state.clone());
                a.extend(self.region(otherwise, state));
                a
            }
            ControlOp::For { body, .. } => self.looped(op, state, |w, s| (State::new(), w.region(body, s))),
            ControlOp::While { header, body, .. } => self.looped(op, state, |w, s| {
                let after_header = w.region(header, s);
                (after_header.clone(), w.region(body, after_header))
            }),
            ControlOp::Split { body, .. } => {
                let inner = self.inside(body);
                self.separate(op, state, &inner);
                self.region(body, State::new());
                State::new()
            }
            ControlOp::Break { depth } => {
                let at = self.loops.len() - 1 - *depth as usize;
                self.loops[at].breaks.extend(state);
                State::new()
            }
            ControlOp::Continue { depth } => {
                let at = self.loops.len() - 1 - *depth as usize;
                self.loops[at].continues.extend(state);
                State::new()
            }
            ControlOp::VarDecl { .. } | ControlOp::VarGet { .. } | ControlOp::VarSet { .. } => state,
        }
    }

    /// Sees to it that `op`, which touches `mine`, comes after a barrier if it needs one. What is left of the state are
    /// the touches since then.
    fn separate(&mut self, op: OpId, mut state: State, mine: &[Access]) -> State {
        let clashes = |this: &Self, &(i, age, _): &(usize, Age, Option<OpId>)| {
            mine.iter().any(|m| conflict(this.p, &this.seen[i], age, m))
        };
        let met: Vec<Option<OpId>> = state.iter().filter(|t| clashes(self, t)).map(|t| t.2).collect();
        if self.barriers.before(op) || met.contains(&None) {
            self.barriers.before.insert(op);
            return State::new();
        }
        for meeting in met.into_iter().flatten() {
            self.barriers.meetings.insert(meeting);
            state.retain(|t| t.2 != Some(meeting));
        }
        state
    }

    fn touch(&mut self, op: OpId, state: State) -> State {
        let mine = accesses(self.p, self.layouts, op);
        let mut state = self.separate(op, state, &mine);
        for m in mine {
            let at = self.seen.iter().position(|s| (s.op, s.place) == (m.op, m.place)).unwrap_or_else(|| {
                self.seen.push(m);
                self.seen.len() - 1
            });
            state.insert((at, Age::Now, None));
        }
        state
    }

    /// A loop. A barrier that is needed in its rounds only because of what came before it stands before it instead.
    fn looped(
        &mut self,
        op: OpId,
        entry: State,
        round: impl Fn(&mut Self, State) -> (State, State),
    ) -> State {
        let after_barrier = self.repeat(op, State::new(), &round);
        if self.barriers.before(op) {
            return after_barrier;
        }
        let (before, meetings) = (self.barriers.before.clone(), self.barriers.meetings.clone());
        let after = self.repeat(op, entry, &round);
        if self.barriers.before == before {
            return after;
        }
        self.barriers = Barriers { before, meetings };
        self.barriers.before.insert(op);
        after_barrier
    }

    /// Runs a loop's round until what flows around its back edge stops growing. `round` returns the state where the
    /// loop may end before the body, and the one at the body's end.
    fn repeat(
        &mut self,
        op: OpId,
        entry: State,
        round: impl Fn(&mut Self, State) -> (State, State),
    ) -> State {
        let mut start = entry;
        loop {
            self.loops.push(LoopExits { breaks: State::new(), continues: State::new() });
            let (ended, mut back) = round(self, start.clone());
            let exits = self.loops.pop().expect("pushed above");
            back.extend(exits.continues);
            let mut next = start.clone();
            next.extend(back.iter().map(|&(i, age, met)| (i, older(age, op), met)));
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
