//! Installs pinned tools into the user's cache directory, from the package index that pip is configured for.
//!
//! A set is installed beside its place and then renamed, so that a folder in its place is complete. Its name holds a
//! digest of what is pinned: other pins go to another folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{InstallError, Tool, bounded, cache_dir};
use crate::input::{Distrust, trust};

/// Tools that are installed together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// What it is called.
    pub name: String,
    /// What it brings.
    pub about: String,
    /// The version of the tools.
    pub version: String,
    /// Megabytes to download.
    pub megabytes: u32,
    /// Where each tool is, relative to the set's folder.
    tools: BTreeMap<Tool, PathBuf>,
    /// The packages.
    #[serde(rename = "wheel")]
    pub wheels: Vec<Wheel>,
}

/// A pinned package.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// Its name in the index.
    pub name: String,
    /// The one version that is installed.
    pub version: String,
    /// SHA-256 of its files, one for each platform.
    pub sha256: Vec<String>,
}

/// What an installation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// Nothing: it was there.
    Already,
    /// Fetched it.
    Now,
}

/// What can be installed.
pub fn sets() -> &'static [Set] {
    #[derive(Deserialize)]
    struct Pins {
        set: Vec<Set>,
    }
    static PINS: LazyLock<Vec<Set>> = LazyLock::new(|| {
        let pins: Pins =
            toml::from_str(include_str!("toolchain.toml")).expect("the embedded pins are well-formed");
        pins.set
    });
    &PINS
}

impl Set {
    /// The folder it is in, below [`cache_dir`].
    pub fn folder(&self) -> String {
        let digest = Sha256::digest(self.requirements());
        let digest: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
        format!("{}-{}-{digest}", self.name, self.version)
    }

    /// The tools it brings.
    pub fn tools(&self) -> impl Iterator<Item = Tool> {
        self.tools.keys().copied()
    }

    /// A requirements file for pip.
    fn requirements(&self) -> String {
        let line = |w: &Wheel| {
            let hashes: String = w.sha256.iter().map(|h| format!(" --hash=sha256:{h}")).collect();
            format!("{}=={}{hashes}\n", w.name, w.version)
        };
        self.wheels.iter().map(line).collect()
    }
}

/// Where a tool is once its set is installed in `cache`. `None` if no set brings it.
pub(super) fn place(tool: Tool, cache: &Path) -> Option<PathBuf> {
    Some(cache.join(below(tool)?))
}

/// The same, relative to the cache.
fn below(tool: Tool) -> Option<PathBuf> {
    sets().iter().find_map(|set| Some(Path::new(&set.folder()).join(set.tools.get(&tool)?)))
}

/// The real path of a tool that is installed in `cache`; `None` if it is not there.
///
/// # Errors
/// Another user owns or can write it, a folder on the way to it, or a file beside it.
pub(super) fn installed(tool: Tool, cache: &Path) -> Result<Option<PathBuf>, Distrust> {
    let Some(below) = below(tool).filter(|below| cache.join(below).exists()) else { return Ok(None) };
    let Some(cache) = trust::private_folder(cache)? else { return Ok(None) };
    trust::private_path(&cache, &below)?;
    let path = cache.join(&below);
    // A tool loads and starts what is beside it.
    let folder = if tool.is_folder() { &path } else { path.parent().unwrap_or(&cache) };
    for entry in fs::read_dir(folder).map_err(|e| Distrust::io(folder, &e))? {
        let entry = entry.map_err(|e| Distrust::io(folder, &e))?;
        trust::private_path(folder, Path::new(&entry.file_name()))?;
    }
    Ok(Some(path))
}

/// Installs a set, unless it is there. Several processes may do so at once: one of them fetches, the others wait.
///
/// # Errors
/// Python or its pip is missing, pip fails (it says why), or the cache directory cannot be written to. What was there
/// before is left as it was. What another user owns or can write there is neither used nor removed.
pub fn install(set: &Set) -> Result<Installed, InstallError> {
    install_to(set, &cache_dir().ok_or(InstallError::NoCache)?, Path::new("python3"))
}

