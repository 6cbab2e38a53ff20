//! `#[derive(KernelArgs)]`: a struct of handles as the parameters of a kernel.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{
    Attribute, Data, DeriveInput, Expr, Field, Fields, GenericArgument, Ident, Meta, Path, PathArguments,
    Token, Type, ext::IdentExt, parse::ParseStream, spanned::Spanned,
};

use crate::attrs::{Errors, Settings, first_paragraph};
use crate::{launch, one_of};

/// What the derive emits; with a struct for launches where the crate sees the runtime.
pub fn expand(
    input: &DeriveInput,
    codegen: &TokenStream,
    runtime: Option<&TokenStream>,
) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let shape = "kernel parameters are a struct with named fields, or an enum of such structs";
    let fields = match &input.data {
        Data::Struct(data) if matches!(data.fields, Fields::Named(_)) => &data.fields,
        Data::Enum(data) => return one_of::expand(input, data, codegen),
        Data::Struct(_) | Data::Union(_) => return Err(syn::Error::new(input.ident.span(), shape)),
    };
    if !input.generics.params.is_empty() {
        errors.at(input.generics.span(), "kernel parameters have no generic parameters");
    }
    let config = config(input, "args", &mut errors);
    let specs: Vec<TokenStream> =
        fields.iter().filter_map(|f| declared(f, config.as_ref()?, codegen, &mut errors)).collect();
    let launch = match (&config, runtime) {
        (Some(config), Some(runtime)) => Some(launch::expand(input, fields, config, runtime, &mut errors)),
        _ => None,
    };
    errors.finish()?;
    // What is wrong with them has been said.
    let mut said = Errors::default();
    let of_group = |f: &Field| group_config(group_attr(f)?, &f.ty, config.as_ref()?, codegen, &mut said);
    let of_groups: Vec<Option<TokenStream>> = fields.iter().map(of_group).collect();

    let (ident, names) = (&input.ident, fields.iter().map(|f| &f.ident));
    let given = if of_groups.iter().any(Option::is_some) { quote!(config) } else { quote!(_) };
    let next = fields.iter().zip(&of_groups).map(|(f, of)| match (of, optional(&f.ty)) {
        (_, optional) if marked(f, "channel").is_some() => {
            let name = f.ident.as_ref().map(|i| i.unraw().to_string());
            match optional {
                Some(ty) => quote_spanned!(ty.span()=> <#ty>::bind_if_declared(binder, #name)),
                None => {
                    let ty = &f.ty;
                    quote_spanned!(ty.span()=> <#ty>::bind(binder, #name))
                }
            }
        }
        (Some(of), _) => {
            let ty = &f.ty;
            quote_spanned!(ty.span()=> <#ty as #codegen::dsl::KernelArgs>::bind(#of, binder))
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
            fn bind(#given: &#config, binder: &mut #codegen::dsl::Binder) -> Self {
                #ident { #(#names: #next,)* }
            }
        }
        #launch
    })
}

/// The type that `#[args(config = ..)]` names, or another attribute.
pub(crate) fn config(input: &DeriveInput, named: &str, errors: &mut Errors) -> Option<Path> {
    let example = format!("#[{named}(config = Scale)]");
    let missing = format!("say which configuration decides lengths and element types: `{example}`");
    let Some(attr) = input.attrs.iter().find(|a| a.path().is_ident(named)) else {
        errors.at(input.ident.span(), missing);
        return None;
    };
    let mut set = Settings::of(attr, &["config"], errors);
    match set.value("config", "Scale", errors) {
        Some(Expr::Path(path)) => return Some(path.path),
        Some(other) => errors.at(other.span(), format!("`config` is a type, as in `{example}`")),
        None => set.lacks(missing, errors),
    }
    None
}

/// The statement that adds what a field declares to `params`: a group's parameters, or its own.
fn declared(field: &Field, config: &Path, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    match (marked(field, "channel"), group_attr(field)) {
        (Some(_), _) => channel(field, config, codegen, errors),
        (None, Some(attr)) => group(field, attr, config, codegen, errors),
        (None, None) => spec(field, config, codegen, errors),
    }
}

/// The statement that adds the parameters of a channel: of elements, whose number `#[len(..)]` says, or of messages, whose fields do.
fn channel(field: &Field, config: &Path, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    for other in ["group", "input", "output", "inout"] {
        if let Some(attr) = marked(field, other) {
            errors.at(attr.span(), format!("a channel is the operation's own: it is no `#[{other}]`"));
        }
    }
    let optional = optional(&field.ty);
    let (name, ty) = (field.ident.as_ref()?.unraw().to_string(), optional.unwrap_or(&field.ty));
    let kind = last_segment(ty).unwrap_or_default();
    if !matches!(kind.as_str(), "Channel" | "AnyChannel") {
        errors.at(ty.span(), "`#[channel(..)]` is for fields of type `Channel<T>` and `AnyChannel`");
        return None;
    }
    let (_, shape) = chosen(field, "channel", &quote!(#codegen::dsl::ChannelShape), config, errors)?;
    let given = chosen(field, "len", &quote!(u32), config, errors);
    if optional.is_some() && given.is_none() {
        let advice =
            "an optional channel is there if its `#[len(..)]` is not 0: messages that are structs have none";
        errors.at(ty.span(), advice);
    }
    // It is computed once.
    let len = given.as_ref().map(|(attr, _)| (*attr, quote!(len)));
    let dtype = chosen(field, "dtype", &quote!(#codegen::ir::Dtype), config, errors);
    let doc = first_paragraph(&field.attrs);
    let specs = match (kind.as_str(), len, dtype) {
        ("AnyChannel", Some((_, len)), Some((_, dtype))) => {
            quote_spanned!(ty.span()=> <#ty>::params_of(#name, #shape, #len, #dtype, #doc))
        }
        ("AnyChannel", ..) => {
            let advice = "say which, and how many a message has, as in `#[dtype(|c| c.dtype)]` and `#[len(|c| c.chunk)]`";
            errors.at(
                ty.span(),
                format!("the configuration chooses the elements of an `AnyChannel`: {advice}"),
            );
            return None;
        }
        (_, _, Some((at, _))) => {
            let message = "a `Channel` has a type of its own; `#[dtype(..)]` is for AnyChannel";
            errors.at(at.span(), message);
            return None;
        }
        (_, Some((_, len)), None) => quote_spanned!(ty.span()=> <#ty>::params(#name, #shape, #len, #doc)),
        (_, None, None) => quote_spanned!(ty.span()=> <#ty>::params_for(#name, #shape, config, #doc)),
    };
    let Some((_, given)) = given else { return Some(quote!(params.extend(#specs);)) };
    let there = optional.map(|_| quote!(if len > 0));
    Some(quote!({
        let len: u32 = #given;
        #there {
            params.extend(#specs);
        }
    }))
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
    if let Some(output) = marked(field, "output").or(marked(field, "inout")) {
        errors.at(
            output.span(),
            "the parameters of a group say themselves which are outputs: mark it `#[input]`",
        );
    }
    let (ty, of) = (&field.ty, group_config(attr, &field.ty, config, codegen, errors)?);
    Some(quote_spanned!(ty.span()=> params.extend(<#ty as #codegen::dsl::KernelArgs>::params(#of));))
}

/// A reference to a group's configuration: this one, or one that `#[group(|c| ..)]` computes from it.
pub(crate) fn group_config(
    attr: &Attribute,
    ty: &Type,
    config: &Path,
    codegen: &TokenStream,
    errors: &mut Errors,
) -> Option<TokenStream> {
    match &attr.meta {
        Meta::Path(_) => Some(quote!(config)),
        Meta::List(_) | Meta::NameValue(_) => {
            let closure = errors.ok(attr.parse_args::<syn::ExprClosure>())?;
            let group = quote_spanned!(ty.span()=> <#ty as #codegen::dsl::KernelArgs>);
            Some(quote!(&{
                let of: fn(&#config) -> #group::Config = #closure;
                of(config)
            }))
        }
    }
}

/// The statement that adds a field's `ParamSpec` to `params`, if it is there.
fn spec(field: &Field, config: &Path, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let optional = optional(&field.ty);
    let (name, ty) = (field.ident.as_ref()?.unraw().to_string(), optional.unwrap_or(&field.ty));
    let len = chosen(field, "len", &quote!(u64), config, errors);
    let dtype = chosen(field, "dtype", &quote!(#codegen::ir::Dtype), config, errors);
    let kind = last_segment(ty);
    let kind = kind.as_deref().unwrap_or_default();
    if ["", "Any"].iter().any(|any| MATRICES.iter().any(|matrix| kind == format!("{any}{matrix}"))) {
        return matrix(field, (ty, &name, kind), (len, dtype), config, codegen, errors);
    }
    if let Some((at, _)) = chosen(field, "shape", &quote!([u32; 2]), config, errors) {
        errors.at(
            at.span(),
            "`#[shape(..)]` is for matrices, such as Matrix<T> and AnyMatrix: others have a `#[len(..)]`",
        );
    }
    if let (Some(rows), "Channel" | "AnyChannel") = (marked(field, "rows"), kind) {
        errors.at(rows.span(), OF_A_VECTOR);
    }
    if matches!(kind, "Channel" | "AnyChannel") {
        let example = "|c| ChannelShape::new(c.transport, c.ranks, Slots::BySender(c.chunks()))";
        errors.at(ty.span(), format!("a channel has a shape: `#[channel({example})]`"));
        return None;
    }
    match (&dtype, kind) {
        (None, "AnyPtr" | "AnySym" | "AnyWindow" | "AnyPackets" | "AnyLl") => {
            let advice = "say which, as in `#[dtype(|c| c.dtype)]`";
            errors.at(
                ty.span(),
                format!("the configuration chooses the element type of an `{kind}`: {advice}"),
            );
        }
        (
            Some((at, _)),
            "Ptr" | "Sym" | "Window" | "Packets" | "Ll" | "Flags" | "Counts" | "BlockFlags" | "EpochWord"
            | "Counters" | "Val",
        ) => {
            let message =
                format!("`{kind}` has an element type of its own; `#[dtype(..)]` is for AnyPtr and AnySym");
            errors.at(at.span(), message);
        }
        _ => {}
    }
    let single = matches!(kind, "Val" | "EpochWord") && optional.is_none();
    if let (Some((at, _)), true) = (&len, single) {
        errors.at(at.span(), format!("`{kind}` is one value and has no length"));
    }
    if let (Some(_), None) = (optional, &len) {
        let advice = "an optional parameter is there if its length is not 0: `#[len(|c| ..)]` says which";
        errors.at(ty.span(), advice);
    }
    let len = len.map_or_else(|| quote!(1), |(_, len)| len);
    let doc = first_paragraph(&field.attrs);
    let param_spec = quote_spanned!(ty.span()=> #codegen::dsl::ParamSpec);
    let (bound, rows) = (bound(field, kind, codegen, errors), rows(field, config, errors));
    let spec = |len| match &dtype {
        None => quote!(#param_spec::of::<#ty>(#name, #len, #doc)#bound #rows),
        Some((_, dtype)) => quote!(#param_spec::erased::<#ty>(#name, #len, #dtype, #doc)#bound #rows),
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

/// Matrices, whose element type the configuration chooses with `Any` in front.
const MATRICES: [&str; 3] = ["Matrix", "SymMatrix", "WindowMatrix"];

/// What `#[rows(..)]` is for.
const OF_A_VECTOR: &str = "`#[rows(..)]` says how many rows a launch has of a `#[len(..)]` that the caller passes, Ptr, AnyPtr, Window \
                           or AnyWindow: a launch has all rows of a matrix's `#[shape(..)]`";

/// The statement that adds a matrix to `params`: of an optional one, if it has rows.
fn matrix(
    field: &Field,
    (ty, name, kind): (&Type, &str, &str),
    (len, dtype): (Chosen<'_>, Chosen<'_>),
    config: &Path,
    codegen: &TokenStream,
    errors: &mut Errors,
) -> Option<TokenStream> {
    if let Some((at, _)) = len {
        errors.at(at.span(), "a matrix has a shape, `#[shape(|c| [c.rows, c.columns])]`, and no length");
    }
    if let Some(rows) = marked(field, "rows") {
        errors.at(rows.span(), OF_A_VECTOR);
    }
    let shape = chosen(field, "shape", &quote!([u32; 2]), config, errors);
    let typed = !kind.starts_with("Any");
    if let (true, Some((at, _))) = (typed, &dtype) {
        errors.at(
            at.span(),
            format!("`{kind}` has an element type of its own; `#[dtype(..)]` is for Any{kind}"),
        );
    }
    let own = typed.then(|| quote!(<#ty as #codegen::dsl::TypedArg>::DTYPE));
    let (Some((_, shape)), Some(dtype)) = (shape, own.or(dtype.map(|(_, dtype)| dtype))) else {
        let shape = "`#[shape(|c| [c.rows, c.columns])]`";
        let message = match typed {
            true => format!("the configuration chooses the shape of a `{kind}`: {shape}"),
            false => format!(
                "the configuration chooses the shape and the element type of an `{kind}`: {shape} and `#[dtype(|c| c.dtype)]`"
            ),
        };
        errors.at(ty.span(), message);
        return None;
    };
    let doc = first_paragraph(&field.attrs);
    let param_spec = quote_spanned!(ty.span()=> #codegen::dsl::ParamSpec);
    let bound = bound(field, kind, codegen, errors);
    let there = optional(&field.ty).map(|_| quote!(if shape[0] > 0));
    Some(quote!({
        let shape: [u32; 2] = #shape;
        #there {
            params.push(#param_spec::matrix::<#ty>(#name, shape, #dtype, #doc)#bound);
        }
    }))
}

/// What says that a field's memory is the caller's: nothing if it is the operation's own.
fn bound(field: &Field, kind: &str, codegen: &TokenStream, errors: &mut Errors) -> Option<TokenStream> {
    let bindings = [("input", quote!(Input)), ("output", quote!(Output)), ("inout", quote!(InOut))];
    let mut marks = bindings.into_iter().filter_map(|(name, binding)| Some((marked(field, name)?, binding)));
    let (attr, binding) = marks.next()?;
    if let Some((second, _)) = marks.next() {
        errors.at(second.span(), "a parameter is one of `#[input]`, `#[output]` and `#[inout]`");
        return None;
    }
    if !matches!(kind, "Ptr" | "AnyPtr" | "Matrix" | "AnyMatrix" | "Window" | "AnyWindow") {
        let message = format!(
            "the caller passes memory of its own GPU, Ptr, AnyPtr, Matrix or AnyMatrix, or what peers read, Window or AnyWindow: `{kind}` is the operation's"
        );
        errors.at(attr.span(), message);
    }
    Some(quote!(.bound(#codegen::dsl::Binding::#binding)))
}

/// `#[rows(number, |c| ..)]`: what says how many rows of a field's memory a launch has, and the most that it can have. `#[rows(|c| ..)]`
/// computes both, where not all configurations have such a number.
fn rows(field: &Field, config: &Path, errors: &mut Errors) -> Option<TokenStream> {
    let attr = marked(field, "rows")?;
    if ["input", "output", "inout"].iter().all(|name| marked(field, name).is_none()) {
        errors.at(
            attr.span(),
            "`#[rows(..)]` is for what the caller passes: `#[input]`, `#[output]` or `#[inout]`",
        );
    }
    if let Ok(computed) = attr.parse_args::<syn::ExprClosure>() {
        return Some(quote!(.rows_of({
            let of: fn(&#config) -> ::core::option::Option<(&'static str, u64)> = #computed;
            of(config)
        })));
    }
    let example = "#[rows(rows_there, |c| c.tokens)]";
    let parse =
        |input: ParseStream<'_>| Ok((input.parse::<Ident>()?, input.parse::<Token![,]>()?, input.parse()?));
    let parsed = attr.parse_args_with(parse).map_err(|e| {
        let message = format!("the parameter that says how many rows there are, and the most: `{example}`");
        syn::Error::new(e.span(), message)
    });
    let (number, _, most): (Ident, _, syn::ExprClosure) = errors.ok(parsed)?;
    let number = number.unraw().to_string();
    Some(quote!(.of_rows(#number, {
        let of: fn(&#config) -> u32 = #most;
        u64::from(of(config))
    })))
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

/// An attribute, and the expression in it.
type Chosen<'a> = Option<(&'a Attribute, TokenStream)>;

/// The expression of `#[len(..)]`, `#[shape(..)]`, `#[dtype(..)]` or `#[channel(..)]`, a closure over the configuration or a constant.
pub(crate) fn chosen<'a>(
    field: &'a Field,
    name: &str,
    ty: &TokenStream,
    config: &Path,
    errors: &mut Errors,
) -> Option<(&'a Attribute, TokenStream)> {
    chosen_of(&field.attrs, name, ty, config, errors)
}

/// The same of anything with attributes.
pub(crate) fn chosen_of<'a>(
    attrs: &'a [Attribute],
    name: &str,
    ty: &TokenStream,
    config: &Path,
    errors: &mut Errors,
) -> Option<(&'a Attribute, TokenStream)> {
    let mut attrs = attrs.iter().filter(|a| a.path().is_ident(name));
    let attr = attrs.next()?;
    if let Some(second) = attrs.next() {
        errors.at(second.span(), format!("`#[{name}(..)]` is there twice"));
    }
    let expr = match &attr.meta {
        Meta::List(_) => errors.ok(attr.parse_args::<Expr>())?,
        Meta::Path(_) | Meta::NameValue(_) => {
            let example = match name {
                "len" => "|c| c.tokens as u64 * 64",
                "dtype" => "|c| c.dtype",
                "shape" => "|c| [c.rows, c.columns]",
                "when" => "|c| c.protocol == Protocol::Flags",
                _ => "|c| ChannelShape::new(c.transport, c.ranks, Slots::BySender(c.chunks()))",
            };
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
pub(crate) fn last_segment(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
        _ => None,
    }
}
