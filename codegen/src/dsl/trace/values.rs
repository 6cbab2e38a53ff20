//! Values of a trace: making them, folding and reusing pure ones, and checking that they are used where they exist.

use std::marker::PhantomData;

use super::error::TraceError;
use super::fold::{self, Folded, Pure};
use super::scope::{RegionKind, Thing, escape, outside_role};
use super::tracer::{Made, Nameable, Trace};
use crate::dsl::values::Raw;
use crate::ir::{Const, Loc, OpId, OpKind, Type, ValueId};

impl Trace {
    /// A new value of the innermost open region, to be defined by an operation.
    pub fn fresh(&mut self, ty: Type, loc: Loc) -> ValueId {
        let made = self.made(loc);
        self.fresh_in(ty, made)
    }

    fn fresh_in(&mut self, ty: Type, made: Made) -> ValueId {
        let v = self.builder.kernel.add_value(ty, None);
        self.values.push(made);
        self.constants.push(None);
        self.yielded.push(Nameable::Value(v));
        v
    }

    /// Appends an operation that defines one value.
    pub fn emit<K: Into<OpKind>>(&mut self, ty: Type, loc: Loc, kind: impl FnOnce(ValueId) -> K) -> ValueId {
        let out = self.fresh(ty, loc);
        self.builder.push(kind(out), loc);
        out
    }

    /// Appends an operation that defines no value.
    pub fn push(&mut self, kind: impl Into<OpKind>, loc: Loc) -> OpId {
        let kind = kind.into();
        if kind.outs().is_empty() {
            self.yielded.push(Nameable::Nothing);
        }
        self.builder.push(kind, loc)
    }

    /// As [`Trace::emit`], in the open region at this depth.
    pub fn emit_at(
        &mut self,
        depth: usize,
        ty: Type,
        loc: Loc,
        kind: impl FnOnce(ValueId) -> OpKind,
    ) -> ValueId {
        let out = self.fresh_in(ty, Made { scope: self.open[depth], loc });
        self.builder.push_at(depth, kind(out), loc);
        out
    }

    /// A pure operation: folded when its operands are constants, and the earlier value when it was computed before.
    pub fn pure(&mut self, op: Pure, loc: Loc) -> Result<ValueId, TraceError> {
        if self.open.len() < 2 && op.ty(&self.builder.kernel).is_tile() {
            return Err(outside_role(loc, "a tile"));
        }
        let op = fold::ordered(self, op);
        match fold::fold(self, op) {
            Ok(Folded::Constant(c)) => return Ok(self.keep(Pure::Const(c), loc)),
            Ok(Folded::Value(v)) => {
                self.yielded.push(Nameable::Value(v));
                return Ok(v);
            }
            Ok(Folded::No) => {}
            Err(why) => return Err(TraceError::new(loc, why.0, why.1)),
        }
        Ok(self.keep(op, loc))
    }

    /// The value of an equal operation that was computed before and exists here. A tile must be of the same group: it
    /// is not looked for outside the split that is open.
    fn known(&self, op: Pure, tile: bool) -> Option<ValueId> {
        for s in self.open_scopes().rev() {
            if let Some(&v) = s.known.get(&op) {
                return Some(v);
            }
            if tile && matches!(s.kind, RegionKind::Split(_)) {
                return None;
            }
        }
        None
    }

    /// A pure operation without operands, in the open region at this depth, where the whole of it can use it.
    pub fn keep_at(&mut self, depth: usize, op: Pure, name: Option<&str>, loc: Loc) -> ValueId {
        let scope = self.open[depth] as usize;
        if let Some(&v) = self.scopes[scope].known.get(&op) {
            self.yielded.push(Nameable::Value(v));
            return v;
        }
        let ty = op.ty(&self.builder.kernel);
        let v = self.emit_at(depth, ty, loc, |out| op.kind(out).into());
        self.builder.kernel.values[v.index()].name = name.map(Into::into);
        self.scopes[scope].known.insert(op, v);
        v
    }

