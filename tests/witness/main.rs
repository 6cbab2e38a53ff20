//! What is chosen for a key, and what is emitted for it: a record of both, so that no plan and no text changes unseen.
//!
//! Each line of `plans.txt` is `target | device | key | chosen variants | digests`. A device's name stands for its tuned table,
//! `-` for none. The digest is of the emitted text without comments. A change of a line needs its reason in the commit that
//! makes it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};
use std::{env, fs};

use peerwarp::build::emit;
use peerwarp::cli;
use peerwarp::codegen::family::{Operation, Registry, Target, Variant};
use peerwarp::families::moe::{MoeSuite, MoeTuning};
use peerwarp::harness::request::{self, Request};
use peerwarp::harness::tune::Tuned;
use peerwarp::harness::workload::{Given, Suite};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/witness/plans.txt");

/// The suites of the program, each once.
fn suites() -> Vec<&'static dyn Suite> {
    let mut suites: Vec<&'static dyn Suite> = vec![];
    for entry in cli::builtin() {
        if suites.iter().all(|s| s.name() != entry.suite().name()) {
            suites.push(entry.suite());
        }
    }
    suites
}

/// The variants that the program takes for a key.
fn chosen(device: &str, key: &str, registry: &Registry) -> Result<Vec<Variant>, String> {
    let (family, settings) = key.split_once(' ').ok_or("a key is a family and its fields")?;
    let pairs = settings.split_whitespace().map(|s| s.split_once('=').expect("field=value"));
    let requests = if family == "moe" {
        let (set, given): (Vec<_>, Vec<_>) = pairs.partition(|(name, _)| name.starts_with("set."));
        let own = |(name, value): &(&str, &str)| (name.replace('_', "-"), (*value).to_owned());
        let given: Given = given.iter().map(own).collect();
        let mut requests = MoeSuite.select(&given, false, registry).map_err(|e| e.to_string())?;
        for request in &mut requests {
            request
                .tuning
                .extend(set.iter().map(|(name, value)| (name[4..].to_owned(), (*value).to_owned())));
        }
        requests
    } else {
        let key = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        vec![Request { key, ..Request::family(family, family) }]
    };
    let plain = request::resolve(&requests, registry).map_err(|e| e.to_string())?;
    if device == "-" {
        return Ok(plain);
    }
    let suites = suites();
    let suite = suites.iter().find(|s| s.families().iter().any(|f| f.name() == plain[0].family().name()));
    let tuned = Tuned::builtin(device, "cuda:sm_90a".parse().unwrap()).expect("a table");
    Ok(tuned.find(*suite.expect("a suite"), &plain).map_or(plain, |found| found.variants))
}

/// The digest of what is compiled of a variant.
fn digest(variant: &Variant, target: Target) -> Result<String, String> {
    let source = emit::source("peerwarp", &**variant, target).map_err(|e| e.to_string())?;
    Ok(Sha256::digest(code(&source.text)).iter().take(8).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes it");
        text
    }))
}

/// A source without comments, and without what a wait says of itself: `{role_recv, flag_ready, 140}`.
fn code(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        let mut line = line.split("//").next().unwrap_or_default().trim().to_owned();
        // Its number once was its line.
        for (was, is) in
            [("u32 line;", "u32 site;"), ("->line = ", "->site = "), ("= site.line;", "= site.site;")]
        {
            line = line.replace(was, is);
        }
        line = line.replace("= site.number;", "= site.site;");
        if line == "u32 number;" && code.ends_with("u32 flag;\n") {
            line = "u32 site;".to_owned();
        }
        while let Some(at) = line.find("{role_") {
            let end = at + line[at..].find('}').expect("a site ends");
            line.replace_range(at..=end, "SITE");
        }
        if !line.is_empty() {
            code += &(line + "\n");
        }
    }
    code
}

/// A line of the record, as it is now.
fn line(of: &str, registry: &Registry) -> String {
    let fields: Vec<&str> = of.split(" | ").take(3).collect();
    let [target, device, key] = fields[..] else { panic!("`{of}`: target | device | key") };
    let target: Target = target.parse().unwrap();
    let found = chosen(device, key, registry).and_then(|variants| {
        let digests =
            variants.iter().map(|variant| digest(variant, target)).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = variants.iter().map(|v| v.variant_name()).collect();
        Ok(format!("{} | {}", names.join(" "), digests.join(" ")))
    });
    let found = found.unwrap_or_else(|why| format!("refused | {}", why.replace('\n', " ")));
    format!("{target} | {device} | {key} | {found}")
}

