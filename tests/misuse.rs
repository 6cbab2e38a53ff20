//! What safe code cannot do to memory of GPUs: each misuse does not compile, for the reason that stands beside it.

#[path = "../codegen/tests/refused.rs"]
mod refused;

use std::path::Path;

#[test]
fn does_not_compile() {
    refused::all("tests/misuse", &[("peerwarp", "src/lib.rs")], Path::new(env!("CARGO_MANIFEST_DIR")));
}
