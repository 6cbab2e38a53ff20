//! What tuning found for one key, as tables have it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use peerwarp_codegen::family::{FamilyEntry, NameError, Variant};
use serde::{Deserialize, Serialize};

use super::components::Candidate;
use super::key::{Key, KeyFields};
use super::table::TableError;
use crate::harness::workload::Suite;

/// Names of variants by those of their families.
pub type Names = BTreeMap<String, String>;

/// [Revisions](peerwarp_codegen::family::Family::REVISION) of families, by their names.
pub type Revisions = BTreeMap<String, u32>;

/// What tuning found for one [`Key`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Name of the suite.
    pub suite: String,
    /// The day it was measured, `2026-11-22`.
    pub measured: String,
    /// How many candidates were timed.
    pub tried: u32,
    /// The least that a round can take there, in microseconds; none if the machine is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_us: Option<f64>,
    /// The winner's median round in one graph, of the slowest rank, in microseconds, from the run-off. It contains the floor
    /// of a graph launch, as all times do.
    pub us: f64,
    /// What it is of: fields as in [`Key::fields`].
    pub key: KeyFields,
    /// The winner.
    pub variants: Names,
    /// The revisions that its families had. A family that is missing had an earlier one than any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revisions: Revisions,
    /// The winner's components each by itself, by the names of their metrics: medians as above, from the search.
    pub metrics: BTreeMap<String, f64>,
    /// What is taken without tuning.
    pub default: Timed,
    /// What the cost model would take, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Timed>,
    /// What it was made with.
    pub made: Made,
    /// How many variants were not tried, by the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pruned: BTreeMap<String, u32>,
    /// Variants that were tried and cannot be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refusal>,
}

/// A candidate and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Median of a round in one graph, in the same run-off as the winner's, in microseconds; none if it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Its variants.
    pub variants: Names,
}

/// What a record was made with. A driver of another major version makes it [earlier](Record::is_current).
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

/// A variant that cannot be used, or several that cannot be used together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Its name.
    pub variant: String,
    /// Why.
    pub reason: String,
}

/// The names of a candidate.
pub(super) fn names(candidate: &Candidate) -> Names {
    let family = |v: &Variant| v.family().name().to_owned();
    candidate.variants().iter().map(family).zip(candidate.names().iter().cloned()).collect()
}

/// The revisions of a candidate's families.
pub(super) fn revisions(candidate: &Candidate) -> Revisions {
    candidate.variants().iter().map(|v| (v.family().name().to_owned(), v.family().revision())).collect()
}

/// The major version of a driver: `CUDA 13` of `CUDA 13.0`.
fn major(driver: &str) -> &str {
    driver.split('.').next().unwrap_or(driver)
}

impl Timed {
    /// The names of a candidate, with its time.
    pub fn of(candidate: &Candidate, us: Option<f64>) -> Timed {
        Timed { variants: names(candidate), us }
    }
}

impl Record {
    /// What it is of.
    pub fn of(&self) -> Key {
        let families = self.variants.keys().cloned().collect();
        Key { suite: self.suite.clone(), families, fields: self.key.clone() }
    }

    fn invalid(
        &self,
        field: impl Into<String>,
        value: impl Display,
        allowed: impl Into<String>,
    ) -> TableError {
        let (key, field) = (Box::new(self.of()), field.into());
        TableError::Value { key, field, value: value.to_string(), allowed: allowed.into() }
    }

    /// Whether its values make sense, whichever suite it is of.
    ///
    /// # Errors
    /// The first that does not.
    pub(super) fn check(&self) -> Result<(), TableError> {
        for (field, empty) in [
            ("suite", self.suite.trim().is_empty()),
            ("key", self.key.is_empty()),
            ("variants", self.variants.is_empty()),
        ] {
            if empty {
                return Err(self.invalid(field, "", "something"));
            }
        }
        if self.tried == 0 {
            return Err(self.invalid("tried", 0, "1 or more: the winner was timed"));
        }
        if let Some((family, revision)) = self.revisions.iter().find(|(f, _)| !self.variants.contains_key(*f))
        {
            let known = self.variants.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(self.invalid(format!("revisions.{family}"), revision, format!("of {known}")));
        }
        if self.measured.len() != "2026-11-22".len()
            || humantime::parse_rfc3339(&format!("{}T00:00:00Z", self.measured)).is_err()
        {
            return Err(self.invalid("measured", &self.measured, "a day, as in 2026-11-22"));
        }
        self.check_times()?;
        self.check_words()?;
        let families = |names: &Names| names.keys().cloned().collect::<BTreeSet<_>>();
        let others = [("default", Some(&self.default)), ("model", self.model.as_ref())];
        for (field, timed) in others.into_iter().filter_map(|(field, timed)| Some((field, timed?))) {
            if families(&timed.variants) != families(&self.variants) {
                let of = |names: &Names| names.keys().cloned().collect::<Vec<_>>().join(", ");
                let (found, allowed) = (of(&timed.variants), of(&self.variants));
                return Err(self.invalid(
                    format!("families of {field}"),
                    found,
                    format!("{allowed}, as of the winner"),
                ));
            }
        }
        Ok(())
    }

