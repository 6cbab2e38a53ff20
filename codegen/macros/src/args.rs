//! `#[derive(KernelArgs)]`: a struct of handles as the parameters of a kernel.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Expr, Field, Fields, GenericArgument, Meta, Path, PathArguments, Type,
    ext::IdentExt, spanned::Spanned,
};

use crate::attrs::{Errors, Settings, first_paragraph};
use crate::launch;

const EXAMPLE: &str = "#[args(config = Scale)]";

/// What the derive emits; with a struct for launches where the crate sees the runtime.
pub fn expand(
    input: &DeriveInput,
    codegen: &TokenStream,
    runtime: Option<&TokenStream>,
) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let shape = "kernel parameters are a struct with named fields";
    let fields = match &input.data {
        Data::Struct(data) if matches!(data.fields, Fields::Named(_)) => &data.fields,
        _ => return Err(syn::Error::new(input.ident.span(), shape)),
    };
    if !input.generics.params.is_empty() {
        errors.at(input.generics.span(), "kernel parameters have no generic parameters");
    }
    let config = config(input, &mut errors);
    let specs: Vec<TokenStream> =
        fields.iter().filter_map(|f| declared(f, config.as_ref()?, codegen, &mut errors)).collect();
    let launch = match (&config, runtime) {
        (Some(config), Some(runtime)) => Some(launch::expand(input, fields, config, runtime, &mut errors)),
        _ => None,
    };
    errors.finish()?;

    let (ident, names) = (&input.ident, fields.iter().map(|f| &f.ident));
    let next = fields.iter().map(|f| match (group_attr(f), optional(&f.ty)) {
        (Some(_), _) => {
            let ty = &f.ty;
            quote_spanned!(ty.span()=> <#ty as #codegen::dsl::KernelArgs>::bind(binder))
        }
        (None, Some(ty)) => {
            let name = f.ident.as_ref().map(|i| i.unraw().to_string());
            quote_spanned!(ty.span()=> binder.next_if_declared::<#ty>(#name))
        }
        (None, None) => {
            let ty = &f.ty;
            quote_spanned!(ty.span()=> binder.next::<#ty>())
        }
    });
    Ok(quote! {
        #[automatically_derived]
        impl #codegen::dsl::KernelArgs for #ident {
            type Config = #config;
            fn params(config: &#config) -> ::std::vec::Vec<#codegen::dsl::ParamSpec> {
                let mut params = ::std::vec![];
                #(#specs)*
                params
            }
            fn bind(binder: &mut #codegen::dsl::Binder) -> Self {
                #ident { #(#names: #next,)* }
            }
        }
        #launch
    })
}

/// The type that `#[args(config = ..)]` names.
fn config(input: &DeriveInput, errors: &mut Errors) -> Option<Path> {
    let missing = format!("say which configuration decides lengths and element types: `{EXAMPLE}`");
    let Some(attr) = input.attrs.iter().find(|a| a.path().is_ident("args")) else {
        errors.at(input.ident.span(), missing);
        return None;
    };
    let mut set = Settings::of(attr, &["config"], errors);
    match set.value("config", "Scale", errors) {
        Some(Expr::Path(path)) => return Some(path.path),
        Some(other) => errors.at(other.span(), format!("`config` is a type, as in `{EXAMPLE}`")),
        None => set.lacks(missing, errors),
    }
    None
}

/// The statement that adds what a field declares to `params`: a group's parameters, or its own.
fn declared(field: &Field, config: &Path, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    match group_attr(field) {
        Some(attr) => group(field, attr, config, codegen, errors),
        None => spec(field, config, codegen, errors),
    }
}

/// `#[group]` or `#[group(|c| ..)]` of a field that is parameters of several kernels.
pub(crate) fn group_attr(field: &Field) -> Option<&Attribute> {
    field.attrs.iter().find(|a| a.path().is_ident("group"))
}

/// The statement that adds a group's parameters, under the same configuration or one computed from it.
fn group(
    field: &Field,
    attr: &Attribute,
    config: &Path,
    codegen: &TokenStream,
    errors: &mut Errors,
) -> Option<TokenStream> {
    if let Some(other) = field.attrs.iter().find(|a| a.path().is_ident("len") || a.path().is_ident("dtype")) {
        errors.at(other.span(), "the parameters of a group say their lengths and element types themselves");
    }
    if let Some(output) = marked(field, "output") {
        errors.at(
            output.span(),
            "the parameters of a group say themselves which are outputs: mark it `#[input]`",
        );
    }
    let ty = &field.ty;
    let group = quote_spanned!(ty.span()=> <#ty as #codegen::dsl::KernelArgs>);
    let of = match &attr.meta {
        Meta::Path(_) => quote!(config),
        Meta::List(_) | Meta::NameValue(_) => {
            let closure = errors.ok(attr.parse_args::<syn::ExprClosure>())?;
            quote!(&{
                let of: fn(&#config) -> #group::Config = #closure;
                of(config)
            })
        }
    };
    Some(quote!(params.extend(#group::params(#of));))
}

/// The statement that adds a field's `ParamSpec` to `params`, if it is there.
fn spec(field: &Field, config: &Path, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let optional = optional(&field.ty);
    let (name, ty) = (field.ident.as_ref()?.unraw().to_string(), optional.unwrap_or(&field.ty));
    let len = chosen(field, "len", &quote!(u64), config, errors);
    let dtype = chosen(field, "dtype", &quote!(#codegen::ir::Dtype), config, errors);
    let kind = last_segment(ty);
    let kind = kind.as_deref().unwrap_or_default();
    match (&dtype, kind) {
        (None, "AnyPtr" | "AnySym" | "AnyPackets") => {
            let advice = "say which, as in `#[dtype(|c| c.dtype)]`";
            errors.at(
                ty.span(),
                format!("the configuration chooses the element type of an `{kind}`: {advice}"),
            );
        }
        (
            Some((at, _)),
            "Ptr" | "Sym" | "Packets" | "Ll" | "Flags" | "BlockFlags" | "EpochWord" | "Counters" | "Val",
        ) => {
            let message =
                format!("`{kind}` has an element type of its own; `#[dtype(..)]` is for AnyPtr and AnySym");
            errors.at(at.span(), message);
        }
        _ => {}
    }
    if let (Some((at, _)), "Val" | "EpochWord") = (&len, kind) {
        errors.at(at.span(), format!("`{kind}` is one value and has no length"));
    }
    if let (Some(_), None) = (optional, &len) {
        let advice = "an optional parameter is there if its length is not 0: `#[len(|c| ..)]` says which";
        errors.at(ty.span(), advice);
    }
    let len = len.map_or_else(|| quote!(1), |(_, len)| len);
    let doc = first_paragraph(&field.attrs);
    let param_spec = quote_spanned!(ty.span()=> #codegen::dsl::ParamSpec);
    let bound = bound(field, kind, codegen, errors);
    let spec = |len| match &dtype {
        None => quote!(#param_spec::of::<#ty>(#name, #len, #doc)#bound),
        Some((_, dtype)) => quote!(#param_spec::erased::<#ty>(#name, #len, #dtype, #doc)#bound),
    };
    Some(match optional {
        None => {
            let spec = spec(len);
            quote!(params.push(#spec);)
        }
        Some(_) => {
            let spec = spec(quote!(len));
            quote!({
                let len: u64 = #len;
                if len > 0 {
                    params.push(#spec);
                }
            })
        }
    })
}

/// What says that a field's memory is the caller's, `#[input]` or `#[output]`: nothing if it is the operation's own.
fn bound(field: &Field, kind: &str, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let (attr, binding) = match (marked(field, "input"), marked(field, "output")) {
        (None, None) => return None,
        (Some(attr), None) => (attr, quote!(Input)),
        (None, Some(attr)) => (attr, quote!(Output)),
        (Some(_), Some(second)) => {
            errors.at(
                second.span(),
                "a parameter is `#[input]` or `#[output]`: what is read and written is an output",
            );
            return None;
        }
    };
    if !matches!(kind, "Ptr" | "AnyPtr") {
        let message =
            format!("the caller passes memory of its own GPU, Ptr or AnyPtr: `{kind}` is the operation's");
        errors.at(attr.span(), message);
    }
    Some(quote!(.bound(#codegen::dsl::Binding::#binding)))
}

/// The attribute of a field with this name.
pub(crate) fn marked<'a>(field: &'a Field, name: &str) -> Option<&'a Attribute> {
    field.attrs.iter().find(|a| a.path().is_ident(name))
}

/// `T` of `Option<T>`.
pub(crate) fn optional(ty: &Type) -> Option<&Type> {
    inner(ty, "Option")
}

/// `T` of `name<T>`.
pub(crate) fn inner<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|s| s.ident == name)?;
    let PathArguments::AngleBracketed(generics) = &last.arguments else { return None };
    match generics.args.first()? {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    }
}

/// The expression of `#[len(..)]` or `#[dtype(..)]`, a closure over the configuration or a constant.
fn chosen<'a>(
    field: &'a Field,
    name: &str,
    ty: &TokenStream,
    config: &Path,
    errors: &mut Errors,
) -> Option<(&'a Attribute, TokenStream)> {
    let mut attrs = field.attrs.iter().filter(|a| a.path().is_ident(name));
    let attr = attrs.next()?;
    if let Some(second) = attrs.next() {
        errors.at(second.span(), format!("`#[{name}(..)]` is there twice"));
    }
    let expr = match &attr.meta {
        Meta::List(_) => errors.ok(attr.parse_args::<Expr>())?,
        Meta::Path(_) | Meta::NameValue(_) => {
            let example = if name == "len" { "|c| c.tokens as u64 * 64" } else { "|c| c.dtype" };
            errors.at(
                attr.span(),
                format!("`{name}` is computed from the configuration: `#[{name}({example})]`"),
            );
            return None;
        }
    };
    let value = match &expr {
        Expr::Closure(closure) if closure.inputs.len() != 1 => {
            errors.at(closure.span(), "the closure takes the configuration and nothing else: `|c| ..`");
            return None;
        }
        Expr::Closure(_) => quote!({
            let of: fn(&#config) -> #ty = #expr;
            of(config)
        }),
        constant => quote!(#constant),
    };
    Some((attr, value))
}

/// `Ptr` of `dsl::Ptr<u32>`.
fn last_segment(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
        _ => None,
    }
}
