//! The emitter: walks a role's regions and writes statements. Scalars and control flow are here; tiles, memory and
//! protocol operations have files of their own.

use std::collections::HashMap;

use crate::{
    family::Target,
    ir::{
        BinaryOp, Kernel, Loc, OpId, OpKind, ParamId, ParamKind, Place, Region, SharedId, Type, ValueId,
        VarId,
    },
};

use super::{
    PrintError,
    args::ArgNames,
    expr::Expr,
    inline::{Form, Forms, is_expression},
    layout::Layouts,
    names::{Names, OwnNames},
    ops::{self, type_name},
    prim::{Prim, Used},
    program::Program,
    sync::Barriers,
    tiles::Item,
    writer::Writer,
};

/// What is known about a kernel before anything is written.
#[derive(Debug)]
pub(super) struct Facts<'k> {
    pub p: Program<'k>,
    pub layouts: Layouts,
    pub barriers: Barriers,
    pub forms: Forms,
    pub target: Target,
    pub args: ArgNames,
    pub own: OwnNames,
}

impl<'k> Facts<'k> {
    /// Runs the analyses.
    pub fn new(kernel: &'k Kernel, target: Target) -> Result<Facts<'k>, PrintError> {
        let p = Program::new(kernel);
        let layouts = Layouts::new(&p)?;
        let barriers = Barriers::new(&p, &layouts);
        let forms = Forms::new(&p, &layouts);
        Ok(Facts {
            layouts,
            barriers,
            forms,
            target,
            args: ArgNames::new(kernel),
            own: OwnNames::new(kernel),
            p,
        })
    }
}

/// The group that runs the statements being written.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// Name of its variable.
    pub name: &'static str,
    /// Number of lanes.
    pub lanes: u32,
}

/// A loop being written: labels that a `break` or `continue` of an outer loop needs.
#[derive(Debug, Default)]
struct LoopLabels {
    after: Option<String>,
    next: Option<String>,
}

/// Writes one function body.
#[derive(Debug)]
pub(super) struct Emitter<'f, 'k> {
    pub f: &'f Facts<'k>,
    pub w: Writer,
    pub names: Names,
    pub used: &'f mut Used,
    pub group: Group,
    /// Names of values that have a variable of their own.
    pub values: HashMap<ValueId, String>,
    pub vars: HashMap<VarId, String>,
    pub shared: HashMap<SharedId, String>,
    /// First byte of each shared array.
    pub offsets: &'f HashMap<SharedId, u32>,
    /// Tile operations that wait to be written as one loop.
    pub pending: Vec<Item>,
    loops: Vec<LoopLabels>,
    labels: u32,
    /// Whether the last statement returned from the function.
    pub returned: bool,
}

impl<'f, 'k> Emitter<'f, 'k> {
    /// An emitter for a function body, one level deep.
    pub fn new(f: &'f Facts<'k>, used: &'f mut Used, offsets: &'f HashMap<SharedId, u32>) -> Emitter<'f, 'k> {
        Emitter {
            f,
            w: Writer::new(1),
            names: Names::new(super::prim::DEFINED.iter().map(|s| s.to_string()).chain(f.own.all())),
            used,
            group: Group { name: "block", lanes: f.p.kernel.block_threads() },
            values: HashMap::new(),
            vars: HashMap::new(),
            shared: HashMap::new(),
            offsets,
            pending: vec![],
            loops: vec![],
            labels: 0,
            returned: false,
        }
    }

    pub fn ty(&self, v: ValueId) -> Type {
        self.f.p.kernel.ty(v)
    }

    pub fn form(&self, v: ValueId) -> Form {
        self.f.forms.of(v)
    }

    /// The group's number of this lane.
    pub fn lane(&self) -> String {
        format!("{}.lane", self.group.name)
    }

    /// Declares a fresh name for a value: the author's, or one that says what it is.
    pub fn declare(&mut self, v: ValueId) -> String {
        let want = match self.f.p.name(v) {
            Some(n) => n.to_string(),
            None => super::describe::value(&self.f.p, v),
        };
        let name = self.names.fresh(&want);
        self.values.insert(v, name.clone());
        name
    }

