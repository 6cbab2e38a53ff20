//! Which files may decide what machine code runs: folders of this user alone, and files that only a trusted user can write.
//!
//! The module cache and the folder of installed compilers are *private*: each is a folder of the effective user with mode 700.
//! Packs and tuned tables are *named* by the user, and may also belong to root, as the system's do.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::geteuid;

/// Why a file or a folder decides nothing: another user has written it, or can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// No variable names a folder of this user.
    #[error("XDG_CACHE_HOME = {xdg}, HOME = {home}: one of them must be an absolute path")]
    NoFolder {
        /// What `XDG_CACHE_HOME` says.
        xdg: String,
        /// What `HOME` says.
        home: String,
    },
    /// The meaning of the path depends on the current folder.
    #[error("{}: the path must be absolute", .path.display())]
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// It belongs to another user.
    #[error("{} belongs to user {owner}, and must belong to {allowed}", .path.display())]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The owners that are trusted.
        allowed: String,
    },
    /// Others can write it.
    #[error("{} is writable by {by} (mode {mode:03o}), and must be writable by its owner alone", .path.display())]
    WritableBy {
        /// The file or folder.
        path: PathBuf,
        /// `its group`, `every user` or `users of its access list`.
        by: &'static str,
        /// Its mode.
        mode: u32,
    },
    /// It is of another kind.
    #[error("{} is no {expected}", .path.display())]
    Kind {
        /// What is there.
        path: PathBuf,
        /// What must be there.
        expected: &'static str,
    },
    /// The system refuses to look at it.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
}

impl Distrust {
    pub(crate) fn io(path: &Path, error: &io::Error) -> Distrust {
        Distrust::Io { path: path.into(), reason: error.to_string() }
    }
}

/// Whose files decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The effective user's, which no other user can write.
    Private,
    /// Those of the effective user, of root, and of the owner of the running program, which decides already what this process
    /// does. Their private group may write them: the group with the owner's number, or root's.
    Named,
}

impl Rule {
    /// Whether a file or folder obeys the rule.
    pub fn check(self, path: &Path, found: &Metadata) -> Result<(), Distrust> {
        let user = geteuid().as_raw();
        let trusted = match self {
            Rule::Private => found.uid() == user,
            Rule::Named => [user, 0].contains(&found.uid()) || Some(found.uid()) == *PROGRAM_OWNER,
        };
        if !trusted {
            let or_root = if self == Rule::Named && user != 0 { " or root" } else { "" };
            let allowed = format!("user {user}{or_root}");
            return Err(Distrust::Owner { path: path.into(), owner: found.uid(), allowed });
        }
        match self {
            Rule::Private => not_writable(path, found, false),
            Rule::Named => not_writable(path, found, true),
        }
    }
}

/// The owner of the program that runs.
static PROGRAM_OWNER: LazyLock<Option<u32>> = LazyLock::new(|| {
    let owner = fs::metadata("/proc/self/exe").ok().map(|found| found.uid());
    // A number that stands for many users is no owner.
    owner.filter(|owner| Some(*owner) != *UNMAPPED)
});

fn not_writable(path: &Path, found: &Metadata, private_group: bool) -> Result<(), Distrust> {
    let mode = found.mode() & 0o7777;
    let group_may = private_group && [found.uid(), 0].contains(&found.gid());
    let by = match mode {
        _ if mode & 0o002 != 0 => "every user",
        _ if mode & 0o020 != 0 && !group_may => "its group",
        // The group's right to write is then the most that users of the list have.
        _ if mode & 0o020 != 0 && has_access_list(path) => "users of its access list",
        _ => return Ok(()),
    };
    Err(Distrust::WritableBy { path: path.into(), by, mode })
}

/// Whether an access list gives users rights of their own; also where the system does not say.
fn has_access_list(path: &Path) -> bool {
    let found = rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0u8; 1]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// The user's cache folder: `XDG_CACHE_HOME`, or `.cache` in `HOME`. A relative path is not used.
