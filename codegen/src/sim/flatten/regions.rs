//! Structured IR to linear code.

use std::collections::{HashMap, HashSet};

use super::code::{Access, AnyReg, Compiled, Insn, Pc, Reg, RoleCode, Team, TileReg};
use super::registers;
use crate::ir::{
    Const, ControlOp, Kernel, OpId, OpKind, ParamId, ParcelId, Place, Planted, Region, Signal, ValueId,
    ValueOp, VarId, Verified,
};
use crate::sim::exec::scalar::Scalar;
use crate::sim::values::bulk::const_bits;

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
        let roles = (0..kernel.roles.len()).map(|role| {
            let mut code = flatten_role(&kernel, &facts, role);
            code.first_agent = first_agent;
            first_agent += kernel.roles[role].blocks * code.max_groups;
            code
        });
        let roles = roles.collect();
        Compiled { roles, agents: first_agent, kernel }
    }
}

/// What holds of values in the whole kernel.
pub(crate) struct Facts {
    /// The flags and the value that each parcel is signalled with.
    pub(crate) signalled: HashMap<ParcelId, (ParamId, ValueId)>,
    /// The epoch word that a value is computed from, when there is exactly one.
    pub(crate) epoch_of: HashMap<ValueId, ParamId>,
    /// Values of the prologue: known before any role starts.
    pub(crate) prologue: HashSet<ValueId>,
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
                if let Some(Signal { parcel, flag, value, .. }) = op.kind.signal() {
                    facts.signalled.entry(*parcel).or_insert((*flag, *value));
                }
            });
        }
        facts
    }

    fn trace_epoch(&mut self, kind: &OpKind) {
        let OpKind::Value(op) = kind else { return };
        let word = match op {
            ValueOp::Epoch { word, .. } => Some(*word),
            ValueOp::Binary { a, b, .. } => match (self.epoch_of.get(a), self.epoch_of.get(b)) {
                (Some(&x), Some(&y)) if x != y => None,
                (x, y) => x.or(y).copied(),
            },
            ValueOp::Cast { a, .. } | ValueOp::Unary { a, .. } => self.epoch_of.get(a).copied(),
            any!(spreads, reductions)
            | ValueOp::Const { .. }
            | ValueOp::Rank { .. }
            | ValueOp::Node { .. }
            | ValueOp::Active { .. }
            | ValueOp::ScalarParam { .. }
            | ValueOp::GroupIndex { .. }
            | ValueOp::Compare { .. }
            | ValueOp::Select { .. }
            | ValueOp::Fma { .. }
            | ValueOp::Bitcast { .. } => None,
        };
        if let (Some(word), Some(&out)) = (word, kind.outs().first()) {
            self.epoch_of.insert(out, word);
        }
    }
}

/// What the blocks of a role run: its body, and after it that of the role that they go on as.
fn flatten_role(kernel: &Kernel, facts: &Facts, role: usize) -> RoleCode {
    let mut f = Flattener {
        kernel,
        facts,
        code: vec![],
        ops: vec![],
        scalars: vec![],
        tiles: 0,
        values: HashMap::new(),
        constants: HashMap::new(),
        vars: HashMap::new(),
        open: vec![],
        loops: vec![],
        max_groups: 1,
        op: OpId(0),
        team: Team { blocks: kernel.role_blocks(role), first: 0 },
    };
    f.region(&kernel.prologue);
    f.region(&kernel.roles[role].body);
    if let Some((next, first)) = kernel.goes_on(role) {
        f.team = Team { blocks: kernel.role_blocks(next), first };
        f.region(&kernel.roles[next].body);
    }
    f.emit(Insn::End);
    let tiles = registers::allocate(&mut f.code, &f.loops, f.tiles);
    RoleCode {
        scalar_code: f.code.iter().zip(0..).map(|(insn, pc)| Scalar::of(insn, pc)).collect(),
        code: f.code,
        ops: f.ops,
        scalars: f.scalars,
        tiles,
        max_groups: f.max_groups,
        first_agent: 0,
        companions: kernel.companions(role).collect(),
    }
}

/// A loop that is being flattened: jumps to its ends are patched when those are known.
#[derive(Default)]
struct OpenLoop {
    breaks: Vec<usize>,
    continues: Vec<usize>,
}

pub(crate) struct Flattener<'k> {
    pub(crate) kernel: &'k Kernel,
    pub(crate) facts: &'k Facts,
    code: Vec<Insn>,
    ops: Vec<OpId>,
    scalars: Vec<u64>,
    tiles: u32,
    values: HashMap<ValueId, AnyReg>,
    /// Registers of constants, by their bits.
    constants: HashMap<u64, Reg>,
    vars: HashMap<VarId, AnyReg>,
    open: Vec<OpenLoop>,
    /// Finished loops as ranges of code, inner ones first.
    loops: Vec<(Pc, Pc)>,
    max_groups: u32,
    op: OpId,
    pub(crate) team: Team,
}

