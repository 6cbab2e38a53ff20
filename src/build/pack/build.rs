//! Writes packs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use peerwarp_codegen::family::{DynConfig, FieldRole, Target};
use peerwarp_codegen::ir::Kernel;
use peerwarp_codegen::print::{EmitOptions, FarEngine, Source, code};
use peerwarp_codegen::sim::WARP_SIZE;
use peerwarp_codegen::threads;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;

use crate::build::emit::{self, EmitError, Job};
use crate::build::toolchain::Tool;
use crate::build::tree::{Kept, Tree};
use crate::input::InputError;
use crate::input::file::{self, Links, Refused, inside};
use crate::input::trust::{self, Rule};

use super::carried;
use super::compile::{CompileError, Compiled, Compiler, CompilerError};
use super::limits;
use super::manifest::{self, Entry, Manifest, PACK_MANIFEST, PackFamily, Resources, SCHEMA, Stored};
use crate::build::digest::sha256;

/// How to make a pack.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The compilers to choose from; empty for all.
    pub compilers: Vec<Tool>,
    /// SMs (compute units on AMD) of the device that grids must fit; the target's reference device has its
    /// own number.
    pub sms: Option<u32>,
    /// Whether kernels that spill are packed all the same.
    pub allow_spills: bool,
    /// How sources are emitted.
    pub emit: EmitOptions,
}

/// A pack that is ready to be written.
#[derive(Debug)]
pub struct Built {
    /// Its files.
    pub tree: Tree,
    /// Its manifest, which is among them.
    pub manifest: Manifest,
    /// Kernels that were compiled now; the others were there.
    pub compiled: usize,
}

/// A kernel that must not be launched as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The variant.
    pub variant: String,
    /// What it was compiled for.
    pub target: Target,
    /// What is too much, with figure and limit.
    pub why: String,
    /// Tuning fields and their values, as `field=value`.
    pub tuning: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { variant, target, why, tuning } = self;
        write!(f, "{variant} for {target}: {why}; tune it with --set, now {}", tuning.join(" "))
    }
}

/// Why a pack could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A variant cannot be emitted.
    #[error(transparent)]
    Emit(#[from] EmitError),
    /// There is no compiler.
    #[error(transparent)]
    Compiler(#[from] CompilerError),
    /// A source cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Files cannot be put together.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Kernels spill, or their blocks are not resident at once.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<Refusal>),
}

/// One kernel to pack, with all who want it.
struct Wanted<'a> {
    variant: &'a dyn DynConfig,
    target: Target,
    labels: BTreeSet<&'a str>,
}

/// A kernel that is packed.
struct Packed {
    entry: Entry,
    object: Vec<u8>,
    header: String,
    /// The files of [`Entry::ir`].
    ir: Vec<Vec<u8>>,
    family: PackFamily,
    compiled: bool,
}

/// Compiles kernels, on all cores, and puts a pack together. What an earlier pack in `dir` has of them, made from the
/// same inputs and still intact, is taken from there. `tick` is called after each kernel; nothing is written.
///
/// What a folder has of these families, and of those of the jobs, is replaced when the pack is written to it. Kernels of
/// others stay there, and in the manifest.
pub fn build(
    program: &str,
    jobs: &[Job],
    families: &[&str],
    dir: &Path,
    options: &Options,
    tick: impl Fn() + Sync,
) -> Result<Built, BuildError> {
    let wanted = wanted(jobs);
    let mut compilers = BTreeMap::new();
    for target in wanted.iter().map(|w| w.target).collect::<BTreeSet<_>>() {
        compilers.insert(target, Compiler::find(target, &options.compilers, options.emit.far)?);
    }
    let earlier = Earlier::read(dir);
    let pack = |wanted: &Wanted<'_>| {
        let packed = one(program, wanted, &compilers[&wanted.target], &earlier, options);
        tick();
        packed
    };
    threads::pool().map_err(EmitError::from)?;
    // All of them first: then the error that is reported does not depend on timing, and all refusals are.
    let results: Vec<Result<Packed, OneError>> = wanted.par_iter().map(pack).collect();
    let (mut packed, mut refused) = (vec![], vec![]);
    for result in results {
        match result {
            Ok(one) => packed.push(one),
            Err(OneError::Refused(refusal)) => refused.push(refusal),
            Err(OneError::Other(e)) => return Err(e),
        }
    }
    if !refused.is_empty() {
        return Err(BuildError::Refused(refused));
    }
    assemble(program, packed, emit::replaced(jobs, families))
}

fn wanted(jobs: &[Job]) -> Vec<Wanted<'_>> {
    let mut all: BTreeMap<(Target, String), Wanted<'_>> = BTreeMap::new();
    for job in jobs {
        let new = || Wanted { variant: &*job.variant, target: job.target, labels: BTreeSet::new() };
        let one = all.entry((job.target, job.variant.variant_name())).or_insert_with(new);
        one.labels.insert(&job.label);
    }
    all.into_values().collect()
}

