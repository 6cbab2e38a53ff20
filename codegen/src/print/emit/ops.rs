//! Arithmetic as C++ expressions. What is here works on scalars and on single elements of tiles alike.

use crate::ir::{
    BinaryOp, CommOp, CompareOp, Const, Dtype, Loc, MemoryOp, OpKind, ReduceOp, Type, UnaryOp, ValueId,
    ValueOp,
};
use crate::print::analysis::Program;
use crate::print::text::{
    Expr, Prec, Prim, PrintError, Used,
    prim::{Spelled, use_dtype},
    type_name,
};

/// The expression of an arithmetic operation; `operand` gives the expressions of its operands.
pub(crate) fn expression(
    p: &Program,
    used: &mut Used,
    op: &ValueOp,
    loc: Loc,
    operand: &mut dyn FnMut(&mut Used, ValueId) -> Result<Expr, PrintError>,
) -> Result<Expr, PrintError> {
    let ty = |v: ValueId| p.kernel.ty(v);
    match *op {
        ValueOp::Binary { out, op, a, b } => {
            let (x, y) = (operand(used, a)?, operand(used, narrow_count(p, op, b))?);
            let rounds = op == BinaryOp::Mul && ty(out).dtype == Dtype::F32 && feeds_a_sum(p, out);
            binary(used, op, ty(out).dtype, rounds, &x, &y, loc)
        }
        ValueOp::Unary { op, a, .. } => {
            let x = operand(used, a)?;
            unary(used, op, ty(a).dtype, &x, loc)
        }
        ValueOp::Compare { op, a, b, .. } => {
            let (x, y) = (operand(used, a)?, operand(used, b)?);
            let dtype = ty(a).dtype;
            if !dtype.is_arithmetic() && dtype != Dtype::Bool {
                return Err(PrintError::Dtype { loc, what: "a comparison", dtype });
            }
            Ok(compare(op, &x, &y, matches!(dtype, Dtype::U32 | Dtype::U64)))
        }
        ValueOp::Select { cond, a, b, .. } => {
            Ok(Expr::ternary(&operand(used, cond)?, &operand(used, a)?, &operand(used, b)?))
        }
        ValueOp::Cast { out, a } => {
            let x = operand(used, a)?;
            Ok(cast(used, ty(a), ty(out), x))
        }
        ValueOp::Fma { a, b, c, .. } => {
            used.add(Prim::Math);
            let args = [operand(used, a)?, operand(used, b)?, operand(used, c)?];
            Ok(Expr::call("fma_of", &args))
        }
        ValueOp::Bitcast { out, a } => {
            used.add(Prim::Bits);
            Ok(Expr::call(&format!("bits_as<{}>", type_name(ty(out).dtype)), [&operand(used, a)?]))
        }
        ValueOp::Const { value, .. } => Ok(Expr::literal(value)),
        ValueOp::Rank { .. } => Ok(Expr::atom("args.rank")),
        ValueOp::Node { .. } => Ok(Expr::atom("args.far.node")),
        ValueOp::Active { .. } => {
            used.add(Prim::Active);
            Ok(Expr::call("active_ranks", [&Expr::atom("args")]))
        }
        any!(spreads, reductions)
        | ValueOp::ScalarParam { .. }
        | ValueOp::Epoch { .. }
        | ValueOp::GroupIndex { .. } => {
            Err(PrintError::Misplaced { loc, op: OpKind::Value(op.clone()).name() })
        }
    }
}

/// A shift's count without the widening that the IR asks for and C++ does not.
fn narrow_count(p: &Program, op: BinaryOp, count: ValueId) -> ValueId {
    match p.def(count) {
        Some(OpKind::Value(ValueOp::Cast { a, .. }))
            if matches!(op, BinaryOp::Shl | BinaryOp::Shr)
                && p.kernel.ty(*a) == Type::scalar(Dtype::U32)
                && p.kernel.ty(count) == Type::scalar(Dtype::U64)
                && p.users(count).len() == 1
                && p.name(count).is_none() =>
        {
            *a
        }
        _ => count,
    }
}

