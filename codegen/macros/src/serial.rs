//! Serde implementations that go through the families' own names and checks, so that a crate that derives needs no
//! dependency on serde.

use proc_macro2::{Ident, TokenStream};
use quote::quote;

/// For an enum: its names.
pub fn choice(ident: &Ident, codegen: &TokenStream) -> TokenStream {
    implement(ident, codegen, &quote!(serialize_choice), &quote!(deserialize_choice))
}

/// For a key: a map, each field checked by itself.
pub fn key(ident: &Ident, codegen: &TokenStream) -> TokenStream {
    implement(ident, codegen, &quote!(serialize_fields), &quote!(deserialize_fields))
}

/// For a configuration: a map, legality checked too.
pub fn config(ident: &Ident, codegen: &TokenStream) -> TokenStream {
    implement(ident, codegen, &quote!(serialize_fields), &quote!(deserialize_config))
}

fn implement(ident: &Ident, codegen: &TokenStream, to: &TokenStream, from: &TokenStream) -> TokenStream {
    let (serde, serial) = (quote!(#codegen::__private::serde), quote!(#codegen::__private::serial));
    quote! {
        #[automatically_derived]
        impl #serde::Serialize for #ident {
            fn serialize<S: #serde::Serializer>(&self, to: S) -> ::core::result::Result<S::Ok, S::Error> {
                #serial::#to(self, to)
            }
        }
        #[automatically_derived]
        impl<'de> #serde::Deserialize<'de> for #ident {
            fn deserialize<D: #serde::Deserializer<'de>>(from: D) -> ::core::result::Result<Self, D::Error> {
                #serial::#from(from)
            }
        }
    }
}
