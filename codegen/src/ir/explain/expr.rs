//! Index expressions and conditions, put together again from the operations, in the author's names.

use super::super::analysis::{Def, DefUse};
use super::super::*;

/// Deeper than this an expression ends in `..`.
const MAX_DEPTH: u32 = 5;

/// Writes values as expressions.
pub(super) struct Exprs<'k> {
    pub kernel: &'k Kernel,
    pub defs: &'k DefUse,
    pub names: Names,
}

impl Exprs<'_> {
    /// The value as the author would write it: its name, or the expression that makes it.
    pub fn text(&self, v: ValueId) -> String {
        self.at(v, 0, 0)
    }

    /// An operand of an operator that binds with `outer`; weaker expressions get parentheses.
    fn at(&self, v: ValueId, outer: u8, depth: u32) -> String {
        if let Some(c) = self.names.constant(v) {
            return c.to_string().trim_end_matches("i32").trim_end_matches("u64").to_string();
        }
        if let Some(name) = &self.kernel.values[v.index()].name {
            return name.clone();
        }
        if depth > MAX_DEPTH {
            return "..".into();
        }
        match self.defs.def(v) {
            Def::Op(id) => self.op(v, &self.kernel.op(id).kind, outer, depth + 1),
            Def::Counter(_) | Def::Nothing => self.names.defined(v),
        }
    }

    fn op(&self, v: ValueId, kind: &OpKind, outer: u8, depth: u32) -> String {
        let call = |name: &str, args: &[ValueId]| {
            let args: Vec<String> = args.iter().map(|&a| self.at(a, 0, depth)).collect();
            format!("{name}({})", args.join(", "))
        };
        match kind {
            OpKind::Value(ValueOp::Binary { op: BinaryOp::Min | BinaryOp::Max, a, b, .. }) => {
                call(kind.name(), &[*a, *b])
            }
            OpKind::Value(ValueOp::Binary { op, a, b, .. }) => {
                let binds = strength(*op);
                // The right operand needs parentheses at equal strength: a - (b - c).
                self.infix(
                    op.symbol(),
                    (self.at(*a, binds, depth), self.at(*b, binds + 1, depth)),
                    binds,
                    outer,
                )
            }
            OpKind::Value(ValueOp::Compare { op, a, b, .. }) => {
                self.infix(op.symbol(), (self.at(*a, 1, depth), self.at(*b, 1, depth)), 1, outer)
            }
            // Conversions and shapes don't matter to somebody who wants to know what goes where.
            OpKind::Value(ValueOp::Cast { a, .. } | ValueOp::Splat { a, .. }) => self.at(*a, outer, depth),
            OpKind::Value(ValueOp::Unary { op: UnaryOp::Not, a, .. }) => {
                format!("!{}", self.at(*a, 9, depth))
            }
            OpKind::Value(ValueOp::Reduce { op, a, .. }) => {
                let name = match (op, self.kernel.ty(*a).dtype) {
                    (ReduceOp::Or, Dtype::Bool) => "any",
                    (ReduceOp::And, Dtype::Bool) => "all",
                    _ => op.name(),
                };
                call(name, &[*a])
            }
            OpKind::Value(
                ValueOp::Unary { a, .. } | ValueOp::Bitcast { a, .. } | ValueOp::Scan { a, .. },
            ) => call(kind.name(), &[*a]),
            OpKind::Value(ValueOp::Select { cond, a, b, .. }) => call("select", &[*cond, *a, *b]),
            OpKind::Value(ValueOp::Fma { a, b, c, .. }) => call("fma", &[*a, *b, *c]),
            OpKind::Value(ValueOp::ScalarParam { param, .. } | ValueOp::Epoch { word: param, .. }) => {
                self.kernel.params[param.index()].name.clone()
            }
            OpKind::Value(ValueOp::Rank { .. }) => "rank".into(),
            OpKind::Value(ValueOp::Node { .. }) => "node".into(),
            OpKind::Value(ValueOp::Active { .. }) => "active_ranks".into(),
            OpKind::Value(ValueOp::GroupIndex { .. }) => "group".into(),
            OpKind::Value(ValueOp::Arange { .. }) => "lanes".into(),
            OpKind::Control(ControlOp::VarGet { var, .. }) => {
                let name = self.kernel.vars[var.index()].name.clone();
                name.unwrap_or_else(|| self.names.var(*var))
            }
            OpKind::Memory(
                MemoryOp::Load { place, index, .. }
                | MemoryOp::LoadMasked { place, index, .. }
                | MemoryOp::Gather { place, index, .. }
                | MemoryOp::Tally { place, index, .. }
                | MemoryOp::Atomic { place, index, .. },
            ) => {
                format!("{}[{}]", self.place(*place), self.at(*index, 0, depth))
            }
            OpKind::Memory(MemoryOp::Ticket { counter, index, .. }) => {
                format!("last of {}[{}]", self.place(Place::Param(*counter)), self.at(*index, 0, depth))
            }
            OpKind::Matrix(MatrixOp::Dot(Dot { a, b, .. })) => {
                format!("{} . {}", self.rows(a, depth), self.rows(b, depth))
            }
            OpKind::Matrix(MatrixOp::LoadMatrix(LoadMatrix { at, column, .. })) => {
                format!("{}[{}]", self.rows(at, depth), self.at(*column, 0, depth))
            }
            OpKind::Matrix(MatrixOp::LoadRow(LoadRow { place, index, list, .. })) => {
                let named = list.map_or(String::new(), |list| {
                    format!(" + {}[{}]", self.place(Place::Param(list.param)), self.at(list.first, 0, depth))
                });
                format!("{}[{}{named}]", self.place(*place), self.at(*index, 0, depth))
            }
            OpKind::Matrix(
                MatrixOp::ReduceLines(ReduceLines { a, .. }) | MatrixOp::Deinterleave(Deinterleave { a, .. }),
            ) => {
                format!("{}({})", kind.name(), self.at(*a, 0, depth))
            }
            OpKind::Comm(CommOp::ReceiveMessages(ReceiveMessages { transport, buffer, tiles, .. }))
                if !transport.traits().takes =>
            {
                let index = tiles.first().map_or(String::new(), |t| self.at(t.index, 0, depth));
                format!("{}[{index}]", self.place(Place::Param(*buffer)))
            }
            OpKind::Value(ValueOp::Const { .. })
            | OpKind::Memory(MemoryOp::Store { .. } | MemoryOp::Scatter { .. })
            | OpKind::Matrix(MatrixOp::StoreMatrix(_))
            | OpKind::Comm(any!(puts, signals, waits, messages, far))
            | OpKind::Control(any!(branches, exits) | ControlOp::VarDecl { .. } | ControlOp::VarSet { .. }) => {
                self.names.defined(v)
            }
        }
    }

    fn rows(&self, rows: &Rows, depth: u32) -> String {
        let row = self.at(rows.row, 0, depth);
        let row = rows.list.map_or(row.clone(), |list| format!("{}[{row}]", self.place(Place::Param(list))));
        let scales =
            rows.scales.map(|of| format!(" by {}", self.place(Place::Param(of)))).unwrap_or_default();
        format!("{}[{row}]{scales}", self.place(rows.place))
    }

    fn infix(&self, symbol: &str, (a, b): (String, String), binds: u8, outer: u8) -> String {
        if binds < outer { format!("({a} {symbol} {b})") } else { format!("{a} {symbol} {b}") }
    }

    /// Name of a buffer or shared array.
    pub fn place(&self, place: Place) -> String {
        match place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => {
                self.kernel.params[p.index()].name.clone()
            }
            Place::Shared(s) => self.kernel.shared[s.index()].name.clone(),
        }
    }
}

/// How strongly an operator binds, as in Rust.
fn strength(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::Or => 2,
        BinaryOp::Xor => 3,
        BinaryOp::And => 4,
        BinaryOp::Shl | BinaryOp::Shr => 5,
        BinaryOp::Add | BinaryOp::Sub => 6,
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem => 7,
        BinaryOp::Min | BinaryOp::Max => 8,
    }
}
