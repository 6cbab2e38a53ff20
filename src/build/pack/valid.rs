//! Whether a manifest can be true: packs come from anybody, and what is launched is laid out as they say.

use std::collections::BTreeSet;
use std::fmt::Display;

use peerwarp_codegen::device::Device;
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::Dtype;
use peerwarp_codegen::print::{ArgField, TENSOR_MAP_BYTES, TensorMap};
use serde_json::Value;

use super::manifest::{Entry, Manifest, Stored};
use crate::input::file::is_inside;

/// The most bytes that an object may have.
pub(super) const OBJECT: u64 = 1 << 30;

/// The most bytes that the argument struct may have.
const fn most_args(target: Target) -> u32 {
    match target {
        Target::Cuda(_) => 32764,
        Target::Hip(_) => 4096,
    }
}

/// The most ranks of a world.
const RANKS: u32 = 64;

/// The most threads of a block.
const THREADS: u32 = 1024;

/// Bytes of a record of a timeline.
const RECORD: u64 = 32;

/// Checks everything that can be checked without the variants and the files. The error is the first thing that is wrong, with
/// the kernel, the field, its value and what is allowed.
pub(super) fn check(manifest: &Manifest) -> Result<(), String> {
    let mut listed = BTreeSet::new();
    for file in &manifest.files {
        if !is_inside(file) {
            return Err(format!("{file} is not in the pack's folder"));
        }
        if !listed.insert(file.as_str()) {
            return Err(format!("files has {file} twice"));
        }
    }
    let (mut kernels, mut stored) = (BTreeSet::new(), BTreeSet::new());
    for (number, kernel) in manifest.kernels.iter().enumerate() {
        let mut one = || -> Result<(), String> {
            names(kernel)?;
            launch(kernel)?;
            args(kernel)?;
            timeline(kernel)?;
            residency(kernel)?;
            file("object", &kernel.object)?;
            file("header", &kernel.header)?;
            for name in [&kernel.object.file, &kernel.header.file] {
                let is_listed = listed.contains(name.as_str());
                ensure(is_listed, "file", name, "one of `files`")?;
                ensure(stored.insert(name.clone()), "file", name, "a file of this kernel alone")?;
            }
            for (lanes, stored) in &kernel.ir {
                file("ir", stored)?;
                ensure([32, 64].contains(lanes), "ir", lanes, "lanes of a warp: 32 or 64")?;
                ensure(listed.contains(stored.file.as_str()), "file", &stored.file, "one of `files`")?;
            }
            let is_new = kernels.insert((kernel.target, kernel.variant.clone()));
            ensure(is_new, "variant", &kernel.variant, "one kernel of a variant for a target")
        };
        one().map_err(|why| format!("kernels[{number}], {}: {why}", kernel.variant))?;
    }
    Ok(())
}

fn ensure(
    holds: bool,
    field: impl Display,
    value: impl Display,
    allowed: impl Display,
) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{field} = {value}: must be {allowed}")) }
}

fn names(kernel: &Entry) -> Result<(), String> {
    let identifier = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        name.chars().all(plain) && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
    };
    for (field, name) in [("variant", &kernel.variant), ("family", &kernel.family), ("entry", &kernel.entry)]
    {
        ensure(identifier(name), field, format!("{name:?}"), "letters, digits and _")?;
    }
    ensure((1..=RANKS).contains(&kernel.ranks), "ranks", kernel.ranks, format!("1 to {RANKS}"))?;
    ensure(!kernel.roles.is_empty(), "roles", "[]", "one name or more")?;
    for role in &kernel.roles {
        ensure(!role.is_empty() && !role.contains(char::is_control), "roles", format!("{role:?}"), "names")?;
    }
    for wait in &kernel.waits {
        ensure(!wait.file.contains(char::is_control), "waits", format!("{:?}", wait.file), "names of files")?;
    }
    for (field, value) in kernel.key.iter().chain(&kernel.tuning) {
        let plain = matches!(value, Value::Bool(_) | Value::Number(_) | Value::String(_));
        ensure(plain, field, value, "a number, a truth value or a name")?;
    }
    for (field, digest) in
        [("source_sha256", &kernel.source_sha256), ("inputs_sha256", &kernel.inputs_sha256)]
    {
        ensure(is_sha256(digest), field, format!("{digest:?}"), "64 hexadecimal digits")?;
    }
    Ok(())
}

fn launch(kernel: &Entry) -> Result<(), String> {
    let (shape, device, warp) = (&kernel.launch, Device::of(kernel.target), kernel.target.warp_size());
    ensure(shape.grid > 0, "launch.grid", shape.grid, "1 block or more")?;
    let threads = (1..=THREADS).contains(&shape.block_threads) && shape.block_threads.is_multiple_of(warp);
    let allowed = format!("whole warps of {warp}, {THREADS} threads at most");
    ensure(threads, "launch.block_threads", shape.block_threads, allowed)?;
    let most = device.sm_shared_bytes;
    let allowed = format!("{most} bytes at most, as {} has them", device.name);
    ensure(shape.shared_bytes <= most, "launch.shared_bytes", shape.shared_bytes, &allowed)?;
    let exclusive = shape.exclusive_sm_bytes.unwrap_or(shape.shared_bytes);
    ensure((shape.shared_bytes..=most).contains(&exclusive), "launch.exclusive_sm_bytes", exclusive, allowed)
}