/// Whether a product may end up in an addition, where a compiler would contract the two and round once where the IR
/// says twice. Through variables and selections too, so anything not known to be harmless counts.
fn feeds_a_sum(p: &Program, product: ValueId) -> bool {
    let harmless = |u: &OpKind| {
        matches!(
            u,
            OpKind::Memory(MemoryOp::Store { .. })
                | OpKind::Comm(CommOp::Put(_) | CommOp::PutMatrix(_))
                | OpKind::Value(
                    any!(casts)
                        | ValueOp::Compare { .. }
                        | ValueOp::Fma { .. }
                        | ValueOp::Binary {
                            op: BinaryOp::Mul | BinaryOp::Div | BinaryOp::Min | BinaryOp::Max,
                            ..
                        }
                        | ValueOp::Reduce { op: ReduceOp::Min | ReduceOp::Max, .. }
                )
        ) || matches!(u, OpKind::Value(ValueOp::Unary { op, .. }) if op.rounds())
    };
    p.users(product).iter().any(|&u| !harmless(&p.kernel.op(u).kind))
}

/// `a op b`.
pub(crate) fn binary(
    used: &mut Used,
    op: BinaryOp,
    dtype: Dtype,
    rounds: bool,
    a: &Expr,
    b: &Expr,
    loc: Loc,
) -> Result<Expr, PrintError> {
    let bad = |what| Err(PrintError::Dtype { loc, what, dtype });
    let logic = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor);
    if !(dtype.is_arithmetic() || dtype == Dtype::Bool && logic) {
        return bad("arithmetic");
    }
    let whole = logic || matches!(op, BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr);
    if dtype == Dtype::F32 && whole {
        return bad("an operation on bits");
    }
    if matches!(op, BinaryOp::Min | BinaryOp::Max) {
        if matches!(dtype, Dtype::U32 | Dtype::U64) && (a.is_zero() || b.is_zero()) {
            let (zero, other) = if a.is_zero() { (a, b) } else { (b, a) };
            return Ok(if op == BinaryOp::Min { zero.clone() } else { other.clone() });
        }
        used.add(Prim::MinMax);
        return Ok(Expr::call(if op == BinaryOp::Min { "min_of" } else { "max_of" }, [a, b]));
    }
    let wraps = match op {
        BinaryOp::Add => Some("wrap_add"),
        BinaryOp::Sub => Some("wrap_sub"),
        BinaryOp::Mul => Some("wrap_mul"),
        BinaryOp::Shl => Some("wrap_shl"),
        any!(quotients, extremes, bits) | BinaryOp::Shr => None,
    };
    if let Some(name) = wraps.filter(|_| dtype == Dtype::I32) {
        used.add(Prim::Wrapping);
        return Ok(Expr::call(name, [a, b]));
    }
    if rounds {
        used.add(Prim::Math);
        return Ok(Expr::call("mul_rn", [a, b]));
    }
    if let Some(same) = identity(op, a, b) {
        return Ok(same);
    }
    let (text, prec) = operator(op, dtype);
    Ok(Expr::binary(text, prec, a, b))
}

/// `x + 0`, `x * 1` and the like, of integers: a float's literal is never taken for a zero or a one.
fn identity(op: BinaryOp, a: &Expr, b: &Expr) -> Option<Expr> {
    match op {
        BinaryOp::Add if a.is_zero() => Some(b.clone()),
        BinaryOp::Mul if a.is_zero() || b.is_one() => Some(a.clone()),
        BinaryOp::Mul if b.is_zero() || a.is_one() => Some(b.clone()),
        BinaryOp::Div if b.is_one() => Some(a.clone()),
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Or if b.is_zero() => {
            Some(a.clone())
        }
        any!(sums, quotients, extremes, bits, shifts) => None,
    }
}

