//! Packs: kernels that are compiled offline, with a manifest that says how to launch them.
//!
//! `peerwarp pack` writes a pack, a folder with `pack.json` ([`Manifest`]), one object for each kernel and target, and a C
//! header beside each. A program finds kernels in it by variant and target, either at run time:
//!
//! ```no_run
//! use peerwarp::build::pack::Pack;
//!
//! let pack = Pack::open("kernels".as_ref())?;
//! for kernel in pack.kernels() {
//!     println!("{} for {}: {} bytes", kernel.entry.variant, kernel.entry.target, kernel.object.len());
//! }
//! # Ok::<(), peerwarp::build::pack::PackError>(())
//! ```
//!
//! or out of the program itself, where `include_pack!` has put and checked it at compile time:
//!
//! ```
//! use peerwarp::build::pack::Embedded;
//!
//! static PACK: Embedded = peerwarp::include_pack!("tests/data/pack"); // relative to the folder of Cargo.toml
//!
//! let pack = PACK.open()?;
//! let kernel = pack.find("scale_n8", "cuda:sm_90a".parse()?).ok_or("not in the pack")?;
//! assert_eq!(kernel.entry.launch.grid, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What an object needs to be launched is in [`Entry`]: the name of the kernel in it, grid, threads and dynamic shared
//! memory ([`Entry::launch`]), and the layout of the struct that is its only argument ([`Entry::args`]).

mod buffers;
mod build;
mod carried;
mod compile;
mod embedded;
pub(crate) mod limits;
mod manifest;
mod usage;
mod valid;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use peerwarp_codegen::family::Target;

pub use buffers::PackBuffer;
pub use build::{BuildError, Built, Options, Refusal, build};
pub use carried::PackedKernel;
pub(crate) use compile::Compiler;
pub use compile::{CompileError, CompilerError};
pub use embedded::Embedded;
pub use manifest::{
    Entry, Manifest, PACK_MANIFEST, PackFamily, PackField, Residency, Resources, SCHEMA, Stored, Toolchain,
};

use embedded::Bytes;

use crate::input::Distrust;
use crate::input::file::{self, Links, Refused, inside};
use crate::input::trust::Rule;

/// A pack that was opened: every object is there, and is the one that the manifest means.
#[derive(Debug)]
pub struct Pack {
    /// Its folder; empty if it is inside of a program.
    dir: PathBuf,
    manifest: Manifest,
    /// In the order of the manifest's kernels.
    objects: Vec<Bytes>,
    /// Which kernel of the manifest.
    index: BTreeMap<(Target, String), usize>,
}

/// A kernel of a pack.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    /// What the manifest says of it.
    pub entry: &'a Entry,
    /// The cubin, or the AMD code object.
    pub object: &'a [u8],
}

/// Why a pack cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file is not there or cannot be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another user owns the pack or can write it, and it is machine code.
    #[error(
        "{0}; copy the pack (`cp -r`) if you trust its author, or take others' right to write it (`chmod -R go-w`)"
    )]
    Distrust(#[from] Distrust),
    /// The manifest is not one.
    #[error("{}: {why}; write the pack anew with `peerwarp pack`", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The manifest is of another version of Peerwarp.
    #[error("{}: schema = {found}, and this version of Peerwarp reads {SCHEMA}; write the pack anew with `peerwarp pack`", .path.display())]
    Schema {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// An object is not the one that the manifest means: cut off, changed, or of another pack.
    #[error("{}: {bytes} bytes with SHA-256 {sha256}, and the manifest says {} bytes with {}; write the pack anew with `peerwarp pack`",
        .path.display(), .expected.bytes, .expected.sha256)]
    Object {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Its SHA-256.
        sha256: String,
        /// What it should be.
        expected: Box<Stored>,
    },
}

