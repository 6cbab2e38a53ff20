//! Structured IR to linear code.

use std::collections::{HashMap, HashSet};

use super::bulk::const_bits;
use super::code::{Access, AnyReg, Compiled, EpochOf, Insn, Pc, Reg, RoleCode, TakenReg, TargetReg, TileReg};
use super::registers;
use crate::ir::{
    Kernel, OpId, OpKind, ParamId, ParcelId, Place, Planted, Region, Role, Taken, Target, ValueId, VarId,
    Verified,
};

impl Compiled {
    /// Makes a kernel ready for simulation.
    pub fn new(kernel: Verified) -> Compiled {
        Compiled::of(kernel.into_kernel())
    }

    /// As [`Compiled::new`], of a kernel that may break the rules of the protocol: those that the verifier cannot see are the
    /// simulator's to check, and tests plant bugs to show that it does.
    #[doc(hidden)]
    pub fn planted(kernel: Planted) -> Compiled {
        Compiled::of(kernel.into_kernel())
    }

    fn of(kernel: Kernel) -> Compiled {
        let facts = Facts::of(&kernel);
        let mut first_agent = 0;
        let roles = kernel
            .roles
            .iter()
            .map(|role| {
                let mut code = flatten_role(&kernel, &facts, role);
                code.first_agent = first_agent;
                first_agent += role.blocks * code.max_groups;
                code
            })
            .collect();
        Compiled { roles, agents: first_agent, kernel }
    }
}

/// What holds of values in the whole kernel.
struct Facts {
    /// The value that each parcel is signalled with.
    signalled: HashMap<ParcelId, ValueId>,
    /// The epoch word that a value is computed from, when there is exactly one.
    epoch_of: HashMap<ValueId, ParamId>,
    /// Values of the prologue: known before any role starts.
    prologue: HashSet<ValueId>,
}

impl Facts {
    fn of(kernel: &Kernel) -> Facts {
        let mut facts =
            Facts { signalled: HashMap::new(), epoch_of: HashMap::new(), prologue: HashSet::new() };
        kernel.walk(&kernel.prologue, &mut |_, op| {
            facts.trace_epoch(&op.kind);
            facts.prologue.extend(op.kind.outs());
        });
        for role in &kernel.roles {
            kernel.walk(&role.body, &mut |_, op| {
                facts.trace_epoch(&op.kind);
                if let OpKind::Signal { parcel, value, .. } = op.kind {
                    facts.signalled.entry(parcel).or_insert(value);
                }
            });
        }
        facts
    }

    fn trace_epoch(&mut self, kind: &OpKind) {
        let word = match kind {
            OpKind::Epoch { word, .. } => Some(*word),
            OpKind::Binary { a, b, .. } => match (self.epoch_of.get(a), self.epoch_of.get(b)) {
                (Some(&x), Some(&y)) if x != y => None,
                (x, y) => x.or(y).copied(),
            },
            OpKind::Cast { a, .. } | OpKind::Unary { a, .. } => self.epoch_of.get(a).copied(),
            _ => None,
        };
        if let (Some(word), Some(&out)) = (word, kind.outs().first()) {
            self.epoch_of.insert(out, word);
        }
    }
}

fn flatten_role(kernel: &Kernel, facts: &Facts, role: &Role) -> RoleCode {
    let mut f = Flattener {
        kernel,
        facts,
        code: vec![],
        ops: vec![],
        scalars: vec![],
        tiles: 0,
        values: HashMap::new(),
        vars: HashMap::new(),
        open: vec![],
        loops: vec![],
        max_groups: 1,
        op: OpId(0),
    };
    f.region(&kernel.prologue);
    f.region(&role.body);
    f.emit(Insn::End);
    let tiles = registers::allocate(&mut f.code, &f.loops, f.tiles);
    RoleCode { code: f.code, ops: f.ops, scalars: f.scalars, tiles, max_groups: f.max_groups, first_agent: 0 }
}

/// A loop that is being flattened: jumps to its ends are patched when those are known.
#[derive(Default)]
struct OpenLoop {
    breaks: Vec<usize>,
    continues: Vec<usize>,
}

pub(super) struct Flattener<'k> {
    pub(super) kernel: &'k Kernel,
    facts: &'k Facts,
    code: Vec<Insn>,
    ops: Vec<OpId>,
    scalars: Vec<u64>,
    tiles: u32,
    values: HashMap<ValueId, AnyReg>,
    vars: HashMap<VarId, AnyReg>,
    open: Vec<OpenLoop>,
    /// Finished loops as ranges of code, inner ones first.
    loops: Vec<(Pc, Pc)>,
    max_groups: u32,
    op: OpId,
}

