//! Control flow: arms, loops, jumps out of several loops, and splits.

use crate::family::Target;
use crate::ir::{Const, ControlOp, Kernel, Loc, MemoryOp, OpId, OpKind, Region, ValueId};
use crate::print::analysis::bounds;
use crate::print::emit::{Emitter, Group, LoopLabels};
use crate::print::facts::Form;
use crate::print::text::{Expr, Prec, Prim, PrintError, Writer, prim, type_name};

/// Groups of several warps that a block on NVIDIA's GPUs has named barriers for: there are 16, and the block needs one.
pub const MOST_NAMED_BARRIERS: u32 = 15;

impl Emitter<'_, '_> {
    pub fn branch(
        &mut self,
        id: OpId,
        cond: ValueId,
        then: &Region,
        otherwise: &Region,
        results: &[(ValueId, ValueId, ValueId)],
    ) -> Result<(), PrintError> {
        self.flush()?;
        let live: Vec<_> = results.iter().filter(|r| self.form(r.0) != Form::Dead).copied().collect();
        if let (true, Some(Const::Bool(taken))) = (live.is_empty(), self.f.p.constant(cond)) {
            return self.region(if taken { then } else { otherwise });
        }
        let test = self.scalar(cond)?;
        if !live.is_empty()
            && self.only_expressions(then)
            && self.only_expressions(otherwise)
            && self.all_scalar(&live)
        {
            for (out, a, b) in live {
                let e = Expr::ternary(&test, &self.scalar(a)?, &self.scalar(b)?);
                let ty = type_name(self.ty(out).dtype);
                let name = self.declare(out);
                self.w.line(&format!("const {ty} {name} = {};", e.text));
            }
            return Ok(());
        }
        let place = self.place(self.f.p.kernel.op(id).loc);
        if !live.is_empty() && self.only_expressions(otherwise) && self.all_scalar(&live) {
            for &(out, _, b) in &live {
                let e = self.scalar(b)?;
                let ty = type_name(self.ty(out).dtype);
                let name = self.declare(out);
                self.w.line(&format!("{ty} {name} = {};", e.plain()));
            }
            self.w.line_with(&format!("if ({}) {{", test.text), &place);
            self.arm(id, then, live.iter().map(|r| (r.0, r.1)).collect())?;
            self.w.line("}");
            return Ok(());
        }
        for &(out, ..) in &live {
            self.declare_result(out);
        }
        let writes = |r: &Region| !r.ops.is_empty();
        if writes(then) || !live.is_empty() || !writes(otherwise) {
            self.w.line_with(&format!("if ({}) {{", test.text), &place);
            self.arm(id, then, live.iter().map(|r| (r.0, r.1)).collect())?;
            if writes(otherwise) || !live.is_empty() {
                self.w.line("} else {");
                self.arm(id, otherwise, live.iter().map(|r| (r.0, r.2)).collect())?;
            }
        } else {
            self.w.line_with(&format!("if ({}) {{", Expr::unary("!", &test).text), &place);
            self.arm(id, otherwise, vec![])?;
        }
        self.w.line("}");
        Ok(())
    }

    fn arm(&mut self, id: OpId, region: &Region, yields: Vec<(ValueId, ValueId)>) -> Result<(), PrintError> {
        self.w.deeper();
        self.names.enter();
        for &op in &region.ops {
            self.op(op)?;
        }
        for (out, value) in yields {
            if self.ty(out).is_tile() {
                self.yield_tile(id, out, value)?;
            } else {
                self.flush_before(&[value])?;
                let e = self.scalar(value)?;
                self.w.line(&format!("{} = {};", self.values[&out], e.plain()));
            }
        }
        self.flush()?;
        self.names.leave();
        self.w.shallower();
        Ok(())
    }

    /// Declares what an `if` yields, before it.
    fn declare_result(&mut self, out: ValueId) {
        let ty = self.ty(out);
        prim::use_dtype(self.used, ty.dtype);
        if ty.is_tile() {
            let layout = self.f.layouts.of(out);
            let name = self.declare(out);
            self.declare_registers(&name, ty.dtype, layout);
        } else {
            let name = self.declare(out);
            self.w.line(&format!("{} {name};", type_name(ty.dtype)));
        }
    }