/// Members stand one behind the other as C lays them out: within the struct, aligned, none over another.
fn args(kernel: &Entry) -> Result<(), String> {
    let layout = &kernel.args;
    let most = most_args(kernel.target);
    let size = (1..=most).contains(&layout.bytes) && layout.bytes.is_multiple_of(8);
    ensure(size, "args.bytes", layout.bytes, format!("a multiple of 8, {most} at most"))?;
    let (mut end, mut names) = (0, BTreeSet::new());
    for ArgField { name, offset, bytes } in &layout.fields {
        let new = !name.is_empty() && !name.contains(char::is_control) && names.insert(name.as_str());
        ensure(new, "args.fields.name", format!("{name:?}"), "a name that no other member has")?;
        let align = if bytes.is_multiple_of(8) { 8 } else { *bytes };
        ensure(
            *bytes > 0 && [1, 2, 4, 8].contains(&align),
            format!("bytes of args.{name}"),
            bytes,
            "1, 2, 4 or a multiple of 8",
        )?;
        let aligned = *offset >= end && offset.is_multiple_of(align);
        let allowed = format!("a multiple of {align} from {end} on, behind the member before");
        ensure(aligned, format!("offset of args.{name}"), offset, allowed)?;
        let last = offset.checked_add(*bytes).filter(|last| *last <= layout.bytes);
        let allowed = format!("one from which {bytes} bytes are within the {} of the struct", layout.bytes);
        ensure(last.is_some(), format!("offset of args.{name}"), offset, allowed)?;
        end = last.unwrap_or(end);
    }
    layout.maps.iter().try_for_each(|map| map_of(kernel, map, &mut end, &mut names))
}

/// A map stands behind the members as they do behind each other, and is one of a pointer, which it has for each rank or once.
fn map_of<'a>(
    kernel: &'a Entry,
    map: &'a TensorMap,
    end: &mut u32,
    names: &mut BTreeSet<&'a str>,
) -> Result<(), String> {
    let TensorMap { name, offset, of, symmetric, dtype, rows, columns, box_rows } = map;
    let cuda = matches!(kernel.target, Target::Cuda(_));
    ensure(cuda, "target", kernel.target, "one of NVIDIA's GPUs: others have no maps")?;
    let new = !name.is_empty() && !name.contains(char::is_control) && names.insert(name);
    ensure(new, "args.maps.name", format!("{name:?}"), "a name that no other member has")?;
    let last = offset.checked_add(TENSOR_MAP_BYTES).filter(|last| *last <= kernel.args.bytes);
    let aligned = *offset >= *end && offset.is_multiple_of(TENSOR_MAP_BYTES) && last.is_some();
    let allowed =
        format!("a multiple of {TENSOR_MAP_BYTES} from {end} on, {TENSOR_MAP_BYTES} bytes before the end");
    ensure(aligned, format!("offset of args.{name}"), offset, allowed)?;
    *end = last.unwrap_or(*end);
    let pointers = if *symmetric { kernel.ranks } else { 1 };
    let member = kernel.args.fields.iter().find(|field| field.name == *of);
    let there = member.is_some_and(|field| field.bytes >= 8 * pointers && field.bytes.is_multiple_of(8));
    ensure(
        there,
        format!("of of args.{name}"),
        format!("{of:?}"),
        format!("a member of {pointers} pointers"),
    )?;
    ensure(
        matches!(dtype, Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp8),
        format!("dtype of args.{name}"),
        dtype,
        "bf16, fp16 or fp8",
    )?;
    for (what, value, most) in [("rows", rows, 1 << 32), ("columns", columns, 1 << 32)] {
        ensure((1..=most).contains(value), format!("{what} of args.{name}"), value, format!("1 to {most}"))?;
    }
    let unit = 16 / u64::from(dtype.bytes());
    let allowed = format!("a multiple of {unit}: rows are whole 16 bytes");
    ensure(columns.is_multiple_of(unit), format!("columns of args.{name}"), columns, allowed)?;
    ensure((1..=256).contains(box_rows), format!("box_rows of args.{name}"), box_rows, "1 to 256")
}

fn timeline(kernel: &Entry) -> Result<(), String> {
    let Some(timeline) = &kernel.timeline else { return Ok(()) };
    let warps = kernel.launch.block_threads / kernel.target.warp_size();
    let slices = u64::from(kernel.launch.grid) * u64::from(warps);
    let bytes = slices * (u64::from(timeline.slots) + 1) * RECORD;
    ensure((1..=65536).contains(&timeline.slots), "timeline.slots", timeline.slots, "1 to 65536")?;
    ensure(timeline.warps == warps, "timeline.warps", timeline.warps, format!("{warps}, as a block has"))?;
    ensure(
        u64::from(timeline.slices) == slices,
        "timeline.slices",
        timeline.slices,
        format!("{slices}, one a warp"),
    )?;
    ensure(timeline.bytes == bytes, "timeline.bytes", timeline.bytes, format!("{bytes}, for all records"))?;
    let passed = kernel.args.fields.iter().any(|f| f.name == "timeline" && f.bytes == 8);
    ensure(passed, "timeline", "given", "of a kernel with that argument")
}

fn residency(kernel: &Entry) -> Result<(), String> {
    let blocks = kernel.residency.blocks();
    if !kernel.launch.waits {
        return ensure(blocks > 0, "blocks of residency", blocks, "1 or more");
    }
    let allowed = format!("the grid's {} or more", kernel.launch.grid);
    ensure(blocks >= kernel.launch.grid, "blocks of residency", blocks, allowed)
}

fn file(field: &str, stored: &Stored) -> Result<(), String> {
    if !is_inside(&stored.file) {
        return Err(format!("{} is not in the pack's folder", stored.file));
    }
    ensure(stored.bytes <= OBJECT, format!("{field}.bytes"), stored.bytes, format!("{OBJECT} at most"))?;
    ensure(
        is_sha256(&stored.sha256),
        format!("{field}.sha256"),
        format!("{:?}", stored.sha256),
        "64 hexadecimal digits",
    )
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
