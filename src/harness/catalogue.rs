//! Catalogues: TOML files that list the problems to emit kernels for.
//!
//! ```toml
//! targets = ["cuda:sm_90a", "hip:gfx942"]    # used when --target isn't given
//!
//! [[family]]                                 # any family, by its name and key fields
//! family = "add_all_gather"
//! elements = [4096, 65536]                   # a list stands for one problem each
//! ranks = 8
//! ```
//!
//! A suite reads tables that have its name, and what they have in common from `[defaults]`:
//! [`Suite::catalogue_entry`].

use std::collections::BTreeMap;
use std::path::Path;

use peerwarp_codegen::family::{Registry, Target};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::harness::request::Request;
use crate::harness::workload::{Given, Suite};
use crate::input::{InputError, file};
use crate::models;

/// A parsed catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// What to emit for, unless the command line says.
    pub targets: Vec<Target>,
    /// Of each problem, a request for each family that goes together.
    pub problems: Vec<Vec<Request>>,
}

/// The text of a catalogue in a file.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> Result<String, InputError> {
    file::text("--catalogue", path)
}

/// Parses a catalogue; `origin` is the file's name for messages.
///
/// # Errors
/// What it asks for makes no sense.
pub fn parse(
    text: &str,
    origin: &str,
    suites: &[&'static dyn Suite],
    registry: &Registry,
) -> Result<Catalogue, InputError> {
    parse_with(text, origin, suites, registry, &Given::new())
}

/// As [`parse`], with values of these fields in place of what entries say.
///
/// # Errors
/// What it asks for makes no sense.
pub fn parse_with(
    text: &str,
    origin: &str,
    suites: &[&'static dyn Suite],
    registry: &Registry,
    instead: &Given,
) -> Result<Catalogue, InputError> {
    let tables: Vec<String> = suites.iter().map(|s| format!("[[{}]]", s.name())).collect();
    let allowed = format!("targets, [defaults], {} and [[family]]", tables.join(", "));
    let wrong = |e: toml::de::Error| {
        let why = e.to_string();
        InputError::malformed("--catalogue", origin, why.trim_end(), allowed.clone())
    };
    let file: File = toml::from_str(text).map_err(wrong)?;
    let known = |name: &String| suites.iter().any(|s| s.name() == *name);
    if let Some(other) = file.entries.keys().find(|name| !known(name)) {
        let known = ["targets", "defaults", "family"].into_iter().chain(suites.iter().map(|s| s.name()));
        return Err(InputError::unknown(format!("{origin}: table"), other, known));
    }
    let targets = file.targets.iter().map(|t| target(t, origin)).collect::<Result<_, _>>()?;
    let mut problems = vec![];
    for suite in suites {
        let Some(entries) = file.entries.get(suite.name()) else { continue };
        let tables = entries.clone().try_into::<Vec<toml::Table>>().map_err(wrong)?;
        for (number, mut table) in (1..).zip(tables) {
            let own = |name: &str| name == "ranks" || suite.options().iter().any(|o| o.name == name);
            let instead = instead.iter().filter(|(name, _)| own(name));
            table.extend(instead.map(|(name, value)| (name.clone(), value.clone().into())));
            let requests = suite.catalogue_entry(&table, &file.defaults, origin, registry);
            problems.extend(requests.map_err(|mut e| {
                if e.field.ends_with(&format!("[[{}]]", suite.name())) {
                    e.field += &format!(" number {number}");
                }
                e
            })?);
        }
    }
    for entry in &file.family {
        let mut entry = entry.clone();
        for (name, value) in &mut entry.fields {
            if let Some(instead) = instead.get(name) {
                *value = OneOrMore::One(Scalar::Text(instead.clone()));
            }
        }
        problems.extend(entry.requests(origin)?.into_iter().map(|request| vec![request]));
    }
    if problems.is_empty() {
        let allowed = format!("at least one of {}, [[family]]", tables.join(", "));
        return Err(InputError::missing(format!("{origin}: entries"), allowed));
    }
    Ok(Catalogue { targets, problems })
}

/// Reads a table of a catalogue that a suite understands.
///
/// # Errors
/// It has other fields, or values that are none: `what` is the table, for messages.
pub fn entry<T: DeserializeOwned>(table: &toml::Table, what: &str, origin: &str) -> Result<T, InputError> {
    table.clone().try_into().map_err(|e: toml::de::Error| {
        // What is wrong, and in which field.
        let why = e.to_string().trim_end().replace('\n', " ");
        InputError::malformed(format!("{origin}: {what}"), "", why, "")
    })
}

fn target(text: &str, origin: &str) -> Result<Target, InputError> {
    text.parse().map_err(|_| unknown_target(format!("{origin}: targets"), text))
}

/// The error for a target that does not exist.
pub fn unknown_target(field: impl Into<String>, text: &str) -> InputError {
    let known: Vec<String> = Target::all().map(|t| t.to_string()).collect();
    let mut e = InputError::unknown(field, text, known.iter().map(String::as_str));
    // `sm_90a` alone is a common slip.
    let bare = Target::all().find(|t| t.arch() == text).map(|t| t.to_string());
    if let Some(bare) = bare {
        e.nearest = vec![bare];
    }
    e
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    defaults: toml::Table,
    #[serde(default)]
    family: Vec<FamilyEntry>,
    /// By the name of the suite that reads them.
    #[serde(flatten)]
    entries: BTreeMap<String, toml::Value>,
}

/// A value in a catalogue, or a list that stands for one problem each.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number, a truth value, a name, or a list of one of these")]
pub enum OneOrMore {
    /// A value.
    One(Scalar),
    /// A list of values.
    More(Vec<Scalar>),
}

/// A value in a catalogue.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number, a truth value or a name")]
pub enum Scalar {
    /// A whole number.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A name.
    Text(String),
}

impl Scalar {
    /// As users write it on the command line.
    pub fn text(&self) -> String {
        match self {
            Scalar::Int(n) => n.to_string(),
            Scalar::Bool(b) => b.to_string(),
            Scalar::Text(s) => s.clone(),
        }
    }
}

impl OneOrMore {
    /// All of them, as users write them on the command line.
    ///
    /// # Errors
    /// There is none: `field` is whose they are.
    pub fn texts(&self, field: &str, origin: &str) -> Result<Vec<String>, InputError> {
        match self {
            OneOrMore::One(v) => Ok(vec![v.text()]),
            OneOrMore::More(vs) if vs.is_empty() => {
                Err(InputError::not_allowed(format!("{origin}: {field}"), "[]", "one value or more"))
            }
            OneOrMore::More(vs) => Ok(vs.iter().map(Scalar::text).collect()),
        }
    }
}

#[derive(Clone, Deserialize)]
struct FamilyEntry {
    family: String,
    name: Option<String>,
    #[serde(flatten)]
    fields: BTreeMap<String, OneOrMore>,
}

impl FamilyEntry {
    fn requests(&self, origin: &str) -> Result<Vec<Request>, InputError> {
        let label = models::slug(self.name.as_ref().unwrap_or(&self.family));
        if label.is_empty() {
            return Err(InputError::not_allowed(
                format!("{origin}: [[family]] name"),
                "",
                "letters and digits",
            ));
        }
        let list = |(field, value): (&String, &OneOrMore)| Ok((field.clone(), value.texts(field, origin)?));
        let lists: Vec<_> = self.fields.iter().map(list).collect::<Result<_, InputError>>()?;
        let origin = Some(origin.to_owned());
        let request = |key| Request {
            origin: origin.clone(),
            key,
            ..Request::family(label.clone(), self.family.clone())
        };
        Ok(combinations(&lists).into_iter().map(request).collect())
    }
}

/// Every combination of one value of each list; the last list varies fastest.
pub fn combinations(lists: &[(String, Vec<String>)]) -> Vec<Vec<(String, String)>> {
    lists.iter().fold(vec![vec![]], |all, (field, values)| {
        let with = |head: &Vec<(String, String)>, value: &String| {
            let mut next = head.clone();
            next.push((field.clone(), value.clone()));
            next
        };
        all.iter().flat_map(|head| values.iter().map(move |v| with(head, v))).collect()
    })
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