/// The pack that is in a folder already, as far as it can be read.
struct Earlier<'a> {
    dir: &'a Path,
    entries: BTreeMap<(Target, String), Entry>,
}

impl Earlier<'_> {
    fn read(dir: &Path) -> Earlier<'_> {
        let text = trusted(&dir.join(PACK_MANIFEST), file::MANIFEST).unwrap_or_default();
        let kernels = manifest::read(&text).map(|m| m.kernels).unwrap_or_default();
        let entries = kernels.into_iter().map(|k| ((k.target, k.variant.clone()), k)).collect();
        Earlier { dir, entries }
    }

    /// What was made of these inputs, if it is still there as it was.
    fn get(&self, target: Target, variant: &str, inputs: &str) -> Option<Compiled> {
        let entry = self.entries.get(&(target, variant.to_owned()))?;
        let place = inside(self.dir, &entry.object.file).ok()?;
        let object = trusted(&place, entry.object.bytes)?;
        let same = entry.inputs_sha256 == inputs && entry.object.sha256 == sha256(&object);
        same.then_some(Compiled { object, resources: entry.resources })
    }
}

/// A file of the pack that is in the folder, unless another user has written it, or can.
fn trusted(path: &Path, limit: u64) -> Option<Vec<u8>> {
    match file::trusted(path, limit, Links::Refuse, Rule::Named) {
        Ok(bytes) => Some(bytes),
        Err(Refused::Io(_)) => None,
        Err(Refused::Distrust(why)) => {
            trust::warn(format!("{why}: kernels are compiled anew"));
            None
        }
    }
}

enum OneError {
    Refused(Refusal),
    Other(BuildError),
}

impl<E: Into<BuildError>> From<E> for OneError {
    fn from(error: E) -> OneError {
        OneError::Other(error.into())
    }
}

fn one(
    program: &str,
    wanted: &Wanted<'_>,
    compiler: &Compiler,
    earlier: &Earlier<'_>,
    options: &Options,
) -> Result<Packed, OneError> {
    let target = wanted.target;
    let kernel = emit::trace(wanted.variant, target.warp_size())?;
    let source = emit::with_options(program, &kernel, target, &options.emit)?;
    let inputs = compiler.inputs(&source);
    let kept = earlier.get(target, &source.entry, &inputs);
    let compiled = kept.is_none();
    let made = kept.map_or_else(|| compiler.compile(&source), Ok)?;
    let refuse = |why| OneError::Refused(refusal(wanted, why));
    if let Some(spills) = spills(&made.resources, options.emit.far).filter(|_| !options.allow_spills) {
        return Err(refuse(spills));
    }
    let residency =
        limits::residency(target, &source.launch, &made.resources, options.sms).map_err(refuse)?;
    let folder = target.arch();
    let extension = match target {
        Target::Cuda(_) => "cubin",
        Target::Hip(_) => "hsaco",
    };
    let (key, tuning) = fields(wanted.variant);
    let ir = ir(wanted.variant, &kernel)?;
    let entry = Entry {
        variant: wanted.variant.variant_name(),
        family: wanted.variant.family().name().to_owned(),
        labels: wanted.labels.iter().map(|l| (*l).to_owned()).collect(),
        target,
        ranks: wanted.variant.ranks(),
        key,
        tuning,
        roles: kernel.roles.iter().map(|role| role.name.clone()).collect(),
        entry: source.entry.clone(),
        launch: source.launch,
        args: source.args.clone(),
        params: source.params.clone(),
        waits: source.waits.clone(),
        timeline: source.timeline.clone(),
        resources: made.resources,
        residency,
        object: stored(format!("{folder}/{}.{extension}", source.entry), &made.object),
        header: stored(format!("{folder}/{}", source.abi_file_name), source.abi.as_bytes()),
        ir: ir.iter().map(|(lanes, bytes)| (*lanes, stored(ir_file(&source.entry, *lanes), bytes))).collect(),
        source_sha256: sha256(code(&source.text).as_bytes()),
        inputs_sha256: inputs,
        toolchain: compiler.toolchain().clone(),
    };
    let Source { abi: header, .. } = source;
    let family = PackFamily::of(wanted.variant.family());
    Ok(Packed { entry, object: made.object, header, ir: ir.into_values().collect(), family, compiled })
}

/// The kernel by lanes of a warp: as the target has it, and as simulated ranks do if it is one for their warps, too.
fn ir(variant: &dyn DynConfig, kernel: &Kernel) -> Result<BTreeMap<u32, Vec<u8>>, OneError> {
    let mut ir = BTreeMap::from([(kernel.warp_size, carried::write(variant, kernel)?)]);
    if kernel.warp_size != WARP_SIZE
        && let Ok(simulated) = emit::trace(variant, WARP_SIZE)
    {
        ir.insert(WARP_SIZE, carried::write(variant, &simulated)?);
    }
    Ok(ir)
}

