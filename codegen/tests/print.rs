//! What the printer emits, pinned.

use crate::printed;
use crate::printed::{apart, difference, digest};

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

use apart::{FOLDER, split};
use difference::difference;
use digest::{ENTRY, digest, excerpt};
use peerwarp_codegen::ir::Kernel;
use peerwarp_codegen::print::{EmitOptions, Source, code};
use printed::{ALL, TIMED, emitted, emitted_with};

const TARGETS: [&str; 2] = ["cuda:sm_90a", "hip:gfx942"];

/// A source as snapshots hold it, without the author's lines.
fn reviewed(make: fn(u32) -> Kernel, target: &str, timed: bool) -> Source {
    let options = EmitOptions { timeline: TIMED.timeline.filter(|_| timed), lines: false, ..TIMED };
    emitted_with(make, target, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// Fixtures whose text for HIP differs in more than the numbers of lanes: copies in bulk, where warps meet, products.
const OF_HIP: [&str; 5] = ["teams", "meeting", "freight", "products", "requests"];

/// The fixture of a name.
fn fixture(name: &str) -> fn(u32) -> Kernel {
    ALL.iter().find(|(other, _)| *other == name).expect("a fixture has this name").1
}

/// Roles whose like another fixture, or another role of this one, shows.
fn left_out(name: &str) -> &'static [&'static str] {
    match name {
        "norms" => &["weigh"],
        "post" => &["scaled_ready"],
        "tails" => &["receive"],
        _ => &[],
    }
}

/// The part of a source that a host compiles.
fn launcher(source: &Source) -> &str {
    source.text.split_once("\n// ---- Launcher").expect("a source ends with a launcher").1
}

/// What stands in the source of one target is shown as it differs from that of the other. Entries say little about a kernel: two are
/// enough. `digests` holds what is not shown.
#[test]
fn roles() {
    let [cuda, hip] = TARGETS;
    for (name, make) in ALL {
        let source = reviewed(*make, cuda, false);
        match *name {
            // As `tails`, with other widths, accesses that others show, and a product as a family has it: `digests` holds them.
            "tails_of_vectors" | "alike" | "functions" | "groups" => {}
            "relay_in_anothers_epoch" => {
                let relay = reviewed(fixture("relay"), cuda, false);
                insta::assert_snapshot!(format!("{name}.cuda"), difference(relay.roles(), source.roles()));
            }
            // An entry with and one without loaders.
            "token_copy" | "products" => insta::assert_snapshot!(format!("{name}.cuda"), source.roles()),
            _ => {
                let shown = excerpt(source.roles(), &[&[ENTRY], left_out(name)].concat());
                insta::assert_snapshot!(format!("{name}.cuda"), shown);
            }
        }
        if OF_HIP.contains(name) {
            let of_hip = reviewed(*make, hip, false);
            insta::assert_snapshot!(format!("{name}.hip"), difference(source.roles(), of_hip.roles()));
        }
    }
}

/// A timeline as it differs from a source without one.
#[test]
fn roles_with_a_timeline() {
    for name in ["token_copy", "mail"] {
        let [plain, timed] =
            [false, true].map(|timed| reviewed(fixture(name), TARGETS[0], timed).roles().to_owned());
        insta::assert_snapshot!(format!("timeline_{name}.cuda"), difference(&plain, &timed));
    }
}

/// The launcher and the header say little about a kernel: one of each is enough.
#[test]
fn launchers_and_headers() {
    let [cuda, hip] = TARGETS.map(|target| reviewed(fixture("token_copy"), target, false));
    let timed = reviewed(fixture("token_copy"), TARGETS[0], true);
    insta::assert_snapshot!("launcher.cuda", launcher(&cuda));
    insta::assert_snapshot!("launcher.hip", difference(launcher(&cuda), launcher(&hip)));
    insta::assert_snapshot!("header.cuda", cuda.abi);
    insta::assert_snapshot!("header.hip", difference(&cuda.abi, &hip.abi));
    insta::assert_snapshot!("timeline_header.cuda", difference(&cuda.abi, &timed.abi));
}

/// Digests of every source, with those that no other snapshot shows.
#[test]
fn digests() {
    let mut all = String::new();
    for (name, make) in ALL {
        for target in TARGETS {
            let [plain, timed] = [false, true].map(|timed| digest(&reviewed(*make, target, timed)));
            all += &format!("{name} {target} {plain} timed {timed}\n");
        }
    }
    insta::assert_snapshot!(all);
}

/// The primitives of all fixtures for a target, each in every text that it has.
fn primitives(target: &str) -> BTreeMap<&'static str, Vec<String>> {
    let mut all: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (make, timed) in ALL.iter().flat_map(|(_, make)| [(*make, false), (*make, true)]) {
        let options = EmitOptions { timeline: TIMED.timeline.filter(|_| timed), lines: false, ..TIMED };
        let split = split(make, target, &options).unwrap_or_else(|e| panic!("{e}"));
        for (name, text) in split.primitives.iter() {
            let texts = all.entry(name).or_default();
            if texts.iter().all(|other| other != text) {
                texts.push(text.to_owned());
            }
        }
    }
    all
}

