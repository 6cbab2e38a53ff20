//! The language reference in `docs/reference/language`: every op of the prelude has an entry, whose example runs on the simulator and
//! prints the lines that the page shows.
//!
//! Write the pages anew with `cargo test -p peerwarp-codegen-tests --test language -- --ignored`, and read the difference.

mod attributes;
mod errors;
#[macro_use]
mod example;
mod examples;
mod expand;
mod functions;
mod page;
mod surface;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use page::Page;
use surface::Surface;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/language")
}

/// The generated pages: file names and texts.
fn written() -> Vec<(String, String)> {
    let (surface, pages) = (Surface::read(), examples::pages());
    let mut texts: Vec<_> = pages.iter().map(|p| (format!("{}.md", p.file), p.text(&surface))).collect();
    texts.push(("functions.md".into(), functions::text(&pages)));
    texts.push(("errors.md".into(), errors::text()));
    texts.push(("ops.md".into(), page::index(&surface, &pages)));
    texts
}

#[test]
fn pages_are_as_written() {
    for (file, text) in written() {
        let there = std::fs::read_to_string(folder().join(&file)).unwrap_or_default();
        if let Some((line, (is, wanted))) =
            there.lines().chain([""; 9]).zip(text.lines()).enumerate().find(|(_, (a, b))| a != b)
        {
            panic!("{file}:{}: `{is}`, not `{wanted}`: write the pages anew, as above", line + 1);
        }
        assert_eq!(
            there.len(),
            text.len(),
            "{file} goes on where its text ends: write the pages anew, as above"
        );
    }
}

#[test]
#[ignore = "it writes the pages"]
fn write_pages() {
    for (file, text) in written() {
        std::fs::write(folder().join(file), text).unwrap();
    }
}

/// Ops and types of the surface that no page has, or two have, and those of pages that the surface lacks.
fn problems(surface: &Surface, pages: &[Page]) -> Vec<String> {
    let (mut ops, mut kinds) = (BTreeMap::<&str, usize>::new(), BTreeMap::<&str, usize>::new());
    for page in pages {
        page.kinds.iter().for_each(|kind| *kinds.entry(kind).or_default() += 1);
        page.examples.iter().flat_map(|e| e.ops).for_each(|op| *ops.entry(op).or_default() += 1);
    }
    let there: BTreeSet<String> =
        surface.ops.iter().map(surface::Op::key).chain(page::CONSTRUCTS.map(|c| c.0.to_owned())).collect();
    let named: BTreeSet<String> = surface.kinds.keys().cloned().collect();
    let reached = |name: &str| named.contains(name) || there.contains(name) || name == "kernel";
    let lost = surface.prelude.iter().filter(|name| !reached(name));
    let mut problems: Vec<String> =
        lost.map(|name| format!("`{name}` of the prelude is not looked at")).collect();
    for (what, there, listed) in [("op", &there, &ops), ("type", &named, &kinds)] {
        let missing = there.iter().filter(|name| !listed.contains_key(name.as_str()));
        problems.extend(missing.map(|name| format!("{what} `{name}` has no entry")));
        let gone = listed.keys().filter(|name| !there.contains(**name));
        problems.extend(gone.map(|name| format!("{what} `{name}` is not in the prelude")));
        let twice = listed.iter().filter(|(_, times)| **times > 1);
        problems.extend(twice.map(|(name, times)| format!("{what} `{name}` has {times} entries")));
    }
    problems
}

#[test]
fn every_op_and_type_of_the_prelude_has_one_entry() {
    let problems = problems(&Surface::read(), &examples::pages());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Ops that make groups or ranks wait for each other, by their names.
const ORDERING: [&str; 18] = [
    "signal",
    "wait",
    "wait_all",
    "wait_some",
    "meet",
    "meet_at",
    "take",
    "take_each",
    "send",
    "send_f32",
    "put",
    "copy",
    "publish",
    "publish_any",
    "done",
    "last",
    "split",
    "goes_on_as",
];

#[test]
fn ops_that_wait_or_signal_say_what_they_order() {
    let surface = Surface::read();
    // What a message's field or a batch puts goes with the message.
    let is_part = |op: &&surface::Op| {
        op.of.contains("OutgoingField")
            || op.of.contains("BatchSlot")
            || op.of.contains("Outgoing<") && op.name != "done"
            // What a channel is declared with.
            || op.of.contains("ChannelShape")
    };
    let ordering = surface.ops.iter().filter(|op| ORDERING.contains(&op.name.as_str()) && !is_part(op));
    let silent: Vec<_> =
        ordering.filter(|op| !op.docs.contains("# Orders\n")).map(surface::Op::key).collect();
    assert!(silent.is_empty(), "{silent:?} lack a section `# Orders`");
}

#[test]
fn an_op_without_an_entry_is_found() {
    let (surface, mut pages) = (Surface::read(), examples::pages());
    let first = pages[0].examples.remove(0);
    let found = problems(&surface, &pages);
    let expected: BTreeSet<String> = first.ops.iter().map(|op| format!("op `{op}` has no entry")).collect();
    assert!(!expected.is_empty() && found.into_iter().collect::<BTreeSet<_>>() == expected);
}

#[test]
fn every_example_uses_its_ops_and_computes_what_it_says() {
    let mut wrong = vec![];
    for page in examples::pages() {
        for example in &page.examples {
            let body = page.kernel(example);
            let unused = example.ops.iter().filter(|op| !page::uses(&body, op));
            wrong.extend(
                unused.map(|op| format!("{}: the example `{}` does not use `{op}`", page.file, example.name)),
            );
            wrong.extend((0..3).filter_map(|seed| example.run(seed).err()).take(1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