impl Pack {
    /// Opens the pack in a folder. Reads all of it, and compares every object with its hash.
    ///
    /// # Errors
    /// The manifest is missing, malformed, of another version, or contradicts itself; an object or a header is missing, cut off
    /// or another one, or outside of the folder: no symbolic link is followed in it. The folder or a file belongs neither to this
    /// user nor to root nor to the owner of the running program, or others can write it.
    pub fn open(dir: &Path) -> Result<Pack, PackError> {
        let path = dir.join(PACK_MANIFEST);
        if let Ok(found) = fs::metadata(dir) {
            Rule::Named.check(dir, &found)?;
        }
        let text =
            file::trusted(&path, file::MANIFEST, Links::Refuse, Rule::Named).map_err(refused(&path))?;
        let pack = Pack::read(&path, &text, |stored| intact(dir, stored).map(Bytes::Read))?;
        let others =
            pack.manifest.kernels.iter().flat_map(|k| std::iter::once(&k.header).chain(k.ir.values()));
        others.collect::<Vec<_>>().into_iter().try_for_each(|stored| intact(dir, stored).map(drop))?;
        Ok(Pack { dir: dir.to_owned(), ..pack })
    }

    fn read(
        path: &Path,
        manifest: &[u8],
        object: impl Fn(&Stored) -> Result<Bytes, PackError>,
    ) -> Result<Pack, PackError> {
        let manifest = manifest::read(manifest).map_err(|e| e.at(path))?;
        let objects = manifest.kernels.iter().map(|k| object(&k.object)).collect::<Result<_, _>>()?;
        let names = manifest.kernels.iter().map(|k| (k.target, k.variant.clone()));
        let index = names.zip(0..).collect();
        Ok(Pack { dir: PathBuf::new(), manifest, objects, index })
    }

    /// The kernel of a variant for a target, if it is in the pack.
    pub fn find(&self, variant: &str, target: Target) -> Option<Kernel<'_>> {
        self.index.get(&(target, variant.to_owned())).map(|&at| self.kernel(at))
    }

    /// All kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Kernel<'_>> {
        (0..self.objects.len()).map(|at| self.kernel(at))
    }

    /// The kernel of an entry, for programs that do not have the family's type.
    ///
    /// # Errors
    /// A file of it is not the one that the manifest means, or is of another version. A pack inside of a program has none.
    pub fn carried(&self, entry: &Entry) -> Result<PackedKernel, PackError> {
        let read = |(lanes, stored): (&u32, &Stored)| {
            let form = |why| PackError::Manifest { path: self.dir.join(&stored.file), why };
            Ok((*lanes, carried::read(&intact(&self.dir, stored)?).map_err(form)?))
        };
        Ok(PackedKernel::new(entry, entry.ir.iter().map(read).collect::<Result<_, PackError>>()?))
    }

    /// The targets that it has kernels for.
    pub fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<Target> = self.index.keys().map(|k| k.0).collect();
        targets.dedup();
        targets
    }

    /// What the manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn kernel(&self, at: usize) -> Kernel<'_> {
        Kernel { entry: &self.manifest.kernels[at], object: self.objects[at].get() }
    }
}

fn refused(path: &Path) -> impl Fn(Refused) -> PackError {
    move |refused| match refused {
        Refused::Io(source) => PackError::Io { path: path.to_owned(), source },
        Refused::Distrust(why) => why.into(),
    }
}

/// A file of a pack, if it is the one that the manifest means.
fn intact(dir: &Path, stored: &Stored) -> Result<Vec<u8>, PackError> {
    let path = dir.join(&stored.file);
    let bytes = inside(dir, &stored.file)
        .map_err(Refused::Io)
        .and_then(|path| file::trusted(&path, valid::OBJECT, Links::Refuse, Rule::Named))
        .map_err(refused(&path))?;
    let sha256 = crate::build::digest::sha256(&bytes);
    if (sha256.as_str(), bytes.len() as u64) == (&stored.sha256, stored.bytes) {
        return Ok(bytes);
    }
    Err(PackError::Object { path, bytes: bytes.len() as u64, sha256, expected: Box::new(stored.clone()) })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
