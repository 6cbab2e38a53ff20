//! Values of configuration fields, and the Rust types fields may have.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Allowed;

/// The value of a configuration field, whatever its Rust type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Of an integer field.
    Int(i128),
    /// Of a `bool` field.
    Bool(bool),
    /// Name of the variant of an enum field.
    Name(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::Name(v) => v.fmt(f),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            // Formats know 64-bit integers; no field type is wider.
            Value::Int(v) => match u64::try_from(v) {
                Ok(v) => to.serialize_u64(v),
                Err(_) => to.serialize_i64(v as i64),
            },
            Value::Bool(v) => to.serialize_bool(v),
            Value::Name(v) => to.serialize_str(v),
        }
    }
}

/// An enum that a configuration field may have as its type. Usually derived: `#[derive(Choice)]`.
///
/// ```
/// use peerwarp_codegen::family::Choice;
///
/// #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
/// enum Layout {
///     Flat,
///     ByExpert,
/// }
/// impl Choice for Layout {
///     const ALL: &'static [Layout] = &[Layout::Flat, Layout::ByExpert];
///     fn name(&self) -> &'static str {
///         match self {
///             Layout::Flat => "flat",
///             Layout::ByExpert => "by-expert",
///         }
///     }
/// }
/// assert_eq!(Layout::from_name("by-expert"), Some(Layout::ByExpert));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no type for a configuration field",
    label = "this field's type",
    note = "a field is an integer, a `bool`, or an enum with `#[derive(Choice)]`"
)]
pub trait Choice: Copy + Eq + std::hash::Hash + fmt::Debug + Send + Sync + 'static {
    /// Every variant, in the order candidates are listed; the first is the default of a tuning field.
    const ALL: &'static [Self];

    /// The variant's name on the command line, in files and in variant names: lower-case letters, digits and `-`, and
    /// unique even without the `-`, which variant names leave out because they are C identifiers.
    fn name(&self) -> &'static str;

    /// The variant with this name.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|c| c.name() == name)
    }
}

/// A type that a configuration field may have: an integer, `bool`, or a [`Choice`]; or an `Option` of one, which a rule fills in.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no type for a configuration field",
    label = "this field's type",
    note = "a field is an integer, a `bool`, or an enum with `#[derive(Choice)]`"
)]
pub trait FieldType: Copy + Eq + std::hash::Hash + fmt::Debug + Send + Sync + 'static {
    /// What the type can hold.
    fn domain() -> Allowed;
    /// As a [`Value`].
    fn to_value(self) -> Value;
    /// Back from a [`Value`]; `None` when it is of another kind or does not fit.
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl FieldType for $t {
            fn domain() -> Allowed {
                Allowed::Range { min: <$t>::MIN as i128, max: <$t>::MAX as i128, multiple_of: 1, auto: false }
            }
            fn to_value(self) -> Value {
                Value::Int(self as i128)
            }
            fn from_value(value: Value) -> Option<$t> {
                match value {
                    Value::Int(v) => v.try_into().ok(),
                    Value::Bool(_) | Value::Name(_) => None,
                }
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i8, i16, i32, i64);

impl FieldType for bool {
    fn domain() -> Allowed {
        Allowed::Values(vec![Value::Bool(false), Value::Bool(true)])
    }
    fn to_value(self) -> Value {
        Value::Bool(self)
    }
    fn from_value(value: Value) -> Option<bool> {
        match value {
            Value::Bool(v) => Some(v),
            Value::Int(_) | Value::Name(_) => None,
        }
    }
}

impl<C: Choice> FieldType for C {
    fn domain() -> Allowed {
        Allowed::Values(C::ALL.iter().map(|c| Value::Name(c.name())).collect())
    }
    fn to_value(self) -> Value {
        Value::Name(self.name())
    }
    fn from_value(value: Value) -> Option<C> {
        match value {
            Value::Name(name) => C::from_name(name),
            Value::Int(_) | Value::Bool(_) => None,
        }
    }
}

/// What a field of type `Option` is called where it is `None`: the rule of the field chooses.
pub(crate) const AUTO: &str = "auto";

/// A choice that a rule makes from the rest of the configuration unless somebody makes it.
impl<T: FieldType> FieldType for Option<T> {
    fn domain() -> Allowed {
        let values = match T::domain() {
            Allowed::Values(values) => values,
            // A menu says which numbers there are.
            Allowed::Range { .. } => vec![],
        };
        Allowed::Values([Value::Name(AUTO)].into_iter().chain(values).collect())
    }
    fn to_value(self) -> Value {
        self.map_or(Value::Name(AUTO), T::to_value)
    }
    fn from_value(value: Value) -> Option<Option<T>> {
        if value == Value::Name(AUTO) { Some(None) } else { T::from_value(value).map(Some) }
    }
}

/// Element types a buffer may have, so that a family can have a `Dtype` field without an enum of its own.
impl Choice for crate::ir::Dtype {
    const ALL: &'static [Self] = {
        use crate::ir::Dtype::*;
        &[F32, Bf16, Fp16, Fp8, I32, U32, U64]
    };
    fn name(&self) -> &'static str {
        (*self).name()
    }
}
