//! The signals that a waiting agent can still reach, as far as its registers tell.

use std::ops::Range;

use crate::ir::{CommOp, OpKind, Type};
use crate::sim::exec::scalar as exec_scalar;
use crate::sim::flatten::{CommInsn, Insn, Pc, Reg, code::TargetReg};
use crate::sim::schedule::Agent;
use crate::sim::setup::Bound;

/// A signal, packets or LL elements that code sends later. A field is none where only the run decides.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub buffer: usize,
    /// The ranks, a bit for each of the machine whose first one is `first`.
    to: Option<u64>,
    first: u32,
    indices: Option<Range<u64>>,
    /// The value of a flag, or the epoch of LL elements.
    value: Option<u32>,
}

impl Ahead {
    /// Whether it may reach an element of a rank's instance, with this value if it is known.
    pub fn may_be(&self, rank: usize, index: u64, value: Option<u32>) -> bool {
        let number = rank.checked_sub(self.first as usize).filter(|number| *number < 64);
        self.to.is_none_or(|ranks| number.is_some_and(|number| ranks >> number & 1 != 0))
            && self.indices.as_ref().is_none_or(|indices| indices.contains(&index))
            && self.value.zip(value).is_none_or(|(sent, awaited)| sent == awaited)
    }
}

/// All that lies ahead of an agent. A group of a split goes on as its block.
pub(crate) fn ahead(agent: &Agent) -> Vec<Ahead> {
    let code = &agent.role_code().code;
    let may = reached(code, agent.pc, |_| None);
    let sends = |pc: &usize| matches!(&code[*pc], Insn::Comm(insn) if insn.sends());
    if !(0..code.len()).filter(|&pc| may[pc]).any(|pc| sends(&pc)) {
        return vec![];
    }
    let mut known = Known::of(agent, &may);
    let does = reached(code, agent.pc, |cond| known.get(cond));
    (0..code.len()).filter(|&pc| does[pc]).filter_map(|pc| known.sent(pc)).collect()
}

/// Which instructions run from one on, with the conditions that are known.
fn reached(code: &[Insn], from: Pc, mut cond: impl FnMut(Reg) -> Option<u64>) -> Vec<bool> {
    let (mut reached, mut open) = (vec![false; code.len()], vec![from]);
    while let Some(pc) = open.pop() {
        if std::mem::replace(&mut reached[pc as usize], true) {
            continue;
        }
        match code[pc as usize] {
            Insn::End => {}
            Insn::Jump { to } => open.push(to),
            Insn::Unless { cond: of, to } => match cond(of) {
                Some(0) => open.push(to),
                Some(_) => open.push(pc + 1),
                None => open.extend([to, pc + 1]),
            },
            Insn::LoopHead { to, .. } | Insn::Split { after: to, .. } => open.extend([to, pc + 1]),
            Insn::LoopNext { head, exit, .. } => open.extend([head, exit]),
            any!(scalars, launched)
            | Insn::Join
            | Insn::CopyTile { .. }
            | Insn::Tile(_)
            | Insn::Memory(_)
            | Insn::Matrix(_)
            | Insn::Comm(_) => open.push(pc + 1),
        }
    }
    reached
}

/// What writes a register.
#[derive(Clone, Copy)]
enum Writer {
    None,
    One(Pc),
    /// Several, as of a variable; whether one of them is ahead.
    Several {
        ahead: bool,
    },
}

/// Registers as they will be, computed from what an agent holds.
struct Known<'a> {
    agent: &'a Agent,
    ahead: &'a [bool],
    writers: Vec<Writer>,
    known: Vec<Option<Option<u64>>>,
    /// Where an instruction finds its operands.
    scalars: Vec<u64>,
}