fn install_to(set: &Set, cache: &Path, python: &Path) -> Result<Installed, InstallError> {
    let cache = &trust::make_private_folder(cache)?;
    if is_there(set, cache)? {
        return Ok(Installed::Already);
    }
    let _lock = lock(&cache.join(".lock"))?;
    if is_there(set, cache)? {
        return Ok(Installed::Already);
    }
    sweep(cache).map_err(InstallError::io(cache))?;
    let stage = tempfile::Builder::new().prefix(STAGE).tempdir_in(cache).map_err(InstallError::io(cache))?;
    let pip = Pip::find(set, python, stage.path())?;
    let new = stage.path().join("new");
    pip.install(set, stage.path(), &new)?;
    if let Some(missing) = set.tools.values().find(|p| !new.join(p).exists()) {
        return Err(InstallError::Incomplete { set: set.name.clone(), missing: missing.clone() });
    }
    if let Some(zig) = set.tools.get(&Tool::Zig) {
        let lld = new.join(zig).with_file_name("lld");
        write_lld(&lld, b"\"$(dirname \"$0\")/zig\"").map_err(InstallError::io(&lld))?;
    }
    only_owner_writes(&new).map_err(InstallError::io(&new))?;
    let place = cache.join(set.folder());
    fs::rename(&new, &place).map_err(InstallError::io(&place))?;
    Ok(Installed::Now)
}

/// Whether a set is installed in a private folder.
fn is_there(set: &Set, cache: &Path) -> Result<bool, Distrust> {
    if !cache.join(set.folder()).exists() {
        return Ok(false);
    }
    set.tools().try_for_each(|tool| installed(tool, cache).map(drop)).map(|()| true)
}

/// Takes from group and others the right to write, which a umask may have left them.
fn only_owner_writes(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        return Ok(());
    }
    let mode = found.permissions().mode();
    if mode & 0o022 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o022))?;
    }
    if found.is_dir() {
        fs::read_dir(path)?.try_for_each(|entry| only_owner_writes(&entry?.path()))?;
    }
    Ok(())
}

/// How long Python may take to say what it has, and to make a virtual environment.
const PYTHON: Duration = Duration::from_secs(300);

/// How the folders of unfinished installations begin.
const STAGE: &str = ".stage-";

/// Waits until no other process installs, and holds off those that come later.
fn lock(path: &Path) -> Result<File, InstallError> {
    let file = File::options().create(true).append(true).open(path).map_err(InstallError::io(path))?;
    file.lock().map_err(InstallError::io(path))?;
    Ok(file)
}

/// Removes what installations left that were killed. The lock is held, so none of them is under way.
fn sweep(cache: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cache)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(STAGE) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Writes the `lld` that zig's clang looks for beside zig, or in the folder of its option `-B`. Zig has that linker
/// inside, under another name. `zig` is a word of a shell.
pub(crate) fn write_lld(path: &Path, zig: &[u8]) -> io::Result<()> {
    let script: [&[u8]; 3] = [b"#!/bin/sh\n[ \"$1\" = -flavor ] && shift 2\nexec ", zig, b" ld.lld \"$@\"\n"];
    fs::write(path, script.concat())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// A Python that has pip.
struct Pip {
    python: PathBuf,
}

impl Pip {
    /// Python's own pip, or one in a virtual environment in `stage`.
    fn find(set: &Set, python: &Path, stage: &Path) -> Result<Pip, InstallError> {
        let started = bounded::output(run_in(stage, python).args(["-m", "pip", "--version"]), PYTHON);
        let out = started.map_err(|e| {
            let why =
                if e.kind() == io::ErrorKind::NotFound { "it is not in PATH".into() } else { e.to_string() };
            InstallError::Python { set: set.name.clone(), why }
        })?;
        if out.status.success() {
            return Ok(Pip { python: python.to_owned() });
        }
        let venv = stage.join("venv");
        let out = bounded::output(run_in(stage, python).args(["-m", "venv"]).arg(&venv), PYTHON)
            .map_err(InstallError::io(python))?;
        match out.status.success() {
            true => Ok(Pip { python: venv.join("bin/python3") }),
            false => Err(InstallError::Pip { set: set.name.clone(), said: said(&out) }),
        }
    }

    fn install(&self, set: &Set, stage: &Path, into: &Path) -> Result<(), InstallError> {
        let requirements = stage.join("requirements.txt");
        fs::write(&requirements, set.requirements()).map_err(InstallError::io(&requirements))?;
        let mut command = run_in(stage, &self.python);
        command
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-input",
                "--no-compile",
            ])
            .args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--target"])
            .arg(into)
            .arg("--requirement")
            .arg(&requirements)
            // Where pip installs for the user by default, it refuses a target folder.
            .env("PIP_USER", "0");
        // Pip gives up by itself when nothing comes, and ends with this process when the user interrupts it.
        let out = command.output().map_err(InstallError::io(&self.python))?;
        match out.status.success() {
            true => Ok(()),
            false => Err(InstallError::Failed { set: set.name.clone(), said: said(&out) }),
        }
    }
}

/// Python in a private folder: it imports modules of the current folder first, which another user may have filled.
fn run_in(stage: &Path, python: &Path) -> Command {
    let mut command = Command::new(python);
    command.current_dir(stage);
    command
}

/// The end of what a command says.
fn said(out: &Output) -> String {
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

#[cfg(test)]
#[path = "install_tests.rs"]
mod tests;
