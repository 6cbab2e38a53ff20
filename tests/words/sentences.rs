//! No sentence of the book has more words than a reader holds in mind.

use std::fs;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The most words of a sentence. Code in a line counts as one word.
const MOST: usize = 30;

/// The sentences of a page that are too long, with line and number of words.
#[derive(Default)]
struct Sentences {
    long: Vec<(usize, usize, String)>,
    block: String,
    line: usize,
}

impl Sentences {
    fn of(text: &str) -> Vec<(usize, usize, String)> {
        let mut found = Sentences::default();
        let mut in_code = false;
        for (event, at) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = || text[..at.start].matches('\n').count() + 1;
            match event {
                Event::Start(Tag::CodeBlock(_)) => in_code = true,
                Event::End(TagEnd::CodeBlock) => in_code = false,
                Event::Start(Tag::Paragraph | Tag::Heading { .. } | Tag::Item | Tag::TableCell) => {
                    found.end_block();
                    found.line = line();
                }
                Event::End(
                    TagEnd::Paragraph
                    | TagEnd::Heading(_)
                    | TagEnd::Item
                    | TagEnd::TableCell
                    | TagEnd::List(_),
                ) => found.end_block(),
                Event::Text(words) if !in_code => found.block += &words,
                Event::Code(_) => found.block += "code",
                Event::SoftBreak | Event::HardBreak => found.block.push(' '),
                _ => {}
            }
        }
        found.long
    }

    /// Takes the block apart into sentences: each ends with `.`, `!` or `?`, perhaps in brackets or quotes, before a space.
    fn end_block(&mut self) {
        let block = std::mem::take(&mut self.block);
        let mut sentence: Vec<&str> = vec![];
        let mut end = |sentence: &mut Vec<&str>| {
            let words = sentence.iter().filter(|word| word.contains(char::is_alphanumeric)).count();
            if words > MOST {
                self.long.push((self.line, words, sentence.join(" ")));
            }
            sentence.clear();
        };
        for word in block.split_whitespace() {
            sentence.push(word);
            if word.trim_end_matches([')', '"', '\u{201d}']).ends_with(['.', '!', '?']) {
                end(&mut sentence);
            }
        }
        end(&mut sentence);
    }
}

/// Names and texts of the book's pages, and of the README.
fn book() -> Vec<(String, String)> {
    let mut pages = vec![];
    super::files(&Path::new(super::ROOT).join("docs"), &mut pages);
    pages.push(Path::new(super::ROOT).join("README.md"));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    assert!(pages.len() > 30, "{} pages were read", pages.len());
    let name = |page: &Path| page.strip_prefix(super::ROOT).unwrap().display().to_string();
    pages.iter().map(|page| (name(page), fs::read_to_string(page).unwrap())).collect()
}

#[test]
fn sentences_of_the_book_are_short() {
    let mut found = vec![];
    for (name, text) in book() {
        let long = Sentences::of(&text);
        found.extend(long.iter().map(|(line, words, text)| format!("{name}:{line}: {words} words: {text}")));
    }
    assert!(found.is_empty(), "{} sentences have more than {MOST} words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_long_sentence_is_found_wherever_it_stands() {
    let long = "word ".repeat(MOST) + "word";
    let lines = |text: &str| -> Vec<(usize, usize)> {
        Sentences::of(text).into_iter().map(|(line, words, _)| (line, words)).collect()
    };
    let found = |line| vec![(line, MOST + 1)];
    assert_eq!(lines(&format!("Short. {long}. Short.")), found(1));
    assert_eq!(lines(&format!("# Page\n\n- short\n- {long}\n")), found(4));
    assert_eq!(lines(&format!("| a | b |\n|---|---|\n| short | {long} |\n")), found(3));
    assert_eq!(lines(&format!("Over\n{long}")), [(1, MOST + 2)]);
    // Two sentences, code, a list whose items are sentences of their own, a code block.
    assert_eq!(lines(&long.replacen("word ", "word. ", 1)), []);
    assert_eq!(lines(&format!("`{long}` is one word")), []);
    assert_eq!(lines(&"- five words are in here\n".repeat(MOST)), []);
    assert_eq!(lines(&format!("```text\n{long}\n```\n")), []);
}

/// Lines of paragraphs, items and rows that name what has tensor memory, but do not say that it has never run on hardware. The first
/// block below a heading says it for its section.
fn unsaid(text: &str) -> Vec<usize> {
    let mut blocks: Vec<(usize, String)> = vec![];
    let mut in_code = false;
    for (line, content) in text.lines().enumerate() {
        let is_fence = content.starts_with("```");
        in_code ^= is_fence;
        if blocks.is_empty() || is_fence || content.is_empty() || content.starts_with(['#', '|', '-']) {
            blocks.push((line + 1 + usize::from(content.is_empty()), String::new()));
        }
        if !in_code && !is_fence {
            blocks.last_mut().expect("one was begun").1 += &format!("{content} ");
        }
    }
    blocks.retain(|(_, block)| !block.trim().is_empty());
    let says = |block: &str| block.to_lowercase().contains("never run on hardware");
    let (mut found, mut is_first, mut is_said) = (vec![], false, false);
    for (line, block) in &blocks {
        let names = ["sm_100a", "sm_103a", "sm_110a", "tcgen05"].iter().any(|name| block.contains(name));
        is_said = if is_first { says(block) } else { is_said && !block.starts_with('#') };
        is_first = block.starts_with('#');
        if names && !is_said && !says(block) {
            found.push(*line);
        }
    }
    found
}

#[test]
fn what_has_never_run_says_so() {
    let mut found = vec![];
    // Rows of the page of targets have a column that says it.
    for (name, text) in book().into_iter().filter(|(name, _)| !name.ends_with("explanation/targets.md")) {
        found.extend(unsaid(&text).into_iter().map(|line| format!("{name}:{line}")));
    }
    assert!(found.is_empty(), "\"never run on hardware\" is missing:\n{}", found.join("\n"));
}

#[test]
fn an_unsaid_claim_is_found_wherever_it_stands() {
    let said = "`tcgen05` has never run\non hardware.".replace('\n', " ");
    assert_eq!(unsaid("# sm_80\n\nIt has\n`sm_100a`.\n\n- `tcgen05`\n"), [3, 6]);
    assert_eq!(unsaid(&format!("# Page\n\n{said}\n\n- `tcgen05`\n\n## Other\n\n`sm_103a`\n")), [9]);
    assert_eq!(unsaid(&format!("# Page\n\nText.\n\n{said}\n\n| `sm_110a` | 1 |\n| `sm_90a` | 2 |\n")), [7]);
    assert_eq!(unsaid("```text\ntcgen05\n```\n"), []);
}