    fn only_expressions(&self, region: &Region) -> bool {
        region.ops.iter().all(|&id| {
            let outs = self.f.p.kernel.op(id).kind.outs();
            outs.len() == 1 && self.form(outs[0]) != Form::Named && !self.ty(outs[0]).is_tile()
        })
    }

    fn all_scalar(&self, results: &[(ValueId, ValueId, ValueId)]) -> bool {
        results.iter().all(|r| !self.ty(r.0).is_tile())
    }

    pub fn counted(
        &mut self,
        id: OpId,
        [var, start, end, step]: [ValueId; 4],
        body: &Region,
    ) -> Result<(), PrintError> {
        self.flush()?;
        let (from, mut to, by) = (self.scalar(start)?, self.scalar(end)?, self.scalar(step)?);
        if self.turns_once([start, end, step], body) {
            return self.turn(id, [var, start, end], body);
        }
        if to.text.contains('(') {
            // Not worked out again for each turn, in the eyes of a reader.
            let name = self.names.fresh("end");
            self.w.line(&format!("const {} {name} = {};", type_name(self.ty(end).dtype), to.plain()));
            to = Expr::atom(name);
        }
        self.names.enter();
        let name = self.declare(var);
        let ty = type_name(self.ty(var).dtype);
        let advance = match by.plain() {
            "1" => format!("++{name}"),
            by if self.never_wraps(end, step) => format!("{name} += {by}"),
            by => self.advance_to_end(var, &name, by, &to),
        };
        let test = Expr::binary("<", Prec::Relation, &Expr::atom(name.clone()), &to);
        let head = format!("for ({ty} {name} = {}; {}; {advance}) {{", from.plain(), test.text);
        if self.loads_in_turns([start, end, step], body) {
            self.w.directive("#pragma unroll 1");
        }
        self.looped(id, &head, |e| e.block(body))?;
        self.names.leave();
        Ok(())
    }

    /// Whether one more step keeps a counter below `end` within the range of its type.
    fn never_wraps(&self, end: ValueId, step: ValueId) -> bool {
        let p = &self.f.p;
        if bounds::is_unsigned(p.kernel, end) {
            return p.most(end).saturating_sub(1) + p.most(step) <= bounds::type_most(p.kernel, end);
        }
        let known = p.int(end).zip(p.int(step));
        known.is_some_and(|(end, step)| end - 1 + step <= i32::MAX.into())
    }

    /// The advance of a counter whose next number may not be in its type's range: by no more than is left until the end.
    fn advance_to_end(&mut self, var: ValueId, name: &str, by: &str, to: &Expr) -> String {
        self.used.add(Prim::MinMax);
        let counter = Expr::atom(name);
        match type_name(self.ty(var).dtype) {
            "i32" => {
                let [to, counter] = [to, &counter].map(|x| Expr::call("u32", [x]));
                let left = Expr::binary("-", Prec::Sum, &to, &counter).text;
                format!("{name} = i32({} + min_of<u32>({left}, u32({by})))", counter.text)
            }
            ty => {
                let left = Expr::binary("-", Prec::Sum, to, &counter).text;
                format!("{name} += min_of<{ty}>({left}, {by})")
            }
        }
    }

    /// Whether a loop loads tiles in a known number of turns, and the target's compiler would load those of all turns at once: AMD's
    /// unrolls such a loop as a whole, and then spills what it has loaded.
    fn loads_in_turns(&self, bounds: [ValueId; 3], body: &Region) -> bool {
        let known = bounds.iter().all(|v| self.f.p.int(*v).is_some());
        known && self.f.target.backend() == "hip" && loads_tiles(self.f.p.kernel, body)
    }

