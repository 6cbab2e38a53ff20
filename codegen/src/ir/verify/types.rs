//! Operands and results have the types that the operations' documentation asks for, and accesses go to parameters that
//! allow them.

mod far;
mod matrix;
mod protocol;

use super::*;

pub(super) fn check(report: &mut Report<'_>) {
    let mut ops = vec![];
    report.each_op(&mut |_, op| ops.push(op));
    for op in ops {
        Check { name: op.kind.name(), loc: op.loc, report }.op(&op.kind);
    }
}

struct Check<'r, 'k> {
    report: &'r mut Report<'k>,
    name: &'static str,
    loc: Loc,
}

const U32: Type = Type::scalar(Dtype::U32);
const BOOL: Type = Type::scalar(Dtype::Bool);

impl Check<'_, '_> {
    fn op(&mut self, kind: &OpKind) {
        match kind {
            OpKind::Value(ValueOp::Const { out, value }) => self.result(*out, Type::scalar(value.dtype())),
            OpKind::Value(ValueOp::Rank { out } | ValueOp::Node { out } | ValueOp::GroupIndex { out }) => {
                self.result(*out, U32)
            }
            OpKind::Value(ValueOp::Active { out }) => self.result(*out, Type::scalar(Dtype::U64)),
            OpKind::Value(ValueOp::ScalarParam { out, param }) => {
                self.param(*param, ParamKind::Scalar, "a scalar parameter");
                self.result(*out, Type::scalar(self.report.param(*param).dtype));
            }
            OpKind::Value(ValueOp::Epoch { out, word, .. }) => {
                self.param(*word, ParamKind::EpochWord, "an epoch word");
                self.result(*out, U32);
            }
            OpKind::Value(op @ any!(by_element)) => self.elementwise(op),
            OpKind::Value(op @ any!(spreads, reductions)) => self.tiles(op),
            OpKind::Memory(op) => self.access(op),
            OpKind::Matrix(op) => self.matrix(op),
            OpKind::Comm(op) => self.protocol(op),
            OpKind::Control(ControlOp::If { cond, results, .. }) => {
                self.operand("condition", *cond, BOOL);
                for &(out, then, otherwise) in results {
                    self.operand("result of the first arm", then, self.ty(out));
                    self.operand("result of the second arm", otherwise, self.ty(out));
                }
            }
            OpKind::Control(ControlOp::For { var, start, end, step, .. }) => {
                let ty = self.ty(*var);
                if ty.is_tile() || !ty.dtype.is_int() {
                    let value = self.report.typed(*var);
                    self.add(Problem::OperandType {
                        op: "for",
                        what: "counter",
                        value,
                        expected: "an integer scalar".into(),
                    });
                }
                self.operand("start", *start, ty);
                self.operand("end", *end, ty);
                self.operand("step", *step, ty);
            }
            OpKind::Control(ControlOp::While { cond, .. }) => self.operand("condition", *cond, BOOL),
            OpKind::Control(ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value }) => {
                self.operand("value", *value, self.report.kernel.vars[var.index()].ty);
            }
            OpKind::Control(ControlOp::VarGet { out, var }) => {
                self.result(*out, self.report.kernel.vars[var.index()].ty)
            }
            OpKind::Control(
                ControlOp::Break { .. } | ControlOp::Continue { .. } | ControlOp::Split { .. },
            ) => {}
        }
    }

    fn elementwise(&mut self, op: &ValueOp) {
        match op {
            ValueOp::Binary { out, op, a, b } => {
                let ty = self.ty(*out);
                self.operand("left operand", *a, ty);
                self.operand("right operand", *b, ty);
                self.arithmetic(ty.dtype, op.allows(ty.dtype));
            }
            ValueOp::Unary { out, op, a } => {
                let ty = self.ty(*a);
                self.arithmetic(ty.dtype, op.allows(ty.dtype));
                self.result(*out, if op.counts() { ty.with_dtype(Dtype::U32) } else { ty });
            }
            ValueOp::Compare { out, op, a, b } => {
                let ty = self.ty(*a);
                self.operand("right operand", *b, ty);
                self.result(*out, ty.with_dtype(Dtype::Bool));
                let same = matches!(op, CompareOp::Eq | CompareOp::Ne) && ty.dtype == Dtype::Bool;
                self.arithmetic(ty.dtype, ty.dtype.is_arithmetic() || same);
            }
            ValueOp::Select { out, cond, a, b } => {
                let ty = self.ty(*out);
                self.operand("condition", *cond, ty.with_dtype(Dtype::Bool));
                self.operand("first choice", *a, ty);
                self.operand("second choice", *b, ty);
            }
            ValueOp::Cast { out, a } => self.cast(*out, *a),
            ValueOp::Fma { out, a, b, c } => {
                let ty = self.ty(*out);
                self.arithmetic(ty.dtype, ty.dtype == Dtype::F32);
                [a, b, c].into_iter().for_each(|v| self.operand("operand", *v, ty));
            }
            ValueOp::Bitcast { out, a } => {
                let (to, from) = (self.ty(*out), self.ty(*a));
                let word = |d: Dtype| matches!(d, Dtype::F32 | Dtype::U32 | Dtype::I32);
                if to.with_dtype(from.dtype) != from || !word(to.dtype) || !word(from.dtype) {
                    self.add(Problem::BadCast {
                        from,
                        to,
                        advice: "bits move between f32, u32 and i32 of one shape",
                    });
                }
            }
            any!(given, spreads, reductions) => {}
        }
    }

    fn cast(&mut self, out: ValueId, a: ValueId) {
        let (to, from) = (self.ty(out), self.ty(a));
        let storage = |d: Dtype| d.is_float() && d != Dtype::F32;
        let advice = if to.with_dtype(from.dtype) != from {
            "a cast keeps the shape"
        } else if to.dtype == Dtype::Bool && from.dtype != Dtype::Bool {
            "compare with zero instead"
        } else if storage(to.dtype) && !from.dtype.is_float() || storage(from.dtype) && !to.dtype.is_float() {
            "go through f32"
        } else {
            return;
        };
        self.add(Problem::BadCast { from, to, advice });
    }

    fn tiles(&mut self, op: &ValueOp) {
        match op {
            ValueOp::Splat { out, a } => {
                self.tile_result(*out, self.ty(*out).dtype);
                self.operand("operand", *a, Type::scalar(self.ty(*out).dtype));
            }
            ValueOp::Arange { out } => self.tile_result(*out, Dtype::U32),
            ValueOp::Reduce { out, op, a } => {
                let ty = self.ty(*a);
                self.tile("operand", *a);
                self.arithmetic(ty.dtype, reduce_allows(*op, ty.dtype));
                self.result(*out, Type::scalar(ty.dtype));
            }
            ValueOp::Scan { out, op, a, .. } => {
                let ty = self.ty(*a);
                self.tile("operand", *a);
                self.arithmetic(ty.dtype, reduce_allows(*op, ty.dtype));
                self.result(*out, ty);
            }
            any!(given, by_element) => {}
        }
    }

    fn access(&mut self, op: &MemoryOp) {
        match op {
            MemoryOp::Load { out, place, index, .. } => {
                self.readable(*place);
                if let Place::All(_, op) = place {
                    self.multimem(*place, *out, *op);
                }
                self.element(*place, *out);
                self.scalar_index(*index);
            }
            MemoryOp::LoadMasked { out, place, index, mask, other, .. } => {
                self.readable(*place);
                self.each_by_itself(*place);
                self.element(*place, *out);
                self.scalar_index(*index);
                self.tile("result", *out);
                self.operand("mask", *mask, self.ty(*out).with_dtype(Dtype::Bool));
                self.operand("replacement", *other, self.ty(*out));
            }
            MemoryOp::Gather { out, place, index, mask, other, .. } => {
                self.readable(*place);
                self.each_by_itself(*place);
                self.element(*place, *out);
                self.tile("result", *out);
                self.operand("index", *index, self.ty(*out).with_dtype(Dtype::U32));
                self.operand("mask", *mask, self.ty(*out).with_dtype(Dtype::Bool));
                self.operand("replacement", *other, self.ty(*out));
            }
            MemoryOp::Store { place, index, value, mask } => {
                self.writable(*place);
                self.element(*place, *value);
                self.scalar_index(*index);
                self.mask(*value, *mask);
            }
            MemoryOp::Scatter { place, index, value, mask, adds } => {
                if *adds {
                    self.updatable(*place);
                    let dtype = self.dtype(*place);
                    self.arithmetic(dtype, dtype.is_int() || dtype == Dtype::F32);
                }
                self.writable(*place);
                self.element(*place, *value);
                self.tile("value", *value);
                self.operand("index", *index, self.ty(*value).with_dtype(Dtype::U32));
                self.mask(*value, *mask);
            }
            MemoryOp::Atomic { out, op, place, index, value } => {
                self.updatable(*place);
                let dtype = self.dtype(*place);
                self.scalar_index(*index);
                self.operand("value", *value, Type::scalar(dtype));
                self.result(*out, Type::scalar(dtype));
                let float_sum = *op == ReduceOp::Sum && dtype == Dtype::F32;
                self.arithmetic(dtype, dtype.is_int() || float_sum);
            }
            MemoryOp::Tally { out, place, index, mask } => {
                self.updatable(*place);
                self.tile_result(*out, Dtype::U32);
                self.element(*place, *out);
                self.operand("index", *index, self.ty(*out));
                self.operand("mask", *mask, self.ty(*out).with_dtype(Dtype::Bool));
            }
            MemoryOp::Ticket { out, counter, index, count, .. } => {
                self.param(*counter, ParamKind::Counters, "an array of counters");
                self.scalar_index(*index);
                self.operand("count", *count, U32);
                self.operand("result", *out, Type::scalar(Dtype::Bool));
            }
        }
    }

    fn readable(&mut self, place: Place) {
        if let Place::Peer(p, _) | Place::All(p, _) = place {
            self.param(p, ParamKind::Window, "a window");
        }
        if let Some(rank) = place.rank() {
            self.operand("rank", rank, U32);
        }
        if let Place::Param(p) = place {
            match self.report.param(p).kind {
                ParamKind::Local | ParamKind::Symmetric | ParamKind::Window | ParamKind::Counters => {}
                ParamKind::Far(FarPart::Inbox) => {}
                ParamKind::Far(FarPart::Outbox | FarPart::Counts) => self.near_on_far(p),
                ParamKind::Flags | ParamKind::Counts | ParamKind::BlockFlags => {
                    self.add(Problem::FlagAccess { param: self.report.param(p).name.clone() })
                }
                ParamKind::Messages(transport) => {
                    self.add(Problem::MessageAccess { transport, param: self.report.param(p).name.clone() })
                }
                ParamKind::EpochWord | ParamKind::Scalar => self.param(p, ParamKind::Local, "a buffer"),
            }
        }
    }

    /// What is read and written at once: peers would see a window's element change under their eyes.
    fn updatable(&mut self, place: Place) {
        let window = place.param().filter(|p| self.report.param(*p).kind == ParamKind::Window);
        let far = place.param().filter(|p| self.report.param(*p).kind.far().is_some());
        match (window, far) {
            (Some(p), _) => self.param(p, ParamKind::Local, "a buffer of this rank, or shared memory"),
            (None, Some(p)) => self.near_on_far(p),
            (None, None) => self.writable(place),
        }
    }

    fn writable(&mut self, place: Place) {
        if let Place::Peer(p, _) | Place::All(p, _) = place {
            self.add(Problem::StoreToPeer { param: self.report.param(p).name.clone() });
        }
        if let Place::Param(p) = place {
            let param = self.report.param(p).name.clone();
            match self.report.param(p).kind {
                ParamKind::Local | ParamKind::Window | ParamKind::Counters => {}
                ParamKind::Far(FarPart::Outbox) => {}
                ParamKind::Far(FarPart::Inbox | FarPart::Counts) => self.near_on_far(p),
                ParamKind::Symmetric => self.add(Problem::StoreToSymmetric { param }),
                ParamKind::Flags | ParamKind::Counts | ParamKind::BlockFlags => {
                    self.add(Problem::FlagAccess { param })
                }
                ParamKind::Messages(transport) => self.add(Problem::MessageAccess { transport, param }),
                ParamKind::EpochWord | ParamKind::Scalar => self.param(p, ParamKind::Local, "a buffer"),
            }
        }
    }

    fn dtype(&self, place: Place) -> Dtype {
        match place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => self.report.param(p).dtype,
            Place::Shared(s) => self.report.kernel.shared[s.index()].dtype,
        }
    }

    /// A value moved to or from a place has its element type.
    fn element(&mut self, place: Place, v: ValueId) {
        let dtype = self.dtype(place);
        if self.ty(v).dtype != dtype {
            let (value, buffer) = (self.report.typed(v), self.report.place_name(place));
            self.add(Problem::BufferDtype { op: self.name, value, buffer, dtype });
        }
    }

    /// What is copied keeps its type, and fits the room on its way.
    fn copied(&mut self, buffer: ParamId, source: ParamId, len: u32, room: SharedId) {
        let (to, from) = (self.report.param(buffer), self.report.param(source));
        if to.dtype != from.dtype {
            let (buffer, source_name) = (to.name.clone(), from.name.clone());
            let (to, from) = (to.dtype, from.dtype);
            self.add(Problem::CopyDtype { source_name, from, buffer, to });
            return;
        }
        let bytes = u64::from(len) * u64::from(from.dtype.bytes());
        let room = &self.report.kernel.shared[room.index()];
        let there = u64::from(room.len) * u64::from(room.dtype.bytes());
        if there < bytes {
            let room = room.name.clone();
            self.add(Problem::CopyRoom { room, there, bytes });
        }
    }

    fn mask(&mut self, value: ValueId, mask: Option<ValueId>) {
        if let Some(m) = mask {
            self.tile("masked value", value);
            self.operand("mask", m, self.ty(value).with_dtype(Dtype::Bool));
        }
    }

    fn scalar_index(&mut self, v: ValueId) {
        if self.ty(v) != U32 && self.ty(v) != Type::scalar(Dtype::U64) {
            let value = self.report.typed(v);
            let expected = "a scalar u32 or u64".into();
            self.add(Problem::OperandType { op: self.name, what: "index", value, expected });
        }
    }

    fn param(&mut self, id: ParamId, kind: ParamKind, needed: &'static str) {
        let p = self.report.param(id);
        if p.kind.far().is_some() && kind.far().is_none() {
            return self.near_on_far(id);
        }
        if p.kind != kind {
            self.add(Problem::WrongParamKind { op: self.name, param: p.name.clone(), kind: p.kind, needed });
        }
    }

    fn operand(&mut self, what: &'static str, v: ValueId, expected: Type) {
        if self.ty(v) != expected {
            let value = self.report.typed(v);
            self.add(Problem::OperandType { op: self.name, what, value, expected: expected.to_string() });
        }
    }

    fn tile(&mut self, what: &'static str, v: ValueId) {
        if !self.ty(v).is_tile() {
            let value = self.report.typed(v);
            self.add(Problem::OperandType { op: self.name, what, value, expected: "a tile".into() });
        }
    }

    fn result(&mut self, v: ValueId, expected: Type) {
        if self.ty(v) != expected {
            let value = self.report.typed(v);
            self.add(Problem::ResultType { op: self.name, value, expected: expected.to_string() });
        }
    }

    fn tile_result(&mut self, v: ValueId, dtype: Dtype) {
        if !self.ty(v).is_tile() || self.ty(v).dtype != dtype {
            let value = self.report.typed(v);
            self.add(Problem::ResultType { op: self.name, value, expected: format!("a tile of {dtype}") });
        }
    }

    fn arithmetic(&mut self, dtype: Dtype, allowed: bool) {
        if !allowed {
            self.add(Problem::NoArithmetic { op: self.name, dtype });
        }
    }

    fn ty(&self, v: ValueId) -> Type {
        self.report.kernel.ty(v)
    }

    fn add(&mut self, problem: Problem) {
        self.report.add(self.loc, problem);
    }
}

fn reduce_allows(op: ReduceOp, dtype: Dtype) -> bool {
    match op {
        ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max => dtype.is_arithmetic(),
        ReduceOp::And | ReduceOp::Or => dtype.is_int() || dtype == Dtype::Bool,
    }
}
