//! Catalogues: TOML files that list the shapes to emit kernels for.
//!
//! ```toml
//! targets = ["cuda:sm_90a", "hip:gfx942"]    # used when --target isn't given
//!
//! [defaults]                                 # for every [[moe]] that doesn't say otherwise
//! ranks = 8
//! dtype = "bf16"
//! tokens = [8, 128]                          # a list stands for one shape each
//!
//! [[moe]]
//! model = "deepseek-v3"
//!
//! [[moe]]
//! name = "ours"
//! hidden = 4096
//! experts = 64
//! topk = 6
//! tokens = 64
//! set = { send_blocks = 16 }
//!
//! [[family]]                                 # any other family
//! family = "add_all_gather"
//! elements = [4096, 65536]
//! ranks = 8
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use peerwarp_codegen::family::Target;
use serde::Deserialize;

use crate::harness::request::{DEFAULT_DTYPE, DEFAULT_RANKS, DEFAULT_TOKENS, Request, Scope};
use crate::input::InputError;
use crate::models::{self, Model, Shape};

/// A parsed catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// What to emit for, unless the command line says.
    pub targets: Vec<Target>,
    /// One request for each shape.
    pub requests: Vec<Request>,
}

/// The built-in catalogue: every built-in model, with token buckets from decoding to prefill.
pub fn builtin() -> Catalogue {
    parse(include_str!("../families/moe/catalogue.toml"), "builtin")
        .expect("the embedded catalogue is well-formed")
}

/// The part of the built-in catalogue that `generated/` holds.
pub fn reviewed() -> Catalogue {
    parse(include_str!("../families/moe/reviewed.toml"), "reviewed")
        .expect("the embedded catalogue is well-formed")
}

/// Reads a catalogue from a file.
pub fn read(path: &Path) -> Result<Catalogue, InputError> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| InputError::io("--catalogue", &shown, &e))?;
    parse(&text, &shown)
}

/// Parses a catalogue; `origin` is the file's name for messages.
pub fn parse(text: &str, origin: &str) -> Result<Catalogue, InputError> {
    let file: File = toml::from_str(text).map_err(|e| {
        let why = e.to_string();
        InputError::malformed(
            "--catalogue",
            origin,
            why.trim_end(),
            "tables [defaults], [[moe]] and [[family]]",
        )
    })?;
    let targets = file.targets.iter().map(|t| target(t, origin)).collect::<Result<_, _>>()?;
    let moe = file.moe.iter().map(|e| e.requests(&file.defaults, origin));
    let other = file.family.iter().map(|e| e.requests(origin));
    let requests = moe.chain(other).collect::<Result<Vec<_>, _>>()?.concat();
    if requests.is_empty() {
        return Err(InputError::missing(format!("{origin}: entries"), "at least one [[moe]] or [[family]]"));
    }
    Ok(Catalogue { targets, requests })
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
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    defaults: Defaults,
    #[serde(default)]
    moe: Vec<MoeEntry>,
    #[serde(default)]
    family: Vec<FamilyEntry>,
}

/// A value, or a list that stands for one shape each.
#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "expected a number, a truth value, a name, or a list of one of these")]
enum OneOrMore {
    One(Scalar),
    More(Vec<Scalar>),
}

#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "expected a number, a truth value or a name")]
enum Scalar {
    Int(i64),
    Bool(bool),
    Text(String),
}

impl Scalar {
    fn text(&self) -> String {
        match self {
            Scalar::Int(n) => n.to_string(),
            Scalar::Bool(b) => b.to_string(),
            Scalar::Text(s) => s.clone(),
        }
    }
}

