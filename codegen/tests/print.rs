//! What the printer emits, pinned.

mod printed;

use printed::{ALL, emitted};

#[test]
fn sources() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        for (name, make) in ALL {
            let source = emitted(*make, target).unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
            let backend = target.split(':').next().unwrap();
            insta::assert_snapshot!(format!("{name}.{backend}"), source.text);
        }
    }
}
