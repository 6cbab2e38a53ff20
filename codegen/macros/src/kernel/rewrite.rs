//! The walk over a function's body: statements, names, closures, and who rewrites what.

use std::collections::BTreeSet;
use std::mem::take;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, ExprClosure, FnArg, Item, ItemFn, Local, Pat, PatTuple, Stmt, Type};

use super::assign::{Changes, find_changes};
use super::loops::Frame;
use super::syntax::{self, take_host};

/// Rewrites one function.
pub struct Rewriter {
    /// Numbers of generated names.
    next: usize,
    /// Variables that the function changes, and those declared without a value.
    pub changes: Changes,
    /// Loops and regions around the current place, innermost last.
    pub frames: Vec<Frame>,
    /// Checks to be put before the current statement.
    pub checks: Vec<TokenStream>,
    /// The mark that `return` compares with, and whether anything needs it.
    pub entry: Entry,
    /// Whether anything was rewritten.
    pub used: bool,
    /// Inside an expression under `#[host]`: host effects are not checked.
    pub unchecked: bool,
    /// Names that the condition around the current place binds with `let`.
    pub bound: Vec<String>,
}

/// The mark taken where the current function or closure begins.
pub struct Entry {
    pub name: Ident,
    pub used: bool,
}

impl Rewriter {
    pub fn new(function: &ItemFn) -> Rewriter {
        Rewriter {
            next: 0,
            changes: find_changes(&function.block),
            frames: vec![],
            checks: vec![],
            entry: Entry { name: Ident::new("__pw_fn", function.sig.ident.span()), used: false },
            used: false,
            unchecked: false,
            bound: vec![],
        }
    }

