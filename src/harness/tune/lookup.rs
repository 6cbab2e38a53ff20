//! From a key to what was tuned for it.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use peerwarp_codegen::family::{Target, Variant};

use super::components::Candidate;
use super::key::{Key, KeyFields, KeyValue, covering};
use super::measure::Task;
use super::record::Record;
use super::space::onto;
use super::table::Table;
use crate::build::digest::sha256;
use crate::harness::workload::Suite;
use crate::input::InputError;
use crate::models::slug;

/// The tables that come with this program, by [`device_slug`]: all of generated/tuned.
const BUILTIN: [(&str, &str); 2] = [
    ("h100-80gb-hbm3", include_str!("../../../generated/tuned/h100-80gb-hbm3.toml")),
    ("h200", include_str!("../../../generated/tuned/h200.toml")),
];

/// Devices that have the table of another one until they have their own, by how their names begin: they are of one class.
const CLASSES: [(&str, &str); 2] = [("h100", "h100-80gb-hbm3"), ("h200", "h200")];

/// A table, and the one of the same architecture that has records for keys which it lacks.
const COMPLETED: [(&str, &str); 1] = [("h100-80gb-hbm3", "h200")];

/// The devices that stand for their targets where there is no GPU.
const OFFLINE: [&str; 1] = ["h200"];

/// A key without a record may take that of a covering field's value times or divided by this.
const ALIKE: i64 = 2;

/// The tables' name of a device: `h200` for `NVIDIA H200`.
pub fn device_slug(device: &str) -> String {
    let name = slug(device);
    name.strip_prefix("nvidia-").or(name.strip_prefix("amd-")).unwrap_or(&name).to_owned()
}

/// The tuned variants of one device, to look keys up in.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuned {
    table: Arc<Table>,
    /// Of the table's text.
    digest: Arc<str>,
    /// The driver of the GPUs that kernels will run on, if it is known.
    driver: Option<String>,
}

/// What a table has for a key.
#[derive(Clone, Debug)]
pub struct Found {
    /// The variants, one for each component.
    pub variants: Vec<Variant>,
    /// Why these.
    pub by: Choice,
}

/// Where variants come from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Choice {
    /// They were measured to be the best for just this key.
    Tuned,
    /// They were for other values of the fields that variants for more cover, and everything else the same.
    Alike {
        /// The values that they were measured with.
        key: KeyFields,
    },
    /// They were measured for this key, or as nearly as [`Choice::Alike`] says, for an earlier revision of their kernels or with a driver
    /// of another major version.
    Earlier {
        /// The values that they were measured with, if others than the key's.
        #[serde(skip_serializing_if = "KeyFields::is_empty")]
        key: KeyFields,
    },
    /// They are the defaults.
    Default,
    /// They are near the defaults, which do not go together.
    Legal,
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = |key: &KeyFields| {
            key.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
        };
        match self {
            Choice::Tuned => f.write_str("tuned"),
            Choice::Alike { key } => write!(f, "as tuned for {}", words(key)),
            Choice::Earlier { key } if key.is_empty() => f.write_str("as measured for an earlier revision"),
            Choice::Earlier { key } => write!(f, "as measured for an earlier revision, {}", words(key)),
            Choice::Default => f.write_str("default"),
            Choice::Legal => f.write_str("the nearest that go together"),
        }
    }
}

/// [`BUILTIN`], each parsed once.
fn builtin() -> &'static [(&'static str, Tuned)] {
    static PARSED: OnceLock<Vec<(&str, Tuned)>> = OnceLock::new();
    PARSED.get_or_init(|| {
        let parse =
            |name: &str, text: &str| Table::parse(text, name).expect("embedded tables are well-formed");
        let tables = BUILTIN.map(|(name, text)| (name, parse(name, text)));
        let completed = |(name, table): &(&'static str, Table)| {
            let completes = |(other, _): &&(&str, Table)| COMPLETED.contains(&(name, other));
            let others = tables.iter().filter(completes).flat_map(|(_, other)| &other.records);
            let mut whole = table.clone();
            let lacking = others.filter(|record| table.record(&record.of()).is_none());
            lacking.for_each(|record| whole.insert(record.clone()));
            (*name, Tuned::new(whole))
        };
        tables.iter().map(completed).collect()
    })
}

