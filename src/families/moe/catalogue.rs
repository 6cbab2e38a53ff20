//! MoE's entries in catalogues: which shapes they ask for, and the catalogues that come with the program.

use std::collections::BTreeMap;

use peerwarp_codegen::family::{FamilyEntry, Registry};
use serde::Deserialize;

use super::select::{DEFAULT_DTYPE, DEFAULT_RANKS, DEFAULT_TOKENS, Settings, families, request};
use super::workload::MoeSuite;
use crate::harness::catalogue::{self, Catalogue, OneOrMore, Scalar, combinations};
use crate::harness::request::Request;
use crate::harness::workload::Suite;
use crate::input::InputError;
use crate::models::{self, Model, Shape};

/// Catalogues that come with the program.
pub const CATALOGUES: &[(&str, &str)] =
    &[("builtin", include_str!("catalogue.toml")), ("reviewed", include_str!("reviewed.toml"))];

/// The built-in catalogue: every built-in model, with token buckets from decoding to prefill.
pub fn builtin() -> Catalogue {
    embedded("builtin")
}

/// The part of the built-in catalogue that `generated/` holds.
pub fn reviewed() -> Catalogue {
    embedded("reviewed")
}

fn embedded(name: &str) -> Catalogue {
    let (_, text) = CATALOGUES.iter().find(|(known, _)| *known == name).expect("a name of the list");
    let registry = Registry::new(MoeSuite.families());
    catalogue::parse(text, name, &[&MoeSuite], &registry).expect("the embedded catalogue is well-formed")
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

/// An entry of the table `[[moe]]`.
///
/// ```toml
/// [defaults]                  # for every [[moe]] that doesn't say otherwise
/// ranks = 8
/// dtype = "bf16"
/// tokens = [8, 128]           # a list stands for one shape each
///
/// [[moe]]
/// model = "deepseek-v3"
///
/// [[moe]]
/// name = "ours"
/// hidden = 4096
/// experts = 64
/// topk = 6
/// tokens = 64
/// layout = "rank-major"
/// set = { send_blocks = 16 }
/// ```
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
    layout: Option<Scalar>,
    #[serde(default)]
    set: BTreeMap<String, Scalar>,
}

/// What an entry of a catalogue's table `[[moe]]` asks for: of each shape, a request for each family that goes together.
///
/// # Errors
/// The entry cannot be read.
pub fn entry(
    entry: &toml::Table,
    defaults: &toml::Table,
    origin: &str,
    registry: &Registry,
) -> Result<Vec<Vec<Request>>, InputError> {
    let defaults: Defaults = catalogue::entry(defaults, "[defaults]", origin)?;
    let entry: MoeEntry = catalogue::entry(entry, "[[moe]]", origin)?;
    entry.requests(&defaults, origin, registry)
}

impl MoeEntry {
    fn requests(
        &self,
        defaults: &Defaults,
        origin: &str,
        registry: &Registry,
    ) -> Result<Vec<Vec<Request>>, InputError> {
        let model = self.model(origin)?;
        let label = models::slug(self.name.as_ref().unwrap_or(&model.name));
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
        set.extend(self.layout.clone().map(|layout| ("layout".to_owned(), layout)));
        let tuning: Settings = set.iter().map(|(f, v)| (f.clone(), v.text())).collect();
        let families = families(registry, &label)?;
        let of_shape = |rest: Settings| {
            let request = |family: &FamilyEntry| Request {
                origin: Some(origin.to_owned()),
                ..request(&label, *family, (&model.shape, &rest), tuning.clone())
            };
            families.iter().map(request).collect()
        };
        Ok(combinations(&lists).into_iter().map(of_shape).collect())
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

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
