//! The code that `#[derive(Family)]` stands for.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::{Expr, spanned::Spanned};

use super::{
    field::Field,
    model::{Model, Warps},
};
use crate::serial;

/// All of it.
pub fn emit(model: &Model, codegen: &TokenStream) -> TokenStream {
    let (key, config) = (key_type(model, codegen), config(model, codegen));
    let family = family(model, codegen);
    let serde = model.serde.then(|| serial::config(&model.ident, codegen));
    let plan = plan_type(model);
    quote!(#key #config #family #serde #plan)
}

/// Fields as members of another struct.
fn members(fields: &[&Field]) -> Vec<TokenStream> {
    let member = |f: &&Field| {
        let (vis, ident, ty) = (&f.vis, &f.ident, &f.ty);
        let doc =
            if f.help.is_empty() { format!("As in the configuration: `{ident}`.") } else { f.help.clone() };
        quote!(#[doc = #doc] #vis #ident: #ty)
    };
    fields.iter().map(member).collect()
}

/// The type of the tuning fields that launches do not share, and the configuration as a projection of a key and a plan.
fn plan_type(model: &Model) -> Option<TokenStream> {
    let Model { ident, key, vis, .. } = model;
    let plan = model.plan.as_ref()?;
    let of = |shared: bool| model.fields.iter().filter(move |f| f.tune && f.shared.is_some() == shared);
    let own: Vec<&Field> = of(false).collect();
    let keys = model.fields.iter().filter(|f| !f.tune).map(|f| &f.ident);
    let (names, members) = (own.iter().map(|f| &f.ident).collect::<Vec<_>>(), members(&own));
    let (shared, types): (Vec<_>, Vec<_>) = of(true).map(|f| (&f.ident, &f.ty)).unzip();
    let doc = format!(
        "The plan of [`{ident}`]: what tuning chooses of it, and no other launch shares. The default one has no sizes, and leaves the \
         rest to rules."
    );
    Some(quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #vis struct #plan {
            #(#members,)*
        }
        #[automatically_derived]
        impl #ident {
            /// The launch for a key, a plan and what launches share.
            #vis fn of(key: #key, plan: #plan, #(#shared: #types),*) -> #ident {
                #ident { #(#keys: key.#keys,)* #(#names: plan.#names,)* #(#shared),* }
            }
            /// Its plan.
            #vis fn plan(&self) -> #plan {
                #plan { #(#names: self.#names),* }
            }
        }
    })
}

