//! What a text has that a like one has not.

use similar::{ChangeTag, TextDiff};

/// The lines of `other` alone, after `-`, and those of `text` alone, after `+`. A line `...` stands for what both have between them.
pub fn difference(other: &str, text: &str) -> String {
    let diff = TextDiff::from_lines(other, text);
    let places = diff.grouped_ops(0).into_iter().map(|ops| {
        let changes = ops.iter().flat_map(|op| diff.iter_changes(op));
        let line = |sign: &str, line: &str| format!("{sign}{}\n", line.trim_end_matches('\n'));
        changes
            .map(|change| match change.tag() {
                ChangeTag::Equal => String::new(),
                ChangeTag::Delete => line("-", change.value()),
                ChangeTag::Insert => line("+", change.value()),
            })
            .collect::<String>()
    });
    places.collect::<Vec<_>>().join("...\n")
}
