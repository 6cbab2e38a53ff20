//! Questions about the author's syntax that need no types.

use proc_macro2::{Ident, Span};
use syn::{Attribute, Block, Expr, Lit, Pat, RangeLimits, Stmt, Type, UnOp};

/// Whether an expression needs parentheses as the operand of `&`.
pub fn needs_parens(e: &Expr) -> bool {
    matches!(
        e,
        Expr::Binary(_)
            | Expr::Cast(_)
            | Expr::Range(_)
            | Expr::Closure(_)
            | Expr::Assign(_)
            | Expr::Break(_)
            | Expr::Return(_)
    )
}

/// The attribute `#[host]` of an expression, taken off. In a statement `#[host] a = b;` it hangs on `a`.
pub fn take_host(e: &mut Expr) -> bool {
    if attrs_mut(e).is_some_and(take_host_attr) {
        return true;
    }
    match e {
        Expr::Assign(e) => take_host(&mut e.left),
        Expr::Binary(e) => take_host(&mut e.left),
        Expr::Cast(e) => take_host(&mut e.expr),
        _ => false,
    }
}

/// Takes `#[host]` off a list of attributes.
pub fn take_host_attr(attrs: &mut Vec<Attribute>) -> bool {
    let before = attrs.len();
    attrs.retain(|a| !a.path().is_ident("host"));
    attrs.len() < before
}

macro_rules! attrs_of {
    ($e:ident: $($kind:ident)+) => {
        match $e {
            $(Expr::$kind(e) => Some(&mut e.attrs),)+
            _ => None,
        }
    };
}

/// The attributes of an expression that the author may have put `#[host]` on.
fn attrs_mut(e: &mut Expr) -> Option<&mut Vec<Attribute>> {
    attrs_of! {
        e: Assign Binary Block Call Field ForLoop If Index Loop Macro Match MethodCall
           Paren Path Reference Tuple Unary While
    }
}

/// An expression without parentheses around it and without the invisible groups of `macro_rules`.
pub fn bare(mut e: &Expr) -> &Expr {
    loop {
        e = match e {
            Expr::Paren(p) => &p.expr,
            Expr::Group(g) => &g.expr,
            _ => return e,
        };
    }
}

/// An expression without parentheses around it, which would be linted where it becomes an argument.
pub fn unparenthesised(e: &Expr) -> &Expr {
    match e {
        Expr::Paren(p) if p.attrs.is_empty() => &p.expr,
        _ => e,
    }
}

/// The local variable at the root of a place: `x` in `x`, `x.a[i]`, `*x`. With `through_calls` also in
/// `x.borrow_mut().a` and the like.
pub fn root(e: &Expr, through_calls: bool) -> Option<&Ident> {
    const ACCESS: [&str; 5] = ["borrow_mut", "expect", "lock", "unwrap", "write"];
    match e {
        Expr::Path(p) => p.path.get_ident(),
        Expr::Field(f) => root(&f.base, through_calls),
        Expr::Index(i) => root(&i.expr, through_calls),
        Expr::Paren(p) => root(&p.expr, through_calls),
        Expr::Group(g) => root(&g.expr, through_calls),
        Expr::Unary(u) if matches!(u.op, UnOp::Deref(_)) => root(&u.expr, through_calls),
        Expr::Try(t) if through_calls => root(&t.expr, true),
        Expr::MethodCall(m) if through_calls && ACCESS.iter().any(|a| m.method == a) => {
            root(&m.receiver, true)
        }
        _ => None,
    }
}

/// Whether a place can be evaluated twice: its indices have no effects.
pub fn is_repeatable(e: &Expr) -> bool {
    match e {
        Expr::Path(_) | Expr::Lit(_) => true,
        Expr::Field(f) => is_repeatable(&f.base),
        Expr::Paren(p) => is_repeatable(&p.expr),
        Expr::Group(g) => is_repeatable(&g.expr),
        Expr::Unary(u) => is_repeatable(&u.expr),
        Expr::Cast(c) => is_repeatable(&c.expr),
        Expr::Binary(b) => is_repeatable(&b.left) && is_repeatable(&b.right),
        Expr::Index(i) => is_repeatable(&i.expr) && is_repeatable(&i.index),
        _ => false,
    }
}

/// Whether a condition is one that only Rust itself can evaluate: it binds with `let`.
pub fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(b) => has_let(&b.left) || has_let(&b.right),
        Expr::Group(g) => has_let(&g.expr),
        _ => false,
    }
}

/// Whether a condition is a `bool` of the host by its looks. When the looks deceive, rustc reports a type error.
pub fn is_host(e: &Expr) -> bool {
    const TESTS: [&str; 8] =
        ["is_some", "is_none", "is_ok", "is_err", "is_empty", "contains", "contains_key", "starts_with"];
    match bare(e) {
        Expr::Lit(l) => matches!(l.lit, Lit::Bool(_)),
        Expr::Macro(m) => m.mac.path.is_ident("matches") || m.mac.path.is_ident("cfg"),
        Expr::MethodCall(m) => TESTS.iter().any(|t| m.method == t),
        Expr::Unary(u) => matches!(u.op, UnOp::Not(_)) && is_host(&u.expr),
        Expr::Binary(b) => is_host(&b.left) && is_host(&b.right),
        _ => false,
    }
}

