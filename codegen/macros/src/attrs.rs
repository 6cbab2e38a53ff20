//! What the derives share: settings of attributes, docs, and errors gathered so that all are reported at once.

use proc_macro2::{Span, TokenStream};
use syn::{
    Attribute, Expr, ExprLit, Ident, Lit, LitStr, Meta, Token,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
    spanned::Spanned,
};

/// Errors so far.
#[derive(Default)]
pub struct Errors(Option<syn::Error>);

impl Errors {
    /// Adds an error at a place.
    pub fn at(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    /// Adds an error.
    pub fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// The value, or its error added to these.
    pub fn ok<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|e| self.add(e)).ok()
    }

    /// All of them, if there are any.
    pub fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// `name` or `name = value` in an attribute.
pub struct Setting {
    /// What is set.
    pub name: Ident,
    /// To what.
    pub value: Option<Expr>,
}

impl Parse for Setting {
    fn parse(input: ParseStream) -> syn::Result<Setting> {
        let name: Ident = input.parse()?;
        let value = input.parse::<Option<Token![=]>>()?.map(|_| input.parse()).transpose()?;
        Ok(Setting { name, value })
    }
}

/// The settings of one attribute, each of which may stand once and is taken out when it is read.
pub struct Settings {
    all: Vec<Setting>,
    /// The attribute.
    span: Span,
    /// Whether something about it was reported already.
    flawed: bool,
}

impl Settings {
    /// Of `#[attribute]` or `#[attribute(..)]`.
    pub fn of(attr: &Attribute, known: &[&str], errors: &mut Errors) -> Settings {
        let name = attr.path().get_ident().map(Ident::to_string).unwrap_or_default();
        let mut settings = Settings { all: vec![], span: attr.span(), flawed: false };
        if matches!(attr.meta, Meta::Path(_)) {
            return settings;
        }
        let parsed = attr.parse_args_with(Punctuated::<Setting, Token![,]>::parse_terminated);
        settings.flawed = parsed.is_err();
        for setting in errors.ok(parsed).into_iter().flatten() {
            let key = setting.name.to_string();
            if !known.contains(&key.as_str()) {
                settings.flawed = true;
                let hint = format!("`{key}` is no setting of `#[{name}]`; it has {}", list(known));
                errors.at(setting.name.span(), hint);
            } else if settings.all.iter().any(|s| s.name == key) {
                errors.at(setting.name.span(), format!("`{key}` is set twice"));
            } else {
                settings.all.push(setting);
            }
        }
        settings
    }

    /// Takes out `name = value`; `example` shows how it is written when the value is missing.
    pub fn value(&mut self, name: &str, example: &str, errors: &mut Errors) -> Option<Expr> {
        let setting = self.take(name)?;
        if setting.value.is_none() {
            self.flawed = true;
            errors.at(setting.name.span(), format!("`{name}` needs a value: `{name} = {example}`"));
        }
        setting.value
    }

    /// An error about something that the attribute lacks, unless it has another flaw: a misspelt setting would be reported
    /// as missing too.
    pub fn lacks(&self, message: impl std::fmt::Display, errors: &mut Errors) {
        if !self.flawed {
            errors.at(self.span, message);
        }
    }

    /// Takes out `name = "text"`.
    pub fn text(&mut self, name: &str, example: &str, errors: &mut Errors) -> Option<LitStr> {
        let value = self.value(name, &format!("{example:?}"), errors)?;
        if let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = value {
            return Some(text);
        }
        errors.at(value.span(), format!("`{name}` is a text: `{name} = {example:?}`"));
        None
    }

    /// Takes out a `name` that has no value.
    pub fn flag(&mut self, name: &str, errors: &mut Errors) -> Option<Span> {
        let setting = self.take(name)?;
        if let Some(value) = &setting.value {
            errors.at(value.span(), format!("`{name}` has no value: write it alone"));
        }
        Some(setting.name.span())
    }

    fn take(&mut self, name: &str) -> Option<Setting> {
        let at = self.all.iter().position(|s| s.name == name)?;
        Some(self.all.remove(at))
    }
}

/// ``a`, `b` and `c`` for a message.
pub fn list(names: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("`{}`", n.as_ref())).collect();
    match quoted.as_slice() {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [front @ .., last] => format!("{} and {last}", front.join(", ")),
    }
}

/// The first paragraph of the doc comments, its lines joined by spaces.
pub fn first_paragraph(attrs: &[Attribute]) -> String {
    let text = documentation(attrs);
    let words = text.lines().map(str::trim).skip_while(|l| l.is_empty()).take_while(|l| !l.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// What follows the first paragraph, line by line.
pub fn other_paragraphs(attrs: &[Attribute]) -> String {
    let text = documentation(attrs);
    let lines = text.lines().map(|l| l.strip_prefix(' ').unwrap_or(l).trim_end());
    let rest = lines.skip_while(|l| l.is_empty()).skip_while(|l| !l.is_empty()).skip_while(|l| l.is_empty());
    rest.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

fn documentation(attrs: &[Attribute]) -> String {
    let lines = attrs.iter().filter_map(|attr| {
        let Meta::NameValue(meta) = &attr.meta else { return None };
        let Expr::Lit(lit) = &meta.value else { return None };
        let Lit::Str(text) = &lit.lit else { return None };
        meta.path.is_ident("doc").then(|| text.value())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The result of an expansion, or its errors as code that does not compile.
pub fn or_errors(result: syn::Result<TokenStream>) -> TokenStream {
    result.unwrap_or_else(|e| e.to_compile_error())
}
