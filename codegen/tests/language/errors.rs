//! The page of errors: what the DSL says where a trace ends, and what it advises.

use std::collections::BTreeMap;

use syn::visit::Visit;

use crate::surface;

/// Messages of a function's errors with their advice, as far as both are written out in it.
#[derive(Default)]
struct Errors {
    /// Texts by the names that they are bound to.
    named: BTreeMap<String, String>,
    found: BTreeMap<String, String>,
}

impl Errors {
    fn text(&self, e: &syn::Expr) -> Option<String> {
        match e {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            syn::Expr::Macro(m) if m.mac.path.is_ident("format") => {
                let parts = m.mac.parse_body_with(
                    syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated,
                );
                self.text(parts.ok()?.first()?)
            }
            syn::Expr::Path(p) => self.named.get(&p.path.get_ident()?.to_string()).cloned(),
            syn::Expr::Reference(r) => self.text(&r.expr),
            syn::Expr::MethodCall(m) => self.text(&m.receiver),
            _ => None,
        }
    }

    fn add(&mut self, message: &syn::Expr, help: &syn::Expr) {
        if let (Some(message), Some(help)) = (self.text(message), self.text(help)) {
            self.found.entry(message).or_insert(help);
        }
    }
}

impl<'a> Visit<'a> for Errors {
    fn visit_local(&mut self, local: &'a syn::Local) {
        syn::visit::visit_local(self, local);
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init)
            && let Some(text) = self.text(&init.expr)
        {
            self.named.insert(name.ident.to_string(), text);
        }
    }
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        syn::visit::visit_expr_call(self, call);
        let syn::Expr::Path(function) = &*call.func else { return };
        let name = function.path.segments.iter().map(|s| s.ident.to_string()).collect::<Vec<_>>().join("::");
        let args: Vec<&syn::Expr> = call.args.iter().collect();
        match (name.as_str(), args.as_slice()) {
            ("TraceError::new", [_, message, help]) => self.add(message, help),
            (name, [_, message, help]) if name.ends_with("fail_at") => self.add(message, help),
            ("wrong", [message, help]) => self.add(message, help),
            _ => {}
        }
    }
}

pub fn text() -> String {
    let mut errors = Errors::default();
    for items in surface::parsed() {
        for item in &items {
            errors.named.clear();
            errors.visit_item(item);
        }
    }
    let mut text = String::from(INTRO);
    for (message, help) in &errors.found {
        let cell =
            |text: &str| text.replace("{{", "{").replace("}}", "}").replace('|', "\\|").replace('\n', " ");
        text += &format!("| {} | {} |\n", cell(message), cell(help));
    }
    text
}

#[test]
fn messages_are_found() {
    let text = text();
    assert!(text.contains(
        "| a split inside a split | split the block once, into the smallest groups that are needed |"
    ));
    assert!(text.lines().count() > 60, "{text}");
}

const INTRO: &str = "# Errors and advice\n\nA mistake in a kernel ends its trace with an error: the author's line, a message, other lines that it has to do \
with, and advice. This page has the messages and what they advise; names in braces stand for the kernel's own. What the checker reports has a \
page of its own: [The protocol checker](../../explanation/checker.md).\n\n| message | advice |\n|---|---|\n";