/// A primitive without blanks to fill in is emitted as its template has it, which is the place to read it. The others are shown
/// once, with what another target or a kernel of another shape changes.
#[test]
fn machine_primitives() {
    let templates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../templates");
    let mut shown: BTreeMap<&str, String> = BTreeMap::new();
    for target in TARGETS {
        let mut filled = vec![];
        for (name, texts) in primitives(target) {
            let template = fs::read_to_string(templates.join(format!("{name}.hbs"))).unwrap();
            if !template.contains("{{") {
                assert_eq!(texts, [template.trim_end()], "{name} for {target}");
                continue;
            }
            let (first, others) = texts.split_first().expect("a primitive has a text");
            let text = shown.get(name).map_or(first.clone(), |other| difference(other, first));
            let others = others.iter().map(|other| format!("==== or\n{}", difference(first, other)));
            filled.push(format!("==== {name}\n{text}\n{}", others.collect::<String>()));
            shown.insert(name, first.clone());
        }
        assert!(filled.len() >= 10, "{} primitives have blanks for {target}", filled.len());
        let backend = target.split(':').next().unwrap();
        insta::assert_snapshot!(format!("primitives.{backend}"), filled.join("\n"));
    }
}

/// A source that includes its primitives is the source that holds them: the same but for these, and the header has their text.
#[test]
fn split_sources_are_whole_ones() {
    for (target, (name, make)) in TARGETS.iter().flat_map(|target| ALL.iter().map(move |of| (target, of))) {
        for timed in [false, true] {
            let options = EmitOptions { timeline: TIMED.timeline.filter(|_| timed), lines: false, ..TIMED };
            let whole = reviewed(*make, target, timed);
            let split = split(*make, target, &options).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(whole.roles(), split.source.roles(), "{name} for {target}");
            assert_eq!(launcher(&whole), launcher(&split.source), "{name} for {target}");
            assert_eq!(whole.abi, split.source.abi, "{name} for {target}");
            let header = split.primitives.text();
            let include = format!("#include \"{FOLDER}{}\"\n", split.primitives.file_name());
            assert_eq!(split.source.text.matches(&include).count(), 1, "{name} for {target}");
            // A declaration apart from its function is the one thing that the whole source says more.
            let there: HashSet<&str> = whole.text.lines().collect();
            let code = header.lines().filter(|l| !l.starts_with("//") && !l.starts_with('#'));
            let gone: Vec<&str> = code.filter(|line| !there.contains(line)).collect();
            assert!(gone.is_empty(), "{name} for {target} has not\n{}", gone.join("\n"));
            assert!(split.source.text.len() + header.len() < whole.text.len() + 1000, "{name} for {target}");
        }
    }
}

/// Lines are in comments and tables alone, so that an edit above a kernel changes no code.
#[test]
fn lines_of_the_author_stand_in_comments() {
    for target in TARGETS {
        for (name, make) in ALL {
            let with = emitted(*make, target).unwrap();
            let without = reviewed(*make, target, false);
            assert_eq!(code(&with.text), code(&without.text), "{name} for {target}");
            assert!(!without.text.contains(".rs:"), "{name} for {target}");
            assert!(!without.abi.contains(".rs:"), "{name} for {target}");
            let places = |source: &Source| source.waits.iter().map(|w| w.file.clone()).collect::<Vec<_>>();
            assert_eq!(places(&with), places(&without), "{name} for {target}");
            assert!(with.waits.iter().all(|w| w.line > 0) && without.waits.iter().all(|w| w.line == 0));
        }
    }
}

/// The kernel waits for the launch before it exactly if launchers are told that it may overlap it, and lets the next one begin
/// after its work.
#[test]
fn kernels_that_overlap_the_launch_before_wait_for_it_first() {
    for (target, overlaps) in [("cuda:sm_89", false), ("cuda:sm_90a", true), ("hip:gfx942", false)] {
        for (name, make) in ALL {
            let source = emitted(*make, target).unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
            let entry = source.text.split_once("extern \"C\" __global__").expect("there is an entry").1;
            let (_, body) = entry.split_once("{\n").expect("the entry has a body");
            let body = body.split_once("\n}\n").expect("which ends").0;
            let mut statements = body.lines().map(str::trim).filter(|l| !l.starts_with("//"));
            let waits =
                statements.next().is_some_and(|s| s.starts_with("asm volatile(\"griddepcontrol.wait;\""));
            let lets =
                statements.skip_while(|s| !s.contains("_role(")).any(|s| s.contains("launch_dependents"));
            assert_eq!((waits, lets), (overlaps, overlaps), "{name} for {target}: {body}");
            assert_eq!(source.launch.overlaps_previous, overlaps, "{name} for {target}");
            assert_eq!(
                source.text.contains("programmaticStreamSerialization"),
                overlaps,
                "{name} for {target}"
            );
        }
    }
}