/// The type of the key fields alone.
fn key_type(model: &Model, codegen: &TokenStream) -> TokenStream {
    let (ident, key, vis) = (&model.ident, &model.key, &model.vis);
    let doc = format!("The key of [`{ident}`]: the part of it that comes from the problem.");
    let keys: Vec<&Field> = model.fields.iter().filter(|f| !f.tune).collect();
    let members = members(&keys);
    let fields =
        fields_impl(key, &keys, &quote!(<#ident as #codegen::family::Family>::key_fields()), codegen);
    let serde = serial::key(key, codegen);
    let covered: Vec<_> = keys.iter().filter(|f| f.covers).map(|f| &f.ident).collect();
    let count = covered.len();
    quote! {
        #[doc = #doc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #vis struct #key {
            #(#members,)*
        }
        #fields
        #[automatically_derived]
        impl #codegen::family::FamilyKey for #key {
            fn class(&self) -> Self {
                #key { #(#covered: 0,)* ..*self }
            }
            fn covered(&self) -> impl ::core::iter::Iterator<Item = u64> {
                ::core::iter::IntoIterator::into_iter([#(self.#covered as u64),*] as [u64; #count])
            }
        }
        #serde
    }
}

fn config(model: &Model, codegen: &TokenStream) -> TokenStream {
    let all: Vec<&Field> = model.fields.iter().collect();
    let infos = all.iter().map(|f| f.info(codegen));
    let list = quote! {{
        static FIELDS: ::std::sync::LazyLock<::std::vec::Vec<#codegen::family::FieldInfo>> =
            ::std::sync::LazyLock::new(|| ::std::vec![#(#infos),*]);
        &FIELDS
    }};
    let fields = fields_impl(&model.ident, &all, &list, codegen);
    let accessors = accessors(model);
    quote!(#fields #accessors)
}

/// A function for each field that a rule chooses, with the field's name: its value, or what the rule says.
fn accessors(model: &Model) -> TokenStream {
    let ident = &model.ident;
    let one = |f: &Field| {
        let (ty, rule) = f.rule.as_ref()?;
        let (vis, name, help) = (&f.vis, &f.ident, &f.help);
        Some(quote! {
            #[doc = #help]
            #vis fn #name(&self) -> #ty {
                let rule: fn(&#ident) -> #ty = #rule;
                ::core::option::Option::unwrap_or_else(self.#name, || rule(self))
            }
        })
    };
    let all: Vec<TokenStream> = model.fields.iter().filter_map(one).collect();
    if all.is_empty() { quote!() } else { quote!(#[automatically_derived] impl #ident { #(#all)* }) }
}

/// The implementation of `Fields` for the configuration or its key.
fn fields_impl(
    ident: &syn::Ident,
    fields: &[&Field],
    list: &TokenStream,
    codegen: &TokenStream,
) -> TokenStream {
    // At the type, which is what a complaint about it is about.
    let values = fields.iter().map(|f| {
        let name = &f.ident;
        let to_value = at_span(&quote!(#codegen::family::FieldType::to_value), f.ty.span());
        quote!(#to_value(self.#name))
    });
    let members = fields.iter().enumerate().map(|(at, f)| {
        let (name, ty) = (&f.ident, &f.ty);
        let field = at_span(&quote!(#codegen::__private::field), ty.span());
        quote!(#name: #field::<#ty>(fields, values, #at)?)
    });
    let chosen = fields.iter().any(|f| f.rule.is_some()).then(|| {
        let rules = fields.iter().enumerate().filter(|(_, f)| f.rule.is_some()).map(|(at, f)| {
            let name = &f.ident;
            quote!(values[#at] = #codegen::family::FieldType::to_value(self.#name());)
        });
        quote! {
            fn chosen(&self) -> ::std::vec::Vec<#codegen::family::Value> {
                let mut values = self.values();
                #(#rules)*
                values
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl #codegen::family::Fields for #ident {
            #chosen
            fn fields() -> &'static [#codegen::family::FieldInfo] {
                #list
            }
            fn values(&self) -> ::std::vec::Vec<#codegen::family::Value> {
                ::std::vec![#(#values),*]
            }
            fn from_values(
                values: &[#codegen::family::Value],
            ) -> ::core::result::Result<Self, #codegen::family::Illegal> {
                let fields = Self::fields();
                ::core::result::Result::Ok(#ident {
                    #(#members,)*
                })
            }
        }
    }
}

/// The same tokens, with what the compiler says about them said at `span`.
fn at_span(tokens: &TokenStream, span: Span) -> TokenStream {
    let moved = tokens.clone().into_iter().map(|mut token| {
        token.set_span(span);
        token
    });
    moved.collect()
}

fn family(model: &Model, codegen: &TokenStream) -> TokenStream {
    let Model { ident, name, kernel, args, key, ranks, nodes, .. } = model;
    let keys = model.fields.iter().filter(|f| !f.tune).map(|f| &f.ident);
    let tunes: Vec<&Field> = model.fields.iter().filter(|f| f.tune).collect();
    let defaults = tunes.iter().enumerate().map(|(at, field)| default(model, field, at, codegen));
    let warps = match &model.warps {
        Warps::Field(field) if model.fields.iter().any(|f| f.ident == *field && f.rule.is_some()) => {
            quote!(self.#field())
        }
        Warps::Field(field) => quote!(self.#field),
        Warps::Fixed(warps) => quote!(#warps),
    };
    let ranks = match ranks {
        Some(field) => quote!(self.#field),
        None => quote!(1),
    };
    let nodes = nodes.as_ref().map(|field| {
        quote! {
            fn nodes(&self) -> u32 {
                self.#field
            }
        }
    });
    let info = info_path(kernel);
    let revision = model.revision.as_ref().map(|revision| quote!(const REVISION: u32 = #revision;));
    quote! {
        #[automatically_derived]
        impl #codegen::family::Family for #ident {
            type Key = #key;
            type Args = #args;
            const NAME: &'static str = #name;
            const KERNEL: #codegen::KernelInfo = #info;
            #revision
            fn key(&self) -> #key {
                #key { #(#keys: self.#keys,)* }
            }
            fn tuning_defaults(key: &#key) -> ::std::vec::Vec<#codegen::family::Value> {
                ::std::vec![#(#defaults),*]
            }
            fn ranks(&self) -> u32 {
                #ranks
            }
            #nodes
            fn block_warps(&self) -> u32 {
                #warps
            }
            fn run(&self, args: &#args) {
                #kernel(self, args)
            }
        }
    }
}

/// The constant that `#[kernel]` puts beside the function.
fn info_path(kernel: &syn::Path) -> syn::Path {
    let mut info = kernel.clone();
    if let Some(last) = info.segments.last_mut() {
        last.ident = format_ident!("__peerwarp_kernel_{}", last.ident);
    }
    info
}

/// The expression of a tuning field's default for `key`.
fn default(model: &Model, field: &Field, at: usize, codegen: &TokenStream) -> TokenStream {
    let (ty, key) = (&field.ty, &model.key);
    match &field.default {
        Some(closure @ Expr::Closure(_)) => quote! {{
            let default: fn(&#key) -> #ty = #closure;
            #codegen::family::FieldType::to_value(default(key))
        }},
        _ => quote!(#codegen::__private::constant_default::<#ty>(&Self::tune_fields()[#at])),
    }
}
