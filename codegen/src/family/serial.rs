//! Serde for configurations, keys and choices by their names, with the families' own checks on the way in. Derived
//! implementations call these.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serializer,
    de::{Error, MapAccess, Visitor},
};

use super::{Choice, Family, FieldInfo, Fields, Value, suggest::did_you_mean, suggest::nearest};

/// A choice as its name.
pub fn serialize_choice<C: Choice, S: Serializer>(choice: &C, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(choice.name())
}

/// A choice from its name.
pub fn deserialize_choice<'de, C: Choice, D: Deserializer<'de>>(from: D) -> Result<C, D::Error> {
    let name = String::deserialize(from)?;
    C::from_name(&name).ok_or_else(|| {
        let names: Vec<&str> = C::ALL.iter().map(|c| c.name()).collect();
        let near = nearest(&name, names.iter().copied()).map(str::to_owned);
        D::Error::custom(format!("`{name}` is none of {}{}", names.join(", "), did_you_mean(&near)))
    })
}

/// A map from field names to values, in the order of the fields; without those that names of variants leave out.
pub fn serialize_fields<F: Fields, S: Serializer>(config: &F, to: S) -> Result<S::Ok, S::Error> {
    let fields = F::fields().iter().zip(config.values()).filter(|(f, v)| !f.is_left_out(*v));
    to.collect_map(fields.map(|(f, v)| (f.name, v)))
}

/// Every field must be there that names of variants do not leave out, with an allowed value.
pub fn deserialize_fields<'de, F: Fields, D: Deserializer<'de>>(from: D) -> Result<F, D::Error> {
    from.deserialize_map(FieldsVisitor(PhantomData))
}

/// As [`deserialize_fields`], and the configuration must be legal.
pub fn deserialize_config<'de, F: Family, D: Deserializer<'de>>(from: D) -> Result<F, D::Error> {
    let config: F = deserialize_fields(from)?;
    config.check().map_err(D::Error::custom)?;
    Ok(config)
}

struct FieldsVisitor<F>(PhantomData<F>);

impl<'de, F: Fields> Visitor<'de> for FieldsVisitor<F> {
    type Value = F;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = F::fields().iter().map(|f| f.name).collect();
        write!(f, "a map with {}", names.join(", "))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<F, A::Error> {
        let fields = F::fields();
        let mut values: Vec<Option<Value>> = vec![None; fields.len()];
        while let Some(name) = map.next_key::<String>()? {
            let Some(at) = fields.iter().position(|f| f.name == name) else {
                let near = nearest(&name, fields.iter().map(|f| f.name)).map(str::to_owned);
                return Err(A::Error::custom(format!("there is no field `{name}`{}", did_you_mean(&near))));
            };
            if values[at].is_some() {
                return Err(A::Error::custom(format!("field `{name}` is there twice")));
            }
            values[at] = Some(map.next_value::<Raw>()?.read(&fields[at]).map_err(A::Error::custom)?);
        }
        let missing =
            |f: &FieldInfo| A::Error::custom(format!("field `{}` is missing: {}", f.name, f.allowed));
        let values: Result<Vec<Value>, _> = {
            let default = |f: &FieldInfo| f.constant().filter(|_| f.omitted);
            fields.iter().zip(values).map(|(f, v)| v.or(default(f)).ok_or_else(|| missing(f))).collect()
        };
        F::from_values(&values?).map_err(A::Error::custom)
    }
}

/// A value as formats have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Raw {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Text(String),
}

impl Raw {
    fn read(self, field: &FieldInfo) -> Result<Value, super::Illegal> {
        match self {
            Raw::Bool(v) => field.check(Value::Bool(v)),
            Raw::Unsigned(v) => field.check(Value::Int(v.into())),
            Raw::Signed(v) => field.check(Value::Int(v.into())),
            Raw::Text(text) => field.parse(&text),
        }
    }
}
