//! `#[kernel]`.

mod info;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::ItemFn;

/// Expands the attribute on `item`.
pub fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item.clone()) {
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
    let mut out = function.into_token_stream();
    out.extend(info);
    out
}
