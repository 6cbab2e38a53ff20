//! Assignment, and the guard against host effects under a device `if` or loop.
//!
//! A device `if` runs both arms on the host, once each, whatever the condition turns out to be on the device. A host
//! effect in an arm (`x = ..` on a plain variable, `list.push(..)`) would then happen unconditionally, silently. So
//! every local variable that the function changes has a mark, taken where it is declared, and each change compares the
//! mark with the place where it happens.

use std::collections::BTreeSet;

use proc_macro2::Span;
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::VisitMut;
use syn::{BinOp, Block, Expr, ExprAssign, ExprBinary, ExprMethodCall, Ident, Item, Local, Member, Stmt};

use super::rewrite::Rewriter;
use super::syntax::{is_repeatable, root, simple_name};

/// What a function changes.
#[derive(Default)]
pub struct Changes {
    /// Variables with an assignment, a `&mut` or a call of a method that changes them.
    pub names: BTreeSet<String>,
    /// Variables declared without a value: their first assignment cannot look at them.
    pub late: BTreeSet<String>,
}

/// Methods of the standard library that change what they are called on; with the number of arguments where the same
/// name with others does not.
const CHANGING: &[(&str, Option<usize>)] = &[
    ("append", None),
    ("as_mut", None),
    ("clear", None),
    ("drain", None),
    ("entry", None),
    ("extend", None),
    ("extend_from_slice", None),
    ("fill", None),
    ("first_mut", None),
    ("get_mut", None),
    ("get_or_insert", None),
    ("get_or_insert_with", None),
    ("insert", None),
    ("insert_str", None),
    ("iter_mut", None),
    ("last_mut", None),
    ("next", Some(0)),
    ("next_back", Some(0)),
    ("nth", Some(1)),
    ("pop", None),
    ("pop_back", None),
    ("pop_front", None),
    ("push", None),
    ("push_back", None),
    ("push_front", None),
    ("push_str", None),
    ("remove", None),
    ("replace", Some(1)),
    ("resize", None),
    ("resize_with", None),
    ("retain", None),
    ("reverse", None),
    ("rotate_left", None),
    ("rotate_right", None),
    ("sort", None),
    ("sort_by", None),
    ("sort_by_key", None),
    ("sort_unstable", None),
    ("sort_unstable_by", None),
    ("sort_unstable_by_key", None),
    ("split_off", None),
    ("swap", None),
    ("swap_remove", None),
    ("take", Some(0)),
    ("truncate", None),
    ("values_mut", None),
];

/// Whether a call is of a method that changes its receiver.
fn is_changing(call: &ExprMethodCall) -> bool {
    let arguments = call.args.len();
    CHANGING.iter().any(|(name, count)| call.method == name && count.is_none_or(|c| c == arguments))
}

/// What a function body changes, closures included, items in it not.
pub fn find_changes(block: &Block) -> Changes {
    let mut found = Changes::default();
    found.visit_block(block);
    found
}

impl Changes {
    fn add(&mut self, place: &Expr) {
        match place {
            Expr::Tuple(t) => t.elems.iter().for_each(|e| self.add(e)),
            _ => self.names.extend(root(place, true).map(|name| name.to_string())),
        }
    }
}

impl<'a> Visit<'a> for Changes {
    fn visit_expr(&mut self, e: &'a Expr) {
        match e {
            Expr::Assign(a) => self.add(&a.left),
            Expr::Binary(b) if is_assignment(&b.op) => self.add(&b.left),
            Expr::Reference(r) if r.mutability.is_some() => self.add(&r.expr),
            Expr::MethodCall(m) if is_changing(m) => self.add(&m.receiver),
            Expr::Macro(m) => self.names.extend(super::macros::written_to(&m.mac).map(|n| n.to_string())),
            _ => {}
        }
        visit::visit_expr(self, e);
    }