    /// Whether a loop has one turn at most, and nothing in it jumps out of it.
    fn turns_once(&self, [start, end, step]: [ValueId; 3], body: &Region) -> bool {
        let p = &self.f.p;
        let jumps = |region: &Region| {
            let mut jumps = false;
            p.kernel.walk(region, &mut |_, op| {
                jumps |=
                    matches!(op.kind, OpKind::Control(ControlOp::Break { .. } | ControlOp::Continue { .. }));
            });
            jumps
        };
        let unsigned = bounds::is_unsigned(p.kernel, start);
        let by = p.int(step).and_then(|by| u128::try_from(by).ok());
        // From the first number on, the step leads beyond the end, and does not wrap.
        unsigned
            && by.is_some_and(|by| p.most(end) <= by && p.most(end) + by <= bounds::type_most(p.kernel, end))
            && !jumps(body)
    }

    /// A loop of one turn at most: without a loop.
    fn turn(&mut self, id: OpId, [var, start, end]: [ValueId; 3], body: &Region) -> Result<(), PrintError> {
        let place = self.place(self.f.p.kernel.op(id).loc);
        let (from, to) = (self.scalar(start)?, self.scalar(end)?);
        let ty = type_name(self.ty(var).dtype);
        let surely = self.f.p.int(end).and_then(|end| u128::try_from(end).ok());
        if surely.is_some_and(|end| self.f.p.most(start) < end) {
            let name = self.declare(var);
            self.w.line_with(&format!("const {ty} {name} = {};", from.plain()), &place);
            return self.region(body);
        }
        self.names.enter();
        let name = self.declare(var);
        let test = Expr::binary("<", Prec::Relation, &Expr::atom(name.clone()), &to);
        let head = format!("if (const {ty} {name} = {}; {}) {{", from.plain(), test.text);
        self.w.line_with(&head, &place);
        self.w.deeper();
        self.block(body)?;
        self.w.shallower();
        self.w.line("}");
        self.names.leave();
        Ok(())
    }

    pub fn spin(
        &mut self,
        id: OpId,
        header: &Region,
        cond: ValueId,
        body: &Region,
    ) -> Result<(), PrintError> {
        self.flush()?;
        if self.only_expressions(header) {
            let test = self.scalar(cond)?;
            return self.looped(id, &format!("while ({}) {{", test.text), |e| e.block(body));
        }
        self.looped(id, "while (true) {", |e| {
            e.names.enter();
            e.region(header)?;
            let test = e.scalar(cond)?;
            e.w.line(&format!("if ({}) break;", Expr::unary("!", &test).text));
            e.block(body)?;
            e.names.leave();
            Ok(())
        })
    }

    /// A loop with the labels that jumps out of inner loops need.
    fn looped(
        &mut self,
        id: OpId,
        head: &str,
        body: impl FnOnce(&mut Self) -> Result<(), PrintError>,
    ) -> Result<(), PrintError> {
        let place = self.place(self.f.p.kernel.op(id).loc);
        let depth = self.loops.len();
        self.loops.push(LoopLabels::default());
        let outer = std::mem::replace(&mut self.w, Writer::new(0));
        self.w = outer.nested();
        self.w.deeper();
        body(self)?;
        let labels = self.loops.pop().expect("pushed above");
        debug_assert_eq!(depth, self.loops.len());
        let inner = std::mem::replace(&mut self.w, outer);
        let text = inner.finish();
        self.w.line_with(head, &place);
        match labels.next {
            // A label may not be jumped to across declarations, so the body gets braces of its own.
            Some(next) => {
                self.w.deeper();
                self.w.line("{");
                self.w.append_deeper(&text);
                self.w.line("}");
                self.w.line(&format!("{next}:;"));
                self.w.shallower();
            }
            None => self.w.append(&text),
        }
        self.w.line("}");
        if let Some(after) = labels.after {
            self.w.line(&format!("{after}:;"));
        }
        Ok(())
    }

    pub fn jump(&mut self, word: &str, depth: u32) -> Result<(), PrintError> {
        self.flush()?;
        if depth == 0 {
            self.w.line(&format!("{word};"));
            return Ok(());
        }
        let at = self.loops.len() - 1 - depth as usize;
        let slot = |l: &mut LoopLabels| if word == "break" { l.after.clone() } else { l.next.clone() };
        let label = match slot(&mut self.loops[at]) {
            Some(label) => label,
            None => {
                // A label is visible in the whole function, so labels are numbered over it.
                self.labels += 1;
                let label = format!("{}_{}", if word == "break" { "leave" } else { "next" }, self.labels);
                let l = &mut self.loops[at];
                *(if word == "break" { &mut l.after } else { &mut l.next }) = Some(label.clone());
                label
            }
        };
        self.w.line(&format!("goto {label};"));
        Ok(())
    }

