//! What `#[derive(KernelArgs)]` makes for callers: a struct of the parameters that they pass to a launch.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{DeriveInput, Expr, Field, Fields, Path, Type, ext::IdentExt, spanned::Spanned};

use crate::args::{group_attr, inner, last_segment, marked, optional};
use crate::attrs::{Errors, first_paragraph};

/// How a caller passes a parameter.
enum Passed {
    Input {
        optional: bool,
    },
    Output {
        optional: bool,
    },
    /// By value, of this type.
    Scalar {
        of: Type,
        optional: bool,
    },
    /// A group's parameters, as this struct.
    Group(Type),
}

/// `AddLaunch` of `AddArgs`.
fn launch_ident(args: &Ident) -> Ident {
    let name = args.unraw().to_string();
    let stem = name.strip_suffix("Args").unwrap_or(&name);
    format_ident!("{stem}Launch", span = args.span())
}

/// How a field is passed; nothing if it is the operation's own.
fn passed(field: &Field, errors: &mut Errors) -> Option<Passed> {
    let (input, output) = (marked(field, "input"), marked(field, "output").or(marked(field, "inout")));
    if group_attr(field).is_some() {
        return input.and_then(|_| group(&field.ty, errors));
    }
    let (ty, optional) = (optional(&field.ty).unwrap_or(&field.ty), optional(&field.ty).is_some());
    match (input, output, inner(ty, "Val")) {
        (Some(_), None, _) => Some(Passed::Input { optional }),
        (None, Some(_), _) => Some(Passed::Output { optional }),
        (None, None, Some(value)) => Some(Passed::Scalar { of: value.clone(), optional }),
        _ => None,
    }
}

fn group(ty: &Type, errors: &mut Errors) -> Option<Passed> {
    let Type::Path(path) = ty else {
        errors.at(ty.span(), "a group is a struct with `#[derive(KernelArgs)]`");
        return None;
    };
    let mut path = path.clone();
    let last = path.path.segments.last_mut()?;
    last.ident = launch_ident(&last.ident);
    Some(Passed::Group(Type::Path(path)))
}

