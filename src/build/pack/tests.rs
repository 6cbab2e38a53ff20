use std::fs;

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
        "schema": 2, "generator": "test", "version": "0", "files": ["sm_90a/k.cubin", "sm_90a/k.h"],
        "kernels": [{
            "variant": VARIANT, "family": "scale", "labels": ["here"], "target": "cuda:sm_90a", "ranks": 2,
            "key": {"n": 8}, "tuning": {}, "roles": ["copy"], "entry": "k",
            "launch": {"grid": 4, "block_threads": 64, "shared_bytes": 16},
            "args": {"bytes": 8, "fields": [{"name": "x", "offset": 0, "bytes": 8}]},
            "resources": {"registers": 8, "static_shared_bytes": 0, "local_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0},
            "residency": {"device": "x", "sms": 2, "blocks_each": 3},
            "object": {"file": "sm_90a/k.cubin", "bytes": 10, "sha256": crate::build::digest::sha256(b"the object")},
            "header": {"file": "sm_90a/k.h", "bytes": 0, "sha256": crate::build::digest::sha256(b"")},
            "source_sha256": "0".repeat(64), "inputs_sha256": "0".repeat(64),
            "toolchain": {"name": "nvrtc", "version": "13.0", "options": []},
        }],
    });
    fs::create_dir(dir.path().join("sm_90a")).unwrap();
    fs::write(dir.path().join("sm_90a/k.cubin"), "the object").unwrap();
    fs::write(dir.path().join("sm_90a/k.h"), "").unwrap();
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
fn a_pack_of_another_user_or_that_others_can_write_is_refused() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let parts = ["", PACK_MANIFEST, "sm_90a/k.cubin", "sm_90a/k.h"];
    let is_root = rustix::process::geteuid().is_root();
    for part in parts {
        let (dir, _) = written();
        let path = if part.is_empty() { dir.path().to_owned() } else { dir.path().join(part) };
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let said = || match Pack::open(dir.path()) {
            Err(PackError::Distrust(why)) => PackError::Distrust(why).to_string(),
            other => panic!("{part}: {other:?}"),
        };
        set(mode | 0o002);
        let told = said();
        assert!(told.starts_with(&format!("{} is writable by every user", path.display())), "{told}");
        assert!(told.contains("`cp -r`") && told.contains("`chmod -R go-w`"), "{told}");
        set(mode);
        Pack::open(dir.path()).unwrap();
        if is_root {
            chown(&path, Some(65534), None).unwrap();
            assert!(said().contains("belongs to user 65534, and must belong to user 0"), "{}", said());
            chown(&path, Some(0), None).unwrap();
            Pack::open(dir.path()).unwrap();
        }
    }
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

/// The pack with a file for the kernel's warps.
fn with_ir(lanes: u32, bytes: &[u8]) -> TempDir {
    let (dir, _) = written();
    let path = dir.path().join(PACK_MANIFEST);
    let mut manifest: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let sha256 = crate::build::digest::sha256(bytes);
    let stored = serde_json::json!({ "file": "sm_90a/k.mp", "bytes": bytes.len(), "sha256": sha256 });
    manifest["kernels"][0]["ir"] = serde_json::json!({ lanes.to_string(): stored });
    manifest["files"].as_array_mut().unwrap().push("sm_90a/k.mp".into());
    fs::write(&path, manifest.to_string()).unwrap();
    fs::write(dir.path().join("sm_90a/k.mp"), bytes).unwrap();
    dir
}

