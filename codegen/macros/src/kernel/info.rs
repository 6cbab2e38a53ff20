//! The hidden constant beside a kernel function that the Family derive reads.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{FnArg, ItemFn, ReturnType, Type};

use crate::attrs::{first_paragraph, other_paragraphs};

/// `__peerwarp_kernel_<name>`, of type `peerwarp_codegen::KernelInfo`, with the visibility of the function; for
/// functions of a kernel's shape only: two arguments by reference, no receiver, no result. `#[derive(Family)]` reads it
/// from beside the function that `kernel = path` names.
pub fn constant(function: &ItemFn, codegen: &TokenStream) -> Option<TokenStream> {
    let sig = &function.sig;
    let by_reference =
        |arg: &FnArg| matches!(arg, FnArg::Typed(arg) if matches!(*arg.ty, Type::Reference(_)));
    let unit = matches!(sig.output, ReturnType::Default);
    if !unit || sig.inputs.len() != 2 || !sig.inputs.iter().all(by_reference) {
        return None;
    }
    let vis = &function.vis;
    let constant = format_ident!("__peerwarp_kernel_{}", sig.ident);
    let name = sig.ident.to_string();
    let doc = first_paragraph(&function.attrs);
    let usage = other_paragraphs(&function.attrs);
    // With the span of the function's name these give its place, not the attribute's.
    let span = sig.ident.span();
    let loc = quote_spanned!(span=> #codegen::ir::Loc { file: ::core::file!(), line: ::core::line!(), col: ::core::column!() });
    Some(quote! {
        #[doc(hidden)]
        #[allow(non_upper_case_globals, dead_code)]
        #vis const #constant: #codegen::KernelInfo = #codegen::KernelInfo { name: #name, doc: #doc, usage: #usage, loc: #loc };
    })
}
