//! What can be wrong with a configuration, and with a variant's name.

use super::{Illegal, suggest::did_you_mean};
use crate::dsl::TraceError;

/// A configuration that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// A field has a value that it may not have.
    #[error("{family}: {source}")]
    Illegal {
        /// Name of the family.
        family: &'static str,
        /// Which field, which value, and what is allowed.
        source: Illegal,
    },
    /// Key fields without a value.
    #[error("{family}: no value for {}", list_missing(.missing))]
    Missing {
        /// Name of the family.
        family: &'static str,
        /// Name of each missing field, and what is allowed.
        missing: Vec<(&'static str, String)>,
    },
    /// A field that the family does not have.
    #[error("{family} has no field `{field}`{}; it has {}", did_you_mean(.nearest), .known.join(", "))]
    UnknownField {
        /// Name of the family.
        family: &'static str,
        /// What was asked for.
        field: String,
        /// The field that looks most like it.
        nearest: Option<String>,
        /// All fields.
        known: Vec<&'static str>,
    },
    /// A word of a text that says no field and value.
    #[error("{family}: `{word}` is no setting: FIELD=VALUE")]
    NoSetting {
        /// Name of the family.
        family: &'static str,
        /// The word.
        word: String,
    },
    /// A field with two values.
    #[error("{family}: `{field}` is given twice, as {first} and as {second}")]
    Twice {
        /// Name of the family.
        family: &'static str,
        /// Name of the field.
        field: &'static str,
        /// One value.
        first: String,
        /// The other.
        second: String,
    },
    /// A pack has the kernel for other warps only.
    #[error("the pack has {variant} for warps of {} lanes, not of {asked}", list(.lanes))]
    Lanes {
        /// Name of the variant.
        variant: String,
        /// Lanes of the warps that were asked for.
        asked: u32,
        /// Lanes of the warps that the pack has it for.
        lanes: Vec<u32>,
    },
    /// The kernel function could not be traced.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
}

fn list_missing(missing: &[(&'static str, String)]) -> String {
    let each: Vec<String> = missing.iter().map(|(f, allowed)| format!("`{f}` ({allowed})")).collect();
    each.join(", ")
}

/// A text that is no variant name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It does not start with the name of a known family.
    #[error("no family is called `{given}`{}; there are {}", did_you_mean(.nearest), .known.join(", "))]
    UnknownFamily {
        /// What was asked for.
        given: String,
        /// The family that looks most like it.
        nearest: Option<String>,
        /// All families.
        known: Vec<&'static str>,
    },
    /// It does not have the family's fields.
    #[error("`{given}` is no variant of {family}: {problem}; variants read {form}")]
    Form {
        /// The whole text.
        given: String,
        /// Name of the family.
        family: &'static str,
        /// What is missing or too much.
        problem: String,
        /// The form of the family's variant names.
        form: String,
    },
    /// One of its parts is not what stands there in a variant's name.
    #[error("`{part}` in `{given}` is not a value of `{field}`: expected {expected}")]
    Part {
        /// The whole text.
        given: String,
        /// The part.
        part: String,
        /// The field that the part stands for.
        field: &'static str,
        /// How the part must look.
        expected: String,
    },
    /// It has the form of a name, of a variant that cannot be.
    #[error("`{given}` names a variant that does not exist: {source}")]
    Illegal {
        /// The whole text.
        given: String,
        /// Which field, which value, and what is allowed.
        source: Illegal,
    },
}
