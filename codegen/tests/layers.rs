//! The folders of the printer use each other in one direction: a graph of them, read from the sources.
//!
//! A folder uses another one if a path leads there, or if it calls a method of the emitter that is defined there.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The type whose methods stand in several folders.
const SHARED: &str = "Emitter";

/// What variables of that type are called.
const RECEIVERS: [&str; 3] = ["self", "e", "me"];

/// Edges between folders, each with one of the places it comes from.
type Edges = BTreeMap<(String, String), String>;

/// The tokens of a source without its tests.
fn tokens(text: &str) -> Vec<TokenTree> {
    let end = text.find("\n#[cfg(test)]\nmod tests").unwrap_or(text.len());
    let stream: TokenStream = text[..end].parse().expect("sources are Rust");
    stream.into_iter().collect()
}

/// Name and tokens of all sources of the printer but its tests.
fn sources() -> BTreeMap<String, Vec<TokenTree>> {
    fn read(folder: &Path, name: &str, found: &mut BTreeMap<String, Vec<TokenTree>>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let file = entry.file_name().into_string().unwrap();
            let name = if name.is_empty() { file.clone() } else { format!("{name}/{file}") };
            if entry.path().is_dir() && file != "tests" {
                read(&entry.path(), &name, found);
            } else if file.ends_with(".rs") {
                found.insert(name, tokens(&std::fs::read_to_string(entry.path()).unwrap()));
            }
        }
    }
    let mut found = BTreeMap::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/print"), "", &mut found);
    found
}

/// The folder of a file; a file beside the folders is one by itself.
fn room(file: &str) -> &str {
    file.split('/').next().unwrap()
}

fn is(token: Option<&TokenTree>, punct: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == punct)
}

/// The paths in tokens, those in braces of imports one by one.
fn paths(tokens: &[TokenTree], before: &[String], found: &mut Vec<Vec<String>>) {
    let mut at = 0;
    while at < tokens.len() {
        let mut path = before.to_vec();
        while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
            path.push(ident.to_string());
            at += 1;
            if !is(tokens.get(at), ':') || !is(tokens.get(at + 1), ':') {
                break;
            }
            at += 2;
        }
        match tokens.get(at) {
            // `a::{b, c}`, or a block of code.
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let braces = group.delimiter() == Delimiter::Brace && at > 0 && is(tokens.get(at - 1), ':');
                if !braces && path.len() > before.len() {
                    found.push(path.clone());
                }
                paths(&inner, if braces { &path } else { &[] }, found);
                at += 1;
            }
            _ if path.len() > before.len() => found.push(path),
            _ => at += 1,
        }
    }
}

/// Where a path leads from a file of the printer: a folder, or what the root defines or exports.
fn target(file: &str, path: &[String], root: &BTreeMap<String, String>) -> Option<String> {
    let mut module: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    module.retain(|name| *name != "mod");
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" if path.get(1).is_some_and(|name| name == "print") => {
            module.clear();
            rest = &path[2..];
        }
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                module.pop()?;
                rest = &rest[1..];
            }
        }
        _ if module.is_empty() => {}
        _ => return None,
    }
    let name = module.first().copied().or(rest.first().map(String::as_str))?;
    match root.get(name) {
        Some(room) => Some(room.clone()),
        None if path[0] == "crate" || path[0] == "super" => Some("mod.rs".into()),
        None => None,
    }
}

/// The implementations of the shared type, and all other tokens.
fn split(tokens: &[TokenTree]) -> (Vec<TokenTree>, Vec<TokenTree>) {
    let (mut own, mut other, mut header) = (vec![], vec![], None::<Vec<String>>);
    for token in tokens {
        match (token, &mut header) {
            (TokenTree::Ident(ident), None) if ident == "impl" => header = Some(vec![]),
            (TokenTree::Ident(ident), Some(names)) => names.push(ident.to_string()),
            (TokenTree::Group(group), Some(names)) if group.delimiter() == Delimiter::Brace => {
                let shared =
                    names.iter().any(|name| name == SHARED) && !names.iter().any(|name| name == "for");
                if shared { &mut own } else { &mut other }.extend(group.stream());
                header = None;
            }
            (_, None) => other.push(token.clone()),
            (_, Some(_)) => {}
        }
    }
    (own, other)
}

/// The methods that implementations define.
fn methods(own: &[TokenTree]) -> Vec<String> {
    let named = |pair: &[TokenTree]| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "fn" => Some(name.to_string()),
        _ => None,
    };
    own.windows(2).filter_map(named).collect()
}

