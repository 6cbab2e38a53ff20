//! Definitions come before uses, nothing leaves the region it is defined in, and control flow nests.

use std::collections::HashMap;

use super::super::analysis::target;
use super::*;

pub(super) fn check(report: &mut Report<'_>) {
    let kernel = report.kernel;
    let mut walk = Walk {
        values: vec![Binding::default(); kernel.values.len()],
        vars: vec![Binding::default(); kernel.vars.len()],
        open: vec![],
        split: None,
        loops: vec![0],
        prologue: true,
        epochs: HashMap::new(),
        report,
    };
    walk.find_definitions();
    for &id in &kernel.prologue.ops {
        walk.op(kernel.op(id));
    }
    walk.prologue = false;
    for role in &kernel.roles {
        walk.region(&role.body, |_| {});
    }
}

/// What the walk knows of a value or variable.
#[derive(Clone, Copy, Default)]
struct Binding {
    /// Where it is defined, if anywhere.
    first: Option<Loc>,
    visible: bool,
    /// Defined inside a split.
    in_split: bool,
}

#[derive(Clone, Copy)]
enum Bound {
    Value(ValueId),
    Var(VarId),
}

struct Walk<'r, 'k> {
    report: &'r mut Report<'k>,
    values: Vec<Binding>,
    vars: Vec<Binding>,
    /// What the open regions have defined so far.
    open: Vec<Bound>,
    /// Warps of a group of the split that is open.
    split: Option<u32>,
    /// Loops around this place that `break` can reach; a split or a loop condition starts a new count.
    loops: Vec<usize>,
    prologue: bool,
    epochs: HashMap<ParamId, Loc>,
}

