//! The table of what was tuned for one device, as it is kept on disk.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use peerwarp_codegen::family::{Choice as _, Family, NameError, Target};
use serde::{Deserialize, Serialize};

use super::digest::digest;
use super::key::Key;
use crate::build::emit::EmitError;
use crate::build::replace::Replacement;
use crate::families::moe::kernels::{Combine, Dispatch, Layout};
use crate::families::moe::run::MoeTuning;
use crate::families::moe::{MoeError, MoeShape};

/// Version of the format. Tables of another one are refused.
pub const SCHEMA: u32 = 2;

/// What was tuned for one device: a TOML file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Version of the format: [`SCHEMA`].
    pub schema: u32,
    /// The GPUs' name, as their driver says it: `NVIDIA H200`.
    pub device: String,
    /// What kernels were compiled for.
    pub target: Target,
    /// One for each key, in the order of [`Table::insert`].
    #[serde(default, rename = "record", skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Record>,
}

/// What tuning found for one [`Key`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The winner.
    pub winner: Pair,
    /// Digest of the winner's emitted source: kernels that have changed since are others, and their times unknown.
    pub kernels: String,
    /// The day it was measured, `2026-11-22`.
    pub measured: String,
    /// How many pairs were timed.
    pub tried: u32,
    /// How rows stand between dispatch and combine: with the shape, the key.
    pub layout: Layout,
    /// The least that a round trip can take there; none if the machine is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_us: Option<f64>,
    /// The shape.
    pub shape: MoeShape,
    /// The winner's times.
    pub us: Times,
    /// What is taken without tuning.
    pub default: Timed,
    /// What the cost model would take.
    pub model: Timed,
    /// What it was made with.
    pub made: Made,
    /// How many kernels were not tried, by the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pruned: BTreeMap<String, u32>,
    /// Kernels that were tried and cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refusal>,
}

/// A dispatch and a combine that go together, by their variants' names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Dispatch.
    pub dispatch: String,
    /// Combine.
    pub combine: String,
}

/// Median times of the slowest rank, in microseconds. Each contains the floor of a graph launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// Dispatch and combine in one graph, from the run-off.
    pub round_trip: f64,
    /// Dispatch alone.
    pub dispatch: f64,
    /// Combine alone.
    pub combine: f64,
}

/// A pair and its times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Dispatch.
    pub dispatch: String,
    /// Combine.
    pub combine: String,
    /// Median of a round trip in one graph, in the same run-off as the winner's; none if it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<f64>,
}

/// What a record was made with. Told, not compared: none of it changes which kernels run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Made {
    /// Version of this program.
    pub peerwarp: String,
    /// Version of the driver.
    pub driver: String,
    /// The compiler and its version.
    pub compiler: String,
}

/// A kernel that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Its name.
    pub variant: String,
    /// Why.
    pub reason: String,
}

/// Why a table, or a record of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file cannot be read or written.
    #[error("{path}: {reason}")]
    Io {
        /// The file.
        path: String,
        /// The system's words.
        reason: String,
    },
    /// It is not a table.
    #[error("{path}: not a table of tuned kernels: {reason}")]
    Malformed {
        /// The file.
        path: String,
        /// The parser's words.
        reason: String,
    },
    /// It has another version of the format.
    #[error("schema = {found}: must be {SCHEMA}, the version that this program reads; tune anew")]
    Schema {
        /// The version it has.
        found: i64,
    },
    /// It is of another device.
    #[error("{field} = {found}: the table is of another device, it must be {allowed}")]
    Foreign {
        /// `device` or `target`.
        field: &'static str,
        /// What the table says.
        found: String,
        /// What it should be.
        allowed: String,
    },
    /// A record names a variant that does not exist any more.
    #[error("record of {key}: {source}: the kernels have changed; tune anew")]
    Variant {
        /// What the record is of.
        key: Box<Key>,
        /// What is wrong with the name.
        source: Box<NameError>,
    },
    /// A record's variants are not for its shape and layout, or do not go together.
    #[error("record of {key}: {source}")]
    Pair {
        /// What the record is of.
        key: Box<Key>,
        /// What is wrong.
        source: Box<MoeError>,
    },
    /// The kernels are not those that were measured.
    #[error(
        "record of {key}: kernels = {found}: must be {allowed}, as they are emitted now; the kernels have changed, \
         tune anew"
    )]
    Drifted {
        /// What the record is of.
        key: Box<Key>,
        /// Digest of what was measured.
        found: String,
        /// Digest of what is emitted now.
        allowed: String,
    },
    /// A kernel's source cannot be had.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

impl Table {
    /// An empty one.
    pub fn new(device: &str, target: Target) -> Table {
        Table { schema: SCHEMA, device: device.into(), target, records: vec![] }
    }