/// The struct and what passes its fields on.
pub fn expand(
    input: &DeriveInput,
    fields: &Fields,
    config: &Path,
    runtime: &TokenStream,
    errors: &mut Errors,
) -> TokenStream {
    let found = fields.iter().filter_map(|f| passed(f, errors).map(|passed| (f, passed)));
    let all: Vec<(&Field, Passed)> = found.collect();
    let op = quote!(#runtime::runtime::op);
    let (args, vis, ident) = (&input.ident, &input.vis, launch_ident(&input.ident));
    let borrows = all.iter().any(|(_, passed)| !matches!(passed, Passed::Scalar { .. }));
    let generics = borrows.then(|| quote!(<'a>));
    let doc = format!("What a caller passes to a launch of a kernel whose parameters are [`{args}`].");
    let members = all.iter().map(|(field, passed)| member(field, passed, config, &op));
    let groups = all.iter().filter_map(|(_, passed)| match passed {
        Passed::Group(ty) => Some(quote_spanned!(ty.span()=> <#ty<'a> as #op::LaunchArgs>::Held<'h>)),
        _ => None,
    });
    let tensors =
        all.iter().filter(|(_, p)| matches!(p, Passed::Input { .. } | Passed::Output { .. })).count();
    let scalars = all.iter().filter_map(|(field, passed)| match passed {
        Passed::Scalar { .. } => Some(pass(field, passed, &op)),
        _ => None,
    });
    let of = |group: bool| {
        let tensors = all.iter().filter(move |(_, p)| match p {
            Passed::Group(_) => group,
            Passed::Scalar { .. } => false,
            Passed::Input { .. } | Passed::Output { .. } => !group,
        });
        tensors.map(|(field, passed)| pass(field, passed, &op)).collect::<Vec<_>>()
    };
    let (held, nested) = (of(false), of(true));
    quote! {
        #[doc = #doc]
        #[allow(dead_code)]
        #vis struct #ident #generics {
            #(#members,)*
        }
        #[automatically_derived]
        // SAFETY: every hold is returned.
        unsafe impl #generics #op::LaunchArgs for #ident #generics {
            type Args = #args;
            type Held<'h> = ([#op::Held<'h>; #tensors], (#(#groups,)*)) where Self: 'h;
            fn pass<'h>(
                &'h mut self,
                _call: &mut #op::Call<'_, 'h>,
            ) -> ::core::result::Result<Self::Held<'h>, #runtime::runtime::RuntimeError> {
                    #(#scalars?;)*
                ::core::result::Result::Ok(([#(#held?),*], (#(#nested?,)*)))
            }
        }
    }
}

/// The field of the struct.
fn member(field: &Field, passed: &Passed, config: &Path, op: &TokenStream) -> TokenStream {
    let (vis, ident) = (&field.vis, &field.ident);
    let ty = match passed {
        Passed::Input { optional: false } => quote!(&'a dyn #op::Readable),
        Passed::Input { optional: true } => quote!(::core::option::Option<&'a dyn #op::Readable>),
        Passed::Output { optional: false } => quote!(&'a mut dyn #op::Writable),
        Passed::Output { optional: true } => quote!(::core::option::Option<&'a mut dyn #op::Writable>),
        Passed::Scalar { of, optional: false } => quote!(#of),
        Passed::Scalar { of, optional: true } => quote!(::core::option::Option<#of>),
        Passed::Group(ty) => quote!(#ty<'a>),
    };
    let mut docs = vec![first_paragraph(&field.attrs)];
    docs.extend(
        matches!(passed, Passed::Input { .. } | Passed::Output { .. }).then(|| elements(field, config)),
    );
    docs.retain(|doc| !doc.is_empty());
    let doc = match docs.as_slice() {
        [] => format!("Parameter `{}`.", ident.as_ref().map(|i| i.unraw().to_string()).unwrap_or_default()),
        docs => docs.join("\n\n"),
    };
    quote!(#[doc = #doc] #vis #ident: #ty)
}

/// The expression that passes a field.
fn pass(field: &Field, passed: &Passed, op: &TokenStream) -> TokenStream {
    let ident = &field.ident;
    let name = ident.as_ref().map(|i| i.unraw().to_string());
    match passed {
        Passed::Input { optional: false } => quote!(_call.input(#name, self.#ident)),
        Passed::Input { optional: true } => quote!(_call.optional_input(#name, self.#ident)),
        Passed::Output { optional: false } => quote!(_call.output(#name, &mut *self.#ident)),
        Passed::Output { optional: true } => quote!(_call.optional_output(#name, self.#ident.as_deref_mut())),
        Passed::Scalar { of, optional: false } => {
            quote_spanned!(of.span()=> _call.scalar(#name, self.#ident))
        }
        Passed::Scalar { of, optional: true } => {
            quote_spanned!(of.span()=> _call.optional_scalar(#name, self.#ident))
        }
        Passed::Group(_) => quote!(#op::LaunchArgs::pass(&mut self.#ident, _call)),
    }
}

/// How many elements a tensor has, and of which type, in words.
fn elements(field: &Field, config: &Path) -> String {
    let of = |name: &str| {
        let attr = field.attrs.iter().find(|a| a.path().is_ident(name))?;
        Some(match attr.parse_args::<Expr>().ok()? {
            Expr::Closure(closure) => {
                let body = code(&closure.body);
                let subject = closure.inputs.first().map(code).unwrap_or_default();
                (body, Some(subject))
            }
            constant => (code(&constant), None),
        })
    };
    let (len, dtype) = (of("len").or_else(|| of("shape")), of("dtype"));
    let subject = [&len, &dtype].into_iter().find_map(|found| found.as_ref()?.1.clone());
    let count = len.map_or_else(|| "one element".to_owned(), |(len, _)| format!("`{len}` elements"));
    let ty = optional(&field.ty).unwrap_or(&field.ty);
    let dtype = match (dtype, inner(ty, "Ptr").or_else(|| inner(ty, "Window"))) {
        (Some((dtype, _)), _) => format!(" of `{dtype}`"),
        (None, Some(ty)) => format!(" of `{}`", code(ty)),
        (None, None) => String::new(),
    };
    let whose = subject.map_or_else(String::new, |c| format!(", where `{c}` is the [`{}`]", code(config)));
    let rows = field.attrs.iter().find(|a| a.path().is_ident("rows")).and_then(|a| match &a.meta {
        syn::Meta::List(list) => list.tokens.clone().into_iter().next(),
        syn::Meta::Path(_) | syn::Meta::NameValue(_) => None,
    });
    let rows = rows.map_or_else(String::new, |number| match number {
        proc_macro2::TokenTree::Ident(number) => format!("; of fewer rows, as many as `{number}` says"),
        _ => "; of fewer rows, where a number of the variant says how many".to_owned(),
    });
    let there = if optional(&field.ty).is_some() { "; None if that is 0" } else { "" };
    let window = inner(ty, "Window").is_some() || last_segment(ty).is_some_and(|name| name == "AnyWindow");
    let window = if window { " Peers read it: a `SymmetricPart` of the world." } else { "" };
    format!("At least {count}{dtype}{whose}{rows}{there}.{window}")
}

/// Code in a line, as one would write it.
fn code(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let (before, after) = (out.chars().last(), chars.peek());
        let tight =
            before.is_some_and(|b| "(.:![".contains(b)) || after.is_some_and(|a| ").,:(!?[]".contains(*a));
        if !(c.is_whitespace() && tight) {
            out.push(if c.is_whitespace() { ' ' } else { c });
        }
    }
    out
}
