//! Whether each of the ten questions has its answer where the table of `mod.rs` says.

use std::fs;
use std::path::Path;

/// The parts of a text between pairs of a character.
fn quoted(text: &str, mark: char) -> Vec<&str> {
    text.split(mark).skip(1).step_by(2).collect()
}

/// Whether a source has an item of this name.
fn defines(source: &str, item: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait"];
    source.lines().any(|line| {
        let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        words.windows(2).any(|pair| kinds.contains(&pair[0]) && pair[1] == item)
    })
}

#[test]
fn ten_questions_have_answers_in_the_named_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/families/moe");
    let rows = include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let rows: Vec<Vec<&str>> =
        rows.map(|row| row.split(" | ").collect()).filter(|row: &Vec<_>| row[0].ends_with('?')).collect();
    assert_eq!(rows.len(), 10);
    for row in rows {
        let [question, _, places] = row[..] else { panic!("{row:?}: question, answer, where") };
        for place in places.split("; ") {
            let [file, items @ ..] = &quoted(place, '`')[..] else { panic!("{question} {place}") };
            let source =
                fs::read_to_string(folder.join(file)).unwrap_or_else(|e| panic!("{question} {file}: {e}"));
            let headings = quoted(place, '"');
            assert!(items.len() + headings.len() > 0, "{question} {place}");
            items.iter().for_each(|item| assert!(defines(&source, item), "{question} no `{item}` in {file}"));
            headings.iter().for_each(|heading| {
                assert!(
                    source.contains(&format!("# {heading}")),
                    "{question} no heading `{heading}` in {file}"
                );
            });
        }
    }
}
