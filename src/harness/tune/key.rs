//! What candidates are tuned for.

use std::collections::BTreeMap;
use std::fmt;

use peerwarp_codegen::family::{FieldInfo, FieldRole, Value, Variant};
use serde::{Deserialize, Serialize};

/// Names and values of key fields.
pub type KeyFields = BTreeMap<String, KeyValue>;

/// The value of a key field, as tables have it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeyValue {
    /// Of a `bool` field.
    Bool(bool),
    /// Of an integer field.
    Number(i64),
    /// Of an enum, by its name.
    Name(String),
}

impl From<Value> for KeyValue {
    fn from(value: Value) -> KeyValue {
        match value {
            Value::Bool(b) => KeyValue::Bool(b),
            Value::Name(name) => KeyValue::Name(name.to_owned()),
            // What TOML has no integer for is written out.
            Value::Int(n) => {
                i64::try_from(n).map_or_else(|_| KeyValue::Name(n.to_string()), KeyValue::Number)
            }
        }
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyValue::Bool(b) => b.fmt(f),
            KeyValue::Number(n) => n.fmt(f),
            KeyValue::Name(name) => f.write_str(name),
        }
    }
}

/// What a record is of: the problem of a suite's families, as their key fields say it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    /// Name of the suite.
    pub suite: String,
    /// Names of the families, in order.
    pub families: Vec<String>,
    /// The key fields of all components. One that several have is here once if it has one value, and otherwise as
    /// `family.field`.
    #[serde(rename = "key")]
    pub fields: KeyFields,
}

impl Key {
    /// What these variants of a suite are for.
    pub fn of(suite: &str, variants: &[Variant]) -> Key {
        let mut families: Vec<String> = variants.iter().map(|v| v.family().name().to_owned()).collect();
        families.sort();
        Key {
            suite: suite.to_owned(),
            families,
            fields: fields(variants).map(|f| (f.name, f.value)).collect(),
        }
    }

    /// Its fields in words, without those of `left_out`.
    pub fn in_words(&self, left_out: impl Fn(&str) -> bool) -> String {
        let fields = self.fields.iter().filter(|(name, _)| !left_out(name));
        fields.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    }

    /// The same without these fields: what keys that differ in nothing else have in common.
    pub(super) fn without(&self, left_out: &[String]) -> Key {
        let mut key = self.clone();
        key.fields.retain(|name, _| !left_out.contains(name));
        key
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.suite, self.in_words(|_| false))
    }
}

/// Names, as a [`Key`] has them, of those fields in which a variant for a larger value does for a smaller one.
pub(super) fn covering(variants: &[Variant]) -> Vec<String> {
    let mut names: Vec<String> = fields(variants).filter(|f| f.info.covers).map(|f| f.name).collect();
    names.sort();
    names.dedup();
    names
}

/// A key field of a component.
struct Named {
    name: String,
    info: &'static FieldInfo,
    value: KeyValue,
}

/// The key fields of all components, those that several have in common once for each.
fn fields(variants: &[Variant]) -> impl Iterator<Item = Named> + '_ {
    let value = |variant: &Variant, field: &str| {
        let at = variant.family().fields().iter().position(|f| f.role == FieldRole::Key && f.name == field);
        at.map(|at| variant.values()[at])
    };
    variants.iter().flat_map(move |variant| {
        let family = variant.family();
        let all = family.fields().iter().zip(variant.values());
        let keys = all.filter(|(f, v)| f.role == FieldRole::Key && !f.is_left_out(*v));
        keys.map(move |(info, own)| {
            let everywhere = variants.iter().filter_map(|v| value(v, info.name)).all(|other| other == own);
            let name = match everywhere {
                true => info.name.to_owned(),
                false => format!("{}.{}", family.name(), info.name),
            };
            Named { name, info, value: own.into() }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::example::{KEY, defaults, pair};
    use super::*;

    #[test]
    fn equal_fields_are_there_once_and_others_by_family() {
        let key = Key::of("pair", pair(KEY).variants());
        assert_eq!(key.to_string(), "pair: dtype f32, hidden 64, layout rows, ranks 2, tokens 16");
        let key = Key::of("pair", defaults(KEY, "bf16").variants());
        assert_eq!(
            key.in_words(|name| name == "hidden"),
            "get.dtype f32, layout rows, put.dtype bf16, ranks 2, tokens 16"
        );
        assert_eq!(covering(pair(KEY).variants()), ["tokens"]);
        assert_eq!(KeyValue::from(Value::Int(1 << 70)), KeyValue::Name((1i128 << 70).to_string()));
    }
}
