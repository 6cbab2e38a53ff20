//! What the printer emits, pinned.

use crate::printed;

use std::collections::BTreeSet;

use peerwarp_codegen::ir::Kernel;
use peerwarp_codegen::print::{EmitOptions, Source, code};
use printed::{ALL, TIMED, emitted, emitted_with};

const TARGETS: [&str; 2] = ["cuda:sm_90a", "hip:gfx942"];

/// A source as snapshots hold it, without the author's lines.
fn reviewed(make: fn(u32) -> Kernel, target: &str, timed: bool) -> Source {
    let options = EmitOptions { timeline: TIMED.timeline.filter(|_| timed), lines: false };
    emitted_with(make, target, &options).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn roles() {
    for target in TARGETS {
        let backend = target.split(':').next().unwrap();
        for (name, make) in ALL {
            let source = reviewed(*make, target, false);
            insta::assert_snapshot!(format!("{name}.{backend}"), source.roles());
            // The launcher says little about the kernel: one of each backend is enough.
            if *name == "token_copy" {
                let (_, launcher) =
                    source.text.split_once("\n// ---- Launcher").expect("ends with a launcher");
                insta::assert_snapshot!(format!("launcher.{backend}"), launcher);
                insta::assert_snapshot!(format!("header.{backend}"), source.abi);
            }
        }
    }
}

#[test]
fn roles_with_a_timeline() {
    for target in TARGETS {
        let backend = target.split(':').next().unwrap();
        for (name, make) in ALL.iter().filter(|(name, _)| ["token_copy", "mail"].contains(name)) {
            let source = reviewed(*make, target, true);
            insta::assert_snapshot!(format!("timeline_{name}.{backend}"), source.roles());
            if *name == "token_copy" {
                insta::assert_snapshot!(format!("timeline_header.{backend}"), source.abi);
            }
        }
    }
}

/// What a source has beside roles and entry, in paragraphs.
fn primitives(source: &Source) -> Vec<&str> {
    let (before, roles) =
        source.text.split_once("// ---- What roles are made of").expect("types and declarations");
    let (declared, _) = roles.split_once("// ---- Roles").expect("roles");
    let (_, after) = source.text.split_once("// ---- Machine primitives").expect("primitives");
    let (defined, _) = after.split_once("}  // namespace").expect("a namespace around them");
    let (_, types) = before.split_once("{\n\n").expect("a namespace around them");
    [types, declared, defined].into_iter().flat_map(|part| part.split("\n\n")).map(str::trim).collect()
}

/// Each text that several kernels share, once a target.
#[test]
fn machine_primitives() {
    for target in TARGETS {
        let mut seen = BTreeSet::new();
        let mut once = vec![];
        for (_, make) in ALL {
            let source = reviewed(*make, target, false);
            for paragraph in primitives(&source) {
                // The struct of arguments is the kernel's own.
                let own = paragraph.contains("struct Args {") || paragraph.contains("_args_are");
                if !own && seen.insert(paragraph.to_owned()) {
                    once.push(paragraph.to_owned());
                }
            }
        }
        insta::assert_snapshot!(
            format!("primitives.{}", target.split(':').next().unwrap()),
            once.join("\n\n")
        );
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
