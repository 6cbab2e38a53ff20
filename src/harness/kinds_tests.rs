//! Large outputs as snapshots hold them: an entry of each kind, and a digest of all.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;

use crate::build::digest::sha256;

/// JSON with the first entry of each kind in a list. Objects are of one kind if they have the same fields, and the same category.
pub(crate) fn of_json(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("it has strings for keys");
    let first = firsts(&serde_json::from_str(&text).expect("it is what was written"));
    let first = serde_json::to_string_pretty(&first).expect("it has strings for keys");
    format!("{first}\nsha256 of all: {}\n", sha256(text.as_bytes()))
}

fn firsts(value: &Value) -> Value {
    match value {
        Value::Array(all) => {
            let mut seen = HashSet::new();
            all.iter().filter(|entry| seen.insert(kind(entry))).map(firsts).collect()
        }
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), firsts(field))).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            let category = ["ph", "cat"].map(|name| fields.get(name).map(Value::to_string));
            format!("{names:?} {category:?}")
        }
        Value::Array(_) => "list".into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => "plain".into(),
    }
}

#[test]
fn what_is_left_out_changes_the_digest() {
    let json = |x: u32| of_json(&serde_json::json!([{"a": 1}, {"a": x}, {"b": [1, 2]}]));
    assert_eq!(json(2).matches("\"a\"").count(), 1, "{}", json(2));
    assert_ne!(json(2), json(3));
}
