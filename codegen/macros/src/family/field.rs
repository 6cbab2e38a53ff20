//! One field of a configuration struct: its `#[key(..)]` or `#[tune(..)]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Expr, ExprLit, ExprRange, GenericArgument, Ident, Lit, LitStr, PathArguments, RangeLimits,
    Type, Visibility, ext::IdentExt, spanned::Spanned,
};

use crate::attrs::{Errors, Settings, first_paragraph};

/// A field.
pub struct Field {
    pub ident: Ident,
    pub vis: Visibility,
    pub ty: Type,
    pub tune: bool,
    pub short: Option<LitStr>,
    pub help: String,
    pub values: Values,
    pub default: Option<Expr>,
    /// Where it says that it is the world size.
    pub ranks: Option<Span>,
    /// Where it says that it is the number of nodes.
    pub nodes: Option<Span>,
    /// Whether a variant with more of it does as well.
    pub covers: bool,
    /// Whether names leave it out where it has its default.
    pub omitted: bool,
    /// Whether a smaller number takes less of a device.
    pub shrinks: bool,
    /// What a rule chooses, and which.
    pub rule: Option<(Type, Expr)>,
    /// Whether the plan of an operation holds it once for all launches, and where it says so.
    pub shared: Option<Span>,
}

/// The restriction of a field's values.
pub enum Values {
    /// None: a `bool` or an enum.
    All,
    Range {
        min: Box<Expr>,
        max: Box<Expr>,
        multiple_of: Option<Box<Expr>>,
    },
    Menu(Box<Expr>),
}

