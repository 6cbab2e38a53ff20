//! Where the user's crate finds ours.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// The absolute path of the crate `peerwarp_codegen` as the user's crate sees it: through `peerwarp` when it depends on
/// that, directly otherwise. Inside our own crates `extern crate self as ..` makes the same paths work.
pub fn codegen() -> TokenStream {
    if let Ok(found) = crate_name("peerwarp") {
        let name = ident(found, "peerwarp");
        return quote!(::#name::codegen);
    }
    let name = crate_name("peerwarp-codegen").map_or_else(
        |_| Ident::new("peerwarp_codegen", Span::call_site()),
        |found| ident(found, "peerwarp_codegen"),
    );
    quote!(::#name)
}

/// The absolute path of the crate `peerwarp` as the user's crate sees it.
pub fn peerwarp() -> TokenStream {
    let found = crate_name("peerwarp").unwrap_or(FoundCrate::Itself);
    let name = ident(found, "peerwarp");
    quote!(::#name)
}

/// The same if the user's crate depends on `peerwarp`, and not on `peerwarp-codegen` alone.
pub fn runtime() -> Option<TokenStream> {
    crate_name("peerwarp").is_ok().then(peerwarp)
}

fn ident(found: FoundCrate, own: &str) -> Ident {
    let name = match found {
        // Examples, tests and doctests of a crate see it as an extern crate of its own name.
        FoundCrate::Itself => own.to_string(),
        FoundCrate::Name(name) => name,
    };
    Ident::new(&name, Span::call_site())
}