fn ir_file(entry: &str, lanes: u32) -> String {
    format!("ir/{lanes}/{entry}.mp")
}

fn stored(file: String, bytes: &[u8]) -> Stored {
    Stored { file, bytes: bytes.len() as u64, sha256: sha256(bytes) }
}

/// What is wrong with a kernel that keeps registers in memory, or has other memory of its threads' own.
fn spills(used: &Resources, far: FarEngine) -> Option<String> {
    if used.spill_store_bytes + used.spill_load_bytes > 0 {
        let (stores, loads) = (used.spill_store_bytes, used.spill_load_bytes);
        let registers = used.registers;
        return Some(format!(
            "a thread spills with {registers} registers: {stores} bytes stored, {loads} loaded, 0 allowed"
        ));
    }
    if used.spilled_registers > 0 {
        let (spilled, registers) = (used.spilled_registers, used.registers);
        return Some(format!(
            "{spilled} vector registers are spilled beside {registers} that are used, 0 allowed"
        ));
    }
    // NCCL writes its requests to the stack, from where it copies them to queues.
    (used.local_bytes > 0 && far == FarEngine::Ring)
        .then(|| format!("a thread uses {} bytes of local memory, 0 allowed", used.local_bytes))
}

fn refusal(wanted: &Wanted<'_>, why: String) -> Refusal {
    let (_, tuning) = fields(wanted.variant);
    let tuning = tuning.iter().map(|(field, value)| match value {
        Value::String(text) => format!("{field}={text}"),
        other => format!("{field}={other}"),
    });
    Refusal { variant: wanted.variant.variant_name(), target: wanted.target, why, tuning: tuning.collect() }
}

type Fields = BTreeMap<String, Value>;

/// Key fields and tuning fields of a variant.
fn fields(variant: &dyn DynConfig) -> (Fields, Fields) {
    let (mut key, mut tuning) = (Fields::new(), Fields::new());
    let all = variant.family().fields().iter().zip(variant.values());
    for (field, value) in all.filter(|(field, value)| !field.is_left_out(*value)) {
        let of = if field.role == FieldRole::Key { &mut key } else { &mut tuning };
        of.insert(field.name.to_owned(), serde_json::json!(value));
    }
    (key, tuning)
}

fn assemble(program: &str, packed: Vec<Packed>, replaced: Vec<String>) -> Result<Built, BuildError> {
    let mut tree = Tree::with_manifest(PACK_MANIFEST);
    let compiled = packed.iter().filter(|p| p.compiled).count();
    let (mut kernels, mut families) = (vec![], BTreeMap::new());
    for one in packed {
        tree.insert(&one.entry.object.file, one.object)?;
        tree.insert(&one.entry.header.file, one.header)?;
        for (stored, bytes) in one.entry.ir.values().zip(one.ir) {
            tree.insert(&stored.file, bytes)?;
        }
        families.insert(one.family.name.clone(), one.family);
        kernels.push(one.entry);
    }
    let manifest = Manifest {
        schema: SCHEMA,
        generator: program.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        files: tree.files().map(|f| f.0.to_owned()).collect(),
        families: families.into_values().collect(),
        kernels,
    };
    tree.insert(PACK_MANIFEST, text(&manifest))?;
    let own = manifest.clone();
    let tree = tree.keeping(move |earlier| Ok(with(&own, earlier, &replaced)));
    Ok(Built { tree, manifest, compiled })
}

fn text(manifest: &Manifest) -> String {
    serde_json::to_string_pretty(manifest).expect("a manifest is JSON") + "\n"
}

/// The manifest with the kernels of other families than these out of an earlier one; none if that has none, or is not valid.
fn with(own: &Manifest, earlier: &[u8], families: &[String]) -> Option<Kept> {
    let earlier = manifest::read(earlier).ok()?;
    // Whichever program comes second, both write the same.
    let mut both = Manifest { generator: earlier.generator, ..own.clone() };
    both.kernels.extend(earlier.kernels.into_iter().filter(|kernel| !families.contains(&kernel.family)));
    both.families.extend(earlier.families.into_iter().filter(|family| !families.contains(&family.name)));
    both.families.sort_by(|a, b| a.name.cmp(&b.name));
    let kept: BTreeSet<String> = both.kernels[own.kernels.len()..].iter().flat_map(Entry::files).collect();
    if kept.is_empty() {
        return None;
    }
    both.files.extend(kept.iter().cloned());
    both.files.sort();
    both.files.dedup();
    both.kernels.sort_by(|a, b| (a.target, &a.variant).cmp(&(b.target, &b.variant)));
    Some(Kept { manifest: text(&both), files: kept })
}
