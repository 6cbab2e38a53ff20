use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use peerwarp_codegen::family::{Family, Variant};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::build::digest::sha256;
use crate::build::pack::{Manifest, PACK_MANIFEST, Residency, Resources, SCHEMA, Stored, Toolchain};
use crate::harness::trace::sync::ClockSync;

#[test]
fn a_kernel_that_is_absent_is_reported_with_what_is_there() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pack");
    let pack = Pack::open(&folder).unwrap();
    let variant = ClockSync { ranks: 2, rounds: 4 }.into_variant();
    let said = |target: &str| pack.image(&*variant, target.parse().unwrap()).unwrap_err().to_string();
    let name = variant.variant_name();
    assert_eq!(
        said("cuda:sm_90a"),
        format!("variant = {name}: not among the pack's 1 kernels for cuda:sm_90a")
    );
    let other = "the pack has nothing for hip:gfx942, only for cuda:sm_90a";
    assert_eq!(said("hip:gfx942"), format!("variant = {name}: {other}"));
    let near = pack.absent("scale_n16", "cuda:sm_90a".parse().unwrap()).to_string();
    assert!(near.ends_with("near it: scale_n8"), "{near}");
}

/// The variants of the pack that is spoilt, with the slots of their timelines.
fn variants() -> [(Variant, Option<u32>); 2] {
    [
        (ClockSync { ranks: 2, rounds: 4 }.into_variant(), None),
        (ClockSync { ranks: 3, rounds: 8 }.into_variant(), Some(8)),
    ]
}

fn target() -> Target {
    "cuda:sm_90a".parse().unwrap()
}

/// What `pack` would write of a variant, with a text for an object.
fn entry(variant: &Variant, slots: Option<u32>, files: &mut BTreeMap<String, Vec<u8>>) -> Entry {
    let kernel = emit::trace(&**variant, 32).unwrap();
    let options = EmitOptions { timeline: slots, ..EmitOptions::default() };
    let source = emit::with_options("peerwarp", &kernel, target(), &options).unwrap();
    let mut stored = |file: String, bytes: Vec<u8>| {
        let stored = Stored { file: file.clone(), bytes: bytes.len() as u64, sha256: sha256(&bytes) };
        files.insert(file, bytes);
        stored
    };
    let blocks_each = 2 * source.launch.grid;
    Entry {
        variant: variant.variant_name(),
        family: variant.family().name().into(),
        labels: vec!["here".into()],
        target: target(),
        ranks: variant.ranks(),
        key: [("rounds".to_owned(), json!(4))].into(),
        tuning: [("layout".to_owned(), json!("x"))].into(),
        roles: kernel.roles.iter().map(|role| role.name.clone()).collect(),
        entry: source.entry.clone(),
        launch: source.launch,
        args: source.args.clone(),
        params: source.params.clone(),
        timeline: source.timeline.clone(),
        resources: Resources { registers: 32, ..Resources::default() },
        residency: Residency { device: "H100 SXM".into(), sms: 132, blocks_each },
        object: stored(
            format!("sm_90a/{}.cubin", source.entry),
            format!("object of {}", source.entry).into_bytes(),
        ),
        header: stored(format!("sm_90a/{}", source.abi_file_name), source.abi.clone().into_bytes()),
        ir: BTreeMap::new(),
        waits: source.waits.clone(),
        source_sha256: sha256(source.text.as_bytes()),
        inputs_sha256: sha256(b""),
        toolchain: Toolchain {
            name: "nvrtc".into(),
            version: "13.0".into(),
            options: vec!["-x".into()],
            nccl: None,
        },
    }
}

/// A pack's folder and its manifest.
fn packed() -> (TempDir, Value) {
    let mut files = BTreeMap::new();
    let kernels = variants().iter().map(|(variant, slots)| entry(variant, *slots, &mut files)).collect();
    let manifest = Manifest {
        schema: SCHEMA,
        generator: "test".into(),
        version: "0".into(),
        files: files.keys().cloned().collect(),
        families: vec![],
        kernels,
    };
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sm_90a")).unwrap();
    files.iter().for_each(|(file, bytes)| fs::write(dir.path().join(file), bytes).unwrap());
    (dir, serde_json::to_value(manifest).unwrap())
}

/// What of an image decides how it is launched.
fn launched(image: &KernelImage) -> impl PartialEq + std::fmt::Debug {
    let timeline = image.timeline.as_ref().map(|t| (t.slots, t.warps, t.slices, t.bytes, t.sites.len()));
    (
        image.variant.clone(),
        image.target,
        image.entry.clone(),
        image.launch,
        image.args.clone(),
        image.roles.clone(),
        timeline,
        image.module.clone(),
    )
}