impl Flattener<'_> {
    pub(super) fn emit(&mut self, insn: Insn) -> usize {
        self.code.push(insn);
        self.ops.push(self.op);
        self.code.len() - 1
    }

    fn here(&self) -> Pc {
        self.code.len() as Pc
    }

    fn new_register(&mut self, tile: bool) -> AnyReg {
        if tile {
            self.tiles += 1;
            AnyReg::Tile(self.tiles - 1)
        } else {
            self.scalars.push(0);
            AnyReg::Scalar(self.scalars.len() as Reg - 1)
        }
    }

    pub(super) fn any(&mut self, v: ValueId) -> AnyReg {
        if let Some(&r) = self.values.get(&v) {
            return r;
        }
        let r = self.new_register(self.kernel.ty(v).is_tile());
        self.values.insert(v, r);
        r
    }

    pub(super) fn reg(&mut self, v: ValueId) -> Reg {
        match self.any(v) {
            AnyReg::Scalar(r) => r,
            AnyReg::Tile(_) => unreachable!("the verifier lets no tile stand for a scalar"),
        }
    }

    pub(super) fn tile(&mut self, v: ValueId) -> TileReg {
        match self.any(v) {
            AnyReg::Tile(r) => r,
            AnyReg::Scalar(_) => unreachable!("the verifier lets no scalar stand for a tile"),
        }
    }

    fn var(&mut self, v: VarId) -> AnyReg {
        if let Some(&r) = self.vars.get(&v) {
            return r;
        }
        let r = self.new_register(self.kernel.vars[v.index()].ty.is_tile());
        self.vars.insert(v, r);
        r
    }

    fn access(&mut self, place: Place, index: ValueId, value: ValueId) -> Access {
        Access { place, index: self.reg(index), dtype: self.kernel.ty(value).dtype }
    }

    pub(super) fn copy(&mut self, out: AnyReg, a: AnyReg) {
        match (out, a) {
            (AnyReg::Scalar(out), AnyReg::Scalar(a)) => self.emit(Insn::Copy { out, a }),
            (AnyReg::Tile(out), AnyReg::Tile(a)) => self.emit(Insn::CopyTile { out, a }),
            _ => unreachable!("the verifier compares the types"),
        };
    }

    fn patch(&mut self, at: usize, target: Pc) {
        match &mut self.code[at] {
            Insn::Jump { to }
            | Insn::Unless { to, .. }
            | Insn::LoopHead { to, .. }
            | Insn::LoopNext { exit: to, .. }
            | Insn::Split { after: to, .. } => *to = target,
            other => unreachable!("no jump to patch: {other:?}"),
        }
    }

    fn region(&mut self, region: &Region) {
        for &id in &region.ops {
            self.op = id;
            let op = self.kernel.op(id);
            self.operation(&op.kind);
        }
    }

    fn operation(&mut self, kind: &OpKind) {
        match kind {
            OpKind::Const { out, value } => {
                let r = self.reg(*out) as usize;
                self.scalars[r] = const_bits(*value);
            }
            OpKind::Rank { .. }
            | OpKind::ScalarParam { .. }
            | OpKind::Epoch { .. }
            | OpKind::GroupIndex { .. }
            | OpKind::Binary { .. }
            | OpKind::Unary { .. }
            | OpKind::Compare { .. }
            | OpKind::Select { .. }
            | OpKind::Cast { .. }
            | OpKind::Fma { .. }
            | OpKind::Bitcast { .. }
            | OpKind::Splat { .. }
            | OpKind::Arange { .. }
            | OpKind::Reduce { .. }
            | OpKind::Scan { .. } => self.value(kind),
            OpKind::Load { .. }
            | OpKind::LoadMasked { .. }
            | OpKind::Gather { .. }
            | OpKind::Store { .. }
            | OpKind::Scatter { .. }
            | OpKind::Atomic { .. }
            | OpKind::Tally { .. } => self.memory(kind),
            OpKind::Put { .. } | OpKind::Signal { .. } | OpKind::Wait { .. } | OpKind::WaitAll { .. } => {
                self.communication(kind);
            }
            OpKind::Copy { .. } => self.bulk_copy(kind),
            OpKind::SendPackets { .. }
            | OpKind::TakePackets { .. }
            | OpKind::SendLl { .. }
            | OpKind::ReadLl { .. } => self.packets(kind),
            OpKind::If { .. }
            | OpKind::For { .. }
            | OpKind::While { .. }
            | OpKind::Break { .. }
            | OpKind::Continue { .. }
            | OpKind::Split { .. } => self.control(kind),
            OpKind::VarDecl { var, init: value } | OpKind::VarSet { var, value } => {
                let (out, a) = (self.var(*var), self.any(*value));
                self.copy(out, a);
            }
            OpKind::VarGet { out, var } => {
                let (out, a) = (self.any(*out), self.var(*var));
                self.copy(out, a);
            }
        }
    }

    fn memory(&mut self, kind: &OpKind) {
        let insn = match *kind {
            OpKind::Load { out, place, index, receipt } => {
                let from = self.access(place, index, out);
                match (self.any(out), self.kernel.ty(out).len) {
                    (AnyReg::Tile(out), Some(len)) => Insn::LoadTile { from, len, out, receipt },
                    _ => Insn::Load { from, out: self.reg(out), receipt },
                }
            }
            OpKind::LoadMasked { out, place, index, mask, other, receipt } => Insn::LoadMasked {
                from: self.access(place, index, out),
                out: self.tile(out),
                mask: self.tile(mask),
                other: self.tile(other),
                receipt,
            },
            OpKind::Gather { out, place, index, mask, other, receipt } => Insn::Gather {
                place,
                dtype: self.kernel.ty(out).dtype,
                out: self.tile(out),
                index: self.tile(index),
                mask: self.tile(mask),
                other: self.tile(other),
                receipt,
            },
            OpKind::Store { place, index, value, mask } => Insn::Store {
                to: self.access(place, index, value),
                value: self.any(value),
                mask: mask.map(|m| self.any(m)),
            },
            OpKind::Scatter { place, index, value, mask } => Insn::Scatter {
                place,
                dtype: self.kernel.ty(value).dtype,
                index: self.tile(index),
                value: self.tile(value),
                mask: mask.map(|m| self.tile(m)),
            },
            OpKind::Tally { out, place, index, mask } => {
                Insn::Tally { place, out: self.tile(out), index: self.tile(index), mask: self.tile(mask) }
            }
            OpKind::Atomic { out, op, place, index, value } => Insn::Atomic {
                op,
                on: self.access(place, index, value),
                out: self.reg(out),
                value: self.reg(value),
            },
            _ => unreachable!("called for memory operations"),
        };
        self.emit(insn);
    }

    fn communication(&mut self, kind: &OpKind) {
        let insn = match *kind {
            OpKind::Put { parcel, buffer, index, value, mask } => Insn::Put {
                target: self.target(self.kernel.parcels[parcel.index()].target),
                buffer,
                dtype: self.kernel.ty(value).dtype,
                index: self.reg(index),
                value: self.any(value),
                mask: mask.map(|m| self.any(m)),
                epoch: self.parcel_epoch(parcel),
            },
            OpKind::Signal { parcel, flag, index, value, order } => Insn::Signal {
                target: self.target(self.kernel.parcels[parcel.index()].target),
                flag,
                index: self.reg(index),
                value: self.reg(value),
                order,
            },
            OpKind::Wait { receipt, flag, index, from, value } => Insn::Wait {
                receipt,
                flag,
                index: self.reg(index),
                from: self.reg(from),
                value: self.reg(value),
                epoch: self.facts.epoch_of.get(&value).copied(),
            },
            OpKind::WaitAll { receipt, flag, index, count, only, per_rank, value } => Insn::WaitAll {
                receipt,
                flag,
                index: self.reg(index),
                count: self.reg(count),
                only: only.map(|m| self.reg(m)),
                per_rank,
                value: self.reg(value),
                epoch: self.facts.epoch_of.get(&value).copied(),
            },
            _ => unreachable!("called for communication"),
        };
        self.emit(insn);
    }

    /// A copy is a load and a put. That a lane has it done for all of them, and when, is the printer's to hide.
    fn bulk_copy(&mut self, kind: &OpKind) {
        let OpKind::Copy { parcel, buffer, index, source, from, len, .. } = *kind else {
            unreachable!("called for copies")
        };
        let AnyReg::Tile(tile) = self.new_register(true) else { unreachable!("a tile was asked for") };
        let dtype = self.kernel.params[source.index()].dtype;
        let from = Access { place: Place::Param(source), index: self.reg(from), dtype };
        self.emit(Insn::LoadTile { from, len, out: tile, receipt: None });
        let put = Insn::Put {
            target: self.target(self.kernel.parcels[parcel.index()].target),
            buffer,
            dtype,
            index: self.reg(index),
            value: AnyReg::Tile(tile),
            mask: None,
            epoch: self.parcel_epoch(parcel),
        };
        self.emit(put);
    }

    fn packets(&mut self, kind: &OpKind) {
        let insn = match kind {
            OpKind::SendPackets { packets, target, index, value } => Insn::SendPackets {
                target: self.target(*target),
                packets: *packets,
                dtype: self.kernel.ty(*value).dtype,
                index: self.reg(*index),
                value: self.tile(*value),
            },
            OpKind::TakePackets { packets, tiles, mask } => {
                let ty = self.kernel.ty(tiles[0].out);
                let taken = |t: &Taken| TakenReg {
                    out: self.tile(t.out),
                    index: self.reg(t.index),
                    from: self.reg(t.from),
                };
                Insn::TakePackets {
                    packets: *packets,
                    dtype: ty.dtype,
                    len: ty.len.unwrap_or(1),
                    tiles: tiles.iter().map(taken).collect(),
                    mask: self.reg(*mask),
                }
            }
            OpKind::SendLl { ll, target, index, value, epoch } => Insn::SendLl {
                target: self.target(*target),
                ll: *ll,
                index: self.reg(*index),
                value: self.tile(*value),
                epoch: self.reg(*epoch),
            },
            OpKind::ReadLl { out, ll, index, from, mask, epoch } => Insn::ReadLl {
                ll: *ll,
                out: self.tile(*out),
                index: self.tile(*index),
                from: self.tile(*from),
                mask: self.tile(*mask),
                epoch: self.reg(*epoch),
            },
            _ => unreachable!("called for packets and LL elements"),
        };
        self.emit(insn);
    }

    fn target(&mut self, target: Target) -> TargetReg {
        match target {
            Target::Rank(v) => TargetReg::Rank(self.reg(v)),
            Target::Mask(v) => TargetReg::Mask(self.reg(v)),
        }
    }

    /// A put comes before its signal, so the signal's value is known there only if it is of the prologue.
    fn parcel_epoch(&mut self, parcel: ParcelId) -> Option<EpochOf> {
        let value = *self.facts.signalled.get(&parcel)?;
        let word = *self.facts.epoch_of.get(&value)?;
        self.facts.prologue.contains(&value).then(|| EpochOf { word, value: self.reg(value) })
    }

    fn control(&mut self, kind: &OpKind) {
        let op = self.op;
        match kind {
            OpKind::If { cond, then, otherwise, results } => {
                let cond = self.reg(*cond);
                let skip = self.emit(Insn::Unless { cond, to: 0 });
                self.region(then);
                self.op = op;
                for &(out, value, _) in results {
                    let (out, value) = (self.any(out), self.any(value));
                    self.copy(out, value);
                }
                let done = (!otherwise.ops.is_empty() || !results.is_empty())
                    .then(|| self.emit(Insn::Jump { to: 0 }));
                self.patch(skip, self.here());
                self.region(otherwise);
                self.op = op;
                for &(out, _, value) in results {
                    let (out, value) = (self.any(out), self.any(value));
                    self.copy(out, value);
                }
                if let Some(done) = done {
                    self.patch(done, self.here());
                }
            }
            OpKind::For { var, start, end, step, body } => {
                let dtype = self.kernel.ty(*var).dtype;
                let (counter, start) = (self.any(*var), self.any(*start));
                self.copy(counter, start);
                let (var, end, step) = (self.reg(*var), self.reg(*end), self.reg(*step));
                let head = self.emit(Insn::LoopHead { dtype, var, end, to: 0 });
                self.open.push(OpenLoop::default());
                self.region(body);
                self.op = op;
                let next = self.emit(Insn::LoopNext { dtype, var, step, head: head as Pc, exit: 0 });
                self.close_loop(head as Pc, next as Pc, &[head, next]);
            }
            OpKind::While { header, cond, body } => {
                let head = self.here();
                self.open.push(OpenLoop::default());
                self.region(header);
                self.op = op;
                let cond = self.reg(*cond);
                let leave = self.emit(Insn::Unless { cond, to: 0 });
                self.region(body);
                self.op = op;
                self.emit(Insn::Jump { to: head });
                self.close_loop(head, head, &[leave]);
            }
            OpKind::Break { depth } => {
                let at = self.emit(Insn::Jump { to: 0 });
                self.enclosing(*depth).breaks.push(at);
            }
            OpKind::Continue { depth } => {
                let at = self.emit(Insn::Jump { to: 0 });
                self.enclosing(*depth).continues.push(at);
            }
            OpKind::Split { warps, body } => {
                let groups = self.kernel.block_warps / warps;
                self.max_groups = self.max_groups.max(groups);
                let split = self.emit(Insn::Split { groups, after: 0 });
                self.region(body);
                self.op = op;
                self.emit(Insn::Join);
                self.patch(split, self.here());
            }
            _ => unreachable!("called for control flow"),
        }
    }

    fn enclosing(&mut self, depth: u32) -> &mut OpenLoop {
        let at = self.open.len() - 1 - depth as usize;
        &mut self.open[at]
    }

    /// Ends a loop: patches its exits to here and its `continue`s to `again`.
    fn close_loop(&mut self, head: Pc, again: Pc, exits: &[usize]) {
        let exit = self.here();
        let open = self.open.pop().expect("a loop is open");
        for at in open.breaks.into_iter().chain(exits.iter().copied()) {
            self.patch(at, exit);
        }
        for at in open.continues {
            self.patch(at, again);
        }
        self.loops.push((head, exit));
    }
}
