//! The page of the functions that printed lines call.

use std::collections::{BTreeMap, BTreeSet};

use crate::example::Example;
use crate::page::Page;

/// Functions that a source defines, by name: their texts, with the comments before them.
fn defined(source: &str) -> BTreeMap<String, Vec<String>> {
    let lines: Vec<&str> = source.split("// ---- Launcher").next().unwrap_or(source).lines().collect();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let is_start = |line: &str| line.starts_with("__device__") || line.starts_with("template <> __device__");
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| is_start(line)) {
        // A declaration ends with a semicolon before a body begins.
        let Some(opens) = (at..lines.len()).find(|&i| lines[i].contains('{') || lines[i].ends_with(';'))
        else {
            continue;
        };
        if !lines[opens].contains('{') {
            continue;
        }
        let one_line = opens == at && line.ends_with('}');
        let Some(last) = (at..lines.len()).find(|&i| one_line || lines[i] == "}") else { continue };
        let before =
            lines[..at].iter().rev().take_while(|l| l.starts_with("//") || l.starts_with("template"));
        let name = line.split('(').next().and_then(|l| l.rsplit([' ', '*', '&']).next()).unwrap_or_default();
        let name = name.split('<').next().unwrap_or(name);
        found.entry(name.to_owned()).or_default().push(lines[at - before.count()..=last].join("\n"));
    }
    found
}

/// Names that a line calls.
fn called(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(['(', '<']).filter_map(move |(at, _)| {
        let before = &line[..at];
        let name = &before[before.rfind(|c| !is_name(c)).map_or(0, |i| i + 1)..];
        (!name.is_empty()).then_some(name)
    })
}

/// The functions that the lines of an example call, on either target.
pub fn called_by(example: &Example) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for target in TARGETS {
        let (Ok(lines), Ok(source)) = (example.printed(target), example.source(target)) else { continue };
        let defined = defined(&source.text);
        let called = lines.iter().flat_map(|line| called(line));
        names.extend(called.filter(|name| defined.contains_key(*name)).map(str::to_owned));
    }
    names
}

const TARGETS: [&str; 2] = ["cuda:sm_90a", "hip:gfx942"];

pub fn text(pages: &[Page]) -> String {
    let mut functions: BTreeMap<String, [BTreeSet<String>; 2]> = BTreeMap::new();
    for example in pages.iter().flat_map(|page| &page.examples) {
        for (at, target) in TARGETS.iter().enumerate() {
            let (Ok(lines), Ok(source)) = (example.printed(target), example.source(target)) else { continue };
            let defined = defined(&source.text);
            let mut open: Vec<String> = lines.iter().flat_map(|l| called(l)).map(str::to_owned).collect();
            let mut seen = BTreeSet::new();
            while let Some(name) = open.pop() {
                let Some(pieces) = defined.get(&name).filter(|_| seen.insert(name.clone())) else { continue };
                // Those that a function calls which is shown in full.
                let shown = pieces.iter().filter(|piece| piece.lines().count() <= LONGEST);
                open.extend(shown.flat_map(|piece| called(piece)).map(str::to_owned));
                functions.entry(name).or_default()[at].extend(pieces.iter().cloned());
            }
        }
    }
    let mut text = String::from(INTRO);
    for (name, [cuda, hip]) in &functions {
        let code = |pieces: &BTreeSet<String>| {
            let texts = pieces.iter().map(|piece| shortened(piece));
            format!("```cpp\n{}\n```\n", texts.collect::<Vec<_>>().join("\n\n"))
        };
        text += &format!("\n## `{name}`\n\n");
        text += &match cuda == hip {
            true => code(cuda),
            false => {
                let of = [("sm_90a", cuda), ("gfx942", hip)];
                let both =
                    of.iter().filter(|(_, p)| !p.is_empty()).map(|(t, p)| format!("`{t}`:\n\n{}", code(p)));
                both.collect::<Vec<_>>().join("\n")
            }
        };
    }
    text
}

/// A function of many lines as its signature.
fn shortened(piece: &str) -> String {
    let lines: Vec<&str> = piece.lines().collect();
    if lines.len() <= LONGEST {
        return piece.to_owned();
    }
    let opens = lines.iter().position(|line| line.ends_with('{')).unwrap_or(0);
    format!("{}  // {} lines\n}}", lines[..=opens].join("\n"), lines.len() - opens - 2)
}

/// Lines of the longest functions that are shown in full.
const LONGEST: usize = 20;

const INTRO: &str = "# Functions of emitted sources\n\nThe lines of the other pages call these functions and what these call, which stand in each emitted source that \
needs them. Where the text depends on the kernel (its ranks, its threads), each text is shown. Long ones are shown by their signature: \
`peerwarp show NAME --target cuda:sm_90a` prints all of them.\n";