    /// A value as an untyped handle.
    pub fn raw(&self, id: ValueId) -> Raw {
        Raw { id, trace: self.id, len: self.ty(id).len, _here: PhantomData }
    }

    /// The value of a constant.
    pub fn host(&mut self, c: Const, loc: Loc) -> ValueId {
        self.keep(Pure::Const(c), loc)
    }

    fn keep(&mut self, op: Pure, loc: Loc) -> ValueId {
        let ty = op.ty(&self.builder.kernel);
        if let Some(v) = self.known(op, ty.is_tile()) {
            self.yielded.push(Nameable::Value(v));
            return v;
        }
        let v = self.emit(ty, loc, |out| op.kind(out));
        self.constants[v.index()] = match op {
            Pure::Const(c) => Some(c),
            Pure::Splat(a, _) => self.constants[a.index()],
            Pure::Binary(..)
            | Pure::Unary(..)
            | Pure::Compare(..)
            | Pure::Select(..)
            | Pure::Cast(..)
            | Pure::Fma(..)
            | Pure::Bitcast(..)
            | Pure::Rank
            | Pure::Node
            | Pure::Active
            | Pure::GroupIndex
            | Pure::Reduce(..)
            | Pure::Scan(..) => None,
        };
        let scope = *self.open.last().expect("the prologue is open");
        self.scopes[scope as usize].known.insert(op, v);
        v
    }

    /// The constant that a scalar is.
    pub fn constant(&self, v: ValueId) -> Option<Const> {
        self.uniform(v).filter(|_| !self.ty(v).is_tile())
    }

    /// The constant that a scalar handle stands for; none when it is not of this trace.
    pub fn constant_of(&self, raw: Raw) -> Option<Const> {
        (raw.trace == self.id).then(|| self.constant(raw.id))?
    }

    /// The constant that a scalar, or every element of a tile, is.
    pub fn uniform(&self, v: ValueId) -> Option<Const> {
        self.constants[v.index()]
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> Type {
        self.builder.kernel.ty(v)
    }

    /// Checks that a value of trace `trace` may be used here.
    pub fn use_value(&self, trace: u32, v: ValueId, loc: Loc) -> Result<ValueId, TraceError> {
        self.same_trace(trace, Thing::Value, loc)?;
        let made = self.values[v.index()];
        if self.ty(v).is_tile() {
            self.reachable(made, Thing::Tile, loc)?;
            self.same_group(made, Thing::Tile, loc)?;
        } else {
            self.reachable(made, Thing::Value, loc)?;
        }
        Ok(v)
    }

    /// Fails when something belongs to another trace.
    pub fn same_trace(&self, trace: u32, thing: Thing, loc: Loc) -> Result<(), TraceError> {
        if trace == self.id {
            return Ok(());
        }
        Err(TraceError::new(
            loc,
            format!("{} of another kernel", thing.what()),
            "each kernel has its own values and parameters: make it again here, or pass host values between kernels",
        ))
    }

    /// Fails when the region that something was made in is closed.
    pub fn reachable(&self, made: Made, thing: Thing, loc: Loc) -> Result<(), TraceError> {
        if self.is_open(made.scope) {
            return Ok(());
        }
        Err(escape(self, thing, loc, made.loc, self.resolve(made.scope)))
    }

    /// Fails when a split stands between something that is spread over its group's lanes and its use.
    pub fn same_group(&self, made: Made, thing: Thing, loc: Loc) -> Result<(), TraceError> {
        match self.split_since(made.scope) {
            None => Ok(()),
            Some((_, split)) => Err(TraceError::new(
                loc,
                format!("{} of the block used inside a split", thing.what()),
                "it is spread over the lanes of the group that made it: load it inside the split, or store it to \
                 `shared` memory before the split",
            )
            .note(made.loc, "it is made here")
            .note(split, "the split begins here")),
        }
    }
}
