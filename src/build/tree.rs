//! Folders of emitted files: written as a whole or not at all, and compared with what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::build::digest::sha256;
use crate::input::InputError;

/// Name of the file that lists what was emitted.
pub const MANIFEST: &str = "manifest.json";

/// Files to be, by path with `/` relative to the folder they go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The file that lists the others.
    manifest: &'static str,
    files: BTreeMap<String, Vec<u8>>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::with_manifest(MANIFEST)
    }
}

/// How a folder differs from a [`Tree`]; or, after writing, how it did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Differences {
    /// Files that are not there.
    pub missing: Vec<String>,
    /// Files with other contents.
    pub changed: Vec<String>,
    /// Those of them that are not as the run wrote them that left the manifest: somebody has edited them since.
    pub edited: Vec<String>,
    /// Files of an earlier run that are not emitted any more.
    pub extra: Vec<String>,
    /// Sources and headers that no run has emitted. An update leaves them alone.
    pub foreign: Vec<String>,
}

impl Differences {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        // What is edited is changed, too.
        let lists = [&self.missing, &self.changed, &self.extra, &self.foreign];
        lists.iter().all(|l| l.is_empty())
    }
}

/// The part of a manifest that tells which files are ours.
#[derive(Default, Deserialize)]
struct OldManifest {
    #[serde(default)]
    files: Vec<String>,
    /// Of the files' contents, in hexadecimal. Packs keep theirs elsewhere.
    #[serde(default)]
    sha256: BTreeMap<String, String>,
}

impl Tree {
    /// No files yet, to be listed in a JSON file of this name, under `files`.
    pub fn with_manifest(manifest: &'static str) -> Tree {
        Tree { manifest, files: BTreeMap::new() }
    }

    /// Adds a file. The same file twice is no harm if the contents agree.
    pub fn insert(&mut self, path: &str, contents: impl Into<Vec<u8>>) -> Result<(), InputError> {
        let contents = contents.into();
        match self.files.get(path) {
            Some(other) if *other != contents => {
                let allowed = "different names for shapes that differ";
                Err(InputError::conflict("file", path, "another file of that name", allowed))
            }
            _ => {
                self.files.insert(path.to_owned(), contents);
                Ok(())
            }
        }
    }

