//! Where the crates are unsafe, and why that is sound: a list to review. Tests are left out; clippy asks for their comments too.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const ROOTS: [&str; 7] = [
    "src",
    "capi/src",
    "codegen/src",
    "codegen/macros/src",
    "examples/add_all_gather/src",
    "fabric/src",
    "python/src",
];

/// A use of the keyword.
struct Use {
    what: String,
    /// The first line of the reason.
    why: Option<String>,
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap()
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("#[")
}

/// The word after `unsafe`, with what follows it.
fn uses(line: &str) -> impl Iterator<Item = &str> {
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
    let line = code(line);
    line.match_indices("unsafe").filter_map(move |(at, token)| {
        let (before, after) = (&line[..at], &line[at + token.len()..]);
        (!before.ends_with(word) && !after.starts_with(word)).then(|| after.trim_start())
    })
}

/// The reason in the comments right above, or above the statement that a line belongs to.
fn why(above: &[&str], heading: &str, own_statement: bool) -> Option<String> {
    for (i, line) in above.iter().enumerate().rev() {
        if is_comment(line) {
            let Some((_, text)) = line.split_once(heading) else { continue };
            let below = || above[i + 1..].iter().map(|l| l.trim_start().trim_start_matches('/').trim());
            let text = Some(text.trim().to_owned()).filter(|t| !t.is_empty());
            return text.or_else(|| below().find(|l| !l.is_empty()).map(str::to_owned));
        }
        let ends = line.trim_end().ends_with([';', '{', '}']) || line.trim().is_empty();
        if !own_statement || ends {
            return None;
        }
    }
    None
}

/// Whether a function belongs to the implementation of a trait, whose documentation says what callers have to do.
fn is_of_trait(above: &[&str], line: &str) -> bool {
    let indent = |l: &str| l.len() - l.trim_start().len();
    let outer = above.iter().rev().find(|l| !l.trim().is_empty() && indent(l) < indent(line));
    outer.is_some_and(|l| l.contains("impl") && l.contains(" for "))
}

fn unsafe_uses(text: &str) -> Vec<Use> {
    let lines: Vec<&str> = text.lines().collect();
    // Tests at the end of a file are left out.
    let end = lines.iter().position(|l| *l == "mod tests {").unwrap_or(lines.len());
    let mut found = vec![];
    for (i, line) in lines[..end].iter().enumerate() {
        let above = &lines[..i];
        for after in uses(line) {
            let until = |text: String, ends: &[char]| text.split(ends).next().unwrap().trim().to_owned();
            let pointer = after.starts_with("fn(") || after.starts_with("extern \"C\" fn(");
            // The names that C links by begin with the library's own.
            if pointer || after.starts_with("(no_mangle)") {
                continue;
            }
            let c = after.strip_prefix("extern \"C\" ");
            let after = c.unwrap_or(after);
            let heads = |word: &str| after.strip_prefix(word).map(|name| name.trim_start().to_owned());
            let safety = || why(above, "SAFETY:", true);
            let contract = || why(above, "# Safety", false);
            let (what, why) = if after.starts_with('{') {
                ("block".to_owned(), safety())
            } else if let Some(of) = heads("impl") {
                (format!("impl {}", until(of, &['{'])), safety())
            } else if let Some(name) = heads("fn") {
                let own = contract().or_else(|| is_of_trait(above, line).then(|| "as the trait says".into()));
                // What the crate itself passes to C has no documentation.
                let own = own.or_else(|| c.and_then(|_| safety()));
                (format!("fn {}", until(name, &['(', '<'])), own)
            } else if let Some(name) = heads("trait") {
                (format!("trait {}", until(name, &[':', '{'])), contract())
            } else {
                (after.trim().to_owned(), safety())
            };
            found.push(Use { what, why });
        }
    }
    found
}

#[test]
fn each_unsafe_says_why_it_is_sound() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![];
    ROOTS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    files.sort();
    let (mut list, mut silent) = (String::new(), vec![]);
    for file in files {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        let uses = unsafe_uses(&fs::read_to_string(&file).unwrap());
        if uses.is_empty() {
            continue;
        }
        writeln!(list, "{name}: {}", uses.len()).unwrap();
        for Use { what, why } in uses {
            match why {
                Some(why) => writeln!(list, "    {what}: {why}").unwrap(),
                None => silent.push(format!("{name}: {what}")),
            }
        }
    }
    assert!(
        silent.is_empty(),
        "no SAFETY comment, or no `# Safety` in the documentation:\n{}",
        silent.join("\n")
    );
    insta::assert_snapshot!("unsafe", list);
}

#[test]
fn what_says_nothing_is_noticed() {
    let silent = |text: &str| unsafe_uses(text).iter().filter(|u| u.why.is_none()).count();
    assert_eq!(silent("let x = 1;\nlet y = unsafe { f(x) };\n"), 1);
    assert_eq!(silent("// SAFETY: x is valid.\nlet y = g(\n    unsafe { f(x) },\n);\n"), 0);
    assert_eq!(silent("// SAFETY: of another statement.\nlet x = 1;\nlet y = unsafe { f(x) };\n"), 1);
    assert_eq!(silent("unsafe impl Send for A {}\n"), 1);
    assert_eq!(silent("/// Frees.\n///\n/// # Safety\n/// Once.\npub unsafe fn free() {}\n"), 0);
    assert_eq!(silent("/// Frees.\npub unsafe fn free() {}\n"), 1);
    assert_eq!(silent("/// Frees.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn free() {}\n"), 1);
    assert_eq!(
        silent("/// # Safety\n/// Once.\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn free() {}\n"),
        0
    );
    assert_eq!(silent("impl Gpu for A {\n    unsafe fn free() {}\n}\n"), 0);
    assert_eq!(silent("impl A {\n    unsafe fn free() {}\n}\n"), 1);
    assert!(
        unsafe_uses("// unsafe { }\nlet f: unsafe fn(u32) = g;\nlet unsafe_name = \"unsafe\";\n").is_empty()
    );
}
