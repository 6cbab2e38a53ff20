//! `#[derive(Message)]`: a struct of fields that travel together through a channel.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Data, DeriveInput, Field, Fields, Path, ext::IdentExt, spanned::Spanned};

use crate::args::{chosen, config, inner, last_segment, optional};
use crate::attrs::{Errors, first_paragraph};

/// What the derive emits.
pub fn expand(input: &DeriveInput, codegen: &TokenStream) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let fields = match &input.data {
        Data::Struct(data) if matches!(data.fields, Fields::Named(_)) => &data.fields,
        _ => return Err(syn::Error::new(input.ident.span(), "a message is a struct with named fields")),
    };
    if !input.generics.params.is_empty() {
        errors.at(input.generics.span(), "a message has no generic parameters");
    }
    let config = config(input, "message", &mut errors);
    let specs: Vec<TokenStream> =
        fields.iter().filter_map(|f| spec(f, config.as_ref()?, codegen, &mut errors)).collect();
    errors.finish()?;

    let (ident, names) = (&input.ident, fields.iter().map(|f| &f.ident));
    let next = fields.iter().map(|f| match optional(&f.ty) {
        Some(_) => quote_spanned!(f.ty.span()=> fields.next_if_there()),
        None => quote_spanned!(f.ty.span()=> fields.next()),
    });
    Ok(quote! {
        #[automatically_derived]
        impl #codegen::dsl::Payload for #ident {
            type Fields = Self;
            fn bind(fields: &mut #codegen::dsl::Fields<'_>) -> Self {
                #ident { #(#names: #next,)* }
            }
        }
        #[automatically_derived]
        impl #codegen::dsl::Message for #ident {
            type Config = #config;
            fn fields(config: &#config) -> ::std::vec::Vec<#codegen::dsl::FieldSpec> {
                ::std::vec![#(#specs),*]
            }
        }
    })
}

/// The `FieldSpec` of a field.
fn spec(field: &Field, config: &Path, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let ty = optional(&field.ty).unwrap_or(&field.ty);
    let name = field.ident.as_ref()?.unraw().to_string();
    let Some((_, len)) = chosen(field, "len", &quote!(u32), config, errors) else {
        errors.at(ty.span(), "say how many elements a message has of this field: `#[len(|c| c.hidden)]`");
        return None;
    };
    let dtype = chosen(field, "dtype", &quote!(#codegen::ir::Dtype), config, errors);
    let (dtype, any) = match (last_segment(ty).as_deref(), inner(ty, "Field"), dtype) {
        (Some("AnyField"), _, Some((_, dtype))) => (dtype, true),
        (Some("AnyField"), _, None) => {
            let advice = "say which, as in `#[dtype(|c| c.dtype)]`";
            errors.at(
                ty.span(),
                format!("the configuration chooses the element type of an `AnyField`: {advice}"),
            );
            return None;
        }
        (_, Some(element), None) => {
            (quote_spanned!(ty.span()=> <#element as #codegen::dsl::Element>::DTYPE), false)
        }
        (_, Some(_), Some((at, _))) => {
            errors.at(at.span(), "a `Field` has an element type of its own; `#[dtype(..)]` is for AnyField");
            return None;
        }
        _ => {
            errors.at(
                ty.span(),
                "a field of a message is a `Field<T>` or an `AnyField`, or an `Option` of one",
            );
            return None;
        }
    };
    let doc = first_paragraph(&field.attrs);
    Some(quote!(#codegen::dsl::FieldSpec {
        name: #name,
        len: #len,
        dtype: #dtype,
        any: #any,
        doc: ::std::string::String::from(#doc),
    }))
}
