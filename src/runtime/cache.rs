//! Compiled modules on disk, found by what they were made from.
//!
//! An entry is one file, named after the SHA-256 of everything that decides its contents. It begins with that hash and
//! the hash of what follows, so that a file that was cut short, changed or put there under another's name is noticed, and
//! built anew. Files are written beside their place and moved there as a whole: other processes see an entry or none.
//!
//! An entry is machine code. The hashes do not say who wrote it, so the folder and its entries are the effective user's alone:
//! what another user has written, or can write, is ignored with a warning.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::RuntimeError;
use crate::build::replace::Replacement;
use crate::input::Distrust;
use crate::input::file::{self, Links, Refused};
use crate::input::trust::{self, Rule};

/// First bytes of an entry; the number is the format's.
const MAGIC: &[u8; 8] = b"PWMODUL1";

/// Bytes before the module: magic, key, hash of the module.
const HEADER: usize = 8 + 32 + 32;

/// The most bytes that an entry may have.
const MOST: u64 = 1 << 30;

/// What decides a compiled module's contents.
#[derive(Clone, Copy, Debug)]
pub struct Ingredients<'a> {
    /// The emitted source without comments: what they say changes no machine code.
    pub source: &'a str,
    /// The compiler's options.
    pub options: &'a [String],
    /// The compiler, its version, and what else it reads.
    pub toolchain: &'a str,
    /// The architecture.
    pub arch: &'a str,
}

impl Ingredients<'_> {
    fn key(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            // With its length, so that no two lists of parts read the same.
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(env!("CARGO_PKG_VERSION").as_bytes());
        part(self.toolchain.as_bytes());
        part(self.arch.as_bytes());
        part(&(self.options.len() as u64).to_le_bytes());
        self.options.iter().for_each(|option| part(option.as_bytes()));
        part(self.source.as_bytes());
        hash.finalize().into()
    }
}

/// What the cache did for a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached {
    /// It was there.
    Hit,
    /// It was not there.
    Miss,
    /// What was there could not be used, and was replaced; says why.
    Replaced(String),
    /// It was built, and could not be kept; says why.
    NotKept(String),
}

/// A folder of compiled modules. Any number of threads and processes may use it at once.
#[derive(Clone, Debug)]
pub struct ModuleCache {
    folder: Result<PathBuf, Distrust>,
}

impl ModuleCache {
    /// In this folder, an absolute path. It is made when the first entry is, with mode 700. A folder that another user owns or can
    /// write is not used: modules are compiled and not kept.
    pub fn new(folder: impl Into<PathBuf>) -> ModuleCache {
        ModuleCache { folder: Ok(folder.into()) }
    }

    /// In the user's cache folder: `$XDG_CACHE_HOME/peerwarp/modules`, or `~/.cache/peerwarp/modules`. Where neither variable has an
    /// absolute path, modules are compiled and not kept.
    pub fn of_user() -> ModuleCache {
        ModuleCache::of_environment(|name| std::env::var_os(name))
    }

    fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> ModuleCache {
        ModuleCache { folder: trust::user_cache(variable).map(|cache| cache.join("peerwarp/modules")) }
    }

    /// The module made from these ingredients, from the cache or else from `build`.
    pub fn get(
        &self,
        of: &Ingredients<'_>,
        build: impl FnOnce() -> Result<Vec<u8>, RuntimeError>,
    ) -> Result<(Vec<u8>, Cached), RuntimeError> {
        let (key, mut ignored) = (of.key(), None);
        match self.look(&key) {
            Ok(module) => return Ok((module, Cached::Hit)),
            Err(Unusable::Absent) => {}
            Err(Unusable::Bad(why)) => ignored = Some(why),
            Err(Unusable::Distrusted(why)) => {
                let why = format!("{why}: it is ignored, and the module is compiled anew");
                trust::warn(why.clone());
                ignored = Some(why);
            }
            Err(Unusable::Folder(why)) => return Ok((build()?, not_kept(&why))),
        }
        let module = build()?;
        // The module is good, whether or not it can be kept.
        let kept = match self.keep(&key, &module) {
            Ok(()) => ignored.map_or(Cached::Miss, Cached::Replaced),
            Err(why) => not_kept(&why),
        };
        Ok((module, kept))
    }

    fn folder(&self) -> Result<&Path, Distrust> {
        self.folder.as_deref().map_err(Clone::clone)
    }

    fn look(&self, key: &[u8; 32]) -> Result<Vec<u8>, Unusable> {
        let folder = self.folder().and_then(trust::private_folder).map_err(Unusable::Folder)?;
        read(&folder.ok_or(Unusable::Absent)?.join(name(key)), key)
    }

    fn keep(&self, key: &[u8; 32], module: &[u8]) -> Result<(), Distrust> {
        let path = self.folder().and_then(trust::make_private_folder)?.join(name(key));
        write(&path, key, module).map_err(|e| Distrust::io(&path, &e))
    }
}

/// The message and the warning for a module that cannot be kept.
fn not_kept(why: &Distrust) -> Cached {
    let why = format!(
        "compiled modules are not kept: {why}; let XDG_CACHE_HOME name a folder that only this user can write"
    );
    trust::warn(why.clone());
    Cached::NotKept(why)
}

fn name(key: &[u8; 32]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(path: &Path, key: &[u8; 32], module: &[u8]) -> io::Result<()> {
    Replacement::private(path)?.write(|file| {
        file.write_all(MAGIC)?;
        file.write_all(key)?;
        file.write_all(&Sha256::digest(module))?;
        file.write_all(module)
    })
}

enum Unusable {
    Absent,
    Bad(String),
    Distrusted(Distrust),
    Folder(Distrust),
}

fn read(path: &Path, key: &[u8; 32]) -> Result<Vec<u8>, Unusable> {
    let bytes = file::trusted(path, MOST, Links::Refuse, Rule::Private).map_err(|e| match e {
        Refused::Io(e) if e.kind() == io::ErrorKind::NotFound => Unusable::Absent,
        Refused::Io(e) => Unusable::Bad(e.to_string()),
        Refused::Distrust(why) => Unusable::Distrusted(why),
    })?;
    let bad = |why: &str| Err(Unusable::Bad(format!("{}: {why}", path.display())));
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return bad("not a module of this version of the cache");
    }
    if &bytes[8..40] != key {
        return bad("the module of something else");
    }
    if bytes[40..HEADER] != *Sha256::digest(&bytes[HEADER..]) {
        return bad("cut short or changed");
    }
    Ok(bytes[HEADER..].to_vec())
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
