//! Variant names and their parser.
//!
//! `moe_dispatch_h7168_e256_bf16__w16_s32`: the family's name, one part for each key field, and after a double
//! underscore one for each tuning field. A part never contains an underscore, and parts stand in the order of the
//! fields, so that a name has one reading; those of fields that are `omitted` stand only where a value is not
//! the default, and are told by their short names. Names are C identifiers, because they are the kernels' entry points: a minus
//! sign is written `m`, and the `-` of enum names is left out.

use super::{Allowed, FieldInfo, FieldRole, NameError, Value};

/// The name of the variant with these values.
pub(crate) fn variant_name(family: &str, fields: &[FieldInfo], values: &[Value]) -> String {
    let mut name = family.to_owned();
    let mut tuned = false;
    for (field, value) in fields.iter().zip(values).filter(|(field, value)| !field.is_left_out(**value)) {
        name.push_str(if field.role == FieldRole::Tune && !tuned { "__" } else { "_" });
        tuned |= field.role == FieldRole::Tune;
        name.push_str(&part(field, *value));
    }
    name
}

/// The values in a variant's name; each is allowed by itself.
pub(crate) fn parse_variant(
    family: &'static str,
    fields: &[FieldInfo],
    given: &str,
) -> Result<Vec<Value>, NameError> {
    let wrong = |problem: String| NameError::Form {
        given: given.to_owned(),
        family,
        problem,
        form: form(family, fields),
    };
    let rest = given
        .strip_prefix(family)
        .filter(|rest| rest.is_empty() || rest.starts_with('_'))
        .ok_or_else(|| wrong(format!("it does not start with `{family}_`")))?;
    let (keys, tunes) = rest.split_once("__").unwrap_or((rest, ""));
    let split = |text: &str| -> Vec<String> {
        if text.is_empty() { vec![] } else { text.split('_').map(str::to_owned).collect() }
    };
    let parts =
        [(FieldRole::Key, split(keys.strip_prefix('_').unwrap_or(keys))), (FieldRole::Tune, split(tunes))];
    for (role, parts) in &parts {
        let (want, most) = parts_of(fields, *role);
        if !(want..=most).contains(&parts.len()) {
            let want = if want == most { want.to_string() } else { format!("{want} to {most}") };
            let side = if *role == FieldRole::Key { "key values, before" } else { "tuning values, after" };
            return Err(wrong(format!("{} {side} `__`, where there are {want}", parts.len())));
        }
    }
    let [(_, keys), (_, tunes)] = parts;
    let parts: Vec<String> = keys.into_iter().chain(tunes).collect();
    let mut parts = parts.iter().peekable();
    let value = |field: &FieldInfo| match field.constant().filter(|_| field.omitted) {
        Some(default)
            if parts.peek().and_then(|text| read_part(field, text)).is_none_or(|v| v == default) =>
        {
            Ok(default)
        }
        _ => parts.next().map_or_else(
            || Err(wrong(format!("`{}` is missing", field.name))),
            |text| read(field, text, given),
        ),
    };
    let values = fields.iter().map(value).collect::<Result<_, _>>()?;
    match parts.next() {
        Some(text) => Err(wrong(format!("`{text}` is no part of it"))),
        None => Ok(values),
    }
}

/// The fewest and the most parts that stand for fields of a role.
fn parts_of(fields: &[FieldInfo], role: FieldRole) -> (usize, usize) {
    let of_role = fields.iter().filter(|f| f.role == role);
    (of_role.clone().filter(|f| !f.omitted).count(), of_role.count())
}

fn read(field: &FieldInfo, text: &str, given: &str) -> Result<Value, NameError> {
    let value = read_part(field, text).ok_or_else(|| NameError::Part {
        given: given.to_owned(),
        part: text.to_owned(),
        field: field.name,
        expected: expected(field),
    })?;
    field.check(value).map_err(|source| NameError::Illegal { given: given.to_owned(), source })
}

/// What stands for a field's value in a name.
fn part(field: &FieldInfo, value: Value) -> String {
    let label = label(field);
    match value {
        Value::Int(v) if v < 0 => format!("{label}m{}", v.unsigned_abs()),
        Value::Int(v) => format!("{label}{v}"),
        Value::Bool(true) => label,
        Value::Bool(false) => format!("no{label}"),
        Value::Name(name) => format!("{}{}", field.short.unwrap_or(""), name.replace('-', "")),
    }
}

/// What precedes a number, and stands for a truth value.
fn label(field: &FieldInfo) -> String {
    field.short.map_or_else(|| field.name.replace('_', ""), str::to_owned)
}

/// The value whose part this is, without regard to ranges. Only the spelling that [`part`] produces is accepted.
fn read_part(field: &FieldInfo, text: &str) -> Option<Value> {
    if let Allowed::Values(values) = &field.allowed
        && let Some(value) = values.iter().find(|v| part(field, **v) == text)
    {
        return Some(*value);
    }
    let digits = text.strip_prefix(&label(field))?;
    let number: i128 = match digits.strip_prefix('m') {
        Some(digits) => digits.parse::<i128>().ok()?.checked_neg()?,
        None => digits.parse().ok()?,
    };
    let numeric = match &field.allowed {
        Allowed::Range { .. } => true,
        Allowed::Values(values) => values.iter().any(|v| matches!(v, Value::Int(_))),
    };
    (numeric && part(field, Value::Int(number)) == text).then_some(Value::Int(number))
}

fn expected(field: &FieldInfo) -> String {
    match &field.allowed {
        Allowed::Range { .. } => format!("`{}` and a number: {}", label(field), field.allowed),
        Allowed::Values(values) => {
            let parts: Vec<String> = values.iter().map(|v| format!("`{}`", part(field, *v))).collect();
            parts.join(" or ")
        }
    }
}

/// The form of a family's names: `moe_h<hidden>_<dtype>__w<warps>`.
pub(crate) fn form(family: &str, fields: &[FieldInfo]) -> String {
    let mut form = family.to_owned();
    let mut tuned = false;
    for field in fields {
        form.push_str(if field.omitted { "[" } else { "" });
        form.push_str(if field.role == FieldRole::Tune && !tuned { "__" } else { "_" });
        tuned |= field.role == FieldRole::Tune;
        let first = field.allowed.nth(field.by_rule.into());
        form.push_str(&match (&field.allowed, first) {
            (Allowed::Values(_), Some(Value::Bool(_))) => format!("[no]{}", label(field)),
            (Allowed::Values(_), Some(Value::Name(_))) => {
                format!("{}<{}>", field.short.unwrap_or(""), field.name)
            }
            _ => format!("{}<{}>", label(field), field.name),
        });
        form.push_str(if field.omitted { "]" } else { "" });
    }
    form
}