impl Flattener<'_> {
    pub(crate) fn emit(&mut self, insn: Insn) -> usize {
        self.code.push(insn);
        self.ops.push(self.op);
        self.code.len() - 1
    }

    fn here(&self) -> Pc {
        self.code.len() as Pc
    }

    pub(crate) fn new_tile(&mut self) -> TileReg {
        self.tiles += 1;
        self.tiles - 1
    }

    fn new_register(&mut self, tile: bool) -> AnyReg {
        if tile {
            AnyReg::Tile(self.new_tile())
        } else {
            self.scalars.push(0);
            AnyReg::Scalar(self.scalars.len() as Reg - 1)
        }
    }

    pub(crate) fn any(&mut self, v: ValueId) -> AnyReg {
        if let Some(&r) = self.values.get(&v) {
            return r;
        }
        let r = self.new_register(self.kernel.ty(v).is_tile());
        self.values.insert(v, r);
        r
    }

    pub(crate) fn reg(&mut self, v: ValueId) -> Reg {
        match self.any(v) {
            AnyReg::Scalar(r) => r,
            AnyReg::Tile(_) => unreachable!("the verifier lets no tile stand for a scalar"),
        }
    }

    pub(crate) fn tile(&mut self, v: ValueId) -> TileReg {
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

    pub(crate) fn access(&mut self, place: Place, index: ValueId, value: ValueId) -> Access {
        Access { place, index: self.reg(index), dtype: self.kernel.ty(value).dtype }
    }

    pub(crate) fn copy(&mut self, out: AnyReg, a: AnyReg) {
        match (out, a) {
            (AnyReg::Scalar(out), AnyReg::Scalar(a)) => self.emit(Insn::Copy { out, a }),
            (AnyReg::Tile(out), AnyReg::Tile(a)) => self.emit(Insn::CopyTile { out, a }),
            _ => unreachable!("the verifier compares the types"),
        };
    }

    fn patch(&mut self, at: usize, target: Pc) {
        let insn = &mut self.code[at];
        let (Insn::Jump { to }
        | Insn::Unless { to, .. }
        | Insn::LoopHead { to, .. }
        | Insn::LoopNext { exit: to, .. }
        | Insn::Split { after: to, .. }) = insn
        else {
            unreachable!("no jump to patch: {insn:?}")
        };
        *to = target;
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
            OpKind::Value(op) => self.value(op),
            OpKind::Memory(op) => self.memory(op),
            OpKind::Matrix(op) => self.matrix(op),
            OpKind::Comm(op) => self.communication(op),
            OpKind::Control(op) => self.control(op),
        }
    }

    /// Puts a constant into the registers that a role starts with, where all that are equal share one: every agent copies them.
    pub(crate) fn preset(&mut self, out: ValueId, value: Const) {
        let bits = const_bits(value);
        if let (Some(&r), false) = (self.constants.get(&bits), self.values.contains_key(&out)) {
            self.values.insert(out, AnyReg::Scalar(r));
            return;
        }
        let r = self.reg(out);
        self.scalars[r as usize] = bits;
        self.constants.insert(bits, r);
    }

    fn control(&mut self, op: &ControlOp) {
        let at = self.op;
        match op {
            ControlOp::If { cond, then, otherwise, results } => {
                let cond = self.reg(*cond);
                let skip = self.emit(Insn::Unless { cond, to: 0 });
                self.region(then);
                self.op = at;
                for &(out, value, _) in results {
                    let (out, value) = (self.any(out), self.any(value));
                    self.copy(out, value);
                }
                let done = (!otherwise.ops.is_empty() || !results.is_empty())
                    .then(|| self.emit(Insn::Jump { to: 0 }));
                self.patch(skip, self.here());
                self.region(otherwise);
                self.op = at;
                for &(out, _, value) in results {
                    let (out, value) = (self.any(out), self.any(value));
                    self.copy(out, value);
                }
                if let Some(done) = done {
                    self.patch(done, self.here());
                }
            }
            ControlOp::For { var, start, end, step, body } => {
                let dtype = self.kernel.ty(*var).dtype;
                let (counter, start) = (self.any(*var), self.any(*start));
                self.copy(counter, start);
                let (var, end, step) = (self.reg(*var), self.reg(*end), self.reg(*step));
                let head = self.emit(Insn::LoopHead { dtype, var, end, to: 0 });
                self.open.push(OpenLoop::default());
                self.region(body);
                self.op = at;
                let next = self.emit(Insn::LoopNext { dtype, var, step, head: head as Pc, exit: 0 });
                self.close_loop(head as Pc, next as Pc, &[head, next]);
            }
            ControlOp::While { header, cond, body } => {
                let head = self.here();
                self.open.push(OpenLoop::default());
                self.region(header);
                self.op = at;
                let cond = self.reg(*cond);
                let leave = self.emit(Insn::Unless { cond, to: 0 });
                self.region(body);
                self.op = at;
                self.emit(Insn::Jump { to: head });
                self.close_loop(head, head, &[leave]);
            }
            ControlOp::Break { depth } => {
                let jump = self.emit(Insn::Jump { to: 0 });
                self.enclosing(*depth).breaks.push(jump);
            }
            ControlOp::Continue { depth } => {
                let jump = self.emit(Insn::Jump { to: 0 });
                self.enclosing(*depth).continues.push(jump);
            }
            ControlOp::Split { warps, body } => {
                let groups = self.kernel.block_warps / warps;
                self.max_groups = self.max_groups.max(groups);
                let split = self.emit(Insn::Split { groups, after: 0 });
                self.region(body);
                self.op = at;
                self.emit(Insn::Join);
                self.patch(split, self.here());
            }
            ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value } => {
                let (out, a) = (self.var(*var), self.any(*value));
                self.copy(out, a);
            }
            ControlOp::VarGet { out, var } => {
                let (out, a) = (self.any(*out), self.var(*var));
                self.copy(out, a);
            }
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