pub(crate) fn user_cache(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Distrust> {
    let [xdg, home] = ["XDG_CACHE_HOME", "HOME"].map(|name| variable(name).map(PathBuf::from));
    let absolute = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
    if let Some(folder) = absolute(&xdg) {
        return Ok(folder);
    }
    if let Some(folder) = absolute(&home) {
        return Ok(folder.join(".cache"));
    }
    let said = |path: Option<PathBuf>| path.map_or("(not set)".into(), |path| format!("{path:?}"));
    Err(Distrust::NoFolder { xdg: said(xdg), home: said(home) })
}

/// The real path of a private folder; `None` if nothing is there. Other users can neither write to it nor put another folder in
/// its place.
///
/// A folder that others may read gets mode 700.
pub(crate) fn private_folder(folder: &Path) -> Result<Option<PathBuf>, Distrust> {
    if !folder.is_absolute() {
        return Err(Distrust::Relative { path: folder.into() });
    }
    let real = match folder.canonicalize() {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Distrust::io(folder, &e)),
    };
    let found = fs::symlink_metadata(&real).map_err(|e| Distrust::io(&real, &e))?;
    if !found.is_dir() {
        return Err(Distrust::Kind { path: real, expected: "folder" });
    }
    Rule::Private.check(&real, &found)?;
    real.ancestors().skip(1).try_for_each(stays)?;
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(&real, Permissions::from_mode(0o700)).map_err(|e| Distrust::io(&real, &e))?;
    }
    Ok(Some(real))
}

/// [`private_folder`], which is made if nothing is there.
pub(crate) fn make_private_folder(folder: &Path) -> Result<PathBuf, Distrust> {
    if let Some(real) = private_folder(folder)? {
        return Ok(real);
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|e| Distrust::io(folder, &e))?;
    let gone = || Distrust::io(folder, &io::ErrorKind::NotFound.into());
    private_folder(folder)?.ok_or_else(gone)
}

/// Looks at every part of a path below a private folder.
pub(crate) fn private_path(folder: &Path, below: &Path) -> Result<(), Distrust> {
    let mut path = folder.to_owned();
    for part in below {
        path.push(part);
        let found = fs::symlink_metadata(&path).map_err(|e| Distrust::io(&path, &e))?;
        let found = match found.is_symlink() && found.uid() == geteuid().as_raw() {
            true => fs::metadata(&path).map_err(|e| Distrust::io(&path, &e))?,
            false => found,
        };
        Rule::Private.check(&path, &found)?;
    }
    Ok(())
}

/// Whether what is in a folder stays in its place: other users cannot rename it. In a folder with the sticky bit they cannot.
fn stays(folder: &Path) -> Result<(), Distrust> {
    let found = fs::symlink_metadata(folder).map_err(|e| Distrust::io(folder, &e))?;
    let user = geteuid().as_raw();
    if ![user, 0].contains(&found.uid()) && Some(found.uid()) != *UNMAPPED {
        let allowed = if user == 0 { "root".into() } else { format!("user {user} or root") };
        return Err(Distrust::Owner { path: folder.into(), owner: found.uid(), allowed });
    }
    match found.mode() & 0o1000 != 0 {
        true => Ok(()),
        false => not_writable(folder, &found, true),
    }
}

/// The number of all users that this process's user namespace does not know, root outside among them; `None` where the namespace
/// knows all users.
static UNMAPPED: LazyLock<Option<u32>> = LazyLock::new(|| {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let known: u64 = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    if known < u64::from(u32::MAX) { number.trim().parse().ok() } else { None }
});

/// Warns of something that was ignored, once in a process.
pub(crate) fn warn(what: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.contains(&what) {
        log::warn!("{what}");
        said.insert(what);
    }
}

#[cfg(test)]
#[path = "trust_tests.rs"]
mod tests;
