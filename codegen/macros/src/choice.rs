//! `#[derive(Choice)]`: enums that configuration fields may have as their type.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Fields, Ident, LitStr, Variant, spanned::Spanned};

use crate::{
    attrs::{Errors, Settings},
    serial,
};

/// What the derive emits.
pub fn expand(input: &DeriveInput, codegen: &TokenStream) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let Data::Enum(data) = &input.data else {
        return Err(syn::Error::new(input.ident.span(), "`Choice` is derived for enums"));
    };
    if !input.generics.params.is_empty() {
        errors.at(input.generics.span(), "a choice has no generic parameters");
    }
    if data.variants.is_empty() {
        errors.at(input.ident.span(), "a choice needs at least one variant");
    }
    let mut with_serde = false;
    for attr in input.attrs.iter().filter(|a| a.path().is_ident("choice")) {
        with_serde |= Settings::of(attr, &["serde"], &mut errors).flag("serde", &mut errors).is_some();
    }
    let named: Vec<(&Ident, String)> =
        data.variants.iter().map(|v| (&v.ident, name(v, &mut errors))).collect();
    for (at, (variant, name)) in named.iter().enumerate() {
        let same = |n: &String| n.replace('-', "") == name.replace('-', "");
        if let Some((other, _)) = named[..at].iter().find(|(_, n)| same(n)) {
            let why = "variant names leave `-` out, so the two would be one";
            let message = format!("`{variant}` is called `{name}` like `{other}`; {why}");
            errors.at(variant.span(), message);
        }
    }
    errors.finish()?;

    let (enum_name, variants, names) = (
        &input.ident,
        named.iter().map(|(v, _)| v).collect::<Vec<_>>(),
        named.iter().map(|(_, n)| n).collect::<Vec<_>>(),
    );
    let serde = with_serde.then(|| serial::choice(enum_name, codegen));
    Ok(quote! {
        #[automatically_derived]
        impl #codegen::family::Choice for #enum_name {
            const ALL: &'static [Self] = &[#(Self::#variants),*];
            fn name(&self) -> &'static str {
                match self {
                    #(Self::#variants => #names,)*
                }
            }
        }
        #serde
    })
}

/// A variant's name: of its attribute, or its own in kebab case.
fn name(variant: &Variant, errors: &mut Errors) -> String {
    if !matches!(variant.fields, Fields::Unit) {
        errors.at(variant.fields.span(), "variants of a choice have no fields");
    }
    let mut given: Option<LitStr> = None;
    for attr in variant.attrs.iter().filter(|a| a.path().is_ident("choice")) {
        given = Settings::of(attr, &["name"], errors).text("name", "fp8", errors).or(given);
    }
    let Some(given) = given else { return kebab(&variant.ident.to_string()) };
    let name = given.value();
    let ends = name.starts_with('-') || name.ends_with('-');
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || ends || !name.chars().all(good) {
        errors.at(given.span(), "a name has lower-case letters and digits, with `-` between them");
    }
    name
}

/// `SplitSend` as `split-send`, `Fp8` as `fp8`, `LL16Packet` as `ll16-packet`.
fn kebab(ident: &str) -> String {
    let chars: Vec<char> = ident.chars().filter(|c| *c != '_').collect();
    let mut name = String::new();
    for (at, c) in chars.iter().enumerate() {
        let after = at > 0 && !chars[at - 1].is_uppercase();
        let before = at > 0 && chars.get(at + 1).is_some_and(|n| n.is_lowercase());
        if c.is_uppercase() && (after || before) {
            name.push('-');
        }
        name.extend(c.to_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::kebab;

    #[test]
    fn kebab_case_splits_words_and_keeps_abbreviations_together() {
        let all = ["Bf16", "Flags", "SplitSend", "LL8", "LL16Packet", "OneXTwo", "A"].map(kebab);
        assert_eq!(all, ["bf16", "flags", "split-send", "ll8", "ll16-packet", "one-x-two", "a"]);
    }
}
