//! Which variant of a pack runs a problem, where the program does not have the family's type.

use std::collections::BTreeSet;
use std::sync::Arc;

use peerwarp_codegen::family::Target;
use serde_json::Value;

use crate::build::pack::{Entry, Pack, PackError, PackFamily, PackField, PackedKernel};
use crate::input::InputError;
use crate::runtime::registry::{CoverKey, Covering, Selected};

/// Why a pack has nothing for a problem.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// The family, a key field or its value, or all of them together.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A file of the pack.
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// The value of a key field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// Of a field that covers: a variant with more does as well.
    Covers(u64),
    Is(Value),
}

/// The values of a family's key fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key(Vec<Part>);

impl CoverKey for Key {
    fn class(&self) -> Key {
        let of = |part: &Part| if let Part::Covers(_) = part { Part::Covers(0) } else { part.clone() };
        Key(self.0.iter().map(of).collect())
    }

    fn covers(&self, asked: &Key) -> bool {
        self.covered().zip(asked.covered()).all(|(has, asked)| has >= asked)
    }

    fn volume(&self) -> u128 {
        self.covered().fold(1, |all, n| u128::saturating_mul(all, n.into()))
    }

    fn distance(&self, asked: &Key) -> (usize, u128) {
        let differ = self.class().0.iter().zip(&asked.class().0).filter(|(a, b)| a != b).count();
        let short = self.covered().zip(asked.covered()).filter(|(has, asked)| has < asked).count();
        let off = self.0.iter().zip(&asked.0).map(|(a, b)| apart(a, b)).fold(0, u128::saturating_add);
        (differ + short, off)
    }
}

impl Key {
    fn covered(&self) -> impl Iterator<Item = u64> {
        self.0.iter().filter_map(|part| if let Part::Covers(n) = part { Some(*n) } else { None })
    }
}

/// How far two numbers are from each other; names have no distance.
fn apart(a: &Part, b: &Part) -> u128 {
    let number = |part: &Part| match part {
        Part::Covers(n) => Some(i128::from(*n)),
        Part::Is(value) => value.as_i64().map(i128::from),
    };
    number(a).zip(number(b)).map_or(0, |(a, b)| a.abs_diff(b))
}

/// The value in a text, of the type that a variant's value has.
fn parse(field: &PackField, text: &str, like: &Value) -> Result<Part, InputError> {
    let value = match like {
        Value::Number(_) => text.parse::<i64>().ok().map(Value::from),
        Value::Bool(_) => text.parse::<bool>().ok().map(Value::from),
        _ => Some(Value::from(text)),
    };
    let part = value.and_then(|value| part(field, &value));
    part.ok_or_else(|| InputError::not_allowed(&field.name, text, &field.allowed))
}

fn part(field: &PackField, value: &Value) -> Option<Part> {
    if field.covers { value.as_u64().map(Part::Covers) } else { Some(Part::Is(value.clone())) }
}

/// A variant's value of a field. Names of variants leave out fields that have their defaults.
fn value<'a>(field: &'a PackField, entry: &'a Entry) -> Option<&'a Value> {
    entry.key.get(&field.name).or(field.default.as_ref())
}

impl Pack {
    /// A family that it has variants of, by name.
    ///
    /// # Errors
    /// The pack has none of this name.
    pub fn family(&self, name: &str) -> Result<&PackFamily, InputError> {
        let families = &self.manifest().families;
        let found = families.iter().find(|family| family.name == name);
        found.ok_or_else(|| InputError::unknown("family", name, families.iter().map(|f| f.name.as_str())))
    }