fn images(pack: &Pack) -> Vec<Result<KernelImage, RuntimeError>> {
    variants().iter().map(|(variant, _)| pack.image(&**variant, target())).collect()
}

#[test]
fn launches_are_what_variants_say() {
    let (dir, good) = packed();
    let said = |change: &dyn Fn(&mut Value)| {
        let mut manifest = good.clone();
        change(&mut manifest["kernels"][0]);
        fs::write(dir.path().join(PACK_MANIFEST), manifest.to_string()).unwrap();
        images(&Pack::open(dir.path()).unwrap()).remove(0).map(|_| ()).map_err(|e| e.to_string())
    };
    said(&|_| {}).unwrap();
    // None of these contradicts anything in the manifest.
    let error = said(&|k| k["launch"]["grid"] = 2.into()).unwrap_err();
    assert!(error.contains("pack.json: launch of") && error.contains("write the pack anew"), "{error}");
    let error = said(&|k| k["args"]["bytes"] = 4096.into()).unwrap_err();
    assert!(error.contains("pack.json: args of"), "{error}");
    assert!(said(&|k| k["entry"] = "another".into()).unwrap_err().contains("entry of"));
    assert!(said(&|k| k["ranks"] = 4.into()).unwrap_err().contains("ranks of"));
    assert!(said(&|k| k["roles"][0] = "another".into()).unwrap_err().contains("roles of"));
}

/// Pointers to every value of a document.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(list) => (0..).zip(list).for_each(|(i, v)| places(v, &format!("{at}/{i}"), all)),
        Value::Object(map) => map.iter().for_each(|(key, v)| places(v, &format!("{at}/{key}"), all)),
        _ => {}
    }
}

/// Spoils one value.
fn spoil(document: &mut Value, place: usize, how: usize, other: usize) {
    let mut all = vec![];
    places(document, "", &mut all);
    let (place, other) = (all[1 + place % (all.len() - 1)].clone(), all[other % all.len()].clone());
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(u64::MAX),
        json!(1u64 << 32),
        json!(u32::MAX),
        json!(3.5),
        json!(""),
        json!("x"),
        json!("../x"),
        json!("/etc/passwd"),
        json!("a\u{0}"),
        json!([]),
        json!({}),
        json!("cuda:sm_80"),
    ];
    let copied = document.pointer(&other).cloned().unwrap_or_default();
    let (above, name) = place.rsplit_once('/').map(|(a, n)| (a.to_owned(), n.to_owned())).unwrap();
    let number = document.pointer(&place).and_then(Value::as_u64);
    let new = match how % (values.len() + 6) {
        n if n < values.len() => Some(values[n].clone()),
        n => match (n - values.len(), number) {
            (0, Some(n)) => Some(json!(n.wrapping_add(1))),
            (1, Some(n)) => Some(json!(n.wrapping_sub(1))),
            (2, Some(n)) => Some(json!(n.wrapping_mul(2))),
            (3, Some(n)) => Some(json!(n ^ 8)),
            (4, _) => None,
            _ => Some(copied),
        },
    };
    match (document.pointer_mut(&above).unwrap(), new) {
        (Value::Array(list), None) => drop(list.remove(name.parse().unwrap())),
        (Value::Object(map), None) => drop(map.remove(&name)),
        (_, new) => *document.pointer_mut(&place).unwrap() = new.unwrap_or_default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever a manifest says: an error, or what was packed.
    #[test]
    fn spoilt_manifests_never_launch_what_differs(
        spoilt in prop::collection::vec((any::<usize>(), any::<usize>(), any::<usize>()), 1..3)
    ) {
        static PACKED: LazyLock<(TempDir, Value)> = LazyLock::new(packed);
        static GOOD: LazyLock<Vec<KernelImage>> = LazyLock::new(|| {
            let (dir, manifest) = &*PACKED;
            fs::write(dir.path().join(PACK_MANIFEST), manifest.to_string()).unwrap();
            images(&Pack::open(dir.path()).unwrap()).into_iter().collect::<Result<_, _>>().unwrap()
        });
        let good = &*GOOD;
        let (dir, manifest) = &*PACKED;
        let mut manifest = manifest.clone();
        for (place, how, other) in spoilt {
            spoil(&mut manifest, place, how, other);
        }
        fs::write(dir.path().join(PACK_MANIFEST), manifest.to_string()).unwrap();
        if let Ok(pack) = Pack::open(dir.path()) {
            for (found, good) in images(&pack).iter().zip(good) {
                if let Ok(found) = found {
                    prop_assert_eq!(launched(found), launched(good));
                }
            }
        }
    }
}
