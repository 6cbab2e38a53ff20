//! The excerpts of `docs/explanation/emitted-source.md` are what is emitted.

use std::collections::HashMap;
use std::process::Command;

/// An excerpt: target, variant, and its lines.
struct Excerpt {
    target: String,
    variant: String,
    lines: Vec<String>,
}

/// The excerpts of a page: each names where it is from in a comment before it.
fn excerpts(page: &str) -> Vec<Excerpt> {
    let mut found: Vec<Excerpt> = vec![];
    let mut open = false;
    for line in page.lines() {
        if let Some(from) = line.strip_prefix("<!-- ").and_then(|l| l.strip_suffix(" -->")) {
            let (target, variant) = from.split_once(' ').expect("a target and a variant");
            found.push(Excerpt { target: target.into(), variant: variant.into(), lines: vec![] });
        } else if line.starts_with("```") {
            open = line == "```cpp";
            assert!(!open || found.last().is_some_and(|e| e.lines.is_empty()), "an excerpt from nowhere");
        } else if open {
            found.last_mut().expect("checked where it began").lines.push(line.into());
        }
    }
    found
}

/// A line without indentation and without the author's line numbers, which change with every edit of a kernel.
fn plain(line: &str) -> String {
    let code = match line.rsplit_once("  // ") {
        Some((code, comment)) if comment.contains(".rs:") => code,
        _ => line,
    };
    code.trim().to_string()
}

/// The first part of an excerpt that is not in the text, in order, each part in one piece.
fn missing<'a>(excerpt: &'a [String], text: &str) -> Option<&'a [String]> {
    let text: Vec<String> = text.lines().map(plain).collect();
    let mut from = 0;
    for part in excerpt.split(|l| l == "...") {
        let wanted: Vec<String> = part.iter().map(|l| plain(l)).collect();
        match text[from..].windows(wanted.len().max(1)).position(|w| w == wanted) {
            Some(at) => from += at + wanted.len(),
            None => return Some(part),
        }
    }
    None
}

#[test]
fn excerpts_are_what_is_emitted() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/explanation/emitted-source.md"))
            .unwrap();
    let excerpts = excerpts(&page);
    assert!(excerpts.len() >= 8, "{} excerpts", excerpts.len());
    let mut texts: HashMap<(String, String), String> = HashMap::new();
    for Excerpt { target, variant, lines } in excerpts {
        assert!(page.contains(&format!("`{variant}`")), "{variant} is not in the table");
        let text = texts.entry((target.clone(), variant.clone())).or_insert_with(|| {
            let ran = Command::new(env!("CARGO_BIN_EXE_peerwarp"))
                .args(["show", &variant, "--target", &target])
                .output()
                .expect("the command runs");
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).expect("source is text")
        });
        let gone = missing(&lines, text);
        assert!(gone.is_none(), "{variant} for {target} has no\n{}", gone.unwrap_or_default().join("\n"));
    }
}

#[test]
fn a_changed_line_is_noticed() {
    let excerpt = ["    a();", "...", "b();"].map(String::from);
    assert!(missing(&excerpt, "a();  // x.rs:3\nc();\n  b();\n").is_none());
    assert!(missing(&excerpt, "a();\nb(1);\n").is_some());
    assert!(missing(&excerpt, "b();\na();\n").is_some(), "out of order");
}
