//! Legality: which points of a family's space exist.

use std::fmt::Display;

/// Rejects points of a family's space that make no sense or cannot work, with a reason. Ranges and menus of single
/// fields are checked without it; this is for what fields say about each other.
///
/// ```
/// use peerwarp_codegen::family::{Illegal, Legal};
///
/// struct Config {
///     experts: u32,
///     topk: u32,
/// }
/// impl Legal for Config {
///     fn legal(&self) -> Result<(), Illegal> {
///         let allowed = || format!("at most the number of experts, {}", self.experts);
///         Illegal::unless(self.topk <= self.experts, "topk", self.topk, allowed)
///     }
/// }
/// let no = Config { experts: 8, topk: 9 }.legal().unwrap_err();
/// assert_eq!(no.to_string(), "`topk` = 9 is not allowed: it must be at most the number of experts, 8");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which of its configurations are legal",
    label = "a family's configuration",
    note = "to allow all: `impl Legal for {Self} {{ fn legal(&self) -> Result<(), Illegal> {{ Ok(()) }} }}`"
)]
pub trait Legal {
    /// Whether this point exists. Called only when every field by itself has an allowed value.
    fn legal(&self) -> Result<(), Illegal>;
}

/// A field has a value that it may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` = {value} is not allowed: it must be {allowed}")]
pub struct Illegal {
    /// Name of the field.
    pub field: String,
    /// The value it has.
    pub value: String,
    /// What it may be, in words that complete "it must be ..".
    pub allowed: String,
}

impl Illegal {
    /// From the field's name, its value, and words that complete "it must be ..".
    pub fn new(field: impl Into<String>, value: impl Display, allowed: impl Into<String>) -> Illegal {
        Illegal { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }

    /// An error unless a condition holds; the words are made only when it does not.
    pub fn unless<W: Into<String>>(
        holds: bool,
        field: &str,
        value: impl Display,
        allowed: impl FnOnce() -> W,
    ) -> Result<(), Illegal> {
        if holds { Ok(()) } else { Err(Illegal::new(field, value, allowed())) }
    }
}
