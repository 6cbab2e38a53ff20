//! C++ expressions with as few parentheses as they need.

use crate::ir::Const;

/// How tightly an expression binds; a larger value binds tighter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Prec {
    Ternary,
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equality,
    Relation,
    Shift,
    Sum,
    Product,
    Unary,
    Atom,
}

/// The text of an expression and how tightly it binds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub text: String,
    pub prec: Prec,
    /// A literal without its suffix, where the other operand decides the type.
    bare: Option<String>,
}

impl Expr {
    /// A name, call or anything else that never needs parentheses.
    pub fn atom(text: impl Into<String>) -> Expr {
        Expr { text: text.into(), prec: Prec::Atom, bare: None }
    }

    /// A literal.
    pub fn literal(value: Const) -> Expr {
        let (text, bare) = match value {
            Const::Bool(b) => (b.to_string(), None),
            Const::I32(i32::MIN) => ("(-2147483647 - 1)".into(), None),
            Const::I32(v) => (v.to_string(), None),
            Const::U32(v) => (format!("{v}u"), i32::try_from(v).ok().map(|v| v.to_string())),
            Const::U64(v) => (format!("{v}ull"), i32::try_from(v).ok().map(|v| v.to_string())),
            Const::F32(bits) => (float(bits), None),
        };
        let prec = if text.starts_with('-') { Prec::Unary } else { Prec::Atom };
        Expr { text, prec, bare }
    }

    /// `name(args..)`.
    pub fn call<'a>(name: &str, args: impl IntoIterator<Item = &'a Expr>) -> Expr {
        let args: Vec<&str> = args.into_iter().map(|a| a.text.as_str()).collect();
        Expr::atom(format!("{name}({})", args.join(", ")))
    }

    /// `op a`.
    pub fn unary(op: &str, a: &Expr) -> Expr {
        // `- -x` would otherwise become a decrement.
        let a = if a.prec < Prec::Unary || a.text.starts_with('-') { a.in_parens() } else { a.text.clone() };
        Expr { text: format!("{op}{a}"), prec: Prec::Unary, bare: None }
    }

    /// `a op b` for a left-associative operator.
    pub fn binary(op: &str, prec: Prec, a: &Expr, b: &Expr) -> Expr {
        let (mut left, mut right) = (a.operand(prec, false), b.operand(prec, true));
        match (&a.bare, &b.bare) {
            // The shift count never decides the type, the shifted operand always does.
            (_, Some(count)) if prec == Prec::Shift => right = count.clone(),
            (_, None) if prec == Prec::Shift => {}
            (Some(bare), None) => left = bare.clone(),
            (None, Some(bare)) => right = bare.clone(),
            _ => {}
        }
        Expr { text: format!("{left} {op} {right}"), prec, bare: None }
    }

    /// `cond ? a : b`.
    pub fn ternary(cond: &Expr, a: &Expr, b: &Expr) -> Expr {
        let arm = |e: &Expr| if e.prec == Prec::Ternary { e.in_parens() } else { e.text.clone() };
        Expr {
            text: format!("{} ? {} : {}", cond.operand(Prec::Or, true), arm(a), arm(b)),
            prec: Prec::Ternary,
            bare: None,
        }
    }

    /// `base[index]`.
    pub fn index(base: &Expr, index: &Expr) -> Expr {
        Expr::atom(format!("{}[{}]", base.operand(Prec::Atom, false), index.plain()))
    }

    /// `base + index`, or the base where the index is zero.
    pub fn offset(base: &Expr, index: &Expr) -> Expr {
        if index.is_zero() { base.clone() } else { Expr::binary("+", Prec::Sum, base, index) }
    }

    /// What a function is called with, if this is nothing but a call of it with one argument.
    pub fn argument_of(&self, function: &str) -> Option<Expr> {
        let inside = self.text.strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')')?;
        let mut open = 0;
        let closed_early = inside.chars().any(|c| {
            open += i32::from(c == '(') - i32::from(c == ')');
            open < 0
        });
        (!closed_early).then(|| Expr::atom(inside))
    }

    /// The text for a place that fixes the type by itself: an initialiser, an index, an assignment.
    pub fn plain(&self) -> &str {
        self.bare.as_deref().unwrap_or(&self.text)
    }

    /// Whether this is an integer literal.
    pub fn is_literal(&self) -> bool {
        self.bare.is_some()
    }

    /// Whether this is the literal one.
    pub fn is_one(&self) -> bool {
        self.bare.as_deref() == Some("1")
    }

    /// Whether this is the literal zero.
    pub fn is_zero(&self) -> bool {
        self.bare.as_deref() == Some("0")
    }

    fn in_parens(&self) -> String {
        format!("({})", self.text)
    }

    /// The text as an operand of an operator of precedence `of`, in parentheses where the grammar or a reader needs
    /// them: no reader should have to remember how `&`, `|`, `^`, `<<` and comparisons bind against each other.
    fn operand(&self, of: Prec, right: bool) -> String {
        let muddle = |p: Prec| (Prec::BitOr..=Prec::Shift).contains(&p);
        let mixed = self.prec != of && self.prec < Prec::Unary && (muddle(of) || muddle(self.prec));
        let arithmetic_under_comparison =
            matches!(of, Prec::Equality | Prec::Relation) && matches!(self.prec, Prec::Sum | Prec::Product);
        let comparison_under_logic =
            matches!(of, Prec::And | Prec::Or) && matches!(self.prec, Prec::Equality | Prec::Relation);
        let and_under_or = of == Prec::Or && self.prec == Prec::And;
        let needed = self.prec < of || (right && self.prec == of) || and_under_or;
        if needed || (mixed && !arithmetic_under_comparison && !comparison_under_logic) {
            self.in_parens()
        } else {
            self.text.clone()
        }
    }
}

