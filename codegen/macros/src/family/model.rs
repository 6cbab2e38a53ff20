//! A configuration struct as the derive understands it.

use proc_macro2::Span;
use quote::ToTokens;
use syn::{Data, DeriveInput, Expr, ExprLit, Ident, Lit, LitInt, Path, Visibility, spanned::Spanned};

use super::field::Field;
use crate::attrs::{Errors, Settings, list};

/// The struct and what its `#[family(..)]` says.
pub struct Model {
    pub ident: Ident,
    pub vis: Visibility,
    /// Key fields, then tuning fields.
    pub fields: Vec<Field>,
    pub name: String,
    pub kernel: Path,
    pub args: Path,
    pub warps: Warps,
    pub key: Ident,
    /// The type of the tuning fields, if one is to be made.
    pub plan: Option<Ident>,
    pub serde: bool,
    /// What the author counts up when a change alters the kernel's time.
    pub revision: Option<LitInt>,
    /// The field that is the world size, if it can be another one than 1.
    pub ranks: Option<Ident>,
    /// The field that is the number of nodes.
    pub nodes: Option<Ident>,
}

/// The source of the number of warps of a block.
pub enum Warps {
    Field(Ident),
    Fixed(LitInt),
}

const EXAMPLE: &str = "#[family(name = \"scale\", kernel = scale, args = ScaleArgs, warps = warps)]";

impl Model {
    /// Reads the struct; all mistakes are reported at once.
    pub fn of(input: &DeriveInput) -> syn::Result<Model> {
        let mut errors = Errors::default();
        let Data::Struct(data) = &input.data else {
            let message = "a family's configuration is a struct with named fields";
            return Err(syn::Error::new(input.ident.span(), message));
        };
        if !input.generics.params.is_empty() {
            errors.at(input.generics.span(), "a family's configuration has no generic parameters");
        }
        if !matches!(data.fields, syn::Fields::Named(_)) {
            errors.at(input.ident.span(), "a family's configuration is a struct with named fields");
        }
        let mut fields: Vec<Field> = data.fields.iter().filter_map(|f| Field::of(f, &mut errors)).collect();
        distinct_names(&fields, &mut errors);
        let ranks = world_size(&fields, &mut errors);
        let nodes = number_of_nodes(&fields, ranks.is_some(), &mut errors);
        let whole = |name: &Ident| data.fields.iter().any(|f| f.ident.as_ref() == Some(name));
        let header = Header::of(input, &fields, whole, &mut errors);
        errors.finish()?;
        // Nothing is missing without an error.
        let missing = || syn::Error::new(input.ident.span(), "incomplete family");
        let header = header.ok_or_else(missing)?;
        fields.sort_by_key(|f| f.tune);
        let Header { name, kernel, args, warps, key, plan, serde, revision } = header;
        if let (None, Some(span)) = (&plan, fields.iter().find_map(|f| f.shared)) {
            return Err(syn::Error::new(span, "launches share a field where the family has a `plan = Name`"));
        }
        let (ident, vis) = (input.ident.clone(), input.vis.clone());
        Ok(Model { ident, vis, fields, name, kernel, args, warps, key, plan, serde, revision, ranks, nodes })
    }
}

/// What `#[family(..)]` says.
struct Header {
    name: String,
    kernel: Path,
    args: Path,
    warps: Warps,
    key: Ident,
    plan: Option<Ident>,
    serde: bool,
    revision: Option<LitInt>,
}

impl Header {
    fn of(
        input: &DeriveInput,
        fields: &[Field],
        exists: impl Fn(&Ident) -> bool,
        errors: &mut Errors,
    ) -> Option<Header> {
        let mut attrs = input.attrs.iter().filter(|a| a.path().is_ident("family"));
        let Some(attr) = attrs.next() else {
            errors.at(input.ident.span(), format!("say which kernel the family specialises: `{EXAMPLE}`"));
            return None;
        };
        if let Some(second) = attrs.next() {
            errors.at(second.span(), "one `#[family(..)]` says it all");
        }
        let known = ["name", "kernel", "args", "warps", "key", "plan", "serde", "revision"];
        let mut set = Settings::of(attr, &known, errors);
        let mut required = |name: &str, example: &str, errors: &mut Errors| {
            let value = set.value(name, example, errors);
            if value.is_none() {
                set.lacks(format!("`{name}` is missing, as in `{EXAMPLE}`"), errors);
            }
            value
        };
        let kernel = required("kernel", "scale", errors).and_then(|e| path(&e, "kernel", errors));
        let args = required("args", "ScaleArgs", errors).and_then(|e| path(&e, "args", errors));
        let warps = required("warps", "warps", errors).and_then(|e| warps(&e, fields, exists, errors));
        let key = made(&mut set, "key", "ScaleKey", errors);
        let key = key.unwrap_or_else(|| Ident::new(&format!("{}Key", input.ident), input.ident.span()));
        let plan = made(&mut set, "plan", "ScalePlan", errors);
        let serde = set.flag("serde", errors).is_some();
        let revision = set.value("revision", "2", errors).and_then(|e| revision(&e, errors));
        let name = match set.text("name", "scale", errors) {
            Some(text) => {
                check_name(&text.value(), text.span(), errors);
                text.value()
            }
            None => kernel.as_ref()?.segments.last()?.ident.to_string(),
        };
        Some(Header { name, kernel: kernel?, args: args?, warps: warps?, key, plan, serde, revision })
    }
}