/// The C++ operator, where there is one.
fn operator(op: BinaryOp, dtype: Dtype) -> (&'static str, Prec) {
    match op {
        BinaryOp::Add => ("+", Prec::Sum),
        BinaryOp::Sub => ("-", Prec::Sum),
        BinaryOp::Mul => ("*", Prec::Product),
        BinaryOp::Div => ("/", Prec::Product),
        BinaryOp::Rem => ("%", Prec::Product),
        BinaryOp::And if dtype == Dtype::Bool => ("&&", Prec::And),
        BinaryOp::Or if dtype == Dtype::Bool => ("||", Prec::Or),
        BinaryOp::Xor if dtype == Dtype::Bool => ("!=", Prec::Equality),
        BinaryOp::And => ("&", Prec::BitAnd),
        BinaryOp::Or => ("|", Prec::BitOr),
        BinaryOp::Xor => ("^", Prec::BitXor),
        BinaryOp::Shl => ("<<", Prec::Shift),
        BinaryOp::Shr => (">>", Prec::Shift),
        BinaryOp::Min | BinaryOp::Max => unreachable!("minimum and maximum are calls"),
    }
}

/// The operator of a compound assignment, for operations that print as an infix operator of the same name.
pub(crate) fn compound(op: BinaryOp, dtype: Dtype) -> Option<&'static str> {
    if !matches!(dtype, Dtype::U32 | Dtype::U64 | Dtype::F32) {
        return None;
    }
    match op {
        BinaryOp::Add => Some("+="),
        BinaryOp::Sub => Some("-="),
        // A product of floats may have to keep clear of contraction, which `*=` cannot say.
        BinaryOp::Mul if dtype == Dtype::F32 => None,
        BinaryOp::Mul => Some("*="),
        BinaryOp::And => Some("&="),
        BinaryOp::Or => Some("|="),
        BinaryOp::Xor => Some("^="),
        BinaryOp::Shl => Some("<<="),
        BinaryOp::Shr => Some(">>="),
        BinaryOp::Div | BinaryOp::Rem | BinaryOp::Min | BinaryOp::Max => None,
    }
}

fn unary(used: &mut Used, op: UnaryOp, dtype: Dtype, a: &Expr, loc: Loc) -> Result<Expr, PrintError> {
    if !op.allows(dtype) {
        return Err(PrintError::Dtype { loc, what: op.name(), dtype });
    }
    Ok(match Prim::of_unary(op, dtype) {
        Spelled::Operator(operator) => Expr::unary(operator, a),
        Spelled::Call(prim, function) => {
            used.add(prim);
            Expr::call(function, [a])
        }
    })
}

fn compare(op: CompareOp, a: &Expr, b: &Expr, unsigned: bool) -> Expr {
    // Compilers warn about what is true or false of every unsigned value.
    let never_below = unsigned && b.is_zero();
    let (text, prec) = match op {
        CompareOp::Eq => ("==", Prec::Equality),
        CompareOp::Ne => ("!=", Prec::Equality),
        CompareOp::Lt if never_below => return Expr::literal(Const::Bool(false)),
        CompareOp::Ge if never_below => return Expr::literal(Const::Bool(true)),
        CompareOp::Lt => ("<", Prec::Relation),
        CompareOp::Le => ("<=", Prec::Relation),
        CompareOp::Gt => (">", Prec::Relation),
        CompareOp::Ge => (">=", Prec::Relation),
    };
    Expr::binary(text, prec, a, b)
}

