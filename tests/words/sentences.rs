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

#[test]
fn sentences_of_the_book_are_short() {
    let mut pages = vec![];
    super::files(&Path::new(super::ROOT).join("docs"), &mut pages);
    pages.push(Path::new(super::ROOT).join("README.md"));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    assert!(pages.len() > 30, "{} pages were read", pages.len());
    let mut found = vec![];
    for page in pages {
        let name = page.strip_prefix(super::ROOT).unwrap().display().to_string();
        let long = Sentences::of(&fs::read_to_string(&page).unwrap());
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
