//! From variants to source files.

use peerwarp_codegen::family::{DynConfig, FamilyError, Target, Variant};
use peerwarp_codegen::ir::{self, Kernel};
use peerwarp_codegen::print::{self, ArgsLayout, EmitInfo, Source};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;

use crate::generate::{MANIFEST, Tree};
use crate::input::InputError;
use crate::request::from_family;

/// Why a variant cannot be emitted.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The configuration or the target cannot be had.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The kernel is wrong.
    #[error("{variant}: {message}")]
    Kernel {
        /// Which variant.
        variant: String,
        /// What is wrong with it, with the author's file and line.
        message: String,
    },
}

/// Traces a variant for a target's warps, and verifies what comes out.
pub fn trace(variant: &dyn DynConfig, warp_size: u32) -> Result<Kernel, EmitError> {
    let wrong = |message: String| EmitError::Kernel { variant: variant.variant_name(), message };
    let kernel = variant.trace(warp_size).map_err(|e| match e {
        FamilyError::Trace(e) => wrong(e.to_string()),
        other => EmitError::Input(from_family(other)),
    })?;
    ir::verify(&kernel).map_err(|errors| {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        wrong(all.join("\n"))
    })?;
    Ok(kernel)
}

/// The source of a variant. `program` is the command that can show it; it stands in the banner.
pub fn source(program: &str, variant: &dyn DynConfig, target: Target) -> Result<Source, EmitError> {
    printed(program, &trace(variant, target.warp_size())?, target)
}

/// As [`source`], of a kernel that was traced for the target's warps.
pub(crate) fn printed(program: &str, kernel: &Kernel, target: Target) -> Result<Source, EmitError> {
    let command = format!("{program} show {} --target {target}", kernel.variant);
    let mut source = print::emit(kernel, target, &EmitInfo { command: command.clone() })
        .map_err(|e| EmitError::Kernel { variant: kernel.variant.clone(), message: e.to_string() })?;
    source.abi = source.abi.replace(&command, &format!("{command} --header"));
    Ok(source)
}

/// One file to emit.
#[derive(Debug)]
pub struct Job {
    /// Folder that it goes to: the model's name.
    pub label: String,
    /// What to emit.
    pub variant: Variant,
    /// What for.
    pub target: Target,
}

/// A source in the manifest.
#[derive(Clone, Debug, Serialize)]
struct Entry {
    file: String,
    header: String,
    model: String,
    family: &'static str,
    variant: String,
    target: Target,
    entry: String,
    grid_blocks: u32,
    block_threads: u32,
    shared_bytes: u32,
    args: ArgsLayout,
}

/// Emits all files, on all cores, and a manifest that lists them. `tick` is called after each.
pub fn tree(program: &str, jobs: &[Job], tick: impl Fn() + Sync) -> Result<Tree, EmitError> {
    let emit = |job: &Job| {
        let one = file(program, job);
        tick();
        one
    };
    // All of them first: then the error that is reported does not depend on timing.
    let emitted: Vec<Result<(Entry, Source), EmitError>> = jobs.par_iter().map(emit).collect();
    let mut tree = Tree::default();
    let mut entries: Vec<Entry> = vec![];
    for one in emitted {
        let (entry, source) = one?;
        tree.insert(&entry.file, source.text)?;
        tree.insert(&entry.header, source.abi)?;
        entries.push(entry);
    }
    entries.sort_by(|a, b| a.file.cmp(&b.file));
    entries.dedup_by(|a, b| a.file == b.file);
    let files: Vec<&str> = tree.files().map(|f| f.0).collect();
    let manifest = json!({ "generator": program, "version": env!("CARGO_PKG_VERSION"), "files": files, "kernels": entries });
    tree.insert(MANIFEST, format!("{manifest:#}\n"))?;
    Ok(tree)
}

fn file(program: &str, job: &Job) -> Result<(Entry, Source), EmitError> {
    let source = source(program, &*job.variant, job.target)?;
    // One folder for an architecture: two of them differ in contents, not in the names of their files.
    let folder = format!("{}/{}", job.label, job.target.arch());
    let entry = Entry {
        file: format!("{folder}/{}", source.file_name),
        header: format!("{folder}/{}", source.abi_file_name),
        model: job.label.clone(),
        family: job.variant.family().name(),
        variant: job.variant.variant_name(),
        target: job.target,
        entry: source.entry.clone(),
        grid_blocks: source.launch.grid,
        block_threads: source.launch.block_threads,
        shared_bytes: source.launch.shared_bytes,
        args: source.args.clone(),
    };
    Ok((entry, source))
}