impl Tuned {
    /// Of a table.
    pub fn new(table: Table) -> Tuned {
        Tuned { digest: sha256(table.text().as_bytes()).into(), table: Arc::new(table), driver: None }
    }

    /// The same for GPUs with this driver: of another major version, records are earlier ones.
    #[must_use]
    pub fn on_driver(self, driver: &str) -> Tuned {
        Tuned { driver: Some(driver.to_owned()), ..self }
    }

    /// The table that comes with this program for a device, by the driver's name for it, or for its class; none if there is none.
    pub fn builtin(device: &str, target: Target) -> Option<Tuned> {
        let slug = device_slug(device);
        let of_class = |start: &str| {
            slug.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let class = CLASSES.iter().find(|(start, _)| of_class(start)).map(|(_, table)| *table);
        let named = |name: &str| builtin().iter().find(|(known, _)| *known == name);
        let (_, tuned) = named(&slug).or_else(|| named(class?))?;
        (tuned.table.target == target).then(|| tuned.clone())
    }

    /// The table of the device that stands for a target where there is no GPU.
    pub fn builtin_for(target: Target) -> Option<Tuned> {
        let of = |(name, tuned): &&(&str, Tuned)| OFFLINE.contains(name) && tuned.table.target == target;
        builtin().iter().find(of).map(|(_, tuned)| tuned.clone())
    }

    /// From what a user says: the name of a table that comes with this program, or else a file. It warns of records of these suites that
    /// are earlier, and of those that cannot be used.
    ///
    /// # Errors
    /// There is no such table, or it cannot be used.
    pub fn named(name: &str, suites: &[&dyn Suite]) -> Result<Tuned, InputError> {
        Tuned::named_in(builtin(), name, suites)
    }

    fn named_in(builtin: &[(&str, Tuned)], name: &str, suites: &[&dyn Suite]) -> Result<Tuned, InputError> {
        let (path, slug) = (Path::new(name), name.to_lowercase());
        let own = builtin.iter().find(|(device, _)| *device == slug).map(|(_, tuned)| tuned.clone());
        if own.is_none() && path.extension().is_none_or(|end| end != "toml") {
            let known: Vec<&str> = builtin.iter().map(|(device, _)| *device).collect();
            let mut error = InputError::unknown("--tuned", name, known.iter().copied());
            error.allowed = [known.join(", "), "a FILE.toml that `tune` wrote".into()].join(" or ");
            return Err(error);
        }
        let tuned = own.map_or_else(|| Table::read(path).map(Tuned::new), Ok);
        let tuned =
            tuned.map_err(|e| InputError::malformed("--tuned", name, e, "a table that `tune` wrote"))?;
        tuned.notes(suites).iter().for_each(|note| log::warn!("--tuned = {name}: {note}"));
        Ok(tuned)
    }

    /// What a user should know of the records of these suites: how many are earlier, and which cannot be used, and why.
    pub fn notes(&self, suites: &[&dyn Suite]) -> Vec<String> {
        let suite = |record: &Record| suites.iter().copied().find(|suite| suite.name() == record.suite);
        let of: Vec<_> = self.table.records.iter().filter_map(|r| Some((r, suite(r)?))).collect();
        let unusable = of.iter().filter_map(|(record, suite)| record.winner(*suite).err());
        let mut notes: Vec<String> = unusable.map(|why| format!("{why}; it is skipped")).collect();
        let earlier =
            |(record, suite): &&(&Record, &dyn Suite)| !record.is_current(*suite, self.driver.as_deref());
        let earlier: Vec<Key> = of.iter().filter(earlier).map(|(record, _)| record.of()).collect();
        if let Some(first) = earlier.first() {
            let count = format!("{} of {} records", earlier.len(), self.table.records.len());
            let why = "of an earlier revision of their kernels";
            notes.push(format!("{count} are {why}, the first of {first}: they serve as defaults; tune anew"));
        }
        notes
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// A digest of the table: ranks that choose from different ones may choose different variants.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The winners of a suite's records that are legal, one variant for each component.
    pub fn winners(&self, suite: &dyn Suite) -> impl Iterator<Item = Vec<Variant>> {
        let records = self.table.records.iter().filter(move |record| record.suite == suite.name());
        records.filter_map(move |record| Some(record.winner(suite).ok()?.variants().to_vec()))
    }

    /// The variants for the key of these defaults, one for each component: those of its own record, else those of the nearest
    /// key that differs in covering fields only, each by a factor of two at most, as far as their values are legal here. Records of an
    /// earlier revision come after all others. None if there is none of these.
    pub fn find(&self, suite: &dyn Suite, defaults: &[Variant]) -> Option<Found> {
        let key = Key::of(suite.name(), defaults);
        let own = self.table.record(&key).and_then(|record| {
            let winner = in_order(record.winner(suite).ok()?, defaults)?;
            Some((record, winner, KeyFields::new()))
        });
        let (covering, defaults) = (covering(defaults), Candidate::new(defaults));
        let near = |record: &&Record| {
            let off = |name: &String| match (number(&record.key, name), number(&key.fields, name)) {
                (Some(a), Some(b)) => a <= b.saturating_mul(ALIKE) && b <= a.saturating_mul(ALIKE),
                _ => false,
            };
            covering.iter().all(off)
        };
        let near = others(&self.table, &key, &covering).into_iter().filter(near).filter_map(|record| {
            let winner = in_order(record.winner(suite).ok()?, defaults.variants())?;
            let moved = onto(&suite.components(), &Candidate::new(winner), &defaults)?;
            let values = record.key.iter().filter(|(name, _)| covering.contains(name));
            let key = values.map(|(name, value)| (name.clone(), value.clone())).collect();
            Some((record, moved.variants().to_vec(), key))
        });
        let mut earlier = None;
        for (record, variants, key) in own.into_iter().chain(near) {
            let by = match record.is_current(suite, self.driver.as_deref()) {
                true if key.is_empty() => Choice::Tuned,
                true => Choice::Alike { key },
                false => {
                    earlier = earlier.or(Some(Found { variants, by: Choice::Earlier { key } }));
                    continue;
                }
            };
            return Some(Found { variants, by });
        }
        earlier
    }
}

/// A candidate's variants in the order of the families of others.
fn in_order(candidate: Candidate, others: &[Variant]) -> Option<Vec<Variant>> {
    let of = |other: &Variant| {
        let same = |v: &&Variant| v.family().name() == other.family().name();
        candidate.variants().iter().find(same).cloned()
    };
    others.iter().map(of).collect()
}

/// What won for the nearest keys below and above in the covering fields, where it is legal here: good starts for a search.
pub(super) fn alike(table: &Table, task: &Task) -> Vec<Candidate> {
    let (key, suite) = (task.key(), task.suite);
    let covering = covering(task.defaults.variants());
    let all = others(table, &key, &covering);
    let nearest = |side: fn(i64, i64) -> bool| {
        let on_side = |record: &&&Record| {
            covering.iter().all(|name| {
                number(&record.key, name).zip(number(&key.fields, name)).is_some_and(|(a, b)| side(a, b))
            })
        };
        let record = all.iter().find(on_side)?;
        let winner = in_order(record.winner(suite).ok()?, task.defaults.variants())?;
        onto(&suite.components(), &Candidate::new(winner), &task.defaults)
    };
    [nearest(|a, b| a <= b), nearest(|a, b| a >= b)].into_iter().flatten().collect()
}

/// The records that differ from a key in covering fields and nothing else, nearest first by ratio; of two as near, the larger.
fn others<'a>(table: &'a Table, key: &Key, covering: &[String]) -> Vec<&'a Record> {
    let common = key.without(covering);
    let like = |record: &&Record| record.of() != *key && record.of().without(covering) == common;
    let value = |fields: &KeyFields, name| number(fields, name).unwrap_or(1).max(1) as f64;
    let off = |record: &Record| -> f64 {
        covering.iter().map(|name| (value(&record.key, name) / value(&key.fields, name)).ln().abs()).sum()
    };
    let sum = |record: &Record| -> f64 { covering.iter().map(|name| value(&record.key, name)).sum() };
    let mut all: Vec<&Record> = table.records.iter().filter(like).collect();
    all.sort_by(|a, b| off(a).total_cmp(&off(b)).then(sum(b).total_cmp(&sum(a))));
    all
}

fn number(fields: &KeyFields, name: &str) -> Option<i64> {
    match fields.get(name)? {
        KeyValue::Number(n) => Some(*n),
        KeyValue::Bool(_) | KeyValue::Name(_) => None,
    }
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