    /// What was written down in words is a line of text each.
    fn check_words(&self) -> Result<(), TableError> {
        let Made { peerwarp, driver, compiler } = &self.made;
        let made = [("made.peerwarp", peerwarp), ("made.driver", driver), ("made.compiler", compiler)];
        let mut all: Vec<(String, &str)> =
            made.iter().map(|(name, word)| ((*name).to_owned(), word.as_str())).collect();
        let timed = [("variants", Some(&self.variants)), ("default.variants", Some(&self.default.variants))];
        let model = ("model.variants", self.model.as_ref().map(|model| &model.variants));
        for (field, names) in
            timed.into_iter().chain([model]).filter_map(|(field, names)| Some((field, names?)))
        {
            all.extend(names.iter().map(|(family, name)| (format!("{field}.{family}"), name.as_str())));
            all.extend(names.keys().map(|family| (format!("families of {field}"), family.as_str())));
        }
        all.extend(self.key.keys().map(|name| ("names in key".to_owned(), name.as_str())));
        all.extend(self.metrics.keys().map(|name| ("names in metrics".to_owned(), name.as_str())));
        all.extend(self.pruned.keys().map(|name| ("names in pruned".to_owned(), name.as_str())));
        all.extend(
            self.refused.iter().map(|refusal| ("refused.variant".to_owned(), refusal.variant.as_str())),
        );
        match all.into_iter().find(|(_, word)| word.trim().is_empty() || word.contains(char::is_control)) {
            Some((field, word)) => Err(self.invalid(field, format!("{word:?}"), "a line of text")),
            None => Ok(()),
        }
    }

    /// Times are finite and greater than 0.
    fn check_times(&self) -> Result<(), TableError> {
        let model = self.model.as_ref().and_then(|model| model.us);
        let times = [
            ("us", Some(self.us)),
            ("limit_us", self.limit_us),
            ("default.us", self.default.us),
            ("model.us", model),
        ];
        let times = times.into_iter().filter_map(|(field, us)| Some((field.to_owned(), us?)));
        let metrics = self.metrics.iter().map(|(name, us)| (format!("metrics.{name}"), *us));
        match times.chain(metrics).find(|(_, us)| !us.is_finite() || *us <= 0.0) {
            Some((field, us)) => Err(self.invalid(field, us, "a number of microseconds greater than 0")),
            None => Ok(()),
        }
    }

    /// Whether its times are those of the kernels as they are now: with the families' revisions and, if that is known, the driver's
    /// major version.
    pub fn is_current(&self, suite: &dyn Suite, driver: Option<&str>) -> bool {
        let families = suite.families();
        let is = |name: &String| {
            families.iter().any(|f| f.name() == name && self.revisions.get(name) == Some(&f.revision()))
        };
        self.variants.keys().all(is) && driver.is_none_or(|now| major(now) == major(&self.made.driver))
    }

    /// The winner, whether or not it is [current](Record::is_current).
    ///
    /// # Errors
    /// A variant does not exist, is not of the record's key, or they do not go together.
    pub fn winner(&self, suite: &dyn Suite) -> Result<Candidate, TableError> {
        self.default.candidate(self, suite)?;
        self.model.as_ref().map_or(Ok(()), |model| model.candidate(self, suite).map(drop))?;
        self.candidate(suite, &self.variants)
    }

    fn candidate(&self, suite: &dyn Suite, names: &Names) -> Result<Candidate, TableError> {
        let families = suite.families();
        if let Some(unknown) = names.keys().find(|name| !families.iter().any(|f| f.name() == name.as_str())) {
            let known: Vec<&str> = families.iter().map(|f| f.name()).collect();
            return Err(self.invalid("family", unknown, format!("one of {}", known.join(", "))));
        }
        let parse = |family: &FamilyEntry| Some(family.parse(names.get(family.name())?));
        let variants: Result<Vec<Variant>, NameError> = families.iter().filter_map(parse).collect();
        let variants =
            variants.map_err(|e| TableError::Variant { key: Box::new(self.of()), source: Box::new(e) })?;
        self.check_key(&Key::of(&self.suite, &variants).fields)?;
        let together = suite.components().check(&variants);
        together.map_err(|reason| TableError::Together { key: Box::new(self.of()), reason })?;
        Ok(Candidate::new(variants))
    }

    /// Whether the variants are for the key that the record says.
    fn check_key(&self, own: &KeyFields) -> Result<(), TableError> {
        let differs = |(name, value): &(&String, _)| self.key.get(*name) != Some(*value);
        if let Some((name, value)) = own.iter().find(differs) {
            let found = self.key.get(name).map_or_else(String::new, ToString::to_string);
            return Err(self.invalid(
                format!("key.{name}"),
                found,
                format!("{value}, as its variants have it"),
            ));
        }
        match self.key.iter().find(|(name, _)| !own.contains_key(*name)) {
            Some((name, value)) => {
                Err(self.invalid(format!("key.{name}"), value, "no field that its variants lack"))
            }
            None => Ok(()),
        }
    }
}

impl Timed {
    fn candidate(&self, record: &Record, suite: &dyn Suite) -> Result<Candidate, TableError> {
        record.candidate(suite, &self.variants)
    }
}
