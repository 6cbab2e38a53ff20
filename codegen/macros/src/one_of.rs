//! `#[derive(KernelArgs)]` of an enum: of several structs of handles, the one that the configuration chooses.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Attribute, DataEnum, DeriveInput, Fields, Path, Type, Variant, spanned::Spanned};

use crate::args::{chosen_of, config, group_config};
use crate::attrs::Errors;

/// A variant: what says that it is the one, unless it is the last, its group, and the group's configuration.
struct One<'a> {
    variant: &'a Variant,
    when: Option<TokenStream>,
    group: &'a Type,
    of: TokenStream,
}

/// What the derive emits.
pub fn expand(input: &DeriveInput, data: &DataEnum, codegen: &TokenStream) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    if !input.generics.params.is_empty() {
        errors.at(input.generics.span(), "kernel parameters have no generic parameters");
    }
    let config = config(input, "args", &mut errors);
    if data.variants.len() < 2 {
        errors.at(
            input.ident.span(),
            "an enum of kernel parameters has two variants at least, of which one is there",
        );
    }
    let last = data.variants.len().saturating_sub(1);
    let all: Vec<One<'_>> = data
        .variants
        .iter()
        .enumerate()
        .filter_map(|(i, variant)| one(variant, i == last, config.as_ref()?, codegen, &mut errors))
        .collect();
    errors.finish()?;

    let ident = &input.ident;
    let choose = |then: &dyn Fn(&One<'_>) -> TokenStream| {
        let (front, last) = all.split_at(last);
        let (whens, thens) = (front.iter().map(|one| &one.when), front.iter().map(then));
        let last = last.iter().map(then);
        quote!(#(if #whens { #thens } else)* { #(#last)* })
    };
    let params = choose(
        &|One { group, of, .. }| quote_spanned!(group.span()=> <#group as #codegen::dsl::KernelArgs>::params(#of)),
    );
    let bind = choose(&|One { variant, group, of, .. }| {
        let name = &variant.ident;
        quote_spanned!(group.span()=> #ident::#name(<#group as #codegen::dsl::KernelArgs>::bind(#of, binder)))
    });
    Ok(quote! {
        #[automatically_derived]
        impl #codegen::dsl::KernelArgs for #ident {
            type Config = #config;
            fn params(config: &#config) -> ::std::vec::Vec<#codegen::dsl::ParamSpec> {
                #params
            }
            fn bind(config: &#config, binder: &mut #codegen::dsl::Binder) -> Self {
                #bind
            }
        }
    })
}

fn one<'a>(
    variant: &'a Variant,
    last: bool,
    config: &Path,
    codegen: &TokenStream,
    errors: &mut Errors,
) -> Option<One<'a>> {
    let attr = |name: &str| -> Option<&Attribute> { variant.attrs.iter().find(|a| a.path().is_ident(name)) };
    let when = chosen_of(&variant.attrs, "when", &quote!(bool), config, errors);
    match (&when, last, attr("when")) {
        (None, false, None) => {
            let advice = "say for which configurations: `#[when(|c| c.protocol == Protocol::Flags)]`";
            errors.at(
                variant.ident.span(),
                format!("only the last variant is there wherever no other one is; {advice}"),
            );
        }
        (_, true, Some(attr)) => {
            errors.at(
                attr.span(),
                "the last variant is there wherever no other one is: it has no `#[when(..)]`",
            );
        }
        _ => {}
    }
    let group = match &variant.fields {
        Fields::Unnamed(fields) if fields.unnamed.len() == 1 => &fields.unnamed[0].ty,
        _ => {
            let message = "a variant holds one struct with `#[derive(KernelArgs)]`: `Flags(FlagArgs)`";
            errors.at(variant.ident.span(), message);
            return None;
        }
    };
    let of = match attr("group") {
        Some(attr) => group_config(attr, group, config, codegen, errors)?,
        None => quote!(config),
    };
    Some(One { variant, when: when.map(|(_, when)| when), group, of })
}
