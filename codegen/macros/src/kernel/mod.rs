//! `#[kernel]`: rewrites what Rust cannot overload into calls of `peerwarp_codegen::dsl::control`.
//!
//! Two rules hold everywhere. Every token of the output that is not the author's carries the raw span of an author's
//! token (the operator, the keyword), because `#[track_caller]` and rustc's errors report exactly that span; one token
//! with a span of the macro's own would move a whole error to the attribute. And generated names start with `__pw` and
//! are numbered, since with such spans nothing else keeps them from clashing.

mod assign;
mod branch;
#[cfg(test)]
mod expansion_tests;
mod info;
mod loops;
mod macros;
mod rewrite;
mod syntax;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ItemFn;

use rewrite::Rewriter;

/// Expands the attribute on `item`.
pub fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    // The item itself stays in the output of a failed expansion, so that an editor keeps understanding it.
    let mut function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#item #error);
        }
    };
    if !args.is_empty() {
        let error = syn::Error::new_spanned(args, "`#[kernel]` takes no arguments").to_compile_error();
        return quote!(#item #error);
    }
    let codegen = crate::paths::codegen();
    let info = info::constant(&function, &codegen);
    if let Some(prologue) = Rewriter::new(&function).function(&mut function) {
        let span = function.sig.ident.span();
        let stmts = &function.block.stmts;
        let body = quote_spanned!(span=> 
            #[allow(unused_imports)]
            use #codegen::dsl::control::{self as __pw, lookup::*};
            #prologue #(#stmts)*);
        function.block.stmts = vec![syn::Stmt::Expr(syn::Expr::Verbatim(body), None)];
    }
    let mut out = function.into_token_stream();
    out.extend(info);
    out
}
