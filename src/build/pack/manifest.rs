//! What `pack.json` says.

use std::collections::BTreeMap;
use std::path::Path;

use peerwarp_codegen::family::{FamilyEntry, FieldInfo, FieldRole, Target};
use peerwarp_codegen::print::{ArgsLayout, LaunchShape, Timeline, WaitSite};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{PackError, valid};

/// Name of the manifest in a pack's folder.
pub const PACK_MANIFEST: &str = "pack.json";

/// The version of the manifest that this crate writes and reads. It changes when a field goes away or changes its
/// meaning; fields that come are no change.
pub const SCHEMA: u32 = 2;

/// A pack's manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest: [`SCHEMA`].
    pub schema: u32,
    /// The program that wrote it; the first one, if several have put their families into the pack.
    pub generator: String,
    /// The version of Peerwarp in that program.
    pub version: String,
    /// Every other file of the pack, by path with `/` relative to its folder.
    pub files: Vec<String>,
    /// The families of its kernels, by name, for programs that do not have their types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<PackFamily>,
    /// The compiled kernels, by target and variant.
    pub kernels: Vec<Entry>,
}

/// A family of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackFamily {
    /// Its name.
    pub name: String,
    /// What its kernel does.
    pub doc: String,
    /// Its key fields.
    pub key: Vec<PackField>,
}

/// A key field of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackField {
    /// Its name.
    pub name: String,
    /// What it means.
    pub help: String,
    /// The values that it may have, in words.
    pub allowed: String,
    /// Its value where none is given; none if it must be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Whether it is the world size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ranks: bool,
    /// Whether a variant with more of it does as well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub covers: bool,
}

impl PackFamily {
    pub(super) fn of(family: FamilyEntry) -> PackFamily {
        let key = family.fields().iter().filter(|field| field.role == FieldRole::Key);
        let field = |field: &FieldInfo| PackField {
            name: field.name.to_owned(),
            help: field.help.to_owned(),
            allowed: field.allowed.to_string(),
            default: field.constant().map(|value| serde_json::json!(value)),
            ranks: field.ranks,
            covers: field.covers,
        };
        PackFamily {
            name: family.name().to_owned(),
            doc: family.doc().to_owned(),
            key: key.map(field).collect(),
        }
    }
}

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the variant.
    pub variant: String,
    /// Family of the variant.
    pub family: String,
    /// The shapes that asked for it: names of models, or what the catalogue calls them.
    pub labels: Vec<String>,
    /// What it is compiled for.
    pub target: Target,
    /// World size.
    pub ranks: u32,
    /// Key fields of the configuration.
    pub key: BTreeMap<String, Value>,
    /// Tuning fields of the configuration.
    pub tuning: BTreeMap<String, Value>,
    /// Names of its roles, in the order of their numbers.
    pub roles: Vec<String>,
    /// Name of the kernel in the object.
    pub entry: String,
    /// Grid, threads a block, and dynamic shared memory.
    pub launch: LaunchShape,
    /// The argument struct.
    pub args: ArgsLayout,
    /// Its parameters, [in words](peerwarp_codegen::ir::Param::signature). Without them it is not launched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<String>,
    /// The places of its waits, by the numbers in a status record. Without them a record has lines of the author's source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<WaitSite>,
    /// What it records, if it was emitted with a timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// What a thread and a block use.
    pub resources: Resources,
    /// How many blocks are resident at once on a reference device.
    pub residency: Residency,
    /// The object: a cubin, or an AMD code object.
    pub object: Stored,
    /// The C header with the argument struct.
    pub header: Stored,
    /// The kernel itself, by lanes of a warp: what programs without the family's type run, on simulated ranks too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ir: BTreeMap<u32, Stored>,
    /// SHA-256 of the emitted source without its comments.
    pub source_sha256: String,
    /// SHA-256 of all that the object was made from: the source's code, includes of our own, compiler, its version and options.
    pub inputs_sha256: String,
    /// What compiled it.
    pub toolchain: Toolchain,
}

impl Entry {
    /// The paths of its files.
    pub(super) fn files(&self) -> impl Iterator<Item = String> {
        [&self.object, &self.header].into_iter().chain(self.ir.values()).map(|stored| stored.file.clone())
    }
}

/// A file of the pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Path with `/` relative to the pack's folder.
    pub file: String,
    /// Size.
    pub bytes: u64,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
}

/// A compiler, and what it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toolchain {
    /// `nvrtc`, `nvcc`, `clang`, `zig` or `hipcc`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Options, but for paths.
    pub options: Vec<String>,
    /// The version of NCCL whose headers it was given: kernels that put by its GIN run with a library of this version alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
}

/// What a compiled kernel uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// 32-bit registers a thread; on AMD vector registers, accumulators included.
    pub registers: u32,
    /// AMD: accumulator registers among them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub accumulators: u32,
    /// AMD: scalar registers a warp.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scalar_registers: u32,
    /// Static shared memory a block, in bytes.
    pub static_shared_bytes: u32,
    /// Memory of a thread that is no register (stack on NVIDIA, scratch on AMD), in bytes.
    pub local_bytes: u32,
    /// NVIDIA: bytes of registers that a thread stores there.
    pub spill_store_bytes: u32,
    /// NVIDIA: bytes of registers that a thread loads back.
    pub spill_load_bytes: u32,
    /// AMD: vector registers that are spilled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spilled_registers: u32,
    /// AMD: scalar registers that are kept in lanes of vector registers; they need no memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spilled_scalar_registers: u32,
    /// NVIDIA: instructions of the kernel and of functions that it calls, but for those that only fill up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub instructions: u32,
    /// Bytes of all instructions; on AMD one has 4, 8 or more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code_bytes: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes references
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// How many blocks of a kernel are resident at once on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residency {
    /// The device that was reckoned with.
    pub device: String,
    /// Its SMs (compute units on AMD).
    pub sms: u32,
    /// Blocks that an SM holds.
    pub blocks_each: u32,
}

impl Residency {
    /// Blocks that the device holds.
    pub fn blocks(&self) -> u32 {
        self.sms.saturating_mul(self.blocks_each)
    }
}

/// What is wrong with a manifest.
#[derive(Debug)]
pub(super) enum Wrong {
    Schema(u64),
    Form(String),
}

impl Wrong {
    pub fn at(self, path: &Path) -> PackError {
        let path = path.to_owned();
        match self {
            Wrong::Schema(found) => PackError::Schema { path, found },
            Wrong::Form(why) => PackError::Manifest { path, why },
        }
    }
}

/// Reads a manifest. Another version's manifest is known by its version, whatever else is in it.
pub(super) fn read(text: &[u8]) -> Result<Manifest, Wrong> {
    #[derive(Deserialize)]
    struct Version {
        schema: u64,
    }
    let form = |e: serde_json::Error| Wrong::Form(e.to_string());
    let Version { schema } = serde_json::from_slice(text).map_err(form)?;
    if schema != u64::from(SCHEMA) {
        return Err(Wrong::Schema(schema));
    }
    let manifest: Manifest = serde_json::from_slice(text).map_err(form)?;
    // It may be anybody's.
    valid::check(&manifest).map_err(Wrong::Form)?;
    Ok(manifest)
}
