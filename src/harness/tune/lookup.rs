//! From a shape to what was tuned for it.

use std::path::Path;

use peerwarp_codegen::family::Target;
use rayon::prelude::*;

use super::key::Key;
use super::space::for_shape;
use super::table::{Record, Table, TableError};
use crate::families::moe::MoeError;
use crate::families::moe::run::MoeTuning;
use crate::input::InputError;
use crate::models::slug;

/// The tables that come with this program, by [`device_slug`]: all of generated/tuned.
const BUILTIN: [(&str, &str); 1] = [("h200", include_str!("../../../generated/tuned/h200.toml"))];

/// A shape without a record may take that of as many tokens times or divided by this.
const ALIKE: u32 = 2;

/// The tables' name of a device: `h200` for `NVIDIA H200`.
pub fn device_slug(device: &str) -> String {
    let name = slug(device);
    name.strip_prefix("nvidia-").or(name.strip_prefix("amd-")).unwrap_or(&name).to_owned()
}

/// The tuned variants of one device, to look shapes up in.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    table: Table,
}

/// What a shape gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The pair.
    pub tuning: MoeTuning,
    /// Why this one.
    pub by: Choice,
}

/// Where a pair comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Choice {
    /// It was measured to be the best for just this shape and layout.
    Tuned,
    /// It was for another number of tokens, and everything else the same.
    Alike {
        /// The tokens that it was measured with.
        tokens: u32,
    },
    /// It is the default.
    Default,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Choice::Tuned => f.write_str("tuned"),
            Choice::Alike { tokens } => write!(f, "as tuned for {tokens} tokens"),
            Choice::Default => f.write_str("default"),
        }
    }
}

impl Tuned {
    /// Of a table.
    pub fn new(table: Table) -> Tuned {
        Tuned { table }
    }

    /// The table that comes with this program for a device, by the driver's name for it; none if there is none.
    pub fn builtin(device: &str, target: Target) -> Option<Tuned> {
        let tuned = Tuned::of_slug(&BUILTIN, &device_slug(device))?;
        tuned.table.check_device(device, target).ok().map(|()| tuned)
    }

    /// From what a user says: the name of a table that comes with this program, or else a file. All of its records have to
    /// be of kernels as they are now: who names a table is not to get defaults in silence.
    pub fn named(name: &str) -> Result<Tuned, InputError> {
        Tuned::named_in(&BUILTIN, name)
    }

    fn named_in(builtin: &[(&str, &str)], name: &str) -> Result<Tuned, InputError> {
        let path = Path::new(name);
        let own = Tuned::of_slug(builtin, &name.to_lowercase());
        if own.is_none() && path.extension().is_none_or(|end| end != "toml") {
            let known: Vec<&str> = builtin.iter().map(|(device, _)| *device).collect();
            let mut error = InputError::unknown("--tuned", name, known.iter().copied());
            error.allowed = [known.join(", "), "a FILE.toml that `tune` wrote".into()].join(" or ");
            return Err(error);
        }
        let tuned = own.map_or_else(|| Table::read(path).map(Tuned::new), Ok);
        let tuned = tuned.and_then(|tuned| tuned.check().map(|()| tuned));
        tuned.map_err(|e| InputError::malformed("--tuned", name, e, "a table that `tune` wrote"))
    }

    fn of_slug(builtin: &[(&str, &str)], name: &str) -> Option<Tuned> {
        let (_, text) = builtin.iter().find(|(device, _)| *device == name)?;
        Some(Tuned::new(Table::parse(text, name).expect("embedded tables are well-formed")))
    }

    /// Whether every record is of kernels as they are emitted now; else the first that is not.
    pub fn check(&self) -> Result<(), TableError> {
        let checked = self.table.records.par_iter().map(|record| self.table.tuning(record).map(drop));
        checked.collect::<Vec<_>>().into_iter().collect()
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The pair for a shape with a layout: its own record, else that of the nearest number of tokens within a factor of two,
    /// with the same layout, that is legal for it. None if there is neither, or the kernels have changed since.
    pub fn find(&self, key: &Key) -> Option<Chosen> {
        let own = self.table.record(key).and_then(|record| self.table.tuning(record).ok());
        if let Some(tuning) = own {
            return Some(Chosen { tuning, by: Choice::Tuned });
        }
        let asked = key.shape.tokens;
        let near =
            |tokens: u32| tokens <= asked.saturating_mul(ALIKE) && asked <= tokens.saturating_mul(ALIKE);
        let mut tokens = others(&self.table, key);
        tokens.retain(|&n| near(n));
        tokens.into_iter().find_map(|n| {
            let record = self.table.record(&key.with_tokens(n))?;
            let tuning = for_shape(&self.table.tuning(record).ok()?, &key.shape)?;
            Some(Chosen { tuning, by: Choice::Alike { tokens: n } })
        })
    }

    /// The pair for a shape with a layout: [`Tuned::find`], else the defaults.
    pub fn choose(tuned: Option<&Tuned>, key: &Key) -> Result<Chosen, MoeError> {
        match tuned.and_then(|tuned| tuned.find(key)) {
            Some(chosen) => Ok(chosen),
            None => Ok(Chosen { tuning: key.defaults()?, by: Choice::Default }),
        }
    }
}

/// What won for the next fewer and the next more tokens, with the same layout, where it is legal for a shape: good starts
/// for its search.
pub(super) fn alike(table: &Table, key: &Key) -> Vec<MoeTuning> {
    let (tokens, asked) = (others(table, key), key.shape.tokens);
    let fewer = tokens.iter().copied().filter(|&n| n < asked).max();
    let more = tokens.iter().copied().filter(|&n| n > asked).min();
    let of = |tokens: u32| {
        let record = table.record(&key.with_tokens(tokens))?;
        for_shape(&record.tuning().ok()?, &key.shape)
    };
    fewer.into_iter().chain(more).filter_map(of).collect()
}

/// The tokens of all records that have everything else as this key, nearest first by ratio; of two as near, the more.
fn others(table: &Table, key: &Key) -> Vec<u32> {
    let asked = key.shape.tokens;
    let like = |k: &Key| k.with_tokens(asked) == *key && k.shape.tokens != asked;
    let of = |k: Key| k.shape.tokens;
    let mut tokens: Vec<u32> = table.records.iter().map(Record::key).filter(like).map(of).collect();
    let off = |n: u32| (f64::from(n) / f64::from(asked)).ln().abs();
    tokens.sort_by(|a, b| off(*a).total_cmp(&off(*b)).then(b.cmp(a)));
    tokens
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