    /// The expression of a scalar.
    pub fn scalar(&mut self, v: ValueId) -> Result<Expr, PrintError> {
        if let Some(name) = self.values.get(&v) {
            return Ok(Expr::atom(name.clone()));
        }
        if let Some(value) = self.f.p.constant(v) {
            return Ok(Expr::literal(value));
        }
        let f = self.f;
        let id = f.p.def_id(v).expect("a verified kernel defines what it uses");
        let op = f.p.kernel.op(id);
        match (&op.kind, self.form(v)) {
            (OpKind::Rank { .. }, Form::Everywhere) => Ok(Expr::atom("args.rank")),
            (OpKind::ScalarParam { param, .. }, Form::Everywhere) => Ok(self.arg(*param)),
            (_, Form::Alias(var)) => Ok(Expr::atom(self.vars[&var].clone())),
            _ => self.compute(id),
        }
    }

    /// The expression that a scalar operation computes.
    fn compute(&mut self, id: OpId) -> Result<Expr, PrintError> {
        let f = self.f;
        let op = f.p.kernel.op(id);
        match op.kind {
            OpKind::Rank { .. } => Ok(Expr::atom("args.rank")),
            OpKind::ScalarParam { param, .. } => Ok(self.arg(param)),
            OpKind::GroupIndex { .. } => Ok(self.group_index(id)),
            OpKind::VarGet { var, .. } => Ok(Expr::atom(self.vars[&var].clone())),
            OpKind::Epoch { word, .. } => {
                self.used.add(Prim::Epoch);
                Ok(Expr::atom(format!("next_epoch({}->value)", self.arg(word).text)))
            }
            _ => {
                let mut used = std::mem::take(self.used);
                let e = ops::expression(&f.p, &mut used, &op.kind, op.loc, &mut |u, v| {
                    std::mem::swap(u, self.used);
                    let e = self.scalar(v);
                    std::mem::swap(u, self.used);
                    e
                });
                *self.used = used;
                e
            }
        }
    }

    fn group_index(&self, id: OpId) -> Expr {
        let role = self.f.p.position(id).role;
        let blocks = role.map_or(1, |r| self.f.p.kernel.roles[r].blocks);
        match self.f.p.split(id) {
            None => Expr::atom("block.index"),
            Some(_) if blocks == 1 => Expr::atom("group.number"),
            Some(_) => {
                let by_block = Expr::binary(
                    "*",
                    super::expr::Prec::Product,
                    &Expr::atom("group.number"),
                    &Expr::atom(blocks.to_string()),
                );
                Expr::binary("+", super::expr::Prec::Sum, &by_block, &Expr::atom("block.index"))
            }
        }
    }

    /// A member of the argument struct.
    pub fn arg(&self, param: ParamId) -> Expr {
        Expr::atom(format!("args.{}", self.f.args.of(param)))
    }

    /// The first element of this rank's own instance of a buffer.
    pub fn base(&self, place: Place) -> Expr {
        match place {
            Place::Shared(id) => Expr::atom(self.shared[&id].clone()),
            Place::Param(id) => match self.f.p.kernel.params[id.index()].kind {
                ParamKind::Symmetric | ParamKind::Flags => {
                    Expr::atom(format!("{}[args.rank]", self.arg(id).text))
                }
                ParamKind::EpochWord => Expr::atom(format!("&{}->value", self.arg(id).text)),
                ParamKind::Local | ParamKind::Scalar => self.arg(id),
            },
        }
    }

    /// Writes every operation of a region.
    pub fn region(&mut self, region: &Region) -> Result<(), PrintError> {
        for &id in &region.ops {
            self.op(id)?;
        }
        self.flush()
    }

    /// A region in braces of its own.
    fn block(&mut self, region: &Region) -> Result<(), PrintError> {
        self.names.enter();
        self.region(region)?;
        self.names.leave();
        Ok(())
    }