/// The name of a type to make.
fn made(set: &mut Settings, name: &str, example: &str, errors: &mut Errors) -> Option<Ident> {
    let path = set.value(name, example, errors).and_then(|e| path(&e, name, errors))?;
    if path.get_ident().is_none() {
        errors.at(path.span(), format!("`{name}` is the name of the type to make, not a path to one"));
    }
    path.get_ident().cloned()
}

fn path(value: &Expr, name: &str, errors: &mut Errors) -> Option<Path> {
    if let Expr::Path(path) = value {
        return Some(path.path.clone());
    }
    errors.at(value.span(), format!("`{name}` is a name or a path"));
    None
}

/// Families start with revision 1.
fn revision(value: &Expr, errors: &mut Errors) -> Option<LitInt> {
    if let Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) = value
        && number.base10_parse().is_ok_and(|n: u32| n > 0)
    {
        return Some(number.clone());
    }
    errors.at(
        value.span(),
        "`revision` is a number, 1 or more: count it up when a change alters the kernel's time",
    );
    None
}

/// Family names start variant names, which are C identifiers with a `__` of their own.
fn check_name(name: &str, span: Span, errors: &mut Errors) {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let letter = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !letter || !name.chars().all(good) || name.contains("__") || name.ends_with('_') {
        let rule = "lower-case letters and digits with single `_` between them, a letter first";
        errors.at(span, format!("a family's name starts its variants' names, C identifiers: {rule}"));
    }
}

fn warps(
    value: &Expr,
    fields: &[Field],
    exists: impl Fn(&Ident) -> bool,
    errors: &mut Errors,
) -> Option<Warps> {
    if let Expr::Lit(ExprLit { lit: Lit::Int(fixed), .. }) = value {
        if !fixed.base10_parse().is_ok_and(|n: u32| (1..=32).contains(&n)) {
            errors.at(fixed.span(), "a block has 1 to 32 warps");
        }
        return Some(Warps::Fixed(fixed.clone()));
    }
    let name = match value {
        Expr::Path(path) => path.path.get_ident().cloned(),
        _ => None,
    };
    let Some(name) = name else {
        errors.at(value.span(), "`warps` names the field with the warps a block has, or is a number");
        return None;
    };
    if !exists(&name) {
        let names: Vec<String> = fields.iter().map(|f| f.ident.to_string()).collect();
        errors.at(name.span(), format!("`warps` names a field: there is no `{name}`, but {}", list(&names)));
    }
    let field = fields.iter().find(|f| f.ident == name);
    let ty = field.map(|f| f.rule.as_ref().map_or(&f.ty, |(ty, _)| ty).to_token_stream().to_string());
    if ty.is_some_and(|ty| ty != "u32") {
        errors.at(name.span(), format!("the warps a block has are a `u32`; `{name}` is something else"));
    }
    Some(Warps::Field(name))
}

/// The key field that is the world size. A family without one has one rank.
fn world_size(fields: &[Field], errors: &mut Errors) -> Option<Ident> {
    let mut marked = fields.iter().filter_map(|f| f.ranks.map(|span| (&f.ident, span)));
    let Some((first, _)) = marked.next() else {
        if let Some(field) = fields.iter().find(|f| f.ident == "ranks") {
            let advice = "`#[key(short = \"r\", range = 1..=64, ranks)]`";
            errors.at(
                field.ident.span(),
                format!("a field that says how many ranks run the kernel is marked: {advice}"),
            );
        }
        return None;
    };
    if let Some((_, span)) = marked.next() {
        errors.at(span, format!("`{first}` is the world size already"));
    }
    Some(first.clone())
}

/// The key field that is the number of nodes. A family without one runs on one.
fn number_of_nodes(fields: &[Field], of_ranks: bool, errors: &mut Errors) -> Option<Ident> {
    let mut marked = fields.iter().filter_map(|f| f.nodes.map(|span| (&f.ident, span)));
    let (first, span) = marked.next()?;
    if !of_ranks {
        errors.at(span, "ranks are on nodes: another field is marked `ranks`");
    }
    if let Some((_, span)) = marked.next() {
        errors.at(span, format!("`{first}` is the number of nodes already"));
    }
    Some(first.clone())
}

/// A short name means one key field or one tuning field, and no name of another field: users may write either.
fn distinct_names(fields: &[Field], errors: &mut Errors) {
    for (at, field) in fields.iter().enumerate() {
        let Some(short) = &field.short else { continue };
        let other = fields.iter().enumerate().find(|(i, f)| {
            let same_short = f.short.as_ref().is_some_and(|s| s.value() == short.value());
            (*i < at && same_short && f.tune == field.tune) || (*i != at && f.ident == short.value())
        });
        if let Some((_, other)) = other {
            let message = format!("`{}` means the field `{}` already", short.value(), other.ident);
            errors.at(short.span(), message);
        }
    }
}
