//! Whether a kernel changed and its family's revision did not: tuned records of a revision claim the kernel's time.
//!
//! Each line of `kernels.txt` is `revision | digest | variant`. The digest is of the variant's operations. Places in the source,
//! names and words are no part of it. The line of a new variant starts as `0 | - | variant`.

use std::fmt::Write as _;
use std::{env, fs};

use peerwarp::cli;
use peerwarp::codegen::family::{Registry, Variant};
use peerwarp::codegen::ir::Kernel;
use sha2::{Digest, Sha256};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/revisions/kernels.txt");

/// The variable that says how the record is written anew.
const HOW: &str = "PEERWARP_REVISIONS";

/// A variant's revision and digest.
#[derive(Clone, Debug, PartialEq)]
struct State {
    revision: u32,
    digest: String,
}

fn registry() -> Registry {
    Registry::new(cli::builtin().iter().map(|entry| entry.family()))
}

/// A kernel's text without what its time does not depend on.
fn operations(mut kernel: Kernel) -> String {
    for text in [&mut kernel.name, &mut kernel.doc, &mut kernel.variant] {
        text.clear();
    }
    kernel.config.clear();
    kernel.values.iter_mut().for_each(|value| value.name = None);
    kernel.vars.iter_mut().for_each(|var| var.name = None);
    kernel.shared.iter_mut().enumerate().for_each(|(n, shared)| shared.name = format!("s{n}"));
    kernel.params.iter_mut().enumerate().for_each(|(n, param)| param.name = format!("p{n}"));
    kernel.to_string()
}

fn sha(text: &str) -> String {
    Sha256::digest(text).iter().take(8).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes it");
        text
    })
}

/// A variant as it is now, for warps of both sizes.
fn now(variant: &Variant) -> State {
    let of = |lanes| variant.trace(lanes).map(operations);
    let text =
        of(32).unwrap_or_else(|e| panic!("{}: {e}", variant.variant_name())) + &of(64).unwrap_or_default();
    State { revision: variant.family().revision(), digest: sha(&text) }
}

/// The recorded state and the variant of a line.
fn parsed(line: &str) -> (State, &str) {
    let fields: Vec<&str> = line.split(" | ").collect();
    let [revision, digest, variant] = fields[..] else { panic!("`{line}`: revision | digest | variant") };
    (State { revision: revision.parse().expect("a revision"), digest: digest.into() }, variant)
}

/// What is wrong with a state that was recorded as another, and what to do.
fn wrong(was: &State, is: &State) -> Option<String> {
    let command = |how: &str| format!("`{HOW}={how} cargo test --test revisions`");
    let (next, same) = (is.revision + 1, was.digest == is.digest);
    match is.revision.cmp(&was.revision) {
        std::cmp::Ordering::Less => {
            Some(format!("revision = {}: must be {} or more", is.revision, was.revision))
        }
        std::cmp::Ordering::Equal if same => None,
        std::cmp::Ordering::Equal => Some(format!(
            "the kernel changed, and its revision did not: where it takes the same time, {}; else count it up, \
             `#[family(revision = {next})]`, and {}",
            command("same-time"),
            command("write"),
        )),
        std::cmp::Ordering::Greater => {
            Some(format!("revision {} is not recorded: {}", is.revision, command("write")))
        }
    }
}

/// What is recorded from now on: another digest of the same revision as the author confirms, or a later revision.
fn recorded(how: &str, was: State, is: &State) -> State {
    match how {
        "same-time" if was.revision == is.revision => is.clone(),
        "write" if was.revision < is.revision => is.clone(),
        "same-time" | "write" => was,
        other => panic!("{HOW} = {other}: must be same-time or write"),
    }
}

#[test]
fn a_changed_kernel_has_another_revision() {
    let registry = registry();
    let record = fs::read_to_string(RECORD).unwrap();
    let how = env::var(HOW).ok();
    let mut lines = vec![];
    let mut findings = vec![];
    for (was, name) in record.lines().map(parsed) {
        let is = now(&registry.parse(name).unwrap());
        let was = how.iter().fold(was, |was, how| recorded(how, was, &is));
        lines.push(format!("{} | {} | {name}\n", was.revision, was.digest));
        findings.extend(wrong(&was, &is).map(|why| format!("{name}: {why}")));
    }
    if how.is_some() {
        fs::write(RECORD, lines.concat()).unwrap();
    }
    for family in registry.families() {
        let count =
            record.lines().filter(|l| registry.parse(parsed(l).1).unwrap().family().name() == family.name());
        if count.count() < 3 {
            findings.push(format!(
                "{}: add lines `0 | - | VARIANT` to tests/revisions/kernels.txt",
                family.name()
            ));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn kernels_survive_being_stored() {
    let registry = registry();
    let record = fs::read_to_string(RECORD).unwrap();
    for (_, name) in record.lines().map(parsed) {
        let kernel = registry.parse(name).unwrap().trace(32).unwrap();
        let stored = serde_json::to_vec(&kernel).unwrap();
        let read: Kernel = serde_json::from_slice(&stored).unwrap();
        // As text, which names files as they are stored.
        assert_eq!(format!("{read:?}"), format!("{kernel:?}"), "{name}");
    }
}

#[test]
fn operations_count_and_places_and_names_do_not() {
    let variant =
        registry().parse(parsed(fs::read_to_string(RECORD).unwrap().lines().next().unwrap()).1).unwrap();
    let kernel = variant.trace(32).unwrap();
    let own = operations(kernel.clone());
    assert!(own.contains("role ") && !own.contains(".rs"), "{own}");
    let mut moved = kernel.clone();
    moved.ops.iter_mut().for_each(|op| op.loc.line += 1000);
    moved.values.iter_mut().for_each(|value| value.name = Some("renamed".into()));
    moved.params.iter_mut().for_each(|param| param.name += "_renamed");
    moved.doc += " Better.";
    assert_eq!(operations(moved), own);
    let mut changed = kernel;
    changed.roles[0].body.ops.pop();
    let digests = [&own, &operations(changed)].map(|text| sha(text));
    let [was, is] = digests.map(|digest| State { revision: 1, digest });
    let said = wrong(&was, &is).expect("another kernel");
    assert!(
        said.contains("=same-time cargo test") && said.contains("revision = 2") && said.contains("=write"),
        "{said}"
    );
}

#[test]
fn each_way_to_write_the_record_is_for_its_own_case() {
    let state = |revision, digest: &str| State { revision, digest: digest.into() };
    let (was, changed, counted) = (state(1, "a"), state(1, "b"), state(2, "b"));
    assert_eq!(wrong(&was, &was), None);
    assert_eq!(recorded("same-time", was.clone(), &changed), changed);
    assert_eq!(recorded("write", was.clone(), &changed), was, "a revision that was not counted up");
    assert_eq!(recorded("write", was.clone(), &counted), counted);
    assert_eq!(recorded("same-time", was.clone(), &counted), was);
    assert!(wrong(&was, &counted).unwrap().contains("=write"));
    assert!(wrong(&counted, &was).unwrap().contains("must be 2 or more"));
}