    pub fn split(&mut self, id: OpId, warps: u32, body: &Region) -> Result<(), PrintError> {
        self.flush()?;
        let k = self.f.p.kernel;
        let loc = k.op(id).loc;
        let groups = k.block_warps / warps;
        if self.f.barriers.before(id) {
            self.w.line("block.sync();");
        }
        let prim = self.group_prim(warps, loc)?;
        self.used.add(prim);
        self.used.add(Prim::Block);
        let whole = match (groups, warps) {
            (1, _) => "one group: the whole block".to_string(),
            (n, 1) => format!("{n} groups of a warp each"),
            (n, w) => format!("{n} groups of {w} warps each"),
        };
        // Where the role ends with the split, a group that gives up leaves it: no group meets the block any more.
        let last = self.f.p.ends_role(id);
        let votes = has_wait(k, body) && !last;
        self.w.gap();
        self.w.comment(&format!("{whole} ({})", self.place(loc)));
        let arrived = if votes { self.names.fresh("arrived") } else { String::new() };
        if votes {
            self.w.line(&format!("const bool {arrived} = [&]() -> bool {{"));
        } else if !last {
            self.w.line("{");
        }
        if !last {
            self.w.deeper();
        }
        self.w.line(&if prim == Prim::Warp {
            "const Warp group;".to_string()
        } else if prim == Prim::Block {
            "const Block& group = block;".to_string()
        } else {
            format!("const Warps<{warps}> group;")
        });
        let outer = std::mem::replace(&mut self.group, Group { name: "group", lanes: warps * k.warp_size });
        self.votes = votes;
        self.names.enter();
        self.declare_shared(body, groups);
        let began = self.begin_group(body);
        self.region(body)?;
        self.end_group(id, &began);
        self.names.leave();
        self.votes = false;
        self.group = outer;
        if votes {
            self.w.line("return true;");
        }
        if last {
            return Ok(());
        }
        self.w.shallower();
        if votes {
            self.w.line("}();");
            self.w.line(&format!("if (!block.all({arrived})) return;"));
        } else {
            self.w.line("}");
            self.w.line("block.sync();");
        }
        Ok(())
    }

    /// The primitive that a group of so many warps is.
    fn group_prim(&self, warps: u32, loc: Loc) -> Result<Prim, PrintError> {
        let kernel = self.f.p.kernel;
        let groups = kernel.block_warps / warps;
        let beside = kernel.roles.iter().filter(|role| role.beside.is_some()).count() as u32;
        match (warps, self.f.target) {
            (1, _) => Ok(Prim::Warp),
            _ if groups == 1 => Ok(Prim::Block),
            (_, Target::Hip(_)) if beside > 0 => Err(PrintError::SplitBeside { loc, warps }),
            (_, Target::Cuda(_)) if groups + beside > MOST_NAMED_BARRIERS => {
                Err(PrintError::TooManyNamedBarriers { loc, groups, warps })
            }
            _ => Ok(Prim::Warps),
        }
    }
}

/// Whether a region waits for anybody, and so may fail.
fn has_wait(k: &Kernel, region: &Region) -> bool {
    let mut found = false;
    k.walk(region, &mut |_, op| found |= op.kind.may_expire());
    found
}

/// Whether a region loads tiles, other than in loops of its own.
fn loads_tiles(k: &Kernel, region: &Region) -> bool {
    region.ops.iter().any(|&id| {
        let kind = &k.op(id).kind;
        if let OpKind::Memory(MemoryOp::Load { out, .. } | MemoryOp::LoadMasked { out, .. }) = kind {
            return k.ty(*out).is_tile();
        }
        let a_loop = matches!(kind, OpKind::Control(ControlOp::For { .. } | ControlOp::While { .. }));
        !a_loop && kind.regions().into_iter().any(|inner| loads_tiles(k, inner))
    })
}
