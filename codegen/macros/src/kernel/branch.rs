//! `if`, `&&`, `||`, comparisons and `match`.

use std::mem::replace;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprCast, ExprIf, ExprMatch, Lit, Pat, Stmt};

use super::loops::{Frame, RegionFrame};
use super::rewrite::Rewriter;
use super::syntax::{self, diverges, has_let, is_host, is_number, needs_parens, never_yields};

/// An arm after rewriting.
struct RewrittenArm {
    /// An expression of type `Arm<_>`.
    value: TokenStream,
    /// Whether `break` or `continue` may leave it.
    exits: bool,
    /// Where its value stands.
    at: Span,
}

/// What a comparison asks.
enum Compared {
    Order(&'static str),
    Equal(bool),
}

impl Rewriter {
    /// Operators: comparisons, `&&` and `||`, and compound assignment. Arithmetic overloads and stays.
    pub fn binary(&mut self, e: &mut Expr) {
        let Expr::Binary(b) = e else { return };
        use BinOp::*;
        let compared = match b.op {
            Lt(_) => Compared::Order("Lt"),
            Le(_) => Compared::Order("Le"),
            Gt(_) => Compared::Order("Gt"),
            Ge(_) => Compared::Order("Ge"),
            Eq(_) => Compared::Equal(true),
            Ne(_) => Compared::Equal(false),
            And(_) | Or(_) => return self.logic(e),
            _ if super::assign::is_assignment(&b.op) => return self.compound_assign(b),
            _ => return syn::visit_mut::visit_expr_binary_mut(self, b),
        };
        self.visit_expr_mut(&mut b.left);
        self.visit_expr_mut(&mut b.right);
        self.used = true;
        let span = operator_span(&b.op);
        let (left, right) = (operand(&b.left), operand(&b.right));
        let method = match compared {
            Compared::Order(order) => {
                let order = Ident::new(order, span);
                quote_spanned!(span=> order(__pw::Order::#order))
            }
            Compared::Equal(equal) => quote_spanned!(span=> equal(#equal)),
        };
        *e = Expr::Verbatim(quote_spanned!(span=> __pw::pair(#left, #right).#method));
    }

    fn logic(&mut self, e: &mut Expr) {
        let Expr::Binary(ExprBinary { left, op, right, .. }) = e else { return };
        if has_let(left) || has_let(right) {
            return self.chain(e);
        }
        let native = is_host(left) && is_host(right);
        let stops = never_yields(right);
        self.visit_expr_mut(left);
        self.body(right, TokenStream::new());
        if native {
            return;
        }
        self.used = true;
        let span = operator_span(op);
        let left_ref = operand(left);
        if stops {
            **left = Expr::Verbatim(quote_spanned!(span=> __pw::host_test(#left_ref)));
            return;
        }
        let begin = format_ident!("{}", if matches!(op, BinOp::And(_)) { "and" } else { "or" }, span = span);
        let right = operand(right);
        *e = Expr::Verbatim(quote_spanned! {span=> {
            let mut __pw_l = __pw::#begin(#left_ref);
            let __pw_r = if __pw_l.needs_right() { Some(__pw::truth(#right)) } else { None };
            __pw::logic(__pw_l, __pw_r)
        }});
    }

    /// A condition with `let` in it is Rust's; what stands beside the `let` must be known on the host.
    fn chain(&mut self, e: &mut Expr) {
        let outer = self.bound.len();
        self.chain_operand(e);
        self.bound.truncate(outer);
    }

    fn chain_operand(&mut self, e: &mut Expr) {
        match e {
            Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => {
                self.chain_operand(&mut b.left);
                self.chain_operand(&mut b.right);
            }
            Expr::Let(l) => {
                self.visit_expr_mut(&mut l.expr);
                let bound = &mut self.bound;
                syntax::bindings(&l.pat, &mut |name| bound.push(name.to_string()));
            }
            Expr::Group(g) => self.chain_operand(&mut g.expr),
            other => self.host_condition(other),
        }
    }

    /// A condition that must be known on the host.
    pub fn host_condition(&mut self, e: &mut Expr) {
        if has_let(e) {
            return self.chain(e);
        }
        let plain = is_host(e);
        self.visit_expr_mut(e);
        if !plain {
            self.used = true;
            let operand = operand(e);
            let span = e.span();
            *e = Expr::Verbatim(quote_spanned!(span=> __pw::host_test(#operand)));
        }
    }

    /// `if`.
    pub fn if_(&mut self, e: &mut Expr) {
        let Expr::If(i) = e else { return };
        if has_let(&i.cond) || is_host(&i.cond) {
            return self.host_if(i);
        }
        lift_numbers(i);
        self.visit_expr_mut(&mut i.cond);
        self.used = true;
        let span = i.if_token.span;
        let condition = operand(&i.cond);
        let then = self.arm(&mut i.then_branch);
        let otherwise = i.else_branch.as_mut().map(|(token, branch)| (token.span, self.else_arm(branch)));
        let exits = then.exits || otherwise.as_ref().is_some_and(|(_, o)| o.exits);
        let end = |name: &str| {
            let name = if exits { format!("{name}_or_exit") } else { name.to_string() };
            format_ident!("{name}", span = span)
        };
        let (a, a_at) = (&then.value, then.at);
        let first = quote_spanned! {span=>
            let mut __pw_c = __pw::begin_if(#condition);
            let __pw_a = if __pw_c.then_arm() { #a } else { __pw::Arm::Skipped };
        };
        let a_ref = quote_spanned!(a_at=> __pw_a);
        let (second, merged) = match otherwise {
            None => {
                let end = end("end_if");
                (quote!(), quote_spanned!(span=> __pw::#end(__pw_c, #a_ref)))
            }
            Some((else_span, otherwise)) => {
                let (b, b_at) = (&otherwise.value, otherwise.at);
                let b_ref = quote_spanned!(b_at=> __pw_b);
                let end = end("merge");
                let second = quote_spanned! {else_span=>
                    let __pw_b = if __pw_c.else_arm() { #b } else { __pw::Arm::Skipped };
                };
                (second, quote_spanned!(span=> __pw::#end(__pw_c, #a_ref, #b_ref)))
            }
        };
        let attrs = &i.attrs;
        let leave = exits.then(|| self.leave_region(span)).flatten();
        let merged = match leave {
            Some(leave) => quote_spanned!(span=> match #merged { Some(__pw_v) => __pw_v, None => #leave }),
            None => merged,
        };
        *e = Expr::Verbatim(quote_spanned!(span=> #(#attrs)* { #first #second #merged }));
    }

    fn arm(&mut self, block: &mut Block) -> RewrittenArm {
        let at = value_span(block);
        let diverges = diverges(block);
        let region = RegionFrame::arm(self.number());
        self.frames.push(Frame::Region(region));
        self.block(block);
        // A block around nothing but a value would be linted as an argument.
        let value = match block.stmts.as_slice() {
            [Stmt::Expr(e, None)] => quote_spanned!(at=> #e),
            _ => quote_spanned!(block.brace_token.span.join()=> #block),
        };
        self.finish_arm(value, diverges, at)
    }

    fn else_arm(&mut self, branch: &mut Expr) -> RewrittenArm {
        if let Expr::Block(b) = branch
            && b.label.is_none()
            && b.attrs.is_empty()
        {
            return self.arm(&mut b.block);
        }
        let at = branch.span();
        let region = RegionFrame::arm(self.number());
        self.frames.push(Frame::Region(region));
        self.body(branch, TokenStream::new());
        self.finish_arm(quote_spanned!(at=> #branch), false, at)
    }

    fn finish_arm(&mut self, value: TokenStream, diverges: bool, at: Span) -> RewrittenArm {
        let Some(Frame::Region(region)) = self.frames.pop() else {
            return RewrittenArm { value, exits: false, at };
        };
        // What never yields needs no wrapping, which rustc would call unreachable.
        let value = if diverges { value } else { quote_spanned!(at=> __pw::Arm::Value(#value)) };
        let label = region.label(at);
        let value = if region.used { quote_spanned!(at=> #label: { #value }) } else { value };
        RewrittenArm { value, exits: region.used, at }
    }

    /// An `if` that stays Rust's: its condition is one of the host.
    pub fn host_if(&mut self, i: &mut ExprIf) {
        let marks = self.chain_marks(&i.cond);
        self.host_condition(&mut i.cond);
        self.block_with(&mut i.then_branch, marks);
        if let Some((_, branch)) = &mut i.else_branch {
            match &mut **branch {
                Expr::If(nested) if has_let(&i.cond) || has_let(&nested.cond) => self.host_if(nested),
                other => self.visit_expr_mut(other),
            }
            wrap_else(branch);
        }
    }

    /// Marks for the variables that the `let`s of a condition bind.
    pub fn chain_marks(&mut self, e: &Expr) -> TokenStream {
        match e {
            Expr::Let(l) => self.marks_for(&l.pat),
            Expr::Binary(b) => {
                let mut marks = self.chain_marks(&b.left);
                marks.extend(self.chain_marks(&b.right));
                marks
            }
            Expr::Group(g) => self.chain_marks(&g.expr),
            _ => TokenStream::new(),
        }
    }

    /// `match`: Rust's own. A device value cannot be matched; patterns that could only be meant for one are guarded.
    pub fn match_(&mut self, m: &mut ExprMatch) {
        let numbers = m.arms.iter().any(|arm| has_number(&arm.pat));
        self.visit_expr_mut(&mut m.expr);
        if numbers {
            self.used = true;
            let span = m.match_token.span;
            let at = m.expr.span();
            let value = replace(&mut *m.expr, Expr::Verbatim(TokenStream::new()));
            let host = format_ident!("host", span = at);
            *m.expr = Expr::Verbatim(quote_spanned!(span=> __pw::Matched(#value).#host()));
        }
        for arm in &mut m.arms {
            self.match_arm(arm);
        }
    }

    /// `e as T`: Rust's own. A device value is converted in another way.
    pub fn cast(&mut self, c: &mut ExprCast) {
        self.visit_expr_mut(&mut c.expr);
        if is_number(&c.expr) || !syntax::is_number_type(&c.ty) {
            return;
        }
        self.used = true;
        let span = c.as_token.span;
        let value = syntax::unparenthesised(&c.expr);
        *c.expr = Expr::Verbatim(quote_spanned!(span=> __pw::Converted(#value).host()));
    }

    fn match_arm(&mut self, arm: &mut Arm) {
        if let Pat::Guard(guard) = &mut arm.pat {
            self.host_condition(&mut guard.guard);
        }
        let marks = self.marks_for(&arm.pat);
        self.body(&mut arm.body, marks);
    }
}

/// Rust wants a block or an `if` after `else`.
fn wrap_else(branch: &mut Expr) {
    if let Expr::Verbatim(tokens) = branch {
        let span = tokens.span();
        *branch = Expr::Verbatim(quote_spanned!(span=> { #tokens }));
    }
}

/// `&e`, with parentheses where they are needed.
pub fn operand(e: &Expr) -> TokenStream {
    let span = e.span();
    match e {
        Expr::Paren(p) if !needs_parens(&p.expr) => operand(&p.expr),
        e if needs_parens(e) => quote_spanned!(span=> &(#e)),
        e => quote_spanned!(span=> &#e),
    }
}

/// The span of an operator; of its first character, which is all that a stable compiler gives.
pub fn operator_span(op: &BinOp) -> Span {
    op.span()
}

/// Where the value of a block stands: its last expression, or the block itself.
fn value_span(block: &Block) -> Span {
    match block.stmts.last() {
        Some(Stmt::Expr(e, None)) => e.span(),
        _ => block.brace_token.span.join(),
    }
}

/// In `if c { x } else { 0.0 }` the number must become a device value when `x` is one; so in `else if`, and in tuples.
fn lift_numbers(i: &mut ExprIf) {
    let mut values = vec![];
    collect_values(i, &mut values);
    lift_column(values);
}

/// The expressions whose values the arms of an `if` with all its `else if` yield.
fn collect_values<'a>(i: &'a mut ExprIf, values: &mut Vec<&'a mut Expr>) {
    values.extend(tail(&mut i.then_branch));
    match i.else_branch.as_mut().map(|(_, branch)| &mut **branch) {
        Some(Expr::Block(b)) => values.extend(tail(&mut b.block)),
        Some(Expr::If(nested)) => collect_values(nested, values),
        _ => {}
    }
}

/// The expression whose value a block yields.
fn tail(block: &mut Block) -> Option<&mut Expr> {
    match block.stmts.last_mut() {
        Some(Stmt::Expr(e, None)) if !never_yields(e) => Some(e),
        _ => None,
    }
}

/// Lifts the numbers among values of one type, if something else among them says what the type is.
fn lift_column(values: Vec<&mut Expr>) {
    let arity = |e: &Expr| match e {
        Expr::Tuple(t) => Some(t.elems.len()),
        _ => None,
    };
    let first = values.first().and_then(|e| arity(e));
    if let Some(len) = first.filter(|_| values.iter().all(|e| arity(e) == first)) {
        let mut columns: Vec<Vec<&mut Expr>> = (0..len).map(|_| vec![]).collect();
        for value in values {
            if let Expr::Tuple(t) = value {
                columns.iter_mut().zip(&mut t.elems).for_each(|(column, e)| column.push(e));
            }
        }
        return columns.into_iter().for_each(lift_column);
    }
    if values.iter().any(|e| !is_number(e)) {
        values.into_iter().for_each(lift);
    }
}

fn lift(e: &mut Expr) {
    if is_number(e) {
        let span = e.span();
        *e = Expr::Verbatim(quote_spanned!(span=> __pw::number(#e)));
    }
}

/// Whether a pattern matches numbers or truth values, as only patterns for scalars do.
fn has_number(pat: &Pat) -> bool {
    match pat {
        Pat::Lit(l) => matches!(l.lit, Lit::Int(_) | Lit::Float(_) | Lit::Bool(_)),
        Pat::Range(r) => [&r.start, &r.end].into_iter().flatten().any(|e| is_number(e)),
        Pat::Or(p) => p.cases.iter().any(has_number),
        Pat::Paren(p) => has_number(&p.pat),
        Pat::Guard(p) => has_number(&p.pat),
        Pat::Ident(p) => p.subpat.as_ref().is_some_and(|(_, p)| has_number(p)),
        _ => false,
    }
}
