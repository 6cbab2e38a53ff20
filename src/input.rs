//! What a user got wrong, in one shape: the field, the value found, and what is allowed.
//!
//! Everything that reads a user's input (flags, configuration files, routing files, catalogues) reports an
//! [`InputError`], so that the command line can print it, or give it as JSON, without knowing where it came from.

pub(crate) mod file;
#[cfg(test)]
#[path = "input/log_tests.rs"]
pub(crate) mod logged;
pub(crate) mod trust;

pub use trust::Distrust;

use peerwarp_codegen::family::{FamilyError, Illegal};
use std::fmt;
use std::ops::{Deref, DerefMut};

use serde::{Serialize, Serializer};

/// Why an input is not usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// Not a name that is known.
    Unknown,
    /// Known, but outside of what is allowed.
    NotAllowed,
    /// Not given, and there is no default.
    Missing,
    /// Contradicts another input; says which.
    Conflict(String),
    /// Not in the format that it should have; says where.
    Malformed(String),
    /// The operating system refused; says why.
    Io(String),
}

/// The most bytes that an error shows of a name or a value, and of what it says of one. Files may have values of any length.
const NAME: usize = 500;
const SENTENCE: usize = 4000;

/// A text up to a length, with a note of how much longer it is.
fn start(mut text: String, most: usize) -> String {
    if text.len() > most {
        let all = text.len();
        text.truncate(text.floor_char_boundary(most));
        text += &format!(".. ({all} bytes)");
    }
    text
}

/// A field's name up to its length: what reports an error adds to it where it is.
fn shortened<S: Serializer>(field: &str, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&start(field.to_owned(), NAME))
}

/// The parts of a list as users write it, with commas between. Blanks around a part do not count; a part may be empty, which
/// is for its reader to refuse.
pub(crate) fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

/// An input that cannot be used, with what would do instead. Boxed, because it travels in every result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct InputError(Box<Details>);

/// What an [`InputError`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Details {
    /// What the user would edit: a flag (`--topk`), a file, or a key in a file (`config.json: num_experts`).
    #[serde(serialize_with = "shortened")]
    pub field: String,
    /// What was found there; empty if nothing was.
    pub value: String,
    /// Why that won't do.
    pub problem: Problem,
    /// What would do.
    pub allowed: String,
    /// Known names that look like `value`, best first.
    pub nearest: Vec<String>,
}

impl Deref for InputError {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

impl DerefMut for InputError {
    fn deref_mut(&mut self) -> &mut Details {
        &mut self.0
    }
}

impl InputError {
    fn new(field: impl Into<String>, value: impl fmt::Display, problem: Problem) -> InputError {
        let (field, value) = (field.into(), start(value.to_string(), NAME));
        let problem = match problem {
            Problem::Conflict(with) => Problem::Conflict(start(with, SENTENCE)),
            Problem::Malformed(why) => Problem::Malformed(start(why, SENTENCE)),
            other => other,
        };
        InputError(Box::new(Details { field, value, problem, allowed: String::new(), nearest: vec![] }))
    }

    /// `value` is not among the names `known`; the nearest of them are suggested.
    pub fn unknown<'a>(
        field: impl Into<String>,
        value: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> InputError {
        let known: Vec<&str> = known.into_iter().collect();
        let mut e = InputError::new(field, value, Problem::Unknown).allowed(known.join(", "));
        e.nearest = nearest(&e.value, &known);
        e
    }

