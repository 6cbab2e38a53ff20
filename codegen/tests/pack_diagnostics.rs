//! What rustc tells the user of `include_pack!` whose pack is not one.

use std::fs;
use std::path::Path;

use crate::refused;

/// What the programs have for their package's folder.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// Puts a pack where a program looks for it.
fn put(name: &str, manifest: &str, object: Option<&str>) {
    let dir = Path::new(FOLDER).join("packs").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("sm_90a")).expect("the target folder is writable");
    fs::write(dir.join("pack.json"), manifest).expect("the target folder is writable");
    if let Some(object) = object {
        fs::write(dir.join("sm_90a/k.cubin"), object).expect("the target folder is writable");
    }
}

#[test]
fn compile_errors() {
    const SHA_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let good = format!(
        r#"{{"schema": 2, "kernels": [{{"object": {{"file": "sm_90a/k.cubin", "bytes": 3, "sha256": "{SHA_OF_ABC}"}}}}]}}"#
    );
    put("truncated_object", &good, Some("ab"));
    put("foreign_object", &good, Some("xyz"));
    put("missing_object", &good, None);
    put("other_schema", &good.replace("\"schema\": 2", "\"schema\": 3"), Some("abc"));
    put("truncated_manifest", &good[..60], Some("abc"));
    refused::all("ui/pack", &[("peerwarp_macros", "codegen/macros/src/lib.rs")], Path::new(FOLDER));
}