    /// The variant of a family for a problem, as a [`Registry`](crate::runtime::registry::Registry) selects it: the one for just this
    /// key, else the one that covers it with as little more as there is. Without a target, of those for any target. `key` may leave out
    /// fields that have defaults, and the one that says how many ranks there are.
    ///
    /// # Errors
    /// There is no such family or field, a value is not one of the field's, a field has no value, or no variant does: the nearest
    /// are named. A file of the pack is not the one that the manifest means.
    pub fn select(
        &self,
        family: &str,
        mut key: Vec<(String, String)>,
        ranks: u32,
        target: Option<Target>,
    ) -> Result<Arc<PackedKernel>, SelectError> {
        let family = self.family(family)?;
        let is_left_out = |field: &PackField| key.iter().all(|(name, _)| *name != field.name);
        let left_out = family.key.iter().find(|field| field.ranks && is_left_out(field));
        key.extend(left_out.map(|field| (field.name.clone(), ranks.to_string())));
        let entries = self.manifest().kernels.iter();
        let entries = entries.filter(|entry| entry.family == family.name && !entry.ir.is_empty());
        let (own, others): (Vec<&Entry>, Vec<&Entry>) =
            entries.partition(|entry| target.is_none_or(|target| entry.target == target));
        let asked = asked(family, &key, own.first().or(others.first()).copied())?;
        let mut all: Covering<Key, &Entry> = Covering::default();
        for entry in own {
            let key: Option<Vec<Part>> =
                family.key.iter().map(|field| part(field, value(field, entry)?)).collect();
            key.into_iter().for_each(|key| all.add(Key(key), entry));
        }
        match all.find(&asked) {
            Some(Selected::Exact(entry) | Selected::Covering(entry)) => Ok(Arc::new(self.carried(entry)?)),
            Some(Selected::Jit) | None => Err(none_for(family, &asked, &all, &others, target).into()),
        }
    }
}

/// The key that settings ask for. `like` is a variant of the family, whose values say which type each field has.
fn asked(family: &PackFamily, given: &[(String, String)], like: Option<&Entry>) -> Result<Key, InputError> {
    let known = || family.key.iter().map(|field| field.name.as_str());
    for (at, (name, value)) in given.iter().enumerate() {
        if !known().any(|field| field == name) {
            return Err(InputError::unknown(format!("field of {}", family.name), name, known()));
        }
        if let Some((_, first)) = given[..at].iter().find(|(earlier, _)| earlier == name) {
            return Err(InputError::conflict(name, value, format!("{name} = {first}"), "one value"));
        }
    }
    let one = |field: &PackField| {
        let missing = || InputError::missing(&field.name, &field.allowed);
        let like = like.and_then(|entry| value(field, entry));
        match given.iter().find(|(name, _)| *name == field.name) {
            Some((_, text)) => parse(field, text, like.unwrap_or(&Value::Null)),
            None => field.default.as_ref().and_then(|value| part(field, value)).ok_or_else(missing),
        }
    };
    Ok(Key(family.key.iter().map(one).collect::<Result<_, _>>()?))
}

fn none_for(
    family: &PackFamily,
    asked: &Key,
    all: &Covering<Key, &Entry>,
    others: &[&Entry],
    target: Option<Target>,
) -> InputError {
    let word = |part: &Part| match part {
        Part::Covers(n) => n.to_string(),
        Part::Is(Value::String(text)) => text.clone(),
        Part::Is(value) => value.to_string(),
    };
    let fields =
        family.key.iter().zip(&asked.0).map(|(field, part)| format!("{} = {}", field.name, word(part)));
    let nearest = all.nearest(asked, |entry| entry.variant.clone());
    let allowed = match (nearest.as_slice(), target) {
        ([], Some(target)) if !others.is_empty() => {
            let targets: BTreeSet<_> = others.iter().map(|e| e.target.to_string()).collect();
            let targets: Vec<String> = targets.into_iter().collect();
            format!("that of a variant for {target}; the pack has the family for {}", targets.join(", "))
        }
        ([], _) => {
            "that of a variant whose kernel the pack carries; write the pack anew with `peerwarp pack`".into()
        }
        (near, _) => format!("that of a variant in the pack; the nearest are {}", near.join(", ")),
    };
    InputError::not_allowed(format!("key of {}", family.name), fields.collect::<Vec<_>>().join(", "), allowed)
}