    /// Parses a table; `path` is its file's name for errors.
    pub fn parse(text: &str, path: &str) -> Result<Table, TableError> {
        let malformed =
            |e: toml::de::Error| TableError::Malformed { path: path.into(), reason: e.to_string() };
        // The version first: another one has other fields.
        let any: toml::Table = text.parse().map_err(malformed)?;
        match any.get("schema") {
            Some(toml::Value::Integer(n)) if *n == i64::from(SCHEMA) => {}
            Some(toml::Value::Integer(n)) => return Err(TableError::Schema { found: *n }),
            _ => {
                let reason = "`schema`, a number, is missing".into();
                return Err(TableError::Malformed { path: path.into(), reason });
            }
        }
        toml::from_str(text).map_err(malformed)
    }

    /// Reads a table.
    pub fn read(path: &Path) -> Result<Table, TableError> {
        let shown = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|e| TableError::Io { path: shown.clone(), reason: e.to_string() })?;
        Table::parse(&text, &shown)
    }

    /// Its text.
    pub fn text(&self) -> String {
        let body = toml::to_string(self).expect("a table of numbers and names");
        format!("# Written by `peerwarp tune`, see docs/tuning.md. Do not edit.\n\n{body}")
    }

    /// Writes it: as a whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        let io =
            |e: std::io::Error| TableError::Io { path: path.display().to_string(), reason: e.to_string() };
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(io)?;
        let file = Replacement::of(path).map_err(io)?;
        file.write(|file| file.write_all(self.text().as_bytes())).map_err(io)
    }

    /// Whether it is of this device.
    pub fn check_device(&self, device: &str, target: Target) -> Result<(), TableError> {
        let foreign = |field, found: &str, allowed: String| {
            Err(TableError::Foreign { field, found: found.into(), allowed })
        };
        if self.device != device {
            return foreign("device", &self.device, device.to_owned());
        }
        match self.target == target {
            true => Ok(()),
            false => foreign("target", &self.target.to_string(), target.to_string()),
        }
    }

    /// The record of a shape with a layout.
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.records.iter().find(|r| r.key() == *key)
    }

    /// The pair of a record, if it is what was measured.
    pub fn tuning(&self, record: &Record) -> Result<MoeTuning, TableError> {
        let tuning = record.tuning()?;
        let now = digest(&tuning, self.target)?;
        match now == record.kernels {
            true => Ok(tuning),
            false => Err(TableError::Drifted {
                key: Box::new(record.key()),
                found: record.kernels.clone(),
                allowed: now,
            }),
        }
    }

    /// Adds a record, or replaces that of the same key. Records are kept in the order of their shapes, those of a layout
    /// together, in the order of tokens.
    pub fn insert(&mut self, record: Record) {
        let key = |r: &Record| {
            let s = r.shape;
            (s.hidden, s.experts, s.topk, s.ranks, s.dtype.to_string(), r.layout.name(), s.tokens)
        };
        match self.records.binary_search_by_key(&key(&record), key) {
            Ok(at) => self.records[at] = record,
            Err(at) => self.records.insert(at, record),
        }
    }
}

impl Record {
    /// What it is of.
    pub fn key(&self) -> Key {
        Key { shape: self.shape, layout: self.layout }
    }

    /// The winner, whether or not its kernels are still what was measured.
    pub(super) fn tuning(&self) -> Result<MoeTuning, TableError> {
        let key = || Box::new(self.key());
        let variant = |e: NameError| TableError::Variant { key: key(), source: Box::new(e) };
        let pair = |e: MoeError| TableError::Pair { key: key(), source: Box::new(e) };
        let dispatch = Dispatch::parse_variant(&self.winner.dispatch).map_err(variant)?;
        let combine = Combine::parse_variant(&self.winner.combine).map_err(variant)?;
        if dispatch.layout != self.layout {
            let allowed = format!("must be {}, as dispatch has it", dispatch.layout.name());
            return Err(pair(MoeError::invalid("layout", self.layout.name(), allowed)));
        }
        let tuning = MoeTuning { dispatch, combine, split: false, round_trip: None };
        tuning.check(&self.shape).map_err(pair)?;
        Ok(tuning)
    }
}

impl Pair {
    /// The names of a pair.
    pub fn of(tuning: &MoeTuning) -> Pair {
        Pair { dispatch: tuning.dispatch.variant_name(), combine: tuning.combine.variant_name() }
    }
}

impl Timed {
    /// The names of a pair, with its time.
    pub fn of(tuning: &MoeTuning, round_trip_us: Option<f64>) -> Timed {
        let Pair { dispatch, combine } = Pair::of(tuning);
        Timed { dispatch, combine, round_trip_us }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
pub(super) mod tests;
