//! Compiled modules on disk, found by what they were made from.
//!
//! An entry is one file, named after the SHA-256 of everything that decides its contents. It begins with that hash and
//! the hash of what follows, so that a file that was cut short, changed or put there under another's name is noticed, and
//! built anew. Files are written beside their place and moved there as a whole: other processes see an entry or none.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::RuntimeError;
use crate::build::replace::Replacement;
use crate::input::file::{self, Links};

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
    folder: PathBuf,
}

impl ModuleCache {
    /// In this folder, which is made when the first entry is.
    pub fn new(folder: impl Into<PathBuf>) -> ModuleCache {
        ModuleCache { folder: folder.into() }
    }

    /// In the user's cache folder: `$XDG_CACHE_HOME/peerwarp/modules`, or `~/.cache/peerwarp/modules`. With neither
    /// variable set, in the folder for temporary files.
    pub fn of_user() -> ModuleCache {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        let folder = cache.or_else(home).unwrap_or_else(std::env::temp_dir);
        ModuleCache::new(folder.join("peerwarp").join("modules"))
    }

    /// The module made from these ingredients, from the cache or else from `build`.
    pub fn get(
        &self,
        of: &Ingredients<'_>,
        build: impl FnOnce() -> Result<Vec<u8>, RuntimeError>,
    ) -> Result<(Vec<u8>, Cached), RuntimeError> {
        let key = of.key();
        let path = self.path(&key);
        let found = match read(&path, &key) {
            Ok(module) => return Ok((module, Cached::Hit)),
            Err(Unusable::Absent) => Cached::Miss,
            Err(Unusable::Bad(why)) => Cached::Replaced(why),
        };
        let module = build()?;
        // The module is good, whether or not it can be kept.
        let kept = self.write(&path, &key, &module);
        Ok((module, kept.map_or_else(|e| Cached::NotKept(format!("{}: {e}", path.display())), |()| found)))
    }

    fn path(&self, key: &[u8; 32]) -> PathBuf {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name)
    }

    fn write(&self, path: &Path, key: &[u8; 32], module: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        Replacement::of(path)?.write(|file| {
            file.write_all(MAGIC)?;
            file.write_all(key)?;
            file.write_all(&Sha256::digest(module))?;
            file.write_all(module)
        })
    }
}

enum Unusable {
    Absent,
    Bad(String),
}

fn read(path: &Path, key: &[u8; 32]) -> Result<Vec<u8>, Unusable> {
    let bytes = file::bytes(path, MOST, Links::Follow).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Unusable::Absent,
        _ => Unusable::Bad(e.to_string()),
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
