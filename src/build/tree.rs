//! Folders of emitted files: written as a whole or not at all, and compared with what is there.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::build::digest::sha256;
use crate::build::steps;
use crate::build::workplace::{self, Moves, OWN, Workplace};
use crate::input::InputError;
use crate::input::file::{self, Links, inside, is_inside};

/// Name of the file that lists what was emitted.
pub const MANIFEST: &str = "manifest.json";

/// Files to be, by path with `/` relative to the folder they go to.
pub struct Tree {
    /// The file that lists the others.
    manifest: &'static str,
    files: BTreeMap<String, Vec<u8>>,
    keep: Option<Box<Keep>>,
}

/// From the text of the manifest that is there to what stays of what it lists; none if nothing does. The error says what
/// cannot stay, and why.
type Keep = dyn Fn(&[u8]) -> Result<Option<Kept>, String> + Send + Sync;

/// Files of earlier runs that stay.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The manifest with them.
    pub manifest: String,
    /// Their paths.
    pub files: BTreeSet<String>,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("manifest", &self.manifest).field("files", &self.files.keys()).finish()
    }
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
    /// Whether an update is not at its end: it is under way, or its run was killed. The next one undoes it first.
    pub unfinished: bool,
}

impl Differences {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        // What is edited is changed, too.
        let lists = [&self.missing, &self.changed, &self.extra, &self.foreign];
        lists.iter().all(|l| l.is_empty()) && !self.unfinished
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

/// What is to be in a folder, given what is there.
struct Plan<'a> {
    files: BTreeMap<&'a str, Cow<'a, [u8]>>,
    kept: BTreeSet<String>,
    old: OldManifest,
}

impl Tree {
    /// No files yet, to be listed in a JSON file of this name, under `files`.
    pub fn with_manifest(manifest: &'static str) -> Tree {
        Tree { manifest, files: BTreeMap::new(), keep: None }
    }

    /// Keeps what another run has put into the folder, as far as `keep` says.
    pub(crate) fn keeping(
        mut self,
        keep: impl Fn(&[u8]) -> Result<Option<Kept>, String> + Send + Sync + 'static,
    ) -> Tree {
        self.keep = Some(Box::new(keep));
        self
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
        let plan = self.plan(dir).map_err(io)?;
        let mut found = plan.differences(dir).map_err(io)?;
        found.unfinished = workplace::is_unfinished(dir);
        // Whose files are whose is known again when it is finished.
        if !found.unfinished {
            let mut sources = vec![];
            add_sources(dir, "", &mut sources).map_err(io)?;
            sources.sort();
            sources.retain(|file| !plan.lists(file) && !found.extra.contains(file));
            found.foreign = sources;
        }
        Ok(found)
    }

    /// Makes `dir` hold these files, without those that only an earlier manifest lists, but for what is kept of it. Files that
    /// are right are not touched, and foreign ones neither. On failure everything is as before; a run that is killed leaves what
    /// the next one undoes.
    pub fn write(&self, dir: &Path) -> Result<Differences, InputError> {
        let io = |e: io::Error| InputError::io("--out", dir.display(), &e);
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !dir.exists()
            && let Some(made) = self.create(dir, parent).map_err(io)?
        {
            return Ok(made);
        }
        // A run that was killed right after it had made the folder.
        workplace::tidy(parent);
        workplace::within(dir, |place| self.update(dir, place)).map_err(io)
    }

    /// None if another run has made the folder meanwhile.
    fn create(&self, dir: &Path, parent: &Path) -> io::Result<Option<Differences>> {
        let missing: Vec<&Path> =
            parent.ancestors().take_while(|a| !a.as_os_str().is_empty() && !a.exists()).collect();
        fs::create_dir_all(parent)?;
        let created = workplace::within(parent, |place| {
            if dir.exists() {
                return Ok(None);
            }
            for (path, contents) in &self.files {
                put(&place.new_file(path), contents)?;
            }
            steps::step(|| fs::rename(place.new_files(), dir))?;
            let missing = self.files.keys().cloned().collect();
            Ok(Some(Differences { missing, ..Differences::default() }))
        });
        if created.is_err() {
            // Fails for those that somebody else needs by now.
            missing.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        }
        created
    }

    fn update(&self, dir: &Path, place: &Workplace) -> io::Result<Differences> {
        let plan = self.plan(dir)?;
        let found = plan.differences(dir)?;
        if found.is_empty() {
            return Ok(found);
        }
        for path in found.missing.iter().chain(&found.changed) {
            put(&place.new_file(path), &plan.files[path.as_str()])?;
        }
        place.apply(&self.moves(dir, &found)?)?;
        for path in &found.extra {
            // Fails for a folder that is not empty, which is what is wanted.
            let removed = |folder: &Path| folder != dir && fs::remove_dir(folder).is_ok();
            let _ = dir.join(path).ancestors().skip(1).take_while(|folder| removed(folder)).count();
        }
        Ok(found)
    }