    fn op(&mut self, id: OpId) -> Result<(), PrintError> {
        let f = self.f;
        let op = f.p.kernel.op(id);
        if f.barriers.before(id) && !matches!(op.kind, OpKind::Split { .. }) {
            // Without touches of memory among them, waiting operations may as well come after the barrier.
            if self.pending_touches() {
                self.flush()?;
            }
            self.w.line(&format!("{}.sync();", self.group.name));
        }
        let outs = op.kind.outs();
        let unseen = |v: &ValueId| {
            matches!(self.form(*v), Form::Dead | Form::Everywhere | Form::Once | Form::Alias(_))
        };
        if outs.len() == 1 && !matches!(op.kind, OpKind::If { .. }) && unseen(&outs[0]) {
            return Ok(());
        }
        if self.takes_tile(id)? {
            return Ok(());
        }
        match &op.kind {
            kind if is_expression(kind) => self.define(id, outs[0]),
            OpKind::Rank { out } | OpKind::ScalarParam { out, .. } | OpKind::Epoch { out, .. } => {
                self.define(id, *out)
            }
            OpKind::VarGet { out, .. } => self.define(id, *out),
            OpKind::VarDecl { var, init } => self.declare_var(*var, *init),
            OpKind::VarSet { var, value } => self.set_var(*var, *value),
            OpKind::If { cond, then, otherwise, results } => self.branch(id, *cond, then, otherwise, results),
            OpKind::For { var, start, end, step, body } => {
                self.counted(id, [*var, *start, *end, *step], body)
            }
            OpKind::While { header, cond, body } => self.spin(id, header, *cond, body),
            OpKind::Break { depth } => self.jump("break", *depth),
            OpKind::Continue { depth } => self.jump("continue", *depth),
            OpKind::Split { warps, body } => self.split(id, *warps, body),
            _ => self.memory_op(id),
        }
    }

    /// `const T name = ...;`
    fn define(&mut self, id: OpId, out: ValueId) -> Result<(), PrintError> {
        self.flush_before(&self.f.p.reads(id))?;
        let e = self.compute(id)?;
        if e.is_literal() && self.f.p.name(out).is_none() {
            self.values.insert(out, e.text);
            return Ok(());
        }
        let ty = type_name(self.ty(out).dtype);
        ops::use_dtype(self.used, self.ty(out).dtype);
        let name = self.declare(out);
        self.w.line(&format!("const {ty} {name} = {};", e.plain()));
        Ok(())
    }

    fn declare_var(&mut self, var: VarId, init: ValueId) -> Result<(), PrintError> {
        self.flush_before(&[init])?;
        let e = self.scalar(init)?;
        let v = &self.f.p.kernel.vars[var.index()];
        ops::use_dtype(self.used, v.ty.dtype);
        let name = self.names.fresh(v.name.as_deref().unwrap_or("state"));
        self.w.line(&format!("{} {name} = {};", type_name(v.ty.dtype), e.plain()));
        self.vars.insert(var, name);
        Ok(())
    }

