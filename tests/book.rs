//! The book in `docs`, and the pages around it: nothing is left out of the summary, and every link leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Where the repository is published. Pages of the book link to files beside the book by it, as the rendered book has
/// none of them.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// A Markdown file.
struct Page {
    /// Lines and targets of links and images.
    links: Vec<(usize, String)>,
    /// The ids of its headings.
    anchors: BTreeSet<String>,
}

impl Page {
    fn parse(text: &str) -> Page {
        let mut page = Page { links: vec![], anchors: BTreeSet::new() };
        let mut heading: Option<String> = None;
        let line = |at: Range<usize>| text[..at.start].matches('\n').count() + 1;
        for (event, at) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line(at), dest_url.into_string()));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(t) | Event::Code(t) => {
                    if let Some(h) = &mut heading {
                        h.push_str(&t);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let id = anchor(&heading.take().expect("a heading has begun"));
                    let mut unique = id.clone();
                    let mut next = 1;
                    while !page.anchors.insert(unique) {
                        unique = format!("{id}-{next}");
                        next += 1;
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// The id of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// The folders of the book, one a purpose, and that of the language.
const FOLDERS: [&str; 6] = ["start", "tutorial", "how-to", "reference", "reference/language", "explanation"];

/// The Markdown files below a folder, as paths from `root`.
fn pages_in(root: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut pages = vec![];
    for entry in std::fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            pages.extend(pages_in(root, &path));
        } else if path.extension().is_some_and(|e| e == "md") {
            pages.push(path);
        }
    }
    pages
}

/// `a/b/../c` as `a/c`; `None` where it leaves the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

/// The pages of a repository that are checked.
struct Checked<'a> {
    root: &'a Path,
    pages: BTreeMap<PathBuf, Page>,
}

impl Checked<'_> {
    fn read(root: &Path, pages: impl IntoIterator<Item = PathBuf>) -> Checked<'_> {
        let parse = |p: PathBuf| {
            let text =
                std::fs::read_to_string(root.join(&p)).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
            (p, Page::parse(&text))
        };
        Checked { root, pages: pages.into_iter().map(parse).collect() }
    }

    /// What is wrong with a link, if anything is.
    fn wrong(&self, from: &Path, link: &str) -> Option<String> {
        let (target, anchor) = link.split_once('#').map_or((link, None), |(t, a)| (t, Some(a)));
        let published = target.strip_prefix(REPOSITORY);
        let (path, must_be) = if let Some(rest) = published {
            let kinds = [("/blob/main/", Some(false)), ("/tree/main/", Some(true))];
            let found = kinds.iter().find_map(|(prefix, kind)| Some((rest.strip_prefix(prefix)?, *kind)));
            let (path, kind) = found?; // the repository itself, its issues, ..
            (PathBuf::from(path), kind)
        } else if target.contains("://") || target.starts_with("mailto:") {
            return None;
        } else if target.is_empty() {
            (from.to_path_buf(), None)
        } else {
            (from.parent().unwrap_or(Path::new("")).join(target), None)
        };
        let Some(path) = plain(&path) else { return Some("leads out of the repository".into()) };
        if published.is_none() && from.starts_with("docs") && !path.starts_with("docs") {
            return Some(format!("leads out of the book: link to {REPOSITORY}/blob/main/{}", path.display()));
        }
        let there = self.root.join(&path);
        if !there.exists() {
            return Some(format!("there is no {}", path.display()));
        }
        if must_be.is_some_and(|folder| there.is_dir() != folder) {
            return Some("folders are at /tree/main/, files at /blob/main/".into());
        }
        let anchor = anchor?;
        match self.pages.get(&path) {
            Some(page) if page.anchors.contains(anchor) => None,
            Some(_) => Some(format!("{} has no heading #{anchor}", path.display())),
            None => Some(format!("{} is no page that is checked: its #{anchor} cannot be", path.display())),
        }
    }

    /// Links that lead nowhere, and pages of `docs` that are outside its folders or not exactly once in its summary.
    fn problems(&self) -> Vec<String> {
        let mut problems = vec![];
        for (from, page) in &self.pages {
            for (line, link) in &page.links {
                if let Some(wrong) = self.wrong(from, link) {
                    problems.push(format!("{}:{line}: {link}: {wrong}", from.display()));
                }
            }
        }
        let summary = Path::new("docs/SUMMARY.md");
        let listed: Vec<PathBuf> =
            self.pages[summary].links.iter().map(|(_, l)| Path::new("docs").join(l)).collect();
        for page in self.pages.keys().filter(|p| p.starts_with("docs") && *p != summary) {
            let times = listed.iter().filter(|l| *l == page).count();
            if times != 1 {
                problems.push(format!("{} is {times} times in {}", page.display(), summary.display()));
            }
            if !FOLDERS.iter().any(|f| page.parent() == Some(&Path::new("docs").join(f))) {
                problems.push(format!("{} is in none of docs/{}", page.display(), FOLDERS.join(", docs/")));
            }
        }
        problems
    }
}

