//! The table of what was tuned for one device, as it is kept on disk.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use peerwarp_codegen::family::{NameError, Target};
use serde::{Deserialize, Serialize};

use super::key::Key;
use super::record::Record;
use crate::build::replace::Replacement;
use crate::input::Distrust;
use crate::input::file::{self, Links, Refused};
use crate::input::trust::Rule;

/// Version of the format. Tables of version 3 are read too: their records count as earlier. Others are refused.
pub const SCHEMA: u32 = 4;

/// The version in which records had digests of emitted texts in the place of revisions.
const DIGESTS: u32 = 3;

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
    /// One for each key, in the order of [`Table::insert`]. They may be of several suites.
    #[serde(default, rename = "record", skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Record>,
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
    /// Another user owns it or can write it, and it decides which kernels run.
    #[error(
        "{0}; copy the table (`cp`) if you trust its author, or take others' right to write it (`chmod go-w`)"
    )]
    Distrust(#[from] Distrust),
    /// It is not a table.
    #[error("{path}: not a table of tuned kernels: {reason}")]
    Malformed {
        /// The file.
        path: String,
        /// The parser's words.
        reason: String,
    },
    /// It has another version of the format.
    #[error(
        "schema = {found}: must be {DIGESTS} or {SCHEMA}, the versions that this program reads; tune anew"
    )]
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
    /// A record's variants are legal, each by itself, and do not go together.
    #[error("record of {key}: its variants do not go together: {reason}")]
    Together {
        /// What the record is of.
        key: Box<Key>,
        /// Why not.
        reason: String,
    },
    /// A value that a record cannot have.
    #[error("record of {key}: {field} = {value}: must be {allowed}")]
    Value {
        /// What the record is of.
        key: Box<Key>,
        /// The field.
        field: String,
        /// What it has.
        value: String,
        /// What it may have.
        allowed: String,
    },
    /// Two records are of the same.
    #[error("record of {key}: there are two of them, and may be one")]
    Double {
        /// What they are of.
        key: Box<Key>,
    },
}

impl Table {
    /// An empty one.
    pub fn new(device: &str, target: Target) -> Table {
        Table { schema: SCHEMA, device: device.into(), target, records: vec![] }
    }

    /// Parses a table; `path` is its file's name for errors. Records of suites that the program does not know are kept.
    ///
    /// # Errors
    /// It is no table, of another version, or has values that make no sense: times that are not finite or not greater than 0, a
    /// device without a name, days that do not exist, two records of one key.
    pub fn parse(text: &str, path: &str) -> Result<Table, TableError> {
        let malformed =
            |e: toml::de::Error| TableError::Malformed { path: path.into(), reason: e.to_string() };
        // The version first: another one has other fields.
        let any: toml::Table = text.parse().map_err(malformed)?;
        let table: Table = match any.get("schema") {
            Some(toml::Value::Integer(n)) if *n == i64::from(SCHEMA) => toml::from_str(text),
            Some(toml::Value::Integer(n)) if *n == i64::from(DIGESTS) => without_digests(any),
            Some(toml::Value::Integer(n)) => return Err(TableError::Schema { found: *n }),
            _ => {
                let reason = "`schema`, a number, is missing".into();
                return Err(TableError::Malformed { path: path.into(), reason });
            }
        }
        .map_err(malformed)?;
        table.check(path)?;
        Ok(table)
    }

    /// Whether all values make sense, whichever suites the records are of.
    fn check(&self, path: &str) -> Result<(), TableError> {
        if self.device.trim().is_empty() || self.device.chars().any(char::is_control) {
            let reason = format!("device = {:?}: must be the name of GPUs", self.device);
            return Err(TableError::Malformed { path: path.into(), reason });
        }
        let mut keys = BTreeSet::new();
        for record in &self.records {
            record.check()?;
            if !keys.insert(record.of()) {
                return Err(TableError::Double { key: Box::new(record.of()) });
            }
        }
        Ok(())
    }

    /// Reads a table.
    pub fn read(path: &Path) -> Result<Table, TableError> {
        let shown = path.display().to_string();
        let bytes = file::trusted(path, file::TEXT, Links::Follow, Rule::Named).map_err(|e| match e {
            Refused::Io(e) => TableError::Io { path: shown.clone(), reason: e.to_string() },
            Refused::Distrust(why) => why.into(),
        })?;
        let text = String::from_utf8(bytes).map_err(|e| TableError::Malformed {
            path: shown.clone(),
            reason: format!("not UTF-8: {}", e.utf8_error()),
        })?;
        Table::parse(&text, &shown)
    }

    /// Its text.
    pub fn text(&self) -> String {
        let body = toml::to_string(self).expect("a table of numbers and names");
        format!("# Written by `peerwarp tune`, see docs/how-to/tuning.md. Do not edit.\n\n{body}")
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

    /// The record of a key.
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.records.iter().find(|r| r.of() == *key)
    }

    /// Adds a record, or replaces that of the same key. Records are kept in the order of their keys.
    pub fn insert(&mut self, record: Record) {
        match self.records.binary_search_by_key(&record.of(), Record::of) {
            Ok(at) => self.records[at] = record,
            Err(at) => self.records.insert(at, record),
        }
    }
}

/// A table of version 3 as one of now. A digest of a text says no revision.
fn without_digests(mut table: toml::Table) -> Result<Table, toml::de::Error> {
    table.insert("schema".into(), SCHEMA.into());
    let records = table.get_mut("record").and_then(toml::Value::as_array_mut);
    for record in records.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
        record.remove("digest");
    }
    table.try_into()
}

#[cfg(test)]
#[path = "table_tests.rs"]
pub(super) mod tests;