/// Whether a block ends in something that never yields a value.
pub fn diverges(block: &Block) -> bool {
    match block.stmts.last() {
        Some(Stmt::Expr(e, _)) => never_yields(e),
        Some(Stmt::Macro(m)) => is_panic(&m.mac.path),
        _ => false,
    }
}

/// Whether an expression never yields a value, by its looks.
pub fn never_yields(e: &Expr) -> bool {
    match bare(e) {
        Expr::Break(_) | Expr::Continue(_) | Expr::Return(_) => true,
        Expr::Macro(m) => is_panic(&m.mac.path),
        Expr::Block(b) => b.label.is_none() && diverges(&b.block),
        _ => false,
    }
}

fn is_panic(path: &syn::Path) -> bool {
    const PANICS: [&str; 5] = ["panic", "unreachable", "todo", "unimplemented", "bail"];
    path.segments.last().is_some_and(|s| PANICS.iter().any(|p| s.ident == p))
}

/// Whether an expression is a number, possibly with a minus sign.
pub fn is_number(e: &Expr) -> bool {
    match bare(e) {
        Expr::Lit(l) => matches!(l.lit, Lit::Int(_) | Lit::Float(_)),
        Expr::Unary(u) => matches!(u.op, UnOp::Neg(_)) && is_number(&u.expr),
        _ => false,
    }
}

/// Whether a type is one of Rust's numbers, by its name.
pub fn is_number_type(ty: &Type) -> bool {
    const NUMBERS: [&str; 14] = [
        "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize",
    ];
    matches!(ty, Type::Path(p) if NUMBERS.iter().any(|n| p.path.is_ident(n)))
}

/// A range with both ends.
pub struct RangeEnds<'a> {
    pub start: &'a mut Expr,
    pub end: &'a mut Expr,
    pub inclusive: bool,
    pub span: Span,
}

/// The range that an expression is, unless both ends are numbers: that stays a host range whose type Rust infers.
pub fn range_ends(e: &mut Expr) -> Option<RangeEnds<'_>> {
    let Expr::Range(r) = e else { return None };
    let (inclusive, span) = match &r.limits {
        RangeLimits::HalfOpen(dots) => (false, dots.spans[0]),
        RangeLimits::Closed(dots) => (true, dots.spans[0]),
    };
    match (&mut r.start, &mut r.end) {
        (Some(start), Some(end)) if !(is_number(start) && is_number(end)) => {
            Some(RangeEnds { start, end, inclusive, span })
        }
        _ => None,
    }
}

/// Calls `f` with every name that a pattern binds.
pub fn bindings(pat: &Pat, f: &mut dyn FnMut(&Ident)) {
    match pat {
        Pat::Ident(p) => {
            f(&p.ident);
            if let Some((_, sub)) = &p.subpat {
                bindings(sub, f);
            }
        }
        Pat::Guard(p) => bindings(&p.pat, f),
        Pat::Paren(p) => bindings(&p.pat, f),
        Pat::Reference(p) => bindings(&p.pat, f),
        Pat::Type(p) => bindings(&p.pat, f),
        Pat::Or(p) => p.cases.first().into_iter().for_each(|p| bindings(p, f)),
        Pat::Slice(p) => p.elems.iter().for_each(|p| bindings(p, f)),
        Pat::Tuple(p) => p.elems.iter().for_each(|p| bindings(p, f)),
        Pat::TupleStruct(p) => p.elems.iter().for_each(|p| bindings(p, f)),
        Pat::Struct(p) => p.fields.iter().for_each(|p| bindings(&p.pat, f)),
        _ => {}
    }
}

/// The one name that a `let` pattern binds, when it is as simple as `n`, `mut n` or `n: T`.
pub fn simple_name(pat: &Pat) -> Option<&Ident> {
    match pat {
        Pat::Ident(p) if p.by_ref.is_none() && p.subpat.is_none() => Some(&p.ident),
        Pat::Type(p) => simple_name(&p.pat),
        Pat::Paren(p) => simple_name(&p.pat),
        _ => None,
    }
}

/// The names of a `let` pattern in order, when it is a name, or a tuple or array of names and `_`.
pub fn names(pat: &Pat) -> Vec<Option<&Ident>> {
    match pat {
        Pat::Slice(s) => s.elems.iter().map(simple_name).collect(),
        Pat::Tuple(t) => t.elems.iter().map(simple_name).collect(),
        Pat::Type(t) => names(&t.pat),
        _ => simple_name(pat).map(Some).into_iter().collect(),
    }
}
