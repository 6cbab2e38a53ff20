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