/// A conversion. Narrow floats convert from and to `f32` only, so anything else goes through it.
fn cast(used: &mut Used, from: Type, to: Type, x: Expr) -> Expr {
    let (from, to) = (from.dtype, to.dtype);
    let narrow = |d: Dtype| Prim::of_dtype(d).is_some();
    if from == to {
        return x;
    }
    if let (Dtype::Bf16, Dtype::F32, Some(single)) = (from, to, x.argument_of("to_bf16")) {
        used.add(Prim::RoundedBf16);
        return Expr::call("rounded_to_bf16", [&single]);
    }
    if let Some(prim) = Prim::of_dtype(from) {
        used.add(prim);
        let wide = Expr::call("to_f32", [&x]);
        return cast(used, Type::scalar(Dtype::F32), Type::scalar(to), wide);
    }
    if narrow(to) && from != Dtype::F32 {
        let wide = cast(used, Type::scalar(from), Type::scalar(Dtype::F32), x);
        return cast(used, Type::scalar(Dtype::F32), Type::scalar(to), wide);
    }
    let name = type_name(to);
    match (x.text.as_str(), to) {
        ("false" | "true", Dtype::U32) => return Expr::literal(Const::U32((x.text == "true").into())),
        ("false" | "true", Dtype::U64) => return Expr::literal(Const::U64((x.text == "true").into())),
        _ => {}
    }
    match (from, to) {
        (Dtype::F32, Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8) => {
            use_dtype(used, to);
            Expr::call(&format!("to_{name}"), [&x])
        }
        (Dtype::F32, Dtype::I32 | Dtype::U32 | Dtype::U64) => {
            used.add(Prim::ToInt);
            Expr::call(&format!("to_{name}"), [&x])
        }
        (_, Dtype::Bool) => Expr::binary("!=", Prec::Equality, &x, &Expr::atom("0")),
        _ => Expr::call(name, [&x]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Expr {
        Expr::atom(text)
    }

    #[test]
    fn casts_between_narrow_floats_go_through_f32() {
        let mut used = Used::default();
        let text = |used: &mut Used, a, b| cast(used, Type::scalar(a), Type::scalar(b), n("x")).text;
        assert_eq!(text(&mut used, Dtype::Bf16, Dtype::Fp8), "to_fp8(to_f32(x))");
        assert_eq!(text(&mut used, Dtype::I32, Dtype::Fp16), "to_fp16(f32(x))");
        assert_eq!(text(&mut used, Dtype::Fp8, Dtype::U32), "to_u32(to_f32(x))");
        assert_eq!(text(&mut used, Dtype::U32, Dtype::U64), "u64(x)");
        assert_eq!(text(&mut used, Dtype::U64, Dtype::Bool), "x != 0");
        assert_eq!(text(&mut used, Dtype::F32, Dtype::F32), "x");
        let back = |x: &str| {
            cast(&mut Used::default(), Type::scalar(Dtype::Bf16), Type::scalar(Dtype::F32), n(x)).text
        };
        assert_eq!(back("to_bf16(x * (y + z))"), "rounded_to_bf16(x * (y + z))");
        assert_eq!(back("f(to_bf16(x), to_bf16(y))"), "to_f32(f(to_bf16(x), to_bf16(y)))");
        assert_eq!(back("to_bf16(x)[to_u32(y)]"), "to_f32(to_bf16(x)[to_u32(y)])");
        for p in [Prim::Bf16, Prim::Fp8, Prim::Fp16, Prim::ToInt] {
            assert!(used.contains(p), "{p:?} must be included");
        }
    }

    #[test]
    fn signed_arithmetic_wraps_and_types_are_checked() {
        let mut used = Used::default();
        let loc = Loc::caller();
        let mut go = |op, dtype| binary(&mut used, op, dtype, false, &n("a"), &n("b"), loc).map(|e| e.text);
        assert_eq!(go(BinaryOp::Add, Dtype::I32).unwrap(), "wrap_add(a, b)");
        assert_eq!(go(BinaryOp::Add, Dtype::U32).unwrap(), "a + b");
        assert_eq!(go(BinaryOp::And, Dtype::Bool).unwrap(), "a && b");
        assert_eq!(go(BinaryOp::Max, Dtype::F32).unwrap(), "max_of(a, b)");
        assert!(matches!(go(BinaryOp::Add, Dtype::Bf16), Err(PrintError::Dtype { .. })));
        assert!(matches!(go(BinaryOp::Xor, Dtype::F32), Err(PrintError::Dtype { .. })));
        assert!(matches!(go(BinaryOp::Add, Dtype::Bool), Err(PrintError::Dtype { .. })));
    }
}