    /// What has to be moved to get from what is there to what is wanted. The manifest comes last of the files that are put into
    /// place: it lists nothing that is not there.
    fn moves(&self, dir: &Path, found: &Differences) -> io::Result<Moves> {
        let mut folders = BTreeSet::new();
        for path in &found.missing {
            for folder in Path::new(path).ancestors().skip(1).filter(|f| !f.as_os_str().is_empty()) {
                let name = folder.to_str().expect("part of a text");
                match fs::symlink_metadata(dir.join(folder)) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => drop(folders.insert(name.to_owned())),
                    Ok(there) if !there.is_dir() => {
                        let why = format!("{name} is no folder, and a file is to go into it");
                        return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
                    }
                    Ok(_) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        let last = |mut files: Vec<String>| {
            files.sort_by_key(|file| file == self.manifest);
            files
        };
        let (added, replaced) = (last(found.missing.clone()), last(found.changed.clone()));
        Ok(Moves { added, replaced, removed: found.extra.clone(), folders: folders.into_iter().collect() })
    }

    fn plan(&self, dir: &Path) -> io::Result<Plan<'_>> {
        let path = dir.join(self.manifest);
        let text = file::bytes(&path, file::MANIFEST, Links::Refuse).unwrap_or_default();
        let mut plan = Plan {
            files: self.files.iter().map(|(path, contents)| (path.as_str(), contents.into())).collect(),
            kept: BTreeSet::new(),
            old: serde_json::from_slice(&text).unwrap_or_default(),
        };
        let kept = self.keep.as_ref().map_or(Ok(None), |keep| keep(&text));
        if let Some(kept) = kept.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))? {
            plan.files.insert(self.manifest, Cow::Owned(kept.manifest.into_bytes()));
            plan.kept = kept.files;
        }
        Ok(plan)
    }
}

impl Plan<'_> {
    /// Whether a file is to be in the folder.
    fn lists(&self, file: &str) -> bool {
        self.files.contains_key(file) || self.kept.contains(file)
    }

    /// How the folder differs, but for foreign files.
    fn differences(&self, dir: &Path) -> io::Result<Differences> {
        let mut found = Differences::default();
        for (path, contents) in &self.files {
            let place = inside(dir, path)?;
            let path = (*path).to_owned();
            match fs::symlink_metadata(&place) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => found.missing.push(path),
                // A file stands where its folder goes.
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => found.missing.push(path),
                Err(e) => return Err(e),
                Ok(there) if there.is_dir() => {
                    let why = format!("{path} is a folder, and a file is to go there");
                    return Err(io::Error::new(io::ErrorKind::IsADirectory, why));
                }
                // A link or a pipe, which is replaced itself.
                Ok(there) if !there.is_file() => found.changed.push(path),
                Ok(there) if there.len() == contents.len() as u64 && self.is_at(&place, contents)? => {}
                Ok(there) => {
                    if self.is_edited(&path, &place, there.len())? {
                        found.edited.push(path.clone());
                    }
                    found.changed.push(path);
                }
            }
        }
        found.extra = self.abandoned(dir);
        Ok(found)
    }

    fn is_at(&self, place: &Path, contents: &[u8]) -> io::Result<bool> {
        Ok(file::bytes(place, contents.len() as u64, Links::Refuse)? == contents)
    }

    /// Whether a file is not as the run wrote it that left the manifest.
    fn is_edited(&self, path: &str, place: &Path, bytes: u64) -> io::Result<bool> {
        let Some(written) = self.old.sha256.get(path) else { return Ok(false) };
        Ok(bytes > file::MANIFEST || *written != sha256(&file::bytes(place, file::MANIFEST, Links::Refuse)?))
    }

    /// Files of an earlier run that are not to be in the folder any more. A manifest is a file like any other: it must not
    /// make us touch anything outside of the folder.
    fn abandoned(&self, dir: &Path) -> Vec<String> {
        let there =
            |p: &String| inside(dir, p).is_ok_and(|p| fs::symlink_metadata(p).is_ok_and(|m| m.is_file()));
        let own = |p: &String| is_inside(p) && !p.starts_with(OWN);
        let mut files: Vec<String> =
            self.old.files.iter().filter(|p| own(p) && !self.lists(p) && there(p)).cloned().collect();
        files.sort();
        files.dedup();
        files
    }
}

fn put(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        steps::step(|| fs::create_dir_all(folder))?;
    }
    steps::step(|| fs::write(path, contents))
}

/// Adds CUDA and HIP sources and headers in a folder, by path relative to the outermost one, without what runs have beside
/// their files. Links are not followed.
fn add_sources(dir: &Path, above: &str, found: &mut Vec<String>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type()?.is_dir() {
            if !name.starts_with(OWN) {
                add_sources(&path, &format!("{above}{name}/"), found)?;
            }
        } else if path.extension().is_some_and(|e| e == "cu" || e == "hip" || e == "h") {
            found.push(format!("{above}{name}"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
