//! The interpreter's loop and the operations on registers.

use super::exact;
use super::scalar::{self, Ran};
use crate::ir::{Dtype, NoResult, OpId, ParamId};
use crate::sim::findings::{FindingKind, diagnose::describe};
use crate::sim::flatten::{
    CommInsn, Insn, Pc,
    code::{COMMUNICATION, RoleCode, TileReg},
    insns::TileInsn,
    registers::{After, TileRegisters},
};
use crate::sim::memory::Event;
use crate::sim::schedule::{Agent, AgentId, World};
use crate::sim::setup::Bound;
use crate::sim::values::{Tile, arith::Trap, bulk, convert::cast_tile};

/// Why an agent stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Its turn is over.
    Stretch,
    /// It waits for a flag, and runs the same instruction again when that changes.
    Waiting,
    /// Its groups run `body`; it goes on when they are done.
    Split { groups: u32, body: Pc },
    /// The group is done.
    Join,
    /// The block is done.
    End,
    /// It did something that ends the run.
    Fault,
}

/// What an instruction does to the flow of control.
pub(crate) enum Flow {
    Next,
    Jump(Pc),
    Stop(Stop),
}

impl Agent {
    pub fn set(&mut self, out: u32, bits: u64) {
        self.scalars[out as usize] = bits;
    }

    pub fn get(&self, r: u32) -> u64 {
        self.scalars[r as usize]
    }

    pub fn tile(&self, r: TileReg) -> &Tile {
        &self.tiles[r as usize]
    }

    /// A tile register to write, and the others to read from.
    fn tile_mut(&mut self, out: TileReg) -> (&mut Tile, Others<'_>) {
        let (before, rest) = self.tiles.split_at_mut(out as usize);
        let (out, after) = rest.split_first_mut().expect("registers are allocated");
        (out, Others { before, after })
    }

    /// The buffer that a parameter stands for.
    pub fn buffer(&self, param: ParamId) -> usize {
        match self.params[param.index()] {
            Bound::Buffer(b) => b,
            Bound::Scalar(_) => unreachable!("the verifier tells buffers from scalars"),
        }
    }

    /// What it does now, as an event.
    pub fn event(&self, sites: &[u32]) -> Event {
        let op = self.role_code().ops[self.pc as usize];
        Event { agent: self.who, time: self.time, site: sites[self.kernel] + op.0 }
    }
}