impl OneOrMore {
    fn texts(&self, field: &str, origin: &str) -> Result<Vec<String>, InputError> {
        match self {
            OneOrMore::One(v) => Ok(vec![v.text()]),
            OneOrMore::More(vs) if vs.is_empty() => {
                Err(InputError::not_allowed(format!("{origin}: {field}"), "[]", "one value or more"))
            }
            OneOrMore::More(vs) => Ok(vs.iter().map(Scalar::text).collect()),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Defaults {
    tokens: Option<OneOrMore>,
    ranks: Option<OneOrMore>,
    dtype: Option<OneOrMore>,
    #[serde(default)]
    set: BTreeMap<String, Scalar>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoeEntry {
    model: Option<String>,
    name: Option<String>,
    hidden: Option<u32>,
    experts: Option<u32>,
    topk: Option<u32>,
    tokens: Option<OneOrMore>,
    ranks: Option<OneOrMore>,
    dtype: Option<OneOrMore>,
    #[serde(default)]
    set: BTreeMap<String, Scalar>,
}

impl MoeEntry {
    fn requests(&self, defaults: &Defaults, origin: &str) -> Result<Vec<Request>, InputError> {
        let model = self.model(origin)?;
        let pick = |field: &str, own: &Option<OneOrMore>, default: &Option<OneOrMore>, fallback: &str| {
            let given = own.as_ref().or(default.as_ref());
            let texts = given.map_or(Ok(vec![fallback.to_owned()]), |v| v.texts(field, origin))?;
            Ok((field.to_owned(), texts))
        };
        let lists = [
            pick("tokens", &self.tokens, &defaults.tokens, DEFAULT_TOKENS)?,
            pick("ranks", &self.ranks, &defaults.ranks, DEFAULT_RANKS)?,
            pick("dtype", &self.dtype, &defaults.dtype, DEFAULT_DTYPE)?,
        ];
        let mut set = defaults.set.clone();
        set.extend(self.set.clone());
        let tuning: Vec<_> = set.iter().map(|(f, v)| (f.clone(), v.text())).collect();
        let request = |rest: Vec<(String, String)>| Request {
            label: models::slug(self.name.as_ref().unwrap_or(&model.name)),
            origin: Some(origin.to_owned()),
            scope: Scope::Moe,
            key: shape_settings(&model.shape).into_iter().chain(rest).collect(),
            tuning: tuning.clone(),
        };
        Ok(combinations(&lists).into_iter().map(request).collect())
    }

    fn model(&self, origin: &str) -> Result<Model, InputError> {
        let what = self.model.as_ref().or(self.name.as_ref());
        let field = format!("{origin}: [[moe]] {}", what.map_or("", String::as_str));
        match (&self.model, self.hidden, self.experts, self.topk) {
            (Some(name), None, None, None) => models::find(name).cloned().map_err(|mut e| {
                e.field = format!("{origin}: model");
                e
            }),
            (None, Some(hidden), Some(experts), Some(topk)) => {
                let shape = Shape { hidden, experts, topk };
                Ok(Model { name: self.name.clone().unwrap_or_else(|| shape.label()), shape })
            }
            (None, ..) => Err(InputError::missing(
                field.trim_end().to_owned(),
                "either model, or all of hidden, experts and topk",
            )),
            (Some(name), ..) => Err(InputError::conflict(
                field,
                name,
                "hidden, experts or topk beside it",
                "either model, or all of hidden, experts and topk",
            )),
        }
    }
}

/// The key fields of a shape.
pub(crate) fn shape_settings(shape: &Shape) -> Vec<(String, String)> {
    [("hidden", shape.hidden), ("experts", shape.experts), ("topk", shape.topk)]
        .map(|(field, value)| (field.to_owned(), value.to_string()))
        .into()
}

#[derive(Deserialize)]
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
        let request = |key| Request {
            label: label.clone(),
            origin: Some(origin.to_owned()),
            scope: Scope::Family(self.family.clone()),
            key,
            tuning: vec![],
        };
        Ok(combinations(&lists).into_iter().map(request).collect())
    }
}

/// Every combination of one value of each list; the last list varies fastest.
fn combinations(lists: &[(String, Vec<String>)]) -> Vec<Vec<(String, String)>> {
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