#[test]
fn the_summary_is_complete_and_every_link_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/c/README.md"].map(PathBuf::from).to_vec();
    pages.extend(["docs", "bench/results"].iter().flat_map(|folder| pages_in(root, Path::new(folder))));
    let problems = Checked::read(root, pages).problems();
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Files below a folder whose text may name pages, as paths from `root`.
fn sources_in(root: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut sources = vec![];
    for entry in std::fs::read_dir(root.join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if entry.file_name() != "target" {
                sources.extend(sources_in(root, &path));
            }
        } else if path.extension().is_some_and(|e| ["rs", "py", "toml", "hbs"].iter().any(|s| e == *s)) {
            sources.push(path);
        }
    }
    sources
}

/// Pages of the book and of results that a text names and that do not exist.
fn missing_pages(root: &Path, text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let words = text.split(|c| !is_path(c));
    let pages = words.filter_map(|word| {
        let at = ["docs/", "bench/results/"].iter().find_map(|folder| word.find(folder))?;
        let page = word[at..].trim_end_matches('.');
        (page.ends_with(".md") || page.ends_with(".json")).then(|| page.to_string())
    });
    pages.filter(|page| !root.join(page).exists()).collect()
}

#[test]
fn pages_that_sources_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "codegen", "python", "tests", "examples", "bench", "templates", "generated"];
    let mut missing = vec![];
    for source in folders.iter().flat_map(|folder| sources_in(root, Path::new(folder))) {
        if source == Path::new("tests/book.rs") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root.join(&source)) else { continue };
        missing.extend(missing_pages(root, &text).iter().map(|page| format!("{}: {page}", source.display())));
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn a_page_that_is_gone_is_found_in_a_comment() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = "// see docs/start/gone.md.\n// (`bench/results/README.md`, `bench/results/gone.json`)\n// docs/SUMMARY.md";
    assert_eq!(missing_pages(root, text), ["docs/start/gone.md", "bench/results/gone.json"]);
}

/// The problems of a small book with these files, whose Markdown files are checked.
fn problems_of(files: &[(&str, &str)]) -> Vec<String> {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Checked::read(root.path(), pages_in(root.path(), Path::new(""))).problems()
}

#[test]
fn what_is_right_is_left_alone() {
    let page = "# What `x` is: 1, 2\n## Twice\n## Twice\n[a](#what-x-is-1-2) [b](../how-to/b.md#twice-1) ![c](c.svg) [d](https://example.org/no.md)\n";
    let page = format!(
        "{page}[e]({REPOSITORY}/blob/main/src/e.rs) [f]({REPOSITORY}/tree/main/src) [g]({REPOSITORY}/issues)\n"
    );
    let page = format!("{page}```text\n[h](no.md)\n```\n");
    let files = [
        ("docs/SUMMARY.md", "[A](start/a.md)\n- [B](how-to/b.md)\n"),
        ("docs/start/a.md", &page),
        ("docs/how-to/b.md", "# Twice\n# Twice\n"),
        ("docs/start/c.svg", ""),
        ("src/e.rs", ""),
        ("README.md", "[docs](docs) [a](docs/start/a.md#twice)"),
    ];
    assert_eq!(problems_of(&files), Vec::<String>::new());
}

#[test]
fn what_leads_nowhere_is_found() {
    let page = format!(
        "[a](gone.md)\n\n| |\n|---|\n| [b](b.md#gone) |\n\n[c](../../README.md)\n[d]({REPOSITORY}/blob/main/gone.rs)\n\
         [e]({REPOSITORY}/blob/main/docs)\n[f](c.svg#x)\n[g](../../../x)\n[h](#no)\n"
    );
    let files = [
        ("docs/SUMMARY.md", "- [A](start/a.md)\n- [A](start/a.md)\n- [Gone](gone.md)\n- [D](d.md)\n"),
        ("docs/d.md", ""),
        ("docs/start/a.md", &page),
        ("docs/start/b.md", "# B\n"),
        ("docs/start/c.svg", ""),
        ("README.md", ""),
    ];
    let expected = [
        "docs/SUMMARY.md:3: gone.md: there is no docs/gone.md".to_string(),
        "docs/start/a.md:1: gone.md: there is no docs/start/gone.md".into(),
        "docs/start/a.md:5: b.md#gone: docs/start/b.md has no heading #gone".into(),
        format!(
            "docs/start/a.md:7: ../../README.md: leads out of the book: link to {REPOSITORY}/blob/main/README.md"
        ),
        format!("docs/start/a.md:8: {REPOSITORY}/blob/main/gone.rs: there is no gone.rs"),
        format!(
            "docs/start/a.md:9: {REPOSITORY}/blob/main/docs: folders are at /tree/main/, files at /blob/main/"
        ),
        "docs/start/a.md:10: c.svg#x: docs/start/c.svg is no page that is checked: its #x cannot be".into(),
        "docs/start/a.md:11: ../../../x: leads out of the repository".into(),
        "docs/start/a.md:12: #no: docs/start/a.md has no heading #no".into(),
        "docs/d.md is in none of docs/start, docs/tutorial, docs/how-to, docs/reference, docs/reference/language, docs/explanation"
            .into(),
        "docs/start/a.md is 2 times in docs/SUMMARY.md".into(),
        "docs/start/b.md is 0 times in docs/SUMMARY.md".into(),
    ];
    assert_eq!(problems_of(&files), expected);
}
