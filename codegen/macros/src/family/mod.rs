//! `#[derive(Family)]`: what a configuration struct says about its fields, as an implementation of `Family`.

mod emit;
mod field;
mod model;

use proc_macro2::TokenStream;
use syn::DeriveInput;

/// What the derive emits.
pub fn expand(input: &DeriveInput, codegen: &TokenStream) -> syn::Result<TokenStream> {
    model::Model::of(input).map(|model| emit::emit(&model, codegen))
}