/// An `f32` literal that reads back to the same bits.
fn float(bits: u32) -> String {
    let value = f32::from_bits(bits);
    if !value.is_finite() {
        return format!("bits_as<f32>({bits:#010x}u)");
    }
    let short = format!("{value:?}");
    format!("{short}f")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Expr {
        Expr::atom(text)
    }

    #[test]
    fn parentheses_appear_only_where_they_matter() {
        let sum = Expr::binary("+", Prec::Sum, &n("a"), &n("b"));
        let product = Expr::binary("*", Prec::Product, &n("a"), &n("b"));
        let text = |op, prec, a: &Expr, b: &Expr| Expr::binary(op, prec, a, b).text;
        assert_eq!(text("*", Prec::Product, &sum, &n("c")), "(a + b) * c");
        assert_eq!(text("+", Prec::Sum, &product, &n("c")), "a * b + c");
        assert_eq!(text("+", Prec::Sum, &sum, &n("c")), "a + b + c");
        assert_eq!(text("-", Prec::Sum, &n("c"), &sum), "c - (a + b)");
        assert_eq!(text("<", Prec::Relation, &sum, &n("c")), "a + b < c");
        assert_eq!(text("<<", Prec::Shift, &sum, &n("c")), "(a + b) << c");
        let less = Expr::binary("<", Prec::Relation, &n("a"), &n("b"));
        assert_eq!(text("&&", Prec::And, &less, &less), "a < b && a < b");
        assert_eq!(text("==", Prec::Equality, &less, &n("c")), "(a < b) == c");
        let shift = Expr::binary(">>", Prec::Shift, &n("m"), &n("p"));
        assert_eq!(text("&", Prec::BitAnd, &shift, &n("1")), "(m >> p) & 1");
        assert_eq!(Expr::unary("-", &Expr::unary("-", &n("a"))).text, "-(-a)");
        assert_eq!(Expr::ternary(&less, &sum, &n("c")).text, "a < b ? a + b : c");
        assert_eq!(Expr::index(&sum, &n("i")).text, "(a + b)[i]");
    }

    #[test]
    fn literals_keep_a_suffix_only_where_they_decide_the_type() {
        let four = Expr::literal(Const::U32(4));
        assert_eq!(Expr::binary("*", Prec::Product, &n("t"), &four).text, "t * 4");
        assert_eq!(Expr::binary("*", Prec::Product, &four, &four).text, "4u * 4u");
        let one = Expr::literal(Const::U64(1));
        assert_eq!(Expr::binary("<<", Prec::Shift, &one, &n("p")).text, "1ull << p");
        assert_eq!(Expr::binary("<<", Prec::Shift, &n("p"), &four).text, "p << 4");
        assert_eq!(Expr::literal(Const::U32(u32::MAX)).plain(), "4294967295u");
        assert_eq!(Expr::literal(Const::I32(i32::MIN)).text, "(-2147483647 - 1)");
        assert_eq!(Expr::binary("+", Prec::Sum, &n("a"), &Expr::literal(Const::I32(-1))).text, "a + -1");
    }

    #[test]
    fn float_literals_read_back() {
        for v in [0.0f32, -0.0, 1.0, 0.1, 1e-30, 3.4e38, 448.0, f32::MIN_POSITIVE] {
            let text = Expr::literal(Const::F32(v.to_bits())).text;
            let back: f32 = text.trim_end_matches('f').parse().unwrap();
            assert_eq!(back.to_bits(), v.to_bits(), "{text}");
            assert!(text.contains(['.', 'e']), "{text} must not be an integer literal");
        }
        assert_eq!(Expr::literal(Const::F32(f32::INFINITY.to_bits())).text, "bits_as<f32>(0x7f800000u)");
    }
}