impl<'k> Walk<'_, 'k> {
    fn kernel(&self) -> &'k Kernel {
        self.report.kernel
    }

    /// Notes the first definition of everything, and reports second ones.
    fn find_definitions(&mut self) {
        let mut all: Vec<(Bound, Loc)> = vec![];
        self.report.each_op(&mut |_, op| {
            let values = op.kind.outs().into_iter().chain(op.kind.counter()).map(Bound::Value);
            all.extend(values.chain(op.kind.declares().map(Bound::Var)).map(|bound| (bound, op.loc)));
        });
        for (what, loc) in all {
            match self.binding(what).first {
                None => self.binding(what).first = Some(loc),
                Some(first) => {
                    let problem = match what {
                        Bound::Value(v) => {
                            Problem::DefinedTwice { value: self.report.names.defined(v), first }
                        }
                        Bound::Var(v) => Problem::VarDeclaredTwice { var: self.report.names.var(v), first },
                    };
                    self.report.add(loc, problem);
                }
            }
        }
    }

    fn binding(&mut self, what: Bound) -> &mut Binding {
        match what {
            Bound::Value(v) => &mut self.values[v.index()],
            Bound::Var(v) => &mut self.vars[v.index()],
        }
    }

    fn define(&mut self, what: Bound) {
        let in_split = self.split.is_some();
        let binding = self.binding(what);
        binding.visible = true;
        binding.in_split = in_split;
        self.open.push(what);
    }

    fn region(&mut self, region: &'k Region, at_end: impl FnOnce(&mut Self)) {
        self.region_with(region, None, at_end);
    }

    fn region_with(&mut self, region: &'k Region, counter: Option<ValueId>, at_end: impl FnOnce(&mut Self)) {
        let mark = self.open.len();
        if let Some(v) = counter {
            self.define(Bound::Value(v));
        }
        for &id in &region.ops {
            self.op(self.kernel().op(id));
        }
        at_end(self);
        for what in self.open.split_off(mark) {
            self.binding(what).visible = false;
        }
    }

    fn read(&mut self, v: ValueId, loc: Loc) {
        let b = self.values[v.index()];
        if !b.visible {
            let value = self.report.typed(v);
            self.report.add(loc, Problem::NotVisible { value, defined: b.first });
        } else if self.crosses(b, self.kernel().ty(v)) {
            let value = self.report.typed(v);
            self.report.add(loc, Problem::TileCrossesSplit { value });
        }
    }

    fn crosses(&self, b: Binding, ty: Type) -> bool {
        ty.is_tile() && self.split.is_some() && !b.in_split
    }

    fn var(&mut self, var: VarId, assigned: bool, loc: Loc) {
        let b = self.vars[var.index()];
        let name = self.report.names.var(var);
        if !b.visible {
            self.report.add(loc, Problem::VarNotVisible { var: name, declared: b.first });
        } else if assigned && self.split.is_some() && !b.in_split {
            self.report.add(loc, Problem::VarSetInSplit { var: name });
        } else if self.crosses(b, self.kernel().vars[var.index()].ty) {
            self.report.add(loc, Problem::TileCrossesSplit { value: name });
        }
    }

    fn op(&mut self, op: &'k Op) {
        let loc = op.loc;
        if self.prologue && !allowed_in_prologue(self.kernel(), &op.kind) {
            self.report.add(loc, Problem::NotInPrologue { op: op.kind.name() });
        }
        match &op.kind {
            OpKind::Control(control) => self.control(control, &op.kind, loc),
            kind @ (OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_)) => {
                self.reads(kind, loc);
                self.straight(kind, loc);
            }
        }
        for v in op.kind.outs() {
            self.define(Bound::Value(v));
        }
    }

    /// Reads what an operation reads before anything that it holds.
    fn reads(&mut self, kind: &OpKind, loc: Loc) {
        for v in kind.operands().into_iter().chain(target(self.kernel(), kind)) {
            self.read(v, loc);
        }
    }

    fn control(&mut self, op: &'k ControlOp, kind: &OpKind, loc: Loc) {
        match op {
            // What arms yield, and what a loop tests, is read at the end of the region that defines it.
            ControlOp::If { cond, then, otherwise, results } => {
                self.read(*cond, loc);
                self.region(then, |w| results.iter().for_each(|r| w.read(r.1, loc)));
                self.region(otherwise, |w| results.iter().for_each(|r| w.read(r.2, loc)));
            }
            ControlOp::While { header, cond, body } => {
                self.loops.push(0);
                self.region(header, |w| w.read(*cond, loc));
                self.loops.pop();
                self.loop_body(body, None);
            }
            ControlOp::For { var, body, .. } => {
                self.reads(kind, loc);
                self.loop_body(body, Some(*var));
            }
            ControlOp::Split { warps, body } => self.enter_split(*warps, body, loc),
            ControlOp::Break { depth } | ControlOp::Continue { depth } => {
                let loops = self.loops.last().copied().unwrap_or(0);
                if *depth as usize >= loops {
                    self.report.add(loc, Problem::BadBreak { op: kind.name(), depth: *depth, loops });
                }
            }
            ControlOp::VarDecl { var, .. } => {
                self.reads(kind, loc);
                self.define(Bound::Var(*var));
            }
            ControlOp::VarGet { var, .. } => self.var(*var, false, loc),
            ControlOp::VarSet { var, .. } => {
                self.reads(kind, loc);
                self.var(*var, true, loc);
            }
        }
    }

    /// An operation that holds no other.
    fn straight(&mut self, kind: &OpKind, loc: Loc) {
        if let OpKind::Value(ValueOp::Epoch { word, .. }) = kind {
            self.epoch(*word, loc);
        }
        kind.parts(&mut |part| {
            if let Part::Shared(shared) = part {
                self.shared_scope(shared, loc);
            }
        });
    }

    fn loop_body(&mut self, body: &'k Region, counter: Option<ValueId>) {
        *self.loops.last_mut().expect("never empty") += 1;
        self.region_with(body, counter, |_| {});
        *self.loops.last_mut().expect("never empty") -= 1;
    }

    fn enter_split(&mut self, warps: u32, body: &'k Region, loc: Loc) {
        let block = self.kernel().block_warps;
        if self.split.is_some() {
            self.report.add(loc, Problem::NestedSplit);
        }
        if warps == 0 || !block.is_multiple_of(warps) {
            self.report.add(loc, Problem::SplitNotDividing { warps, block });
        }
        let outer = self.split.replace(warps.max(1));
        self.loops.push(0);
        self.region(body, |_| {});
        self.loops.pop();
        self.split = outer;
    }

    fn epoch(&mut self, word: ParamId, loc: Loc) {
        if !self.prologue {
            self.report.add(loc, Problem::EpochInRole);
        }
        let param = self.report.param(word).name.clone();
        match self.epochs.get(&word) {
            Some(&first) => self.report.add(loc, Problem::EpochTwice { param, first }),
            None => drop(self.epochs.insert(word, loc)),
        }
    }

    fn shared_scope(&mut self, id: SharedId, loc: Loc) {
        let array = &self.kernel().shared[id.index()];
        let groups = self.split.map_or(1, |warps| self.kernel().block_warps / warps);
        if array.copies != 1 && array.copies != groups {
            let (shared, copies) = (array.name.clone(), array.copies);
            self.report.add(loc, Problem::SharedScope { shared, copies, groups });
        }
    }
}

fn allowed_in_prologue(kernel: &Kernel, kind: &OpKind) -> bool {
    match kind {
        OpKind::Value(
            ValueOp::Const { .. }
            | ValueOp::Rank { .. }
            | ValueOp::Node { .. }
            | ValueOp::Active { .. }
            | ValueOp::ScalarParam { .. }
            | ValueOp::Epoch { .. },
        ) => true,
        OpKind::Value(any!(by_element)) => !kind.outs().iter().any(|out| kernel.ty(*out).is_tile()),
        OpKind::Value(any!(spreads, reductions) | ValueOp::GroupIndex { .. })
        | OpKind::Memory(_)
        | OpKind::Matrix(_)
        | OpKind::Comm(_)
        | OpKind::Control(_) => false,
    }
}