impl World<'_> {
    /// Lets an agent run until it has communicated `stretch` times or stops by itself. See [`Insn::share_of_turn`].
    #[inline(never)]
    pub fn execute(&mut self, id: AgentId, agent: &mut Agent, stretch: u32) -> Stop {
        let machine = self.machine;
        let RoleCode { code, scalar_code, tiles: TileRegisters { after, .. }, .. } =
            &machine.kernels[agent.kernel].roles[agent.role];
        let mut left = stretch * COMMUNICATION;
        loop {
            let Ran { pc, steps, trap } = scalar::run(scalar_code, &mut agent.scalars, agent.pc);
            agent.pc = pc;
            self.steps += steps + 1;
            if let Some(trap) = trap {
                return self.trapped(agent, trap);
            }
            let insn = &code[agent.pc as usize];
            let After { share, ref dead } = after[agent.pc as usize];
            if share > 0 {
                if left == 0 {
                    self.steps -= 1;
                    return Stop::Stretch;
                }
                left = left.saturating_sub(share);
            }
            match self.step(id, agent, insn) {
                Flow::Next => {
                    for &tile in dead {
                        agent.tiles[tile as usize].clear();
                    }
                    agent.pc += 1;
                    // What stands next to a signal on the wrong side shows when others act right after it.
                    let signalled = share > 0 && matches!(insn, Insn::Comm(CommInsn::Signal(_)));
                    if signalled && self.sched.chance(4) {
                        agent.priority = self.sched.demoted();
                        return Stop::Stretch;
                    }
                }
                Flow::Jump(to) => {
                    // Only jumps back can make a run endless.
                    if self.steps > self.deadline && to <= agent.pc {
                        return self.too_long(agent, to);
                    }
                    agent.pc = to;
                }
                Flow::Stop(stop) => return stop,
            }
        }
    }

    /// Ends the run in a loop that begins at `head`.
    fn too_long(&mut self, agent: &Agent, head: Pc) -> Stop {
        let (at, most) = (agent.event(&self.sites), self.options.max_steps);
        if self.steps > most {
            let message = format!("the run executed more than {most} instructions: an endless loop?");
            self.find(FindingKind::StepLimit, message, at, None);
            return Stop::Fault;
        }
        let (code, kernel) = (agent.role_code(), agent.compiled.kernel());
        let accesses = (head..=agent.pc).filter(|&pc| matches!(code.code[pc as usize], Insn::Memory(_)));
        let ops: Vec<OpId> = accesses.map(|pc| code.ops[pc as usize]).collect();
        let mut does: Vec<String> = ops.iter().map(|&op| describe(kernel, op)).collect();
        does.dedup();
        let spin = self.spin_steps();
        let does = if does.is_empty() { "nothing".into() } else { does.join(" and ") };
        let message = format!(
            "a loop does {does} again and again, and in {spin} instructions no group has stored, sent or received \
             anything: nothing can end it"
        );
        let site = ops.first().map_or(at.site, |op| self.sites[agent.kernel] + op.0);
        self.find(FindingKind::EndlessSpin, message, Event { site, ..at }, None);
        Stop::Fault
    }

    fn trapped(&mut self, agent: &Agent, trap: Trap) -> Stop {
        let at = agent.event(&self.sites);
        let wrapped;
        let (kind, message) = match trap {
            Trap::Wrapped(exact) => {
                wrapped = format!(
                    "a number is computed in 32 bits and comes to {exact}, which wraps to {} and is used here by its size: \
                     compute it in 64 bits, with `.to_u64()` before the multiplication, or cut it to size with `%` or `&`",
                    exact as u32,
                    exact = exact::unmarked(exact),
                );
                (FindingKind::WrappedIndex, &*wrapped)
            }
            Trap::NoResult(NoResult::DivisionByZero) => {
                (FindingKind::DivisionByZero, "integer division by zero")
            }
            Trap::NoResult(NoResult::DivisionOverflow) => {
                (FindingKind::DivisionOverflow, "the smallest i32 divided by -1 does not fit i32")
            }
            Trap::NoResult(NoResult::ShiftOverflow) => {
                (FindingKind::ShiftOverflow, "a shift count is not below the width of its operand")
            }
        };
        self.find(kind, message.into(), at, None);
        Stop::Fault
    }

    // A call of it for each instruction, with the flow in memory, would cost more than most of them.
    #[inline(always)]
    fn step(&mut self, id: AgentId, agent: &mut Agent, insn: &Insn) -> Flow {
        match *insn {
            Insn::CopyTile { out, a } => agent.tiles[out as usize] = agent.tile(a).clone(),
            Insn::Rank { out } => agent.set(out, agent.near().into()),
            Insn::Node { out } => agent.set(out, agent.node().into()),
            Insn::Active { out } => agent.set(out, self.active(agent)),
            Insn::ScalarParam { out, param } => match agent.params[param.index()] {
                Bound::Scalar(bits) => agent.set(out, bits),
                Bound::Buffer(_) => unreachable!("the verifier tells buffers from scalars"),
            },
            Insn::Epoch { out, word, advance } => {
                let epoch = self.read_epoch(agent, agent.buffer(word), advance);
                agent.set(out, u64::from(epoch));
            }
            Insn::GroupIndex { out, team } => {
                let index = agent.group.unwrap_or(0) * team.blocks + team.first + agent.block_in_role;
                agent.set(out, u64::from(index));
            }
            Insn::Tile(ref insn) => {
                if let Err(trap) = agent.compute_tile(insn) {
                    return Flow::Stop(self.trapped(agent, trap));
                }
            }
            Insn::Memory(ref insn) => return self.access_memory(agent, insn),
            Insn::Matrix(ref insn) => return self.matrix(agent, insn),
            Insn::Comm(ref insn) => return self.communicate(id, agent, insn),
            Insn::Jump { to } => return Flow::Jump(to),
            Insn::LoopNext { dtype, var, step, head, exit } => {
                if dtype == Dtype::U32
                    && let Err(trap) = exact::ordered(0, agent.get(step))
                {
                    return Flow::Stop(self.trapped(agent, trap));
                }
                return match count_up(dtype, agent.get(var), agent.get(step)) {
                    Some(next) => {
                        agent.set(var, next);
                        Flow::Jump(head)
                    }
                    None => Flow::Jump(exit),
                };
            }
            Insn::Split { groups, after } => {
                let body = agent.pc + 1;
                agent.pc = after;
                return Flow::Stop(Stop::Split { groups, body });
            }
            Insn::Join => return Flow::Stop(Stop::Join),
            Insn::End => return Flow::Stop(Stop::End),
            any!(scalars) | Insn::Unless { .. } | Insn::LoopHead { .. } => {
                unreachable!("a run of instructions on scalars does not stop at one")
            }
        }
        Flow::Next
    }
}

