//! What expanded macros call. No interface for people.

pub use serde;

pub use crate::family::serial;
use crate::family::{FieldDefault, FieldInfo, FieldType, Illegal, Value};

/// The value at `at`, as the Rust type of its field.
pub fn field<T: FieldType>(fields: &[FieldInfo], values: &[Value], at: usize) -> Result<T, Illegal> {
    let value = values.get(at).copied();
    value.and_then(T::from_value).ok_or_else(|| {
        let (name, allowed) = fields.get(at).map_or(("", String::new()), |f| (f.name, f.allowed.to_string()));
        let given = value.map_or_else(|| "nothing".to_owned(), |v| v.to_string());
        Illegal::new(name, given, allowed)
    })
}

/// The default of a tuning field that does not depend on the key.
pub fn constant_default<T: FieldType>(field: &FieldInfo) -> Value {
    match field.default {
        FieldDefault::Value(value) => value,
        // Only of an empty menu, whose values are told as not allowed.
        FieldDefault::None | FieldDefault::FromKey => T::domain().nth(0).unwrap_or(Value::Bool(false)),
    }
}