impl Field {
    /// Reads a field's attribute.
    pub fn of(field: &syn::Field, errors: &mut Errors) -> Option<Field> {
        let ident = field.ident.clone()?;
        let attr = the_attribute(field, &ident, errors)?;
        let tune = attr.path().is_ident("tune");
        check_type(&field.ty, errors);
        let own: &[&str] = if tune {
            &["omitted", "shrinks", "rule", "shared"]
        } else {
            &["ranks", "nodes", "covers", "omitted"]
        };
        let known = [&["short", "range", "multiple_of", "values", "default", "help"], own].concat();
        let mut set = Settings::of(attr, &known, errors);
        let short = set.text("short", "h", errors);
        if let Some(short) = &short
            && (short.value().is_empty() || !short.value().chars().all(|c| c.is_ascii_lowercase()))
        {
            errors.at(short.span(), "a short name has lower-case letters only: it stands before a value");
        }
        let help = set.text("help", "what it means", errors);
        let ranks = set.flag("ranks", errors);
        if let (Some(span), false) = (ranks, field.ty.to_token_stream().to_string() == "u32") {
            errors.at(span, "the world size is a `u32`");
        }
        let nodes = set.flag("nodes", errors);
        if let (Some(span), false) = (nodes, field.ty.to_token_stream().to_string() == "u32") {
            errors.at(span, "the number of nodes is a `u32`");
        }
        let covers = set.flag("covers", errors);
        if let (Some(span), false) = (covers, is_unsigned(&field.ty)) {
            errors.at(span, "a larger variant covers a number without a sign: `u32`, say");
        }
        if let (Some(_), Some(span)) = (covers, ranks) {
            errors.at(span, "a variant for more ranks does not cover fewer");
        }
        let covers = covers.is_some();
        let chosen = option_of(&field.ty);
        let rule = set.value("rule", "Config::few", errors);
        match (&rule, &chosen) {
            (Some(rule), None) => {
                errors.at(rule.span(), "what a rule chooses is an `Option`, of the type that it yields")
            }
            (None, Some(_)) => {
                set.lacks("an `Option` says which `rule` chooses it, as in `rule = Config::few`", errors)
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        let rule = chosen.clone().zip(rule);
        let values = values(&mut set, chosen.as_ref().unwrap_or(&field.ty), tune, errors);
        let default = set.value("default", "16", errors);
        if let (Values::Menu(menu), Some(default)) = (&values, &default) {
            check_default(menu, default, errors);
        }
        if let (Some(closure @ Expr::Closure(_)), false) = (&default, tune) {
            errors.at(
                closure.span(),
                "the default of a key is a value: what it could be computed from is the key",
            );
        }
        let help = help.map_or_else(|| first_paragraph(&field.attrs), |h| h.value());
        let (vis, ty) = (field.vis.clone(), field.ty.clone());
        let omitted = set.flag("omitted", errors);
        let shrinks = set.flag("shrinks", errors);
        if let (Some(span), false) = (shrinks, is_integer(chosen.as_ref().unwrap_or(&field.ty))) {
            errors.at(span, "only a number is smaller than another one");
        }
        let shrinks = shrinks.is_some();
        let shared = set.flag("shared", errors);
        // A tuning field without a default has the first of its values.
        let constant = default.as_ref().map_or(tune, |default| !matches!(default, Expr::Closure(_)));
        if let (Some(span), false) = (omitted, short.is_some() && constant) {
            let message = "names leave out a field whose default is a value, and tell it by its `short` name";
            errors.at(span, message);
        }
        let omitted = omitted.is_some();
        // The names of a choice tell it from other fields by themselves.
        let unnamed =
            |ty: &Type| short.is_none() && (is_integer(ty) || ty.to_token_stream().to_string() == "bool");
        if let Some((ty, rule)) = &rule
            && (unnamed(ty) || default.is_some())
        {
            errors.at(
                rule.span(),
                "the default of what a rule chooses is `auto`; names tell other values by its `short` name",
            );
        }
        Some(Field {
            ident,
            vis,
            ty,
            tune,
            short,
            help,
            values,
            default,
            ranks,
            nodes,
            covers,
            omitted,
            shrinks,
            rule,
            shared,
        })
    }

    /// The expression that makes its `FieldInfo`.
    pub fn info(&self, codegen: &TokenStream) -> TokenStream {
        let (name, ty) = (self.ident.unraw().to_string(), &self.ty);
        let role = if self.tune { quote!(tune) } else { quote!(key) };
        let mut info = quote!(#codegen::family::FieldInfo::#role::<#ty>(#name));
        if let Some(short) = &self.short {
            info.extend(quote!(.short(#short)));
        }
        if !self.help.is_empty() {
            let help = &self.help;
            info.extend(quote!(.help(#help)));
        }
        match &self.values {
            Values::All => {}
            Values::Range { min, max, multiple_of } => {
                let multiple_of = multiple_of.as_ref().map_or_else(|| quote!(1), |m| quote!(#m));
                let (range, ty) = match &self.rule {
                    Some((ty, _)) => (quote!(auto_or_range), ty),
                    None => (quote!(range), ty),
                };
                info.extend(quote!(.#range::<#ty>(#min, #max, #multiple_of)));
            }
            // With the type written down, so that literals get it and both arrays and slices do.
            Values::Menu(menu) => {
                let (restrict, ty) = match &self.rule {
                    Some((ty, _)) => (quote!(auto_or), ty),
                    None => (quote!(values), ty),
                };
                info.extend(quote! { .#restrict::<#ty>({ let values: &[#ty] = &#menu; values }) })
            }
        }
        match &self.default {
            None => {}
            Some(Expr::Closure(_)) => info.extend(quote!(.default_from_key())),
            Some(value) => info.extend(quote!(.default_value::<#ty>(#value))),
        }
        if self.ranks.is_some() {
            info.extend(quote!(.ranks()));
        }
        if self.nodes.is_some() {
            info.extend(quote!(.nodes()));
        }
        if self.covers {
            info.extend(quote!(.covers()));
        }
        if self.omitted {
            info.extend(quote!(.omitted()));
        }
        if self.shrinks {
            info.extend(quote!(.shrinks()));
        }
        if self.rule.is_some() {
            info.extend(quote!(.by_rule()));
        }
        info
    }
}

/// What an `Option` is of.
fn option_of(ty: &Type) -> Option<Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == "Option")?;
    let PathArguments::AngleBracketed(of) = &last.arguments else { return None };
    match of.args.first() {
        Some(GenericArgument::Type(ty)) => Some(ty.clone()),
        _ => None,
    }
}

fn is_unsigned(ty: &Type) -> bool {
    ["u8", "u16", "u32", "u64"].contains(&ty.to_token_stream().to_string().as_str())
}

/// The one attribute that says where the field's value comes from.
fn the_attribute<'a>(field: &'a syn::Field, ident: &Ident, errors: &mut Errors) -> Option<&'a Attribute> {
    let ours = |a: &&Attribute| a.path().is_ident("key") || a.path().is_ident("tune");
    let mut attrs = field.attrs.iter().filter(ours);
    let first = attrs.next();
    if first.is_none() {
        let advice = "`#[key(..)]` if the problem gives it, `#[tune(..)]` if tuning chooses it";
        errors.at(ident.span(), format!("say where the value of `{ident}` comes from: {advice}"));
    }
    if let Some(second) = attrs.next() {
        errors.at(second.span(), format!("`{ident}` is either a key or tuned, once"));
    }
    first
}

/// Types of the language that cannot be a field's; of others the compiler says whether they are a `Choice`.
fn check_type(ty: &Type, errors: &mut Errors) {
    let name = ty.to_token_stream().to_string();
    let others = ["f32", "f64", "usize", "isize", "i128", "u128", "char", "String"];
    if others.contains(&name.as_str()) {
        let advice = "an integer of at most 64 bits, a `bool`, or an enum with `#[derive(Choice)]`";
        errors.at(ty.span(), format!("`{name}` is no type for a configuration field: use {advice}"));
    }
}

fn is_integer(ty: &Type) -> bool {
    let integers = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"];
    integers.contains(&ty.to_token_stream().to_string().as_str())
}

/// `range`, `multiple_of` and `values`, as they suit the field's type.
fn values(set: &mut Settings, ty: &Type, tune: bool, errors: &mut Errors) -> Values {
    let range = set.value("range", "1..=64", errors);
    let multiple_of = set.value("multiple_of", "8", errors);
    let menu = set.value("values", "[4, 8, 16]", errors);
    match (is_integer(ty), range, menu) {
        (true, _, Some(menu)) if !tune => {
            let why = "a new model shape must need no change here";
            let message = format!("a number that is a key has a range, never a menu of values: {why}");
            errors.at(menu.span(), message);
        }
        (_, Some(range), Some(_)) => errors.at(range.span(), "either `range` or `values`"),
        (true, None, None) => {
            let menu = if tune { " or a menu, as in `values = [4, 8, 16]`" } else { "" };
            set.lacks(format!("a number needs a range, as in `range = 1..=64`{menu}"), errors);
        }
        (false, Some(range), None) => {
            errors
                .at(range.span(), "only integer fields have a range; for others, `values = [..]` restricts");
        }
        (true, Some(range), None) => {
            return bounds(range, multiple_of, errors).unwrap_or(Values::All);
        }
        (_, None, menu) => {
            if let Some(multiple_of) = multiple_of {
                errors.at(multiple_of.span(), "`multiple_of` goes with `range`");
            }
            return menu.map_or(Values::All, |menu| Values::Menu(Box::new(menu)));
        }
    }
    Values::All
}

fn bounds(range: Expr, multiple_of: Option<Expr>, errors: &mut Errors) -> Option<Values> {
    let Expr::Range(ExprRange { start: Some(min), end: Some(max), limits: RangeLimits::Closed(_), .. }) =
        range
    else {
        errors.at(range.span(), "a range has both ends and includes them: `range = 1..=64`");
        return None;
    };
    if multiple_of.as_ref().is_some_and(|m| integer(m).is_some_and(|m| m < 1)) {
        errors.at(multiple_of.span(), "a multiple of what? `multiple_of` is at least 1");
    }
    if let (Some(low), Some(high)) = (integer(&min), integer(&max)) {
        let step = multiple_of.as_ref().and_then(integer).unwrap_or(1).max(1);
        if low > high {
            errors.at(min.span(), format!("this range is empty: {low} is above {high}"));
        } else if low + (step - low.rem_euclid(step)) % step > high {
            errors.at(multiple_of.span(), format!("no multiple of {step} is in {low}..={high}"));
        }
    }
    Some(Values::Range { min, max, multiple_of: multiple_of.map(Box::new) })
}

/// The value of an integer literal, possibly negative.
fn integer(expr: &Expr) -> Option<i128> {
    match expr {
        Expr::Lit(ExprLit { lit: Lit::Int(int), .. }) => int.base10_parse().ok(),
        Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => integer(expr).map(|v| -v),
        _ => None,
    }
}

/// A default that is not on the menu would never be used; reported when both are literals.
fn check_default(menu: &Expr, default: &Expr, errors: &mut Errors) {
    let Expr::Array(menu) = menu else { return };
    let values: Option<Vec<i128>> = menu.elems.iter().map(integer).collect();
    if let (Some(values), Some(default_value)) = (values, integer(default))
        && !values.contains(&default_value)
    {
        errors.at(default.span(), format!("the default {default_value} is not one of the values"));
    }
}