#[test]
fn plans_and_texts_are_those_of_the_record() {
    let registry = Registry::new(cli::builtin().iter().map(|entry| entry.family()));
    let record = fs::read_to_string(RECORD).unwrap();
    let now: Vec<String> = record.par_lines().map(|of| line(of, &registry)).collect();
    if env::var_os("PEERWARP_WITNESS").is_some_and(|how| how == "write") {
        return fs::write(RECORD, now.join("\n") + "\n").unwrap();
    }
    assert!(now.len() >= 600, "{} keys", now.len());
    let changed: Vec<String> = record
        .lines()
        .zip(&now)
        .filter(|(was, is)| was != is)
        .map(|(was, is)| format!("- {was}\n+ {is}"))
        .collect();
    assert!(
        changed.is_empty(),
        "{} of {} lines of tests/witness/plans.txt change; give the reason in the commit that writes them anew \
         (PEERWARP_WITNESS=write):\n{}",
        changed.len(),
        now.len(),
        changed.join("\n")
    );
}

/// A dispatch and a combine that are chosen for a key are projections of one key and one plan. What users set in one of them alone
/// may not go together, and is refused when it is to be run.
#[test]
fn chosen_launches_of_moe_are_projections_of_one_plan() {
    let registry = Registry::new(cli::builtin().iter().map(|entry| entry.family()));
    let record = fs::read_to_string(RECORD).unwrap();
    let mut found = 0;
    for line in record.lines() {
        let fields: Vec<&str> = line.split(" | ").collect();
        let variants = fields[3].split(' ').map(|name| registry.parse(name).ok()).collect::<Option<Vec<_>>>();
        let variants: Vec<Variant> = variants.unwrap_or_default();
        let dispatch = variants.iter().find_map(|v| v.as_any().downcast_ref());
        let combine = variants.iter().find_map(|v| v.as_any().downcast_ref());
        let Some((dispatch, combine)) = dispatch.zip(combine) else { continue };
        match MoeTuning::of(dispatch, combine) {
            Err(_) if fields[2].contains(" set.") => continue,
            Err(e) => panic!("{line}: {e}"),
            Ok(tuning) => {
                let mut launches: Vec<String> = tuning.launches().iter().map(|v| v.variant_name()).collect();
                let mut chosen: Vec<&str> = fields[3].split(' ').collect();
                launches.sort_unstable();
                chosen.sort_unstable();
                assert_eq!(launches, chosen);
                found += 1;
            }
        }
    }
    assert!(found >= 400, "{found} pairs");
}

/// How long a plan may take to be chosen. Tests that are not optimised have four times as much.
const BUDGET: Duration = Duration::from_millis(if cfg!(debug_assertions) { 200 } else { 50 });

/// The fastest of three runs counts, as other tests run beside it.
#[test]
fn plans_of_the_record_are_chosen_in_time() {
    let registry = Registry::new(cli::builtin().iter().map(|entry| entry.family()));
    let record = fs::read_to_string(RECORD).unwrap();
    let is_slow = |line: &&str| {
        let fields: Vec<&str> = line.split(" | ").collect();
        (0..3).all(|_| {
            let begin = Instant::now();
            drop(chosen(fields[1], fields[2], &registry));
            begin.elapsed() > BUDGET
        })
    };
    let slow: Vec<&str> = record.lines().filter(is_slow).collect();
    assert!(slow.is_empty(), "{} keys take more than {BUDGET:?}:\n{}", slow.len(), slow.join("\n"));
}

/// Names are files, symbols and lines of tables.
#[test]
fn names_have_at_most_160_characters() {
    let record = fs::read_to_string(RECORD).unwrap();
    let names = record.lines().flat_map(|line| line.split(" | ").nth(3).expect("variants").split(' '));
    let long: Vec<&str> = names.filter(|name| name.len() > 160).collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn text_is_compared_without_comments_and_places() {
    let of =
        |line: &str, place: u32| format!("    go({{role_a, flag_b, {place}}});  // {line}\n\n// {line}\n");
    assert_eq!(code(&of("a.rs:1", 1)), code(&of("b.rs:2", 77)));
    assert_ne!(code(&of("a.rs:1", 1)), code(&of("a.rs:1", 1).replace("go(", "stay(")));
}