#[test]
fn kernels_that_are_none_are_told() {
    let error = |bytes: &[u8]| {
        let dir = with_ir(32, bytes);
        let pack = Pack::open(dir.path()).unwrap();
        pack.carried(&pack.manifest().kernels[0]).unwrap_err().to_string()
    };
    for (bytes, why) in [
        (b"no kernel".to_vec(), "invalid type"),
        (rmp_serde::to_vec(&(2, (), ())).unwrap(), "form = 2, and this version of Peerwarp reads 1"),
        (rmp_serde::to_vec(&(1, [0u32; 0], "no kernel")).unwrap(), "invalid type: string"),
    ] {
        let said = error(&bytes);
        assert!(said.contains("k.mp") && said.contains(why) && said.contains("`peerwarp pack`"), "{said}");
    }
    let lanes = Pack::open(with_ir(16, b"").path()).unwrap_err().to_string();
    assert!(lanes.contains("ir = 16: must be lanes of a warp: 32 or 64"), "{lanes}");
    let dir = with_ir(32, b"some bytes");
    fs::write(dir.path().join("sm_90a/k.mp"), "other byte").unwrap();
    assert!(matches!(Pack::open(dir.path()), Err(PackError::Object { bytes: 10, .. })));
    fs::remove_file(dir.path().join("sm_90a/k.mp")).unwrap();
    assert!(matches!(Pack::open(dir.path()), Err(PackError::Io { .. })));
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

#[test]
fn manifests_that_cannot_be_true_are_told_by_kernel_and_field() {
    let (dir, _) = written();
    let path = dir.path().join(PACK_MANIFEST);
    let good = fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        (r#""offset":0"#, r#""offset":4"#, "offset of args.x = 4: must be a multiple of 8 from 0 on"),
        (r#""offset":0"#, r#""offset":4294967288"#, "within the 8 of the struct"),
        (
            r#"{"bytes":8,"name":"x","offset":0}"#,
            r#"{"bytes":3,"name":"x","offset":0}"#,
            "1, 2, 4 or a multiple of 8",
        ),
        (
            r#"{"bytes":8,"fields""#,
            r#"{"bytes":0,"fields""#,
            "args.bytes = 0: must be a multiple of 8, 32764 at most",
        ),
        (r#"{"bytes":8,"fields""#, r#"{"bytes":4294967288,"fields""#, "args.bytes = 4294967288"),
        (r#""grid":4"#, r#""grid":0"#, "launch.grid = 0: must be 1 block or more"),
        (r#""grid":4"#, r#""grid":7"#, "blocks of residency = 6: must be the grid's 7 or more"),
        (r#""block_threads":64"#, r#""block_threads":48"#, "whole warps of 32, 1024 threads at most"),
        (r#""shared_bytes":16"#, r#""shared_bytes":300000"#, "launch.shared_bytes = 300000"),
        (r#""ranks":2"#, r#""ranks":65"#, "ranks = 65: must be 1 to 64"),
        (r#""entry":"k""#, r#""entry":"k\u0000""#, "entry = "),
        (r#""roles":["copy"]"#, r#""roles":[]"#, "roles = []: must be one name or more"),
        (r#""key":{"n":8}"#, r#""key":{"n":[8]}"#, "n = [8]: must be a number"),
        (r#""files":["sm_90a/k.cubin","#, r#""files":["#, "file = sm_90a/k.cubin: must be one of `files`"),
        (r#""files":["sm_90a/k.cubin","#, r#""files":["sm_90a/k.h","#, "files has sm_90a/k.h twice"),
        (
            r#""files":["sm_90a/k.cubin","#,
            r#""files":["../k.cubin","#,
            "../k.cubin is not in the pack's folder",
        ),
        (r#""bytes":10"#, r#""bytes":11"#, "the manifest says 11 bytes"),
    ] {
        assert!(good.contains(from), "{from} in {good}");
        fs::write(&path, good.replacen(from, to, 1)).unwrap();
        let said = Pack::open(dir.path()).unwrap_err().to_string();
        assert!(said.contains(expected), "{from} as {to}: {said}");
    }
    let mut twice: serde_json::Value = serde_json::from_str(&good).unwrap();
    let kernel = twice["kernels"][0].clone();
    twice["kernels"].as_array_mut().unwrap().push(kernel);
    fs::write(&path, twice.to_string()).unwrap();
    assert!(Pack::open(dir.path()).unwrap_err().to_string().contains("kernels[1], scale_n8: "));
}

#[test]
fn maps_that_cannot_be_true_are_told_by_field() {
    let (dir, _) = written();
    let path = dir.path().join(PACK_MANIFEST);
    let mut good: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let pointers = serde_json::json!({"name": "inbox", "offset": 8, "bytes": 16});
    good["kernels"][0]["args"]["fields"].as_array_mut().unwrap().push(pointers);
    good["kernels"][0]["args"]["bytes"] = 384.into();
    good["kernels"][0]["args"]["maps"] = serde_json::json!([
        {"name": "x_boxes", "offset": 128, "of": "x", "symmetric": false, "dtype": "bf16", "rows": 8, "columns": 64, "box_rows": 128},
        {"name": "inbox_boxes", "offset": 256, "of": "inbox", "symmetric": true, "dtype": "fp16", "rows": 8, "columns": 64, "box_rows": 64},
    ]);
    let write = |manifest: &serde_json::Value| fs::write(&path, manifest.to_string()).unwrap();
    write(&good);
    assert_eq!(Pack::open(dir.path()).unwrap().kernels().count(), 1);
    for (map, field, value, expected) in [
        (0, "offset", serde_json::json!(64), "offset of args.x_boxes = 64: must be a multiple of 128"),
        (
            0,
            "offset",
            serde_json::json!(0),
            "offset of args.x_boxes = 0: must be a multiple of 128 from 24 on",
        ),
        (
            1,
            "offset",
            serde_json::json!(128),
            "offset of args.inbox_boxes = 128: must be a multiple of 128 from 256 on",
        ),
        (1, "offset", serde_json::json!(384), "offset of args.inbox_boxes = 384"),
        (
            0,
            "name",
            serde_json::json!("x"),
            "args.maps.name = \"x\": must be a name that no other member has",
        ),
        (0, "of", serde_json::json!("z"), "of of args.x_boxes = \"z\": must be a member of 1 pointers"),
        (
            0,
            "symmetric",
            serde_json::json!(true),
            "of of args.x_boxes = \"x\": must be a member of 2 pointers",
        ),
        (0, "dtype", serde_json::json!("f32"), "dtype of args.x_boxes = f32: must be bf16, fp16 or fp8"),
        (0, "rows", serde_json::json!(0), "rows of args.x_boxes = 0: must be 1 to 4294967296"),
        (0, "columns", serde_json::json!(60), "columns of args.x_boxes = 60: must be a multiple of 8"),
        (0, "box_rows", serde_json::json!(257), "box_rows of args.x_boxes = 257: must be 1 to 256"),
    ] {
        let mut wrong = good.clone();
        wrong["kernels"][0]["args"]["maps"][map][field] = value;
        write(&wrong);
        let said = Pack::open(dir.path()).unwrap_err().to_string();
        assert!(said.contains(expected), "{field}: {said}");
    }
    let mut other = good.clone();
    other["kernels"][0]["target"] = "hip:gfx942".into();
    write(&other);
    let said = Pack::open(dir.path()).unwrap_err().to_string();
    assert!(said.contains("target = hip:gfx942: must be one of NVIDIA's GPUs"), "{said}");
}

#[test]
fn headers_are_compared_and_links_not_followed() {
    let (dir, object) = written();
    let header = dir.path().join("sm_90a/k.h");
    fs::write(&header, "other").unwrap();
    assert!(matches!(Pack::open(dir.path()), Err(PackError::Object { path, .. }) if path == header));
    fs::write(&header, "").unwrap();
    Pack::open(dir.path()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let moved = outside.path().join("k.cubin");
    fs::rename(&object, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &object).unwrap();
    let said = Pack::open(dir.path()).unwrap_err().to_string();
    assert!(said.contains("k.cubin: is a symbolic link"), "{said}");
    fs::remove_file(&object).unwrap();
    fs::rename(dir.path().join("sm_90a"), outside.path().join("sm_90a")).unwrap();
    fs::rename(&moved, outside.path().join("sm_90a/k.cubin")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("sm_90a"), dir.path().join("sm_90a")).unwrap();
    let said = Pack::open(dir.path()).unwrap_err().to_string();
    assert!(said.contains("sm_90a is a symbolic link"), "{said}");
}