impl Known<'_> {
    fn of<'a>(agent: &'a Agent, ahead: &'a [bool]) -> Known<'a> {
        let mut writers = vec![Writer::None; agent.scalars.len()];
        for (pc, insn) in agent.role_code().code.iter().enumerate() {
            let Some(out) = insn.writes() else { continue };
            let before = &mut writers[out as usize];
            *before = match *before {
                Writer::None => Writer::One(pc as Pc),
                Writer::One(first) => Writer::Several { ahead: ahead[first as usize] || ahead[pc] },
                Writer::Several { ahead: any } => Writer::Several { ahead: any || ahead[pc] },
            };
        }
        let known = vec![None; agent.scalars.len()];
        Known { agent, ahead, writers, known, scalars: agent.scalars.clone() }
    }

    fn get(&mut self, reg: Reg) -> Option<u64> {
        if let Some(known) = self.known[reg as usize] {
            return known;
        }
        // A register that is computed from itself is a variable's.
        self.known[reg as usize] = Some(None);
        let known = match self.writers[reg as usize] {
            Writer::One(pc) if self.ahead[pc as usize] => self.computed(pc, reg),
            Writer::Several { ahead: true } => None,
            Writer::None | Writer::One(_) | Writer::Several { ahead: false } => Some(self.agent.get(reg)),
        };
        self.known[reg as usize] = Some(known);
        known
    }

    /// What an instruction will compute.
    fn computed(&mut self, pc: Pc, out: Reg) -> Option<u64> {
        let code = self.agent.role_code();
        let operands: &[Reg] = match code.code[pc as usize] {
            Insn::Rank { .. } => return Some(self.agent.near().into()),
            Insn::Node { .. } => return Some(self.agent.node().into()),
            Insn::ScalarParam { param, .. } => {
                return match self.agent.params[param.index()] {
                    Bound::Scalar(bits) => Some(bits),
                    Bound::Buffer(_) => None,
                };
            }
            Insn::Copy { a, .. } | Insn::Unary { a, .. } | Insn::Cast { a, .. } => &[a],
            Insn::Binary { a, b, .. } | Insn::Compare { a, b, .. } => &[a, b],
            Insn::Select { cond, a, b, .. } => &[cond, a, b],
            Insn::Fma { a, b, c, .. } => &[a, b, c],
            any!(ends)
            | Insn::Active { .. }
            | Insn::Epoch { .. }
            | Insn::GroupIndex { .. }
            | Insn::CopyTile { .. }
            | Insn::Tile(_)
            | Insn::Memory(_)
            | Insn::Matrix(_)
            | Insn::Comm(_)
            | Insn::Jump { .. }
            | Insn::Unless { .. }
            | Insn::LoopHead { .. }
            | Insn::LoopNext { .. } => return None,
        };
        for &r in operands {
            self.scalars[r as usize] = self.get(r)?;
        }
        exec_scalar::one(&code.scalar_code[pc as usize], &mut self.scalars)?;
        Some(self.scalars[out as usize])
    }

    /// What an instruction sends, if it does.
    fn sent(&mut self, pc: usize) -> Option<Ahead> {
        let Insn::Comm(insn) = &self.agent.role_code().code[pc] else { return None };
        let own = Some(1 << self.agent.near());
        let (param, to, indices, value) = match insn {
            CommInsn::Signal(s) => (s.flag, self.ranks(s.target), self.from(s.index, 1), self.get(s.value)),
            CommInsn::BlockSignal(s) => (s.flag, own, self.from(s.index, 1), self.get(s.value)),
            CommInsn::SendMessages(s) => {
                let tile = self.sent_tile(pc)?;
                let by_element = s.transport.traits().waits_by_element;
                let unit = if by_element { 1 } else { u64::from(s.transport.unit(tile.dtype)) };
                let elements = self.from(s.index, tile.len.unwrap_or(1).into());
                let messages = elements.map(|e| e.start / unit..e.end.div_ceil(unit));
                (s.buffer, self.ranks(s.target), messages, s.epoch.and_then(|epoch| self.get(epoch)))
            }
            CommInsn::Put(_)
            | CommInsn::PutMatrix(_)
            | CommInsn::Wait(_)
            | CommInsn::WaitAll(_)
            | CommInsn::BlockWait(_)
            | CommInsn::Receive(_)
            | CommInsn::Far(_) => return None,
        };
        let buffer = self.agent.buffer(param);
        let first = self.agent.first_near();
        Some(Ahead { buffer, to, first, indices, value: value.map(|bits| bits as u32) })
    }

    fn ranks(&mut self, target: TargetReg) -> Option<u64> {
        match target {
            TargetReg::Rank(r) => self.get(r).map(|rank| 1u64.checked_shl(rank as u32).unwrap_or(0)),
            TargetReg::Mask(m) => self.get(m),
        }
    }

    fn from(&mut self, first: Reg, count: u64) -> Option<Range<u64>> {
        self.get(first).map(|first| first..first.saturating_add(count))
    }

    /// The type of the tile that an instruction sends.
    fn sent_tile(&self, pc: usize) -> Option<Type> {
        let kernel = self.agent.compiled.kernel();
        match &kernel.op(self.agent.role_code().ops[pc]).kind {
            OpKind::Comm(CommOp::SendMessages(sent)) => Some(kernel.ty(sent.value)),
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => None,
        }
    }
}
