//! Large outputs as snapshots hold them: an entry of each kind, and a digest of all.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;

use crate::build::digest::sha256;

/// The lines of a text, of those that differ in numbers and colours alone the first with the number of them.
pub(crate) fn of_lines(text: &str) -> String {
    let mut kinds: Vec<(String, &str, usize)> = vec![];
    for line in text.lines() {
        let kind = masked(line);
        match kinds.iter_mut().find(|(other, ..)| *other == kind) {
            Some((.., count)) => *count += 1,
            None => kinds.push((kind, line, 1)),
        }
    }
    let mut out: String = kinds.iter().map(|(_, line, count)| format!("{count:>4} {line}\n")).collect();
    out += &format!("sha256 of all: {}\n", sha256(text.as_bytes()));
    out
}

/// A line with `#` for each number, and for each colour.
fn masked(line: &str) -> String {
    let mut out = String::new();
    let mut colour = false;
    for c in line.chars() {
        colour = c == '#' || (colour && c.is_ascii_hexdigit());
        match c {
            '#' | '0'..='9' | '.' => out += if out.ends_with('#') { "" } else { "#" },
            _ if colour => {}
            _ => out.push(c),
        }
    }
    out
}

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
    let lines = |x: u32| of_lines(&format!("<i a=\"1.5\" b=\"#0a2\"/>\n<i a=\"{x}\" b=\"#0a3\"/>\n<u/>\n"));
    assert!(lines(2).starts_with("   2 <i a=\"1.5\" b=\"#0a2\"/>\n   1 <u/>\nsha256"), "{}", lines(2));
    assert_ne!(lines(2), lines(3));
    let json = |x: u32| of_json(&serde_json::json!([{"a": 1}, {"a": x}, {"b": [1, 2]}]));
    assert_eq!(json(2).matches("\"a\"").count(), 1, "{}", json(2));
    assert_ne!(json(2), json(3));
}
