//! Arguments of the standard library's macros. Those of other macros are not known to be expressions.

use proc_macro2::Ident;
use quote::{ToTokens, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Expr, Macro, Token};

use super::rewrite::Rewriter;
use super::syntax::{is_host, needs_parens, root};

type Arguments = Punctuated<Expr, Token![,]>;

/// Macros whose arguments are expressions.
const KNOWN: [&str; 17] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "dbg",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "eprint",
    "eprintln",
    "format",
    "panic",
    "print",
    "println",
    "unreachable",
    "vec",
    "write",
    "writeln",
];

fn name_in<'a>(mac: &Macro, names: &[&'a str]) -> Option<&'a str> {
    let last = &mac.path.segments.last()?.ident;
    names.iter().find(|n| last == **n).copied()
}

fn arguments(mac: &Macro) -> Option<Arguments> {
    mac.parse_body_with(Arguments::parse_terminated).ok()
}

/// The local variable that `write!` writes to.
pub fn written_to(mac: &Macro) -> Option<Ident> {
    name_in(mac, &["write", "writeln"])?;
    root(arguments(mac)?.first()?, true).cloned()
}

impl Rewriter {
    /// Rewrites the arguments of a macro that is known; a condition to be asserted must be known on the host.
    pub fn macro_(&mut self, mac: &mut Macro) {
        let Some(name) = name_in(mac, &KNOWN) else { return };
        if let Some(to) = written_to(mac) {
            let span = mac.path.span();
            self.change_before(&to, &format!("{name}!"), span);
        }
        let Some(mut args) = arguments(mac) else { return };
        let asserted = matches!(name, "assert" | "debug_assert").then(|| args.first().map(text)).flatten();
        for arg in &mut args {
            match arg {
                // `name = value` of a format string.
                Expr::Assign(named) => self.visit_expr_mut(&mut named.right),
                other => self.visit_expr_mut(other),
            }
        }
        if let (Some(text), Some(condition)) = (asserted, args.first_mut())
            && !is_host(condition)
        {
            self.used = true;
            let span = mac.path.span();
            let at = condition.span();
            let operand = if needs_parens(condition) {
                quote_spanned!(at=> &(#condition))
            } else {
                quote_spanned!(at=> &#condition)
            };
            *condition = Expr::Verbatim(quote_spanned!(span=> __pw::asserted(#operand)));
            if args.len() == 1 {
                let message = format!("assertion failed: {text}");
                args.push(Expr::Verbatim(quote_spanned!(span=> "{}")));
                args.push(Expr::Verbatim(quote_spanned!(span=> #message)));
            }
        }
        mac.tokens = args.into_token_stream();
    }
}

fn text(e: &Expr) -> String {
    e.to_token_stream().to_string()
}
