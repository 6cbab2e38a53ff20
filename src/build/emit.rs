//! From variants to source files.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use peerwarp_codegen::family::{DynKernel, FamilyError, Target, Variant};
use peerwarp_codegen::ir::{self, Kernel, Verified};
use peerwarp_codegen::print::{
    self, ArgsLayout, EmitInfo, EmitOptions, FarEngine, Primitives, PrintError, Source, Split, Timeline,
};
use peerwarp_codegen::threads::{self, ThreadsRefused};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::build::digest::sha256;
use crate::build::tree::{Kept, MANIFEST, Tree};
use crate::input::InputError;
use crate::input::file::is_inside;
use crate::input::from_family;

/// Folder of the headers that hold machine primitives, beside the folders of models.
const PRIMITIVES: &str = "primitives";

/// Why a variant cannot be emitted.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The configuration or the target cannot be had.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The system starts no thread.
    #[error(transparent)]
    Threads(#[from] ThreadsRefused),
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
pub fn trace(variant: &dyn DynKernel, warp_size: u32) -> Result<Verified, EmitError> {
    let wrong = |message: String| EmitError::Kernel { variant: variant.variant_name(), message };
    let kernel = variant.trace(warp_size).map_err(|e| match e {
        FamilyError::Trace(e) => wrong(e.to_string()),
        other => EmitError::Input(from_family(other)),
    })?;
    verified(kernel)
}

/// Verifies a kernel.
pub(crate) fn verified(kernel: Kernel) -> Result<Verified, EmitError> {
    let variant = kernel.variant.clone();
    ir::verify(kernel).map_err(|errors| EmitError::Kernel { variant, message: errors.to_string() })
}

/// The source of a variant. `program` is the command that can show it; it stands in the banner.
pub fn source(program: &str, variant: &dyn DynKernel, target: Target) -> Result<Source, EmitError> {
    printed(program, &trace(variant, target.warp_size())?, target)
}

/// What the author of a variant's kernel should know of, though it works.
pub fn warnings(variant: &dyn DynKernel, target: Target) -> Result<Vec<print::Warning>, EmitError> {
    let kernel = trace(variant, target.warp_size())?;
    print::warnings(&kernel, target).map_err(|e| unprinted(&kernel, e))
}

/// A variant in words, as it is emitted for a target.
pub fn explain(variant: &dyn DynKernel, target: Target) -> Result<ir::explain::Explain, EmitError> {
    let kernel = trace(variant, target.warp_size())?;
    print::explain(&kernel, target).map_err(|e| unprinted(&kernel, e))
}

/// As [`source`], with a timeline that has room for `slots` records of each warp.
pub fn source_with_timeline(
    program: &str,
    variant: &dyn DynKernel,
    target: Target,
    slots: u32,
) -> Result<Source, EmitError> {
    let options = EmitOptions { timeline: Some(slots), ..EmitOptions::default() };
    source_with(program, variant, target, &options)
}

/// As [`source`], with options.
pub fn source_with(
    program: &str,
    variant: &dyn DynKernel,
    target: Target,
    options: &EmitOptions,
) -> Result<Source, EmitError> {
    with_options(program, &trace(variant, target.warp_size())?, target, options)
}

/// As [`source_with`], with the machine primitives in a header: the source includes it from where [`split_tree`] puts it.
pub fn split_source(
    program: &str,
    variant: &dyn DynKernel,
    target: Target,
    options: &EmitOptions,
) -> Result<Split, EmitError> {
    split(program, &trace(variant, target.warp_size())?, target, options)
}

/// The part of a variant's source that its author wrote: the roles and the entry, without the lines of the author's file. A
/// snapshot of it changes only with what the kernel does.
pub fn roles(variant: &dyn DynKernel, target: Target) -> Result<String, EmitError> {
    let options = EmitOptions { lines: false, ..EmitOptions::default() };
    Ok(source_with("peerwarp", variant, target, &options)?.roles().to_owned())
}

/// As [`source`], of a kernel that was traced for the target's warps.
pub(crate) fn printed(program: &str, kernel: &Verified, target: Target) -> Result<Source, EmitError> {
    with_options(program, kernel, target, &EmitOptions::default())
}

/// As [`printed`], with options.
pub(crate) fn with_options(
    program: &str,
    kernel: &Verified,
    target: Target,
    options: &EmitOptions,
) -> Result<Source, EmitError> {
    let command = command(program, kernel, target, options);
    let info = EmitInfo { command: command.clone() };
    let mut source = print::emit_with(kernel, target, &info, options).map_err(|e| unprinted(kernel, e))?;
    source.abi = source.abi.replace(&command, &format!("{command} --header"));
    Ok(source)
}

/// As [`with_options`], with the machine primitives in a header.
fn split(
    program: &str,
    kernel: &Verified,
    target: Target,
    options: &EmitOptions,
) -> Result<Split, EmitError> {
    let command = command(program, kernel, target, options) + " --split-primitives";
    let info = EmitInfo { command: command.clone() };
    // A source lies in the folder of an architecture, and that in the folder of a model.
    let folder = format!("../../{PRIMITIVES}/");
    let mut split =
        print::emit_split(kernel, target, &info, options, &folder).map_err(|e| unprinted(kernel, e))?;
    split.source.abi = split.source.abi.replace(&command, &format!("{command} --header"));
    Ok(split)
}

/// The command that shows a kernel's source.
fn command(program: &str, kernel: &Verified, target: Target, options: &EmitOptions) -> String {
    let timeline = options.timeline.map(|slots| format!(" --timeline {slots}")).unwrap_or_default();
    let lines = if options.lines { "" } else { " --no-lines" };
    let far = match options.far {
        FarEngine::Ring => "",
        FarEngine::Gin => " --far gin",
    };
    format!("{program} show {} --target {target}{timeline}{far}{lines}", kernel.variant)
}

fn unprinted(kernel: &Verified, e: PrintError) -> EmitError {
    let (variant, message) = (kernel.variant.clone(), e.to_string());
    match e {
        PrintError::NothingFar { .. } => {
            EmitError::Input(InputError::not_allowed("--far", FarEngine::Gin, format!("ring: {message}")))
        }
        _ => EmitError::Kernel { variant, message },
    }
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

/// What `manifest.json` says. A struct, not a map: maps of JSON change their order with a feature of the library.
#[derive(Serialize)]
struct Manifest<'a> {
    generator: &'a str,
    version: &'static str,
    kernels: Vec<&'a Entry>,
    files: Vec<&'a str>,
    /// Of each file, in hexadecimal.
    sha256: &'a BTreeMap<String, String>,
}

impl Entry {
    /// The files that it names.
    fn files(&self) -> impl Iterator<Item = &String> {
        [&self.file, &self.header].into_iter().chain(&self.primitives)
    }
}

/// A source in the manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    file: String,
    header: String,
    /// The header of machine primitives that the source includes, if it holds none itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    primitives: Option<String>,
    /// Whose shape it is. The file is in the first one's folder.
    models: Vec<String>,
    family: String,
    variant: String,
    target: Target,
    entry: String,
    grid_blocks: u32,
    block_threads: u32,
    shared_bytes: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exclusive_sm_bytes: Option<u32>,
    overlaps_previous: bool,
    args: ArgsLayout,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeline: Option<Timeline>,
}

