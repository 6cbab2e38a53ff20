//! Words that hide the subject of a sentence: none in the whole tree. `words/avoided.txt` says what to write instead.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "words/sentences.rs"]
mod sentences;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const LIST: &str = include_str!("words/avoided.txt");

/// The list and its test, which have to name the words.
const LISTED: [&str; 2] = ["tests/words.rs", "tests/words/avoided.txt"];

/// A word of the list, as lower-case words with single spaces, and what to write instead.
struct Avoided {
    word: &'static str,
    before_digit: bool,
    instead: &'static str,
}

fn list() -> Vec<Avoided> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let entry = |line: &'static str| {
        let (word, instead) = line.split_once(" | ").unwrap_or_else(|| panic!("`word | instead`: {line}"));
        let plain = word.strip_suffix('#');
        Avoided { word: plain.unwrap_or(word).trim(), before_digit: plain.is_some(), instead }
    };
    lines.map(entry).collect()
}

/// A line as its words and numbers, with a space around each: `fn who_has(x1: u32)` becomes ` fn who has x 1 u 32 `. A word that stands
/// alone in quotes is a name that data has, such as a former one that is still accepted; it is left out.
fn words(line: &str) -> String {
    let mut found = String::from(" ");
    let parts: Vec<&str> = line.split('"').collect();
    for (at, part) in parts.iter().enumerate() {
        let quoted = at % 2 == 1 && at + 1 < parts.len();
        if quoted && part.chars().all(|c| c.is_ascii_alphabetic()) {
            continue;
        }
        let mut last = ' ';
        for c in part.chars() {
            let kind = |c: char| (c.is_alphabetic(), c.is_numeric());
            if kind(c) != kind(last) && !found.ends_with(' ') {
                found.push(' ');
            }
            if c.is_alphanumeric() {
                found.extend(c.to_lowercase());
            }
            last = c;
        }
        if !found.ends_with(' ') {
            found.push(' ');
        }
    }
    found
}

/// What is found in a text, by line. An item or statement below an attribute that names `deprecated` keeps its former name.
fn avoided(text: &str, list: &[Avoided]) -> Vec<String> {
    let mut found = vec![];
    let mut is_former = false;
    for (line, content) in text.lines().enumerate() {
        let words = words(content);
        let hits = list.iter().filter(|_| !is_former).filter(|avoided| {
            let pattern = format!(" {} ", avoided.word);
            let digit = |end: usize| words[end..].starts_with(|c: char| c.is_numeric());
            let mut ends = words.match_indices(&pattern).map(|(at, _)| at + pattern.len());
            ends.any(|end| !avoided.before_digit || digit(end))
        });
        found.extend(hits.map(|a| format!("{}: \"{}\": write {}", line + 1, a.word, a.instead)));
        is_former = content.trim_start().starts_with("#[") && content.contains("deprecated");
    }
    found
}

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if path.is_file() {
        found.push(path.to_owned());
    } else if !["target", "__pycache__"].contains(&&*name)
        && (!name.starts_with('.') || name == ".ci" || name == ".githooks")
    {
        let mut entries: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| files(entry, found));
    }
}

#[test]
fn sentences_name_their_subjects() {
    let mut all = vec![];
    files(Path::new(ROOT), &mut all);
    all.retain(|path| LISTED.iter().all(|listed| !path.ends_with(listed)));
    assert!(all.len() > 1500, "{} files were read", all.len());
    let (list, mut found) = (list(), vec![]);
    for path in all {
        // Caches and compiled modules are no text.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(ROOT).unwrap().display().to_string();
        found.extend(avoided(&text, &list).into_iter().map(|hit| format!("{name}:{hit}")));
    }
    assert!(found.is_empty(), "{} words of tests/words/avoided.txt:\n{}", found.len(), found.join("\n"));
}

#[test]
fn words_are_found_in_prose_and_in_names() {
    let list = list();
    let lines = |text: &str| -> Vec<String> {
        avoided(text, &list).iter().map(|hit| hit.split(": write").next().unwrap().to_owned()).collect()
    };
    let text = "The rank waits.\nNobody waits; it took 3 us.\nThe block took a tile.\n// Those who wait, and whoever's row";
    assert_eq!(lines(text), ["2: \"nobody\"", "2: \"took\"", "4: \"whoever\"", "4: \"those who\""]);
    assert_eq!(lines("fn a_rank_is_told() {}\nlet _everybody = 1;"), ["1: \"is told\"", "2: \"everybody\""]);
    assert_eq!(lines("say(\"nobody has it\")"), ["1: \"nobody\""]);
    // A former name in data, and one of an item that is deprecated.
    assert_eq!(lines("renamed.pop(\"nobody\")"), [""; 0]);
    assert_eq!(
        lines("#[deprecated(since = \"0.1.0\")]\nfn set_nobody() {}\nfn nobody() {}"),
        ["3: \"nobody\""]
    );
    for entry in &list {
        assert!(!entry.instead.is_empty() && avoided(entry.instead, &list).is_empty(), "{}", entry.instead);
    }
}