    /// Rewrites the body. Returns what must stand before its statements, if anything was rewritten.
    pub fn function(&mut self, function: &mut ItemFn) -> Option<TokenStream> {
        let span = function.sig.ident.span();
        let names = self.name_parameters(function);
        self.block(&mut function.block);
        let mut marks = TokenStream::new();
        for changed in &self.changes.names {
            self.entry.used = true;
            let mark = mark_of(changed, span);
            let entry = &self.entry.name;
            marks.extend(quote_spanned!(span=> let #mark = #entry;));
        }
        let mut out = names;
        if self.entry.used {
            let entry = &self.entry.name;
            out.extend(quote_spanned!(span=> let #entry = __pw::mark();));
        }
        out.extend(marks);
        (self.used || !out.is_empty()).then_some(out)
    }

    /// Names the values that come in through parameters whose type says that they are device values.
    fn name_parameters(&mut self, function: &ItemFn) -> TokenStream {
        let mut out = TokenStream::new();
        for arg in &function.sig.inputs {
            let FnArg::Typed(arg) = arg else { continue };
            let Type::Path(ty) = &*arg.ty else { continue };
            let device = ty.path.segments.last().is_some_and(|s| s.ident == "Val" || s.ident == "Tile");
            if let (true, Some(name)) = (device, syntax::simple_name(&arg.pat)) {
                let text = name.to_string();
                out.extend(quote_spanned!(name.span()=> __pw::place(&#name).name(#text);));
            }
        }
        out
    }

    /// A number for generated names.
    pub fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Rewrites the statements of a block.
    pub fn block(&mut self, block: &mut Block) {
        self.block_with(block, TokenStream::new());
    }

    /// Rewrites the statements of a block and puts others before them.
    pub fn block_with(&mut self, block: &mut Block, before: TokenStream) {
        let outer = take(&mut self.checks);
        let stmts = take(&mut block.stmts);
        if !before.is_empty() {
            block.stmts.push(verbatim_stmt(before));
        }
        for stmt in stmts {
            self.stmt(stmt, &mut block.stmts);
        }
        self.checks = outer;
    }

    fn stmt(&mut self, stmt: Stmt, out: &mut Vec<Stmt>) {
        match stmt {
            Stmt::Item(_) => out.push(stmt),
            Stmt::Local(local) => self.local(local, out),
            Stmt::Macro(mut m) => {
                self.visit_macro_mut(&mut m.mac);
                self.flush(out);
                out.push(Stmt::Macro(m));
            }
            Stmt::Expr(mut e, semi) => {
                self.visit_expr_mut(&mut e);
                self.flush(out);
                out.push(Stmt::Expr(e, semi));
            }
        }
    }

    /// Puts the pending checks before the statement that needs them.
    fn flush(&mut self, out: &mut Vec<Stmt>) {
        out.extend(take(&mut self.checks).into_iter().map(verbatim_stmt));
    }

    /// `let`: the value gets the name, and the variable a mark when the function changes it.
    fn local(&mut self, mut local: Local, out: &mut Vec<Stmt>) {
        let span = local.let_token.span;
        let host = syntax::take_host_attr(&mut local.attrs);
        if let (Pat::Tuple(pat), Some(init)) = (&local.pat, &mut local.init) {
            self.name_elements(pat, &mut init.expr);
        }
        let mut nameable = false;
        if let Some(init) = &mut local.init {
            nameable = makes_values(&init.expr);
            match host {
                true => self.host(&mut init.expr),
                false => self.visit_expr_mut(&mut init.expr),
            }
            if let Some((_, diverge)) = &mut init.diverge {
                self.visit_expr_mut(diverge);
            }
        }
        self.flush(out);
        let names = if nameable { quoted_names(&local.pat) } else { None };
        let changed = self.changed_in(&local.pat);
        let taken = names.as_ref().map(|_| format_ident!("__pw_m", span = span));
        if let Some(mark) = &taken {
            self.used = true;
            out.push(verbatim_stmt(quote_spanned!(span=> let #mark = __pw::mark();)));
        }
        out.push(Stmt::Local(local));
        let marks = match &taken {
            Some(mark) => marks_from(&changed, quote::quote!(#mark)),
            None => marks_from(&changed, quote_spanned!(span=> __pw::mark())),
        };
        if !marks.is_empty() {
            self.used = true;
            out.push(verbatim_stmt(marks));
        }
        if let (Some(mark), Some(names)) = (taken, names) {
            out.push(verbatim_stmt(quote_spanned!(span=> __pw::name(#mark, #names);)));
        }
    }

    /// `let (a, b) = (e, f);` names each value.
    fn name_elements(&mut self, pat: &PatTuple, init: &mut Expr) {
        let Expr::Tuple(values) = init else { return };
        if pat.elems.len() != values.elems.len() {
            return;
        }
        for (pat, value) in pat.elems.iter().zip(&mut values.elems) {
            if let (Some(name), true) = (syntax::simple_name(pat), makes_values(value)) {
                self.visit_expr_mut(value);
                self.used = true;
                let (span, text) = (name.span(), name.to_string());
                *value = Expr::Verbatim(quote_spanned!(span=> __pw::named(__pw::mark(), #value, #text)));
            }
        }
    }

    /// The names bound by a pattern that the function changes.
    pub fn changed_in(&self, pat: &Pat) -> Vec<Ident> {
        let mut found = vec![];
        syntax::bindings(pat, &mut |name| {
            if self.changes.names.contains(&name.to_string()) {
                found.push(name.clone());
            }
        });
        found
    }

    /// Marks for the changed variables of a pattern that a block begins with.
    pub fn marks_for(&mut self, pat: &Pat) -> TokenStream {
        let changed = self.changed_in(pat);
        self.used |= !changed.is_empty();
        marks_from(&changed, quote_spanned!(pat.span()=> __pw::mark()))
    }

    /// The mark variable for a place's root; `self` counts from the beginning of the function.
    pub fn mark(&mut self, root: &Ident, span: Span) -> Ident {
        self.used = true;
        // Known already, unless it hides in the arguments of a macro.
        self.changes.names.insert(root.to_string());
        mark_of(&root.to_string(), span)
    }

    /// An expression that is a body of its own (of a closure, a match arm): checks go into a block around it.
    pub fn body(&mut self, e: &mut Expr, before: TokenStream) {
        let outer = take(&mut self.checks);
        self.visit_expr_mut(e);
        let mut all = before;
        all.extend(std::mem::replace(&mut self.checks, outer));
        if all.is_empty() {
            return;
        }
        let span = e.span();
        let wrapped = match &*e {
            Expr::Block(b) if b.label.is_none() && b.attrs.is_empty() => {
                let stmts = &b.block.stmts;
                quote_spanned!(span=> { #all #(#stmts)* })
            }
            _ => quote_spanned!(span=> { #all #e }),
        };
        *e = Expr::Verbatim(wrapped);
    }

    /// A closure: `return` leaves it, `break` does not.
    fn closure(&mut self, c: &mut ExprClosure) {
        let span = c.inputs_begin.span;
        let number = self.number();
        let inner = Entry { name: format_ident!("__pw_c{number}", span = span), used: false };
        let outer = std::mem::replace(&mut self.entry, inner);
        let frames = take(&mut self.frames);
        let mut before: TokenStream = c.inputs.iter().map(|p| self.marks_for(p)).collect();
        let mut body = std::mem::replace(&mut *c.body, Expr::Verbatim(TokenStream::new()));
        self.body(&mut body, TokenStream::new());
        self.frames = frames;
        let inner = std::mem::replace(&mut self.entry, outer);
        if inner.used {
            let name = inner.name;
            before.extend(quote_spanned!(span=> let #name = __pw::mark();));
        }
        if !before.is_empty() {
            body = Expr::Verbatim(quote_spanned!(span=> { #before #body }));
        }
        *c.body = body;
    }

    /// An expression under `#[host]`: itself left to Rust, what is in it rewritten.
    fn host(&mut self, e: &mut Expr) {
        match e {
            Expr::If(i) => self.host_if(i),
            Expr::While(w) => *e = self.host_while(w),
            Expr::ForLoop(_) => self.host_for(e),
            Expr::Loop(_) | Expr::Block(_) | Expr::Match(_) => self.visit_expr_mut(e),
            _ => {
                let outer = std::mem::replace(&mut self.unchecked, true);
                self.visit_expr_mut(e);
                self.unchecked = outer;
            }
        }
    }
}

impl VisitMut for Rewriter {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        if take_host(e) {
            return self.host(e);
        }
        match e {
            Expr::If(_) => self.if_(e),
            Expr::Match(m) => self.match_(m),
            Expr::Binary(_) => self.binary(e),
            Expr::Assign(a) if !self.unchecked => self.assign(a),
            Expr::Reference(r) if r.mutability.is_some() && !self.unchecked => self.reference(e),
            Expr::MethodCall(m) => {
                self.method_call(m);
                visit_mut::visit_expr_mut(self, e);
            }
            Expr::ForLoop(_) => self.for_(e),
            Expr::While(_) => self.while_(e),
            Expr::Loop(_) => self.loop_(e),
            Expr::Block(b) if b.label.is_some() => self.labelled_block(e),
            Expr::Break(_) | Expr::Continue(_) => self.exit(e),
            Expr::Return(_) => self.return_(e),
            Expr::Closure(c) => self.closure(c),
            Expr::Cast(c) => self.cast(c),
            Expr::Async(_) => {
                let frames = take(&mut self.frames);
                visit_mut::visit_expr_mut(self, e);
                self.frames = frames;
            }
            // Evaluated at compile time, where nothing is traced.
            Expr::Const(_) => {}
            Expr::Repeat(r) => self.visit_expr_mut(&mut r.expr),
            _ => visit_mut::visit_expr_mut(self, e),
        }
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        self.block(block);
    }

    fn visit_macro_mut(&mut self, mac: &mut syn::Macro) {
        self.macro_(mac);
    }

    // Nothing below a type, a pattern or an item runs while the function does.
    fn visit_type_mut(&mut self, _: &mut Type) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}
}

/// The variable that holds the mark of another one. Rust's own scoping finds the right one.
fn mark_of(name: &str, span: Span) -> Ident {
    format_ident!("__pw_at_{}", name.trim_start_matches("r#").to_lowercase(), span = span)
}

fn marks_from(names: &[Ident], value: TokenStream) -> TokenStream {
    let names: BTreeSet<&Ident> = names.iter().collect();
    let mut out = TokenStream::new();
    for name in names {
        let mark = mark_of(&name.to_string(), name.span());
        out.extend(quote_spanned!(name.span()=> let #mark = #value;));
    }
    out
}

fn verbatim_stmt(tokens: TokenStream) -> Stmt {
    Stmt::Expr(Expr::Verbatim(tokens), None)
}

/// Whether an expression may make device values that a `let` can name.
fn makes_values(e: &Expr) -> bool {
    matches!(
        syntax::bare(e),
        Expr::Binary(_)
            | Expr::Unary(_)
            | Expr::Call(_)
            | Expr::MethodCall(_)
            | Expr::If(_)
            | Expr::Block(_)
            | Expr::Match(_)
    )
}

/// `"n"`, or `["a", "b"]` for a tuple, as the argument of `name`.
fn quoted_names(pat: &Pat) -> Option<TokenStream> {
    let names = syntax::names(pat);
    let texts: Vec<String> = names.iter().map(|n| n.map(|n| n.to_string()).unwrap_or_default()).collect();
    if texts.iter().all(|t| t.is_empty() || t.starts_with('_')) {
        return None;
    }
    let span = names.iter().flatten().next()?.span();
    Some(quote_spanned!(span=> &[#(#texts),*]))
}