/// Sources of a folder, and what its manifest says of them.
#[derive(Clone, Debug)]
struct Sources {
    program: String,
    kernels: Vec<Entry>,
    /// Of each file, in hexadecimal.
    sha256: BTreeMap<String, String>,
}

impl Sources {
    /// The text of the manifest.
    fn manifest(&self) -> String {
        let mut kernels: Vec<&Entry> = self.kernels.iter().collect();
        kernels.sort_by(|a, b| a.file.cmp(&b.file));
        let files: BTreeSet<&str> = kernels.iter().flat_map(|k| k.files()).map(String::as_str).collect();
        let manifest = Manifest {
            generator: &self.program,
            version: env!("CARGO_PKG_VERSION"),
            kernels,
            files: files.into_iter().collect(),
            sha256: &self.sha256,
        };
        serde_json::to_string_pretty(&manifest).expect("has strings for keys") + "\n"
    }

    /// With the kernels of other families than these out of an earlier manifest; none if it has none.
    fn with(&self, earlier: &[u8], families: &[String]) -> Result<Option<Kept>, String> {
        #[derive(Deserialize)]
        struct Earlier {
            generator: String,
            kernels: Vec<Value>,
            #[serde(default)]
            sha256: BTreeMap<String, String>,
        }
        // What is no manifest says of no file whose it is.
        let Ok(mut earlier) = serde_json::from_slice::<Earlier>(earlier) else { return Ok(None) };
        let (mut both, mut files) = (self.clone(), BTreeSet::new());
        // Whichever program comes second, both find the manifest as they would write it.
        both.program = earlier.generator;
        for kernel in earlier.kernels {
            let family = kernel["family"].as_str().unwrap_or_default().to_owned();
            if families.contains(&family) {
                continue;
            }
            let wrong = |why: String| {
                format!("{MANIFEST} has a kernel of `{family}`, which stays, and {why}: use another folder")
            };
            let entry: Entry = serde_json::from_value(kernel).map_err(|e| wrong(e.to_string()))?;
            for file in entry.files() {
                if !is_inside(file) {
                    return Err(wrong(format!("{file:?} is not in the folder")));
                }
                if self.sha256.contains_key(file) {
                    return Err(wrong(format!("{file} is to be of another family")));
                }
                both.sha256.extend(earlier.sha256.remove_entry(file));
                files.insert(file.clone());
            }
            both.kernels.push(entry);
        }
        Ok((!files.is_empty()).then(|| Kept { manifest: both.manifest(), files }))
    }
}