/// Methods that are called on the shared type, or named as functions.
fn calls(tokens: &[TokenTree], receivers: &[&str], found: &mut BTreeSet<String>) {
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                calls(&group.stream().into_iter().collect::<Vec<_>>(), receivers, found);
            }
            TokenTree::Ident(name) if at > 1 && is(tokens.get(at - 1), '.') => {
                let TokenTree::Ident(receiver) = &tokens[at - 2] else { continue };
                let whole = at < 3 || !is(tokens.get(at - 3), '.');
                if whole && receivers.iter().any(|one| receiver == one) {
                    found.insert(name.to_string());
                }
            }
            TokenTree::Ident(name) if at > 2 && is(tokens.get(at - 1), ':') => {
                if matches!(&tokens[at - 3], TokenTree::Ident(of) if of == SHARED) {
                    found.insert(name.to_string());
                }
            }
            _ => {}
        }
    }
}

/// The graph of folders.
fn graph(sources: &BTreeMap<String, Vec<TokenTree>>) -> Edges {
    // Folders by their own names, and by what the root exports of them.
    let folders = sources.keys().filter(|file| file.contains('/')).map(|file| room(file));
    let mut root: BTreeMap<String, String> = folders.map(|room| (room.into(), room.into())).collect();
    let mut exported = vec![];
    paths(sources.get("mod.rs").map_or(&[], Vec::as_slice), &[], &mut exported);
    for path in exported.iter().filter(|path| path.len() > 1) {
        if let Some(room) = root.get(&path[0]).cloned() {
            root.entry(path.last().unwrap().clone()).or_insert(room);
        }
    }
    let mut edges = Edges::new();
    let mut defined: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (file, tokens) in sources {
        for method in methods(&split(tokens).0) {
            defined.entry(method).or_default().insert(room(file));
        }
    }
    for (file, tokens) in sources {
        let mut add = |to: &str, what: String| {
            if to != room(file) {
                edges.entry((room(file).into(), to.into())).or_insert(format!("{file}: {what}"));
            }
        };
        let mut found = vec![];
        paths(tokens, &[], &mut found);
        for path in found {
            if let Some(to) = target(file, &path, &root) {
                add(&to, path.join("::"));
            }
        }
        let ((own, other), mut called) = (split(tokens), BTreeSet::new());
        calls(&own, &RECEIVERS, &mut called);
        calls(&other, &RECEIVERS[1..], &mut called);
        for method in called {
            for to in defined.get(&method).into_iter().flatten() {
                add(to, format!("{SHARED}::{method}"));
            }
        }
    }
    edges
}

/// The folders that stand in circles, with the edges between them.
fn circles(edges: &Edges) -> Vec<String> {
    let mut left: Edges = edges.clone();
    loop {
        let uses: BTreeSet<String> = left.keys().map(|(from, _)| from.clone()).collect();
        let used: BTreeSet<String> = left.keys().map(|(_, to)| to.clone()).collect();
        let before = left.len();
        left.retain(|(from, to), _| uses.contains(to) && used.contains(from));
        if left.len() == before {
            return left.into_iter().map(|((from, to), why)| format!("{from} uses {to}: {why}")).collect();
        }
    }
}

#[test]
fn folders_of_the_printer_use_each_other_in_one_direction() {
    let edges = graph(&sources());
    let known = |from: &str, to: &str| edges.contains_key(&(from.to_owned(), to.to_owned()));
    assert!(known("control", "emit") && known("emit", "facts") && known("mod.rs", "source"), "{edges:#?}");
    assert_eq!(circles(&edges), [""; 0]);
}

#[test]
fn circles_are_found_by_paths_and_by_methods() {
    let parsed = |files: &[(&str, &str)]| {
        files.iter().map(|(file, text)| ((*file).to_owned(), tokens(text))).collect::<BTreeMap<_, _>>()
    };
    let root = ("mod.rs", "mod low; mod high; pub use high::a::Top; pub struct Own;");
    let high = (
        "high/a.rs",
        "use crate::{ir::X, print::low::{b::Emitter, c}}; impl Emitter<'_> { pub fn top(&mut self) {} }",
    );
    let found = |low: &str| circles(&graph(&parsed(&[root, high, ("low/b.rs", low)])));
    assert_eq!(
        found("pub struct Emitter<'a>(&'a u32); impl Emitter<'_> { fn bottom(&self) { self.0.top(); } }"),
        [""; 0]
    );
    let high = "high uses low: high/a.rs: crate::print::low::b::Emitter";
    let low = |why: &str| vec![high.to_owned(), format!("low uses high: low/b.rs: {why}")];
    assert_eq!(found("fn f() { crate::print::high::a::f(); }"), low("crate::print::high::a::f"));
    assert_eq!(found("use super::super::high;"), low("super::super::high"));
    assert_eq!(found("use crate::print::Top;"), low("crate::print::Top"));
    assert_eq!(found("fn f(e: &mut Emitter) { g(|x| e.top()); }"), low("Emitter::top"));
    assert_eq!(found("impl Emitter<'_> { fn f(&mut self) { self.top() } }"), low("Emitter::top"));
    assert_eq!(found("const F: fn() = Emitter::top;"), low("Emitter::top"));
    let own = "low uses mod.rs: low/b.rs: crate::print::Own";
    assert!(found("use crate::print::Own;").contains(&own.to_owned()));
}
