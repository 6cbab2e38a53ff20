use super::*;
use tempfile::TempDir;

const VARIANT: &str = "scale_n8";

fn target() -> Target {
    "cuda:sm_90a".parse().unwrap()
}

/// A pack with one kernel, whose object is a line of text.
fn written() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let manifest = serde_json::json!({
        "schema": 1, "generator": "test", "version": "0", "files": ["sm_90a/k.cubin"],
        "kernels": [{
            "variant": VARIANT, "family": "scale", "labels": ["here"], "target": "cuda:sm_90a", "ranks": 2,
            "key": {"n": 8}, "tuning": {}, "roles": ["copy"], "entry": "k",
            "launch": {"grid": 4, "block_threads": 64, "shared_bytes": 16},
            "args": {"bytes": 8, "fields": [{"name": "x", "offset": 0, "bytes": 8}]},
            "resources": {"registers": 8, "static_shared_bytes": 0, "local_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0},
            "residency": {"device": "x", "multiprocessors": 2, "blocks_each": 3},
            "object": {"file": "sm_90a/k.cubin", "bytes": 10, "sha256": crate::build::digest::sha256(b"the object")},
            "header": {"file": "sm_90a/k.h", "bytes": 0, "sha256": crate::build::digest::sha256(b"")},
            "source_sha256": "", "inputs_sha256": "",
            "toolchain": {"name": "nvrtc", "version": "13.0", "options": []},
        }],
    });
    fs::create_dir(dir.path().join("sm_90a")).unwrap();
    fs::write(dir.path().join("sm_90a/k.cubin"), "the object").unwrap();
    fs::write(dir.path().join(PACK_MANIFEST), manifest.to_string()).unwrap();
    let object = dir.path().join("sm_90a/k.cubin");
    (dir, object)
}

#[test]
fn kernels_are_found_by_variant_and_target() {
    let (dir, _) = written();
    let pack = Pack::open(dir.path()).unwrap();
    let kernel = pack.find(VARIANT, target()).unwrap();
    assert_eq!((kernel.object, kernel.entry.entry.as_str()), (&b"the object"[..], "k"));
    assert_eq!((kernel.entry.launch.grid, kernel.entry.residency.blocks()), (4, 6));
    assert_eq!(kernel.entry.args.fields[0].name, "x");
    assert_eq!((pack.kernels().count(), pack.targets()), (1, vec![target()]));
    assert!(pack.find("scale_n16", target()).is_none());
    assert!(pack.find(VARIANT, "cuda:sm_80".parse().unwrap()).is_none());
}

#[test]
fn truncated_foreign_and_missing_objects_are_told() {
    let (dir, object) = written();
    let error = || Pack::open(dir.path()).unwrap_err();
    fs::write(&object, "the obj").unwrap();
    let PackError::Object { bytes: 7, path, expected, .. } = error() else { panic!("{}", error()) };
    assert_eq!((path, expected.bytes), (object.clone(), 10));
    fs::write(&object, "an object?").unwrap();
    let said = error().to_string();
    assert!(said.contains("k.cubin: 10 bytes with SHA-256 ") && said.contains("peerwarp pack"), "{said}");
    fs::remove_file(&object).unwrap();
    assert!(matches!(error(), PackError::Io { path, .. } if path == object));
}

#[test]
fn manifests_that_cannot_be_read_are_told() {
    let (dir, _) = written();
    let path = dir.path().join(PACK_MANIFEST);
    let good = fs::read_to_string(&path).unwrap();
    let error = |text: &str| {
        fs::write(&path, text).unwrap();
        Pack::open(dir.path()).unwrap_err()
    };
    assert!(matches!(error(&good[..40]), PackError::Manifest { .. }));
    // Another version may have other fields.
    assert!(matches!(error(r#"{"schema": 7, "kernels": "elsewhere"}"#), PackError::Schema { found: 7, .. }));
    let said = error(&good.replace(r#""variant""#, r#""name""#)).to_string();
    assert!(said.contains("missing field `variant`"), "{said}");
    let said = error(&good.replace("sm_90a/k.cubin", "../k.cubin")).to_string();
    assert!(said.contains("../k.cubin is not in the pack's folder"), "{said}");
    let said = error(&good.replace("cuda:sm_90a", "cuda:sm_91")).to_string();
    assert!(said.contains("target `cuda:sm_91` is not known"), "{said}");
    fs::remove_file(&path).unwrap();
    assert!(matches!(Pack::open(dir.path()), Err(PackError::Io { .. })));
}

#[test]
fn embedded_objects_are_not_copied() {
    let (dir, _) = written();
    let text = fs::read_to_string(dir.path().join(PACK_MANIFEST)).unwrap();
    static OBJECT: &[u8] = b"the object";
    static OBJECTS: [(&str, &[u8]); 1] = [("sm_90a/k.cubin", OBJECT)];
    let text: &'static str = text.leak();
    let embedded = Embedded::checked(text, &OBJECTS);
    let pack = embedded.open().unwrap();
    let kernel = pack.find(VARIANT, target()).unwrap();
    assert!(std::ptr::eq(kernel.object, OBJECT));
    let none = Embedded::checked(text, &[]).open();
    assert!(matches!(none, Err(PackError::Io { path, .. }) if path == Path::new("sm_90a/k.cubin")));
}