    /// Paths and contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|(p, c)| (p.as_str(), c.as_slice()))
    }

    /// Compares with what is in `dir`. A folder that does not exist is an empty one.
    pub fn compare(&self, dir: &Path) -> Result<Differences, InputError> {
        let io = |e: io::Error| InputError::io("--out", dir.display(), &e);
        let mut found = self.outdated(dir).map_err(io)?;
        found.extra = self.abandoned(dir).map_err(io)?;
        let sources: BTreeSet<String> = sources(dir, dir).map_err(io)?.into_iter().collect();
        let foreign = |s: &String| !self.files.contains_key(s) && !found.extra.contains(s);
        found.foreign = sources.into_iter().filter(foreign).collect();
        Ok(found)
    }

    /// Makes `dir` hold these files, without those that only an earlier manifest lists. Files that are right are not
    /// touched, and foreign ones neither. On failure everything is as before.
    pub fn write(&self, dir: &Path) -> Result<Differences, InputError> {
        let io = |e: io::Error| InputError::io("--out", dir.display(), &e);
        let result = if dir.exists() { self.update(dir) } else { self.create(dir) };
        result.map_err(io)
    }

    fn create(&self, dir: &Path) -> io::Result<Differences> {
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let there = parent.ancestors().find(|a| a.exists()).unwrap_or(Path::new("."));
        let stage = stage(there)?;
        for (path, contents) in &self.files {
            put(&stage.path().join("new").join(path), contents)?;
        }
        fs::create_dir_all(parent)?;
        fs::rename(stage.path().join("new"), dir)?;
        let missing = self.files.keys().cloned().collect();
        Ok(Differences { missing, ..Differences::default() })
    }

    fn update(&self, dir: &Path) -> io::Result<Differences> {
        let mut found = self.outdated(dir)?;
        found.extra = self.abandoned(dir)?;
        let stage = stage(dir)?;
        for path in found.missing.iter().chain(&found.changed) {
            put(&stage.path().join("new").join(path), &self.files[path])?;
        }
        let mut swap = Swap { dir, stage: stage.path(), done: vec![], made: vec![] };
        let swapped = found
            .missing
            .iter()
            .chain(&found.changed)
            .try_for_each(|p| swap.install(p))
            .and_then(|()| found.extra.iter().try_for_each(|p| swap.take_away(p)));
        if let Err(e) = swapped {
            swap.undo();
            return Err(e);
        }
        for path in &found.extra {
            // Fails for a folder that is not empty, which is what is wanted.
            let removed = |folder: &Path| folder != dir && fs::remove_dir(folder).is_ok();
            let _ = dir.join(path).ancestors().skip(1).take_while(|folder| removed(folder)).count();
        }
        Ok(found)
    }

    /// Files that are missing or not as they should be.
    fn outdated(&self, dir: &Path) -> io::Result<Differences> {
        let mut found = Differences::default();
        let old = self.old_manifest(dir);
        for (path, contents) in &self.files {
            match fs::read(dir.join(path)) {
                Ok(bytes) if bytes == *contents => {}
                Ok(bytes) => {
                    if old.sha256.get(path).is_some_and(|written| *written != sha256(&bytes)) {
                        found.edited.push(path.clone());
                    }
                    found.changed.push(path.clone());
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => found.missing.push(path.clone()),
                // Something stands in the way: a folder where the file goes, or a file where its folder goes.
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => found.missing.push(path.clone()),
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    fn old_manifest(&self, dir: &Path) -> OldManifest {
        match fs::read(dir.join(self.manifest)) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => OldManifest::default(),
        }
    }

    /// Files of an earlier run that this one does not emit.
    fn abandoned(&self, dir: &Path) -> io::Result<Vec<String>> {
        let old = self.old_manifest(dir);
        // A manifest is a file like any other: it must not make us touch anything outside of the folder.
        let inside = |p: &str| Path::new(p).components().all(|c| matches!(c, Component::Normal(_)));
        let ours = |p: &String| inside(p) && !self.files.contains_key(p) && dir.join(p).is_file();
        let mut files: Vec<String> = old.files.into_iter().filter(ours).collect();
        files.sort();
        files.dedup();
        Ok(files)
    }
}

fn stage(parent: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(".peerwarp-").tempdir_in(parent)
}

fn put(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, contents)
}

/// CUDA and HIP sources and headers in a folder, by path relative to `top`.
fn sources(top: &Path, dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut found = vec![];
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(top, &path)?);
        } else if path.extension().is_some_and(|e| e == "cu" || e == "hip" || e == "h")
            && let Ok(inner) = path.strip_prefix(top)
        {
            let parts: Vec<_> = inner.components().map(|c| c.as_os_str().to_string_lossy()).collect();
            found.push(parts.join("/"));
        }
    }
    Ok(found)
}

/// Files being put into place, so that it can be undone.
struct Swap<'a> {
    dir: &'a Path,
    /// Holds `new/` and what was there before in `old/`.
    stage: &'a Path,
    done: Vec<String>,
    made: Vec<PathBuf>,
}

impl Swap<'_> {
    fn install(&mut self, path: &str) -> io::Result<()> {
        let target = self.dir.join(path);
        if target.is_dir() {
            return Err(io::Error::new(
                io::ErrorKind::IsADirectory,
                format!("{path} is a folder, and a file is to go there"),
            ));
        }
        if let Some(folder) = target.parent()
            && !folder.exists()
        {
            let new: Vec<PathBuf> =
                folder.ancestors().take_while(|a| !a.exists()).map(Path::to_path_buf).collect();
            self.made.extend(new.into_iter().rev());
            fs::create_dir_all(folder)?;
        }
        self.take_away(path)?;
        fs::rename(self.stage.join("new").join(path), target)
    }

    fn take_away(&mut self, path: &str) -> io::Result<()> {
        let target = self.dir.join(path);
        if target.exists() {
            let kept = self.stage.join("old").join(path);
            fs::create_dir_all(kept.parent().expect("has `old` above it"))?;
            fs::rename(&target, kept)?;
        }
        self.done.push(path.to_owned());
        Ok(())
    }

    /// Puts everything back. What fails here cannot be helped.
    fn undo(&self) {
        for path in self.done.iter().rev() {
            let target = self.dir.join(path);
            let kept = self.stage.join("old").join(path);
            let _ = if kept.exists() { fs::rename(kept, target) } else { fs::remove_file(target) };
        }
        for folder in self.made.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