    fn visit_local(&mut self, local: &'a Local) {
        if let (None, Some(name)) = (&local.init, simple_name(&local.pat)) {
            self.late.insert(name.to_string());
        }
        visit::visit_local(self, local);
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if let Stmt::Macro(m) = stmt {
            self.names.extend(super::macros::written_to(&m.mac).map(|n| n.to_string()));
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_item(&mut self, _: &'a Item) {}
}

/// Whether an operator is `+=` or one of its kind.
pub fn is_assignment(op: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        op,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

impl Rewriter {
    /// `x = e`: assigns a device variable, or checks that the host variable may be assigned here.
    pub fn assign(&mut self, a: &mut ExprAssign) {
        self.visit_expr_mut(&mut a.right);
        let span = a.eq_token.span;
        if let Expr::Tuple(t) = &*a.left {
            for name in t.elems.iter().filter_map(|place| root(place, true)) {
                // Device variables would swap handles here, not values: the check must not let them pass.
                let mark = self.mark(name, span);
                let name = name.to_string();
                self.checks.push(quote_spanned!(span=> __pw::change(#mark, #name, "=");));
            }
            return;
        }
        let Some(name) = root(&a.left, true).cloned() else {
            return self.visit_expr_mut(&mut a.left);
        };
        let late = matches!(&*a.left, Expr::Path(_)) && self.changes.late.contains(&name.to_string());
        if late || !is_repeatable(&a.left) {
            self.change_before(&name, "=", span);
            return self.visit_expr_mut(&mut a.left);
        }
        let mark = self.mark(&name, span);
        let name = place_name(&a.left, &name);
        let (place, value) = (&a.left, &a.right);
        let set = quote_spanned!(span=> __pw::place(&#place).current().set(#value, #mark, #name));
        *a.right = Expr::Verbatim(set);
    }

    /// `x += e`: Rust's own, after the check that a host variable may be changed here.
    pub fn compound_assign(&mut self, b: &mut ExprBinary) {
        self.visit_expr_mut(&mut b.right);
        let span = b.op.span();
        let text = b.op.to_token_stream().to_string();
        match root(&b.left, true).cloned() {
            Some(name) if is_repeatable(&b.left) && !self.unchecked => {
                let (mark, place) = (self.mark(&name, span), &b.left);
                let changed = place_name(place, &name);
                let check =
                    quote_spanned!(span=> __pw::place(&#place).current().check(#mark, #changed, #text););
                self.checks.push(check);
            }
            Some(name) => self.change_before(&name, &text, span),
            None => {}
        }
        self.visit_expr_mut(&mut b.left);
    }

    /// `&mut x`: what is lent may be changed.
    pub fn reference(&mut self, e: &mut Expr) {
        let Expr::Reference(r) = e else { return };
        self.visit_expr_mut(&mut r.expr);
        let Some(mutable) = r.mutability else { return };
        let Some(name) = root(&r.expr, false).cloned() else { return };
        let span = mutable.span;
        let mark = self.mark(&name, span);
        let name = place_name(&r.expr, &name);
        *e = Expr::Verbatim(quote_spanned!(span=> __pw::lend(#r, #mark, #name)));
    }

    /// `list.push(e)`: a check before the statement when the method is known to change its receiver.
    pub fn method_call(&mut self, call: &ExprMethodCall) {
        if !is_changing(call) {
            return;
        }
        let Some(name) = root(&call.receiver, true).cloned() else { return };
        let method = call.method.to_string();
        self.change_before(&name, &method, call.method.span());
    }

    /// Checks before the current statement that a variable may be changed here.
    pub fn change_before(&mut self, name: &Ident, how: &str, span: Span) {
        let text = name.to_string();
        // What a condition binds with `let` is not there yet before the statement; it belongs to the current region.
        if self.unchecked || self.bound.contains(&text) {
            return;
        }
        let mark = self.mark(name, span);
        let check = match self.changes.late.contains(&text) {
            true => quote_spanned!(span=> __pw::change(#mark, #text, #how);),
            false => quote_spanned!(span=> __pw::touch(&#name, #mark, #text, #how);),
        };
        self.checks.push(check);
    }
}

/// The name of what a place is: of the field, or of the variable.
fn place_name(place: &Expr, root: &Ident) -> String {
    match place {
        Expr::Field(f) => match &f.member {
            Member::Named(name) => name.to_string(),
            Member::Unnamed(_) => place_name(&f.base, root),
        },
        Expr::Index(i) => place_name(&i.expr, root),
        Expr::Paren(p) => place_name(&p.expr, root),
        Expr::Unary(u) => place_name(&u.expr, root),
        _ => root.to_string(),
    }
}