/// Emits all files, on all cores, and a manifest that lists them. A variant that several models share is emitted once,
/// into the folder of the first. `tick` is called for each job.
///
/// What a folder has of these families, and of those of the jobs, is replaced when the files are written to it. Kernels of
/// others stay there, and in the manifest.
pub fn tree(
    program: &str,
    jobs: &[Job],
    families: &[&str],
    options: &EmitOptions,
    tick: impl Fn() + Sync,
) -> Result<Tree, EmitError> {
    tree_of(program, jobs, families, tick, &|kernel, target| {
        Ok((with_options(program, kernel, target, options)?, None))
    })
}

/// As [`tree`], with machine primitives in headers, one for each target and shape of blocks, in a folder of their own. A header
/// holds what its sources use. Kernels that stay from other runs cannot share one with these.
pub fn split_tree(
    program: &str,
    jobs: &[Job],
    families: &[&str],
    options: &EmitOptions,
    tick: impl Fn() + Sync,
) -> Result<Tree, EmitError> {
    tree_of(program, jobs, families, tick, &|kernel, target| {
        let Split { source, primitives } = split(program, kernel, target, options)?;
        Ok((source, Some(primitives)))
    })
}

/// A source, and its primitives if they stand apart.
type Parts = (Source, Option<Primitives>);

fn tree_of(
    program: &str,
    jobs: &[Job],
    families: &[&str],
    tick: impl Fn() + Sync,
    parts: &(dyn Fn(&Verified, Target) -> Result<Parts, EmitError> + Sync),
) -> Result<Tree, EmitError> {
    let emit = |shared: &(&Job, Vec<String>)| {
        let (job, models) = shared;
        let one = file(job, models.clone(), parts);
        models.iter().for_each(|_| tick());
        one
    };
    threads::pool()?;
    // All of them first: then the error that is reported does not depend on timing.
    let emitted: Vec<Result<(Entry, Parts), EmitError>> = once_each(jobs).par_iter().map(emit).collect();
    let mut tree = Tree::default();
    let mut kernels: Vec<Entry> = vec![];
    let mut headers: BTreeMap<String, Primitives> = BTreeMap::new();
    for one in emitted {
        let (entry, (source, primitives)) = one?;
        tree.insert(&entry.file, source.text)?;
        tree.insert(&entry.header, source.abi)?;
        if let (Some(path), Some(primitives)) = (&entry.primitives, primitives) {
            match headers.get_mut(path) {
                Some(header) => header.merge(primitives),
                None => drop(headers.insert(path.clone(), primitives)),
            }
        }
        kernels.push(entry);
    }
    for (path, header) in headers {
        tree.insert(&path, header.text())?;
    }
    let sha256 = tree.files().map(|(path, contents)| (path.to_owned(), sha256(contents))).collect();
    let sources = Sources { program: program.to_owned(), kernels, sha256 };
    tree.insert(MANIFEST, sources.manifest())?;
    let families = replaced(jobs, families);
    Ok(tree.keeping(move |earlier| sources.with(earlier, &families)))
}

/// The families whose kernels a run replaces.
pub(super) fn replaced(jobs: &[Job], families: &[&str]) -> Vec<String> {
    let own = jobs.iter().map(|job| job.variant.family().name());
    let all: BTreeSet<&str> = families.iter().copied().chain(own).collect();
    all.into_iter().map(str::to_owned).collect()
}

/// The jobs without repetitions, each with the models that it is for.
fn once_each(jobs: &[Job]) -> Vec<(&Job, Vec<String>)> {
    let mut places = HashMap::new();
    let mut once: Vec<(&Job, Vec<String>)> = vec![];
    for job in jobs {
        let place = *places.entry((job.variant.variant_name(), job.target)).or_insert(once.len());
        match once.get_mut(place) {
            None => once.push((job, vec![job.label.clone()])),
            Some((_, models)) if models.contains(&job.label) => {}
            Some((_, models)) => models.push(job.label.clone()),
        }
    }
    once
}

fn file(
    job: &Job,
    models: Vec<String>,
    parts: &(dyn Fn(&Verified, Target) -> Result<Parts, EmitError> + Sync),
) -> Result<(Entry, Parts), EmitError> {
    let kernel = trace(&*job.variant, job.target.warp_size())?;
    let (source, primitives) = parts(&kernel, job.target)?;
    // One folder for an architecture: two of them differ in contents, not in the names of their files.
    let folder = format!("{}/{}", job.label, job.target.arch());
    let entry = Entry {
        file: format!("{folder}/{}", source.file_name),
        header: format!("{folder}/{}", source.abi_file_name),
        primitives: primitives.as_ref().map(|p| format!("{PRIMITIVES}/{}", p.file_name())),
        models,
        family: job.variant.family().name().to_owned(),
        variant: job.variant.variant_name(),
        target: job.target,
        entry: source.entry.clone(),
        grid_blocks: source.launch.grid,
        block_threads: source.launch.block_threads,
        shared_bytes: source.launch.shared_bytes,
        exclusive_sm_bytes: source.launch.exclusive_sm_bytes,
        overlaps_previous: source.launch.overlaps_previous,
        args: source.args.clone(),
        timeline: source.timeline.clone(),
    };
    Ok((entry, (source, primitives)))
}
