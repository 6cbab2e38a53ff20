//! Products as printers stage them: pieces of operands go through a ring, by loads that land late.
//!
//! As one instruction, a product reads both operands at once. Staged, each piece of an operand is loaded by itself: the load begins when
//! there is a slot for it, knows what the group has waited for by then, and reads memory when it lands, which the seed decides. Others
//! act in between.

use super::interpreter::{Flow, Stop};
use super::matrix::{Part, multiply, narrow};
use super::memory::Fault;
use super::ring::{Load, Mistake, Next, Ring};
use crate::ir::{CommOp, OpKind, SharedId, dot_columns};
use crate::sim::findings::FindingKind;
use crate::sim::flatten::insns::Dot;
use crate::sim::memory::Event;
use crate::sim::schedule::{Agent, Clock, World};
use crate::sim::values::Tile;

/// A group's products, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    /// The shared array that pieces go through, rows of both operands, and stages: with others, a ring begins anew.
    of: (SharedId, (u32, u32), u32),
    ring: Ring,
    /// Whether a product has begun and is not over.
    busy: bool,
    sums: Vec<f32>,
    /// What loads knew that did not wait.
    before: Clock,
}

impl World<'_> {
    /// Whether products are staged in this run: in one of four, as it takes longer.
    pub(crate) fn stages(&self) -> bool {
        self.options.staged.unwrap_or(self.options.seed % 4 == 3)
    }

    /// When a store by an instruction of a group happens. One without a wait happens after what the group signals next.
    pub(crate) fn stored(&self, agent: &Agent) -> Event {
        let event = agent.event(&self.sites);
        let copies = || {
            let op = agent.role_code().ops[agent.pc as usize];
            matches!(agent.compiled.kernel().op(op).kind, OpKind::Comm(CommOp::BulkCopy(_)))
        };
        let late = self.options.mistake == Some(Mistake::CopyNotAwaited) && copies();
        Event { time: event.time + u32::from(late), ..event }
    }

    /// Goes on with a product until a piece is missing that has not landed.
    pub(crate) fn staged_dot(&mut self, agent: &mut Agent, dot: &Dot) -> Flow {
        let of = (dot.room, dot.shape, dot.stages);
        let staging = agent.staging.take().filter(|staging| staging.of == of);
        let mut staging = staging.unwrap_or_else(|| {
            let launch = self.streams[agent.rank as usize].launch.as_ref();
            let before = launch.map_or_else(|| agent.clock.clone(), |launch| (*launch.start).clone());
            let ring = Ring::new(dot.stages, self.options.mistake);
            Box::new(Staging { of, ring, busy: false, sums: vec![], before })
        });
        let flow = match self.stage(agent, dot, &mut staging) {
            Ok(flow) => flow,
            Err(fault) => fault.into(),
        };
        agent.staging = Some(staging);
        flow
    }

    fn stage(&mut self, agent: &mut Agent, dot: &Dot, staging: &mut Staging) -> Result<Flow, Fault> {
        if !staging.busy {
            self.begin_product(agent, dot, staging)?;
        }
        loop {
            staging.ring.bring();
            while !staging.ring.flights.is_empty() && self.sched.chance(2) {
                let at = self.sched.below(staging.ring.flights.len());
                let load = staging.ring.flights.swap_remove(at);
                self.land(agent, dot, staging, load)?;
            }
            match staging.ring.next() {
                Next::Multiply(piece) => self.multiply_piece(agent, dot, staging, piece)?,
                Next::Wait(piece) if staging.ring.flights.is_empty() => {
                    let (step, slot) = (staging.ring.step(piece), staging.ring.slot(piece));
                    let message = format!(
                        "piece {step} of a product is never brought: the loader waits for slot {slot}, which no group \
                         gives back"
                    );
                    let at = agent.event(&self.sites);
                    self.find(FindingKind::Deadlock, message, at, None);
                    return Err(Fault);
                }
                Next::Wait(_) => return Ok(Flow::Stop(Stop::Stretch)),
                Next::Done => break,
            }
        }
        staging.ring.end();
        staging.busy = false;
        if self.options.mistake != Some(Mistake::NoProxyFence) {
            staging.before = agent.clock.clone();
        }
        let out = &mut agent.tiles[dot.out as usize];
        out.fresh::<f32>(staging.sums.len()).copy_from_slice(&staging.sums);
        Ok(Flow::Next)
    }

    fn begin_product(&mut self, agent: &mut Agent, dot: &Dot, staging: &mut Staging) -> Result<(), Fault> {
        self.pair(agent, dot);
        let (first, count) = (narrow(agent, dot.from), narrow(agent, dot.count));
        for of in [dot.a, dot.b] {
            self.columns_exist(agent, of.place, first, count)?;
        }
        match dot.acc {
            Some(acc) => staging.sums = agent.tile(acc).view().to_vec(),
            None => staging.sums = vec![0.0; (dot.shape.0 * dot.shape.1) as usize],
        }
        staging.ring.begin(count.div_ceil(dot_columns(dot.dtype).into()));
        staging.busy = true;
        Ok(())
    }

    /// The first column of a piece, and how many it has.
    fn columns_of(agent: &Agent, dot: &Dot, step: u64) -> (u64, u32) {
        let columns = u64::from(dot_columns(dot.dtype));
        let (at, count) = (step * columns, narrow(agent, dot.count));
        (narrow(agent, dot.from) + at, (count - at).min(columns) as u32)
    }

    /// A load reads what is in memory now, and its rows are in their slot.
    fn land(&mut self, agent: &mut Agent, dot: &Dot, staging: &mut Staging, load: Load) -> Result<(), Fault> {
        self.progress();
        let step = staging.ring.step(load.piece);
        let (of, rows) = [(dot.a, dot.shape.0), (dot.b, dot.shape.1)][load.operand];
        let (column, columns) = Self::columns_of(agent, dot, step);
        let part = Part::new(agent, of, column, (rows, columns));
        let late = load.ahead || self.options.mistake == Some(Mistake::NoProxyFence);
        let found = self.found.list.len();
        let mut there = Tile::default();
        if late {
            std::mem::swap(&mut agent.clock, &mut staging.before);
        }
        let loaded = self.load_part(agent, &part, &mut there);
        if late {
            std::mem::swap(&mut agent.clock, &mut staging.before);
        }
        let slot = staging.ring.slot(load.piece);
        let name = self.operand(agent, dot, load.operand);
        let what = format!("rows of `{name}` of piece {step}");
        if let Some(finding) = self.found.list.get_mut(found) {
            let why = if late { "; the load does not come after what the group has waited for" } else { "" };
            finding.message += &format!(" (the load of {what} into slot {slot}{why})");
        }
        loaded?;
        if let Err(wrong) = staging.ring.land(load, there) {
            return Err(self.out_of_turn(agent, format!("{what} {wrong}")));
        }
        Ok(())
    }

    fn multiply_piece(
        &mut self,
        agent: &mut Agent,
        dot: &Dot,
        staging: &mut Staging,
        piece: u64,
    ) -> Result<(), Fault> {
        let (step, slot) = (staging.ring.step(piece), staging.ring.slot(piece));
        match staging.ring.rows(piece) {
            Ok(rows) => {
                let (column, columns) = Self::columns_of(agent, dot, step);
                let mut wide = [Tile::default(), Tile::default()];
                for (operand, wide) in wide.iter_mut().enumerate() {
                    let (of, height) = [(dot.a, dot.shape.0), (dot.b, dot.shape.1)][operand];
                    let part = Part::new(agent, of, column, (height, columns));
                    *wide = self.widened(agent, &part, &rows[operand])?;
                }
                let columns = columns * dot.elements();
                let (width, sums) = (dot.shape.1 as usize, &mut staging.sums);
                multiply(wide[0].view(), wide[1].view(), columns as usize, width, sums);
            }
            Err((missing, other)) => {
                let name = self.operand(agent, dot, missing);
                let there =
                    other.map_or(String::new(), |other| format!("; those of piece {other} are there"));
                let message = format!(
                    "piece {step} is multiplied in slot {slot} before rows of `{name}` have come: the load is on its \
                     way{there}"
                );
                return Err(self.out_of_turn(agent, message));
            }
        }
        staging.ring.multiply(piece);
        Ok(())
    }

    fn operand(&self, agent: &Agent, dot: &Dot, operand: usize) -> String {
        let place = [dot.a, dot.b][operand].place;
        place.param().map_or(String::new(), |p| agent.compiled.kernel().params[p.index()].name.clone())
    }

    fn out_of_turn(&mut self, agent: &Agent, message: String) -> Fault {
        let at = agent.event(&self.sites);
        self.find(FindingKind::PieceOutOfTurn, message, at, None);
        Fault
    }
}
