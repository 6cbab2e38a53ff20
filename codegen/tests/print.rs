//! What the printer emits, pinned.

mod printed;

use printed::{ALL, emitted, emitted_with_timeline};

#[test]
fn sources() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        for (name, make) in ALL {
            let source = emitted(*make, target).unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
            let backend = target.split(':').next().unwrap();
            let (kernel, launcher) =
                source.text.split_once("\n// ---- Launcher").expect("ends with a launcher");
            insta::assert_snapshot!(format!("{name}.{backend}"), kernel);
            // The launcher says little about the kernel: one of each backend is enough.
            if *name == "token_copy" {
                insta::assert_snapshot!(format!("launcher.{backend}"), launcher);
                insta::assert_snapshot!(format!("header.{backend}"), source.abi);
            }
        }
    }
}

#[test]
fn sources_with_a_timeline() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        for (name, make) in ALL.iter().filter(|(name, _)| ["token_copy", "mail"].contains(name)) {
            let source =
                emitted_with_timeline(*make, target).unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
            let backend = target.split(':').next().unwrap();
            let (kernel, _) = source.text.split_once("\n// ---- Launcher").expect("ends with a launcher");
            insta::assert_snapshot!(format!("timeline_{name}.{backend}"), kernel);
            if *name == "token_copy" {
                insta::assert_snapshot!(format!("timeline_header.{backend}"), source.abi);
            }
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