    /// An assignment; `x = x + y` as `x += y`.
    fn set_var(&mut self, var: VarId, value: ValueId) -> Result<(), PrintError> {
        // Waiting tile operations may read the variable by its name.
        self.flush()?;
        let name = self.vars[&var].clone();
        let dtype = self.ty(value).dtype;
        if self.form(value) == Form::Once
            && let Some(OpKind::Binary { op, a, b, .. }) = self.f.p.def(value)
            && self.form(*a) == Form::Alias(var)
            && let Some(assign) = ops::compound(*op, dtype)
        {
            let e = self.scalar(*b)?;
            let text = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) || e.plain() != e.text {
                e.plain()
            } else {
                &e.text
            };
            self.w.line(&format!("{name} {assign} {text};"));
            return Ok(());
        }
        let e = self.scalar(value)?;
        self.w.line(&format!("{name} = {};", e.plain()));
        Ok(())
    }

    /// Comment with the author's place.
    pub fn place(&self, loc: Loc) -> String {
        let file = loc.short_file();
        format!("{}:{}", file.rsplit(['/', '\\']).next().unwrap_or(file), loc.line)
    }

    fn branch(
        &mut self,
        id: OpId,
        cond: ValueId,
        then: &Region,
        otherwise: &Region,
        results: &[(ValueId, ValueId, ValueId)],
    ) -> Result<(), PrintError> {
        self.flush()?;
        let live: Vec<_> = results.iter().filter(|r| self.form(r.0) != Form::Dead).copied().collect();
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
        ops::use_dtype(self.used, ty.dtype);
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

    fn counted(
        &mut self,
        id: OpId,
        [var, start, end, step]: [ValueId; 4],
        body: &Region,
    ) -> Result<(), PrintError> {
        self.flush()?;
        let (from, to, by) = (self.scalar(start)?, self.scalar(end)?, self.scalar(step)?);
        self.names.enter();
        let name = self.declare(var);
        let ty = type_name(self.ty(var).dtype);
        let advance = match by.plain() {
            "1" => format!("++{name}"),
            by => format!("{name} += {by}"),
        };
        let test = Expr::binary("<", super::expr::Prec::Relation, &Expr::atom(name.clone()), &to);
        let head = format!("for ({ty} {name} = {}; {}; {advance}) {{", from.plain(), test.text);
        self.looped(id, &head, |e| e.block(body))?;
        self.names.leave();
        Ok(())
    }

    fn spin(&mut self, id: OpId, header: &Region, cond: ValueId, body: &Region) -> Result<(), PrintError> {
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

    fn jump(&mut self, word: &str, depth: u32) -> Result<(), PrintError> {
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

    fn split(&mut self, id: OpId, warps: u32, body: &Region) -> Result<(), PrintError> {
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
        let waits = has_wait(k, body);
        self.w.gap();
        self.w.comment(&format!("{whole} ({})", self.place(loc)));
        let arrived = if waits { self.names.fresh("arrived") } else { String::new() };
        self.w.line(&if waits { format!("const bool {arrived} = [&]() -> bool {{") } else { "{".into() });
        self.w.deeper();
        let ty = match prim {
            Prim::Warp => "Warp".to_string(),
            Prim::Warps => format!("Warps<{warps}>"),
            _ => "Block".into(),
        };
        self.w.line(&match prim {
            Prim::Block => "const Block& group = block;".to_string(),
            _ => format!("const {ty} group;"),
        });
        let outer = std::mem::replace(&mut self.group, Group { name: "group", lanes: warps * k.warp_size });
        self.names.enter();
        self.declare_shared(body, groups);
        self.region(body)?;
        self.names.leave();
        self.group = outer;
        if waits {
            self.w.line("return true;");
        }
        self.w.shallower();
        // After a role's last split nothing follows that the block would have to meet for.
        let last = self.f.p.ends_role(id);
        self.w.line(if waits { "}();" } else { "}" });
        match (waits, last) {
            (true, true) => self.w.line(&format!("return block.all({arrived});")),
            (true, false) => self.w.line(&format!("if (!block.all({arrived})) return false;")),
            (false, true) => {}
            (false, false) => self.w.line("block.sync();"),
        }
        self.returned = waits && last;
        Ok(())
    }

    /// The primitive that a group of so many warps is.
    fn group_prim(&self, warps: u32, loc: Loc) -> Result<Prim, PrintError> {
        let block_warps = self.f.p.kernel.block_warps;
        let groups = block_warps / warps;
        match (warps, self.f.target) {
            (1, _) => Ok(Prim::Warp),
            _ if groups == 1 => Ok(Prim::Block),
            (_, Target::Cuda(_)) if groups > 15 => {
                Err(PrintError::TooManyNamedBarriers { loc, groups, warps })
            }
            _ => Ok(Prim::Warps),
        }
    }

    /// Declares the shared arrays that a region uses and that `copies` groups of a block have one each of.
    pub fn declare_shared(&mut self, region: &Region, copies: u32) {
        let k = self.f.p.kernel;
        let mut found: Vec<SharedId> = vec![];
        k.walk(region, &mut |_, op| {
            if let Some(Place::Shared(id)) = super::memory::place_of(&op.kind)
                && !found.contains(&id)
            {
                found.push(id);
            }
        });
        found.sort();
        for id in found {
            if self.shared.contains_key(&id) {
                continue;
            }
            let s = &k.shared[id.index()];
            if s.copies != copies && s.copies != 1 {
                continue;
            }
            self.used.add(Prim::Shared);
            ops::use_dtype(self.used, s.dtype);
            let name = self.names.fresh(&s.name);
            let ty = type_name(s.dtype);
            let stride = (s.len * s.dtype.bytes()).next_multiple_of(16);
            let at = match s.copies {
                1 => format!("{}", self.offsets[&id]),
                _ => format!("{} + group.number * {stride}", self.offsets[&id]),
            };
            self.w.line_with(
                &format!("{ty}* const {name} = shared_array<{ty}>({at});"),
                &format!("{ty}[{}]", s.len),
            );
            self.shared.insert(id, name);
        }
    }
}

/// Whether a region waits for anybody, and so may fail.
pub(super) fn has_wait(k: &Kernel, region: &Region) -> bool {
    let mut found = false;
    k.walk(region, &mut |_, op| found |= matches!(op.kind, OpKind::Wait { .. } | OpKind::WaitAll { .. }));
    found
}