/// All tile registers but one: the result's register is none of the operands'.
struct Others<'a> {
    before: &'a [Tile],
    after: &'a [Tile],
}

impl Others<'_> {
    fn tile(&self, r: TileReg) -> &Tile {
        let at = r as usize;
        self.before.get(at).unwrap_or_else(|| &self.after[at - self.before.len() - 1])
    }
}

impl Agent {
    fn compute_tile(&mut self, insn: &TileInsn) -> Result<(), Trap> {
        match *insn {
            TileInsn::Binary { op, dtype, out, a, b } => {
                let (out, of) = self.tile_mut(out);
                return bulk::binary(op, dtype, of.tile(a), of.tile(b), out);
            }
            TileInsn::Unary { op, dtype, out, a } => {
                let (out, of) = self.tile_mut(out);
                bulk::unary(op, dtype, of.tile(a), out);
            }
            TileInsn::Compare { op, dtype, out, a, b } => {
                let (out, of) = self.tile_mut(out);
                let (a, b) = (of.tile(a), of.tile(b));
                if dtype == Dtype::U32 {
                    exact::ordered_tiles([a, b])?;
                }
                bulk::compare_tiles(op, dtype, a, b, out);
            }
            TileInsn::Select { dtype, out, cond, a, b } => {
                let (out, of) = self.tile_mut(out);
                bulk::select(dtype, of.tile(cond), of.tile(a), of.tile(b), out);
            }
            TileInsn::Cast { from, to, out, a } => {
                let (out, of) = self.tile_mut(out);
                if from == Dtype::U32 {
                    exact::ordered_tiles([of.tile(a)])?;
                }
                cast_tile(from, to, of.tile(a), out);
                if (from, to) == (Dtype::I32, Dtype::U32) {
                    exact::note_signed(of.tile(a), out);
                }
            }
            TileInsn::Fma { out, a, b, c } => {
                let (out, of) = self.tile_mut(out);
                bulk::fma(of.tile(a), of.tile(b), of.tile(c), out);
            }
            TileInsn::Splat { dtype, len, out, a } => {
                let bits = self.get(a);
                bulk::splat(dtype, bits, len as usize, &mut self.tiles[out as usize]);
            }
            TileInsn::Arange { len, out } => bulk::arange(len as usize, &mut self.tiles[out as usize]),
            TileInsn::Reduce { op, dtype, out, a } => {
                exact::reduced(op, dtype, self.tile(a))?;
                let bits = bulk::reduce(op, dtype, self.tile(a));
                self.set(out, bits);
            }
            TileInsn::Scan { op, dtype, exclusive, out, a } => {
                let (out, of) = self.tile_mut(out);
                exact::reduced(op, dtype, of.tile(a))?;
                bulk::scan(op, dtype, exclusive, of.tile(a), out);
            }
        }
        Ok(())
    }
}

/// The loop counter's next value, unless that overflows: then it would not be below the loop's end.
fn count_up(dtype: Dtype, a: u64, step: u64) -> Option<u64> {
    match dtype {
        Dtype::I32 => (a as u32 as i32).checked_add(step as u32 as i32).map(|v| u64::from(v as u32)),
        Dtype::U64 => a.checked_add(step),
        Dtype::Bool | Dtype::U32 | Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => {
            (a as u32).checked_add(step as u32).map(u64::from)
        }
    }
}