    /// `value` is outside of `allowed`.
    pub fn not_allowed(
        field: impl Into<String>,
        value: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> InputError {
        InputError::new(field, value, Problem::NotAllowed).allowed(allowed)
    }

    /// Nothing was given for `field`.
    pub fn missing(field: impl Into<String>, allowed: impl Into<String>) -> InputError {
        InputError::new(field, "", Problem::Missing).allowed(allowed)
    }

    /// `value` contradicts something else.
    pub fn conflict(
        field: impl Into<String>,
        value: impl fmt::Display,
        with: impl Into<String>,
        allowed: impl Into<String>,
    ) -> InputError {
        InputError::new(field, value, Problem::Conflict(with.into())).allowed(allowed)
    }

    /// `value` (often a file's name) does not have the right format.
    pub fn malformed(
        field: impl Into<String>,
        value: impl fmt::Display,
        why: impl fmt::Display,
        allowed: impl Into<String>,
    ) -> InputError {
        InputError::new(field, value, Problem::Malformed(why.to_string())).allowed(allowed)
    }

    /// The operating system refused to read or write `value`.
    pub fn io(field: impl Into<String>, value: impl fmt::Display, error: &std::io::Error) -> InputError {
        InputError::new(field, value, Problem::Io(error.to_string()))
    }

    /// Sets what would be allowed.
    pub fn allowed(mut self, allowed: impl Into<String>) -> InputError {
        self.allowed = start(allowed.into(), 4 * SENTENCE);
        self
    }

    /// The first line of the report: field, value and problem.
    pub fn headline(&self) -> String {
        let field = start(self.field.clone(), NAME);
        let value = if self.value.is_empty() { "\"\"" } else { &self.value };
        match &self.problem {
            Problem::Unknown => format!("{field} = {value}: no such name"),
            Problem::NotAllowed => format!("{field} = {value}: not allowed"),
            Problem::Missing => format!("{field} is missing"),
            Problem::Conflict(with) => format!("{field} = {value}: contradicts {with}"),
            Problem::Malformed(why) if self.value.is_empty() => format!("{field}: {why}"),
            Problem::Malformed(why) => format!("{field} = {value}: {why}"),
            Problem::Io(why) => format!("{field} = {value}: {why}"),
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        if !self.allowed.is_empty() {
            write!(f, "\n  allowed: {}", self.allowed)?;
        }
        if !self.nearest.is_empty() {
            write!(f, "\n  did you mean: {}?", self.nearest.join(" or "))?;
        }
        Ok(())
    }
}

impl std::error::Error for InputError {}

/// Up to three of `known` that look like `value`, best first: those that contain it or are spelt nearly like it.
pub fn nearest(value: &str, known: &[&str]) -> Vec<String> {
    // A slip of the hand is about as long as a name; to compare megabytes takes seconds.
    if value.len() > 1024 {
        return vec![];
    }
    let value = value.to_lowercase();
    let mut scored: Vec<(f64, &str)> = known
        .iter()
        .map(|name| {
            let lower = name.to_lowercase();
            let part = value.len() >= 3 && (lower.contains(&value) || value.contains(&lower));
            // Two letters that changed places: of a short name more than half of it.
            let slip = value.len() >= 3 && strsim::damerau_levenshtein(&value, &lower) == 1;
            let alike = strsim::jaro_winkler(&value, &lower).max(if slip { 0.9 } else { 0.0 });
            (alike + if part { 0.5 } else { 0.0 }, *name)
        })
        .filter(|(score, _)| *score > 0.84)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(3).map(|(_, name)| name.to_owned()).collect()
}

/// What a family does not allow.
pub(crate) fn from_illegal(source: Illegal) -> InputError {
    InputError::not_allowed(source.field, source.value, source.allowed)
}

/// What a family makes of settings that it cannot take.
pub(crate) fn from_family(error: FamilyError) -> InputError {
    match error {
        FamilyError::Illegal { source, .. } => from_illegal(source),
        FamilyError::Missing { missing, .. } => {
            let fields: Vec<&str> = missing.iter().map(|m| m.0).collect();
            let allowed: Vec<String> = missing.iter().map(|(f, a)| format!("{f}: {a}")).collect();
            InputError::missing(fields.join(", "), allowed.join("; "))
        }
        FamilyError::UnknownField { family, field, known, .. } => {
            InputError::unknown(format!("field of {family}"), &field, known)
        }
        FamilyError::NoSetting { word, .. } => InputError::not_allowed("settings", &word, "FIELD=VALUE"),
        FamilyError::Twice { field, first, second, .. } => {
            InputError::conflict(field, second, format!("{field} = {first}"), "one value")
        }
        FamilyError::Lanes { variant, asked, lanes } => {
            let lanes = lanes.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ");
            let allowed = format!("{lanes}, as the pack has {variant}");
            InputError::not_allowed("lanes of a warp", asked, allowed)
        }
        FamilyError::Trace(error) => {
            InputError::malformed("kernel", "", error, "a kernel that can be traced")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_the_nearest_names_only() {
        let known = ["deepseek-v3", "deepseek-v2-lite", "mixtral-8x7b", "glm-4.5"];
        assert_eq!(nearest("deepsek-v3", &known), ["deepseek-v3", "deepseek-v2-lite"]);
        assert_eq!(nearest("mixtral", &known), ["mixtral-8x7b"]);
        assert_eq!(nearest("GLM4.5", &known), ["glm-4.5"]);
        assert_eq!(nearest("rnu", &["run", "check", "tune"]), ["run"]);
        assert_eq!(nearest("zzz", &known), [""; 0]);
        assert_eq!(nearest("", &known), [""; 0]);
        assert_eq!(nearest(&"glm".repeat(1 << 24), &known), [""; 0]);
    }

    #[test]
    fn long_values_are_shown_up_to_their_start() {
        let long = "\u{e9}".repeat(1 << 20);
        let e = InputError::malformed(&long, &long, &long, "short");
        let told = e.to_string();
        assert!(told.len() < 6000 && told.contains("\u{e9}.. (2097152 bytes)"), "{} bytes", told.len());
        assert_eq!(start("abc".into(), 3), "abc");
        assert_eq!(start("\u{e9}\u{e9}".into(), 3), "\u{e9}.. (4 bytes)");
        let e = InputError::unknown("--f", &long, ["a", "b"]);
        assert!(e.to_string().len() < 1000);
    }

    #[test]
    fn names_field_value_and_allowed() {
        let e = InputError::unknown("--model", "glm-4.6", ["glm-4.5", "kimi-k2"]);
        assert_eq!(
            e.to_string(),
            "--model = glm-4.6: no such name\n  allowed: glm-4.5, kimi-k2\n  did you mean: glm-4.5?"
        );
        let e = InputError::missing("--tokens", "1 to 65536");
        assert_eq!(e.to_string(), "--tokens is missing\n  allowed: 1 to 65536");
    }
}
