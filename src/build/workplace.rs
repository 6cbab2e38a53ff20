//! A folder's update: one run at a time, and what a run that was killed has left half done is undone by the next.
//!
//! Everything that an update needs is in the folder `.peerwarp-update` of the folder that it changes:
//!
//! | | |
//! |---|---|
//! | `lock` | held (`flock`) by the run for as long as it lives; the next one knows by it that this one is gone |
//! | `new/` | files to be put into place |
//! | `old/` | files that were taken out of their place |
//! | `journal.json` | what is being moved. It is there while files are moved, and its end is the update's: a run that finds one puts everything back first |
//!
//! A run that ends in any way but by being killed leaves none of it behind.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::steps;
use crate::input::Distrust;
use crate::input::file::{self, Links, inside, is_inside};
use crate::input::trust::Rule;

/// How names begin of what a run has beside the files that it writes, and takes away when it is done.
pub(crate) const OWN: &str = ".peerwarp-";

/// Name of the folder.
const UPDATE: &str = ".peerwarp-update";

const JOURNAL: &str = "journal.json";

/// How long a run waits for another one that writes to the same folder. Files are moved, not made, while the lock is held.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it looks whether that one is done: there is no `flock` that gives up after a time.
const LOOK: Duration = Duration::from_millis(20);

/// Files to be moved within a folder.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moves {
    /// Those that are in `new/` and go to a place where nothing is.
    pub added: Vec<String>,
    /// Those that are in `new/` and go to a place of another file, which goes to `old/`.
    pub replaced: Vec<String>,
    /// Those that go to `old/`.
    pub removed: Vec<String>,
    /// Folders that are made for the first, outer ones first.
    pub folders: Vec<String>,
}

/// Where an update of a folder is prepared.
#[derive(Debug)]
pub(super) struct Workplace {
    base: PathBuf,
    folder: PathBuf,
    lock: File,
}

/// Does `work` in the workplace of a folder, which is there. Other runs wait meanwhile, and what was left half done there is
/// undone before.
///
/// # Errors
/// Those of `work`, after everything that it has moved was put back; or another run holds the folder for too long, or what was
/// left there cannot be undone.
pub(super) fn within<T>(base: &Path, work: impl FnOnce(&Workplace) -> io::Result<T>) -> io::Result<T> {
    let place = Workplace::enter(base, PATIENCE)?;
    place.repair()?;
    let done = work(&place);
    match &done {
        Ok(_) => place.commit()?,
        // What cannot be put back stays in the journal, for a run that can.
        Err(_) => place.repair()?,
    }
    place.leave();
    done
}

/// Undoes what a run that was killed has left in a folder, if one has; looks the other way if that fails or a run is at work there.
pub(super) fn tidy(base: &Path) {
    let here = fs::symlink_metadata(base.join(UPDATE)).is_ok_and(|found| found.is_dir());
    if here
        && let Ok(place) = Workplace::enter(base, Duration::ZERO)
        && place.repair().is_ok()
    {
        place.leave();
    }
}

/// Whether a folder's update is not at its end: it is under way, or its run was killed.
pub(super) fn is_unfinished(base: &Path) -> bool {
    fs::symlink_metadata(base.join(UPDATE).join(JOURNAL)).is_ok()
}

impl Workplace {
    /// Makes the folder, and waits until it is this run's.
    fn enter(base: &Path, patience: Duration) -> io::Result<Workplace> {
        let (folder, until) = (base.join(UPDATE), Instant::now() + patience);
        let path = folder.join("lock");
        loop {
            made_by_this_user(&folder)?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            let lock = match steps::step(|| options.open(&path)) {
                // Its owner is gone, with the folder.
                Err(e) if e.kind() == io::ErrorKind::NotFound && Instant::now() < until => continue,
                lock => lock?,
            };
            if lock_of(&lock)? && is_at(&lock, &path) {
                return Ok(Workplace { base: base.to_owned(), folder, lock });
            }
            if Instant::now() >= until {
                let seconds = patience.as_secs();
                let why = format!(
                    "another run writes to this folder and has not ended in {seconds} s: one at a time"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Where a file is put that is to be in the folder.
    pub fn new_file(&self, file: &str) -> PathBuf {
        self.new_files().join(file)
    }

    /// The folder of all of them.
    pub fn new_files(&self) -> PathBuf {
        self.folder.join("new")
    }

    fn old_file(&self, file: &str) -> PathBuf {
        self.folder.join("old").join(file)
    }

    /// Moves files. They count as moved once the work that this belongs to is done.
    pub fn apply(&self, moves: &Moves) -> io::Result<()> {
        self.write_journal(moves)?;
        for folder in &moves.folders {
            let path = inside(&self.base, folder)?;
            steps::step(|| fs::create_dir(path))?;
        }
        for file in moves.replaced.iter().chain(&moves.removed) {
            let kept = self.old_file(file);
            fs::create_dir_all(kept.parent().unwrap_or(&self.folder))?;
        }
        for file in &moves.added {
            self.install(file)?;
        }
        for file in &moves.replaced {
            self.take_away(file)?;
            self.install(file)?;
        }
        moves.removed.iter().try_for_each(|file| self.take_away(file))
    }

    fn install(&self, file: &str) -> io::Result<()> {
        let target = inside(&self.base, file)?;
        steps::step(|| fs::rename(self.new_file(file), target))
    }

    fn take_away(&self, file: &str) -> io::Result<()> {
        let place = inside(&self.base, file)?;
        steps::step(|| fs::rename(place, self.old_file(file)))
    }

    /// Puts everything back that the journal says, and clears the workplace. Does no harm done twice.
    fn repair(&self) -> io::Result<()> {
        if let Some(moves) = self.journal()? {
            for file in &moves.added {
                // As long as it is there, nothing has been put in its place.
                if fs::symlink_metadata(self.new_file(file)).is_err() {
                    gone(steps::step(|| fs::remove_file(inside(&self.base, file)?)))?;
                }
            }
            for file in moves.replaced.iter().chain(&moves.removed) {
                let kept = self.old_file(file);
                if fs::symlink_metadata(&kept).is_ok() {
                    let place = inside(&self.base, file)?;
                    // Folders that the update has emptied may be gone.
                    fs::create_dir_all(place.parent().unwrap_or(&self.base))?;
                    steps::step(|| fs::rename(kept, place))?;
                }
            }
            for folder in moves.folders.iter().rev() {
                // What somebody else has put there since keeps its folder.
                let _ = steps::step(|| fs::remove_dir(inside(&self.base, folder)?));
            }
        }
        self.commit()
    }

    /// From here on nothing is put back.
    fn commit(&self) -> io::Result<()> {
        gone(steps::step(|| fs::remove_file(self.folder.join(JOURNAL))))?;
        for part in ["new", "old"] {
            gone(steps::step(|| fs::remove_dir_all(self.folder.join(part))))?;
        }
        Ok(())
    }

    /// Takes the workplace away, while the lock is held: who waits for it notices that it is another one's by then.
    fn leave(self) {
        let own = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for entry in own {
            let _ = steps::step(|| fs::remove_file(entry.path()));
        }
        let _ = steps::step(|| fs::remove_dir(&self.folder));
        drop(self.lock);
    }

    fn write_journal(&self, moves: &Moves) -> io::Result<()> {
        let draft = self.folder.join("journal.draft");
        steps::step(|| {
            let mut file = File::create(&draft)?;
            file.write_all(&serde_json::to_vec(moves)?)?;
            file.sync_all()
        })?;
        steps::step(|| fs::rename(&draft, self.folder.join(JOURNAL)))
    }

    fn journal(&self) -> io::Result<Option<Moves>> {
        let path = self.folder.join(JOURNAL);
        let text = match file::bytes(&path, file::MANIFEST, Links::Refuse) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let moves: Option<Moves> = serde_json::from_slice(&text).ok();
        let all = |moves: &Moves| {
            let mut lists =
                [&moves.added, &moves.replaced, &moves.removed, &moves.folders].into_iter().flatten();
            lists.all(|file| is_inside(file))
        };
        match moves.filter(all) {
            Some(moves) => Ok(Some(moves)),
            None => {
                let why = format!(
                    "{UPDATE}/{JOURNAL} is none that an update has left: move back what is in {UPDATE}/old, and remove {UPDATE}"
                );
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
        }
    }
}

/// Makes the folder of a workplace with mode 700. One that is there must be a folder that only this user can write: its journal is
/// believed.
fn made_by_this_user(folder: &Path) -> io::Result<()> {
    match steps::step(|| DirBuilder::new().mode(0o700).create(folder)) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = match fs::symlink_metadata(folder) {
        // Taken away since; to be tried again.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let expected = Distrust::Kind { path: folder.into(), expected: "folder" };
    let kind = if found.is_dir() { Ok(()) } else { Err(expected) };
    let Err(wrong) = kind.and_then(|()| Rule::Private.check(folder, &found)) else { return Ok(()) };
    let why = format!(
        "{wrong}: move back what is yours in {UPDATE}/old and remove {UPDATE}, or let the user run this who made it"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Whether a lock is this run's now. Where the file system has no locks (some Lustre mounts), nothing keeps two runs apart.
pub(super) fn lock_of(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => {
            let none = [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
            if none.contains(&e.raw_os_error()) { Ok(true) } else { Err(e) }
        }
    }
}

/// Whether a path is that of an open file still.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let there = fs::symlink_metadata(path).map(identity).ok();
    file.metadata().map(identity).ok().is_some_and(|own| there == Some(own))
}

/// What was to go away and is not there is away.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workplace_is_its_users_alone_and_a_journal_of_others_moves_nothing() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(UPDATE);
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        within(dir.path(), |place| {
            assert_eq!(mode(&place.folder), 0o700);
            Ok(())
        })
        .unwrap();
        // As it is where the umask leaves all rights: any user writes a journal there.
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(dir.path().join("kept"), "").unwrap();
        let moves = Moves { added: vec!["kept".into()], ..Moves::default() };
        fs::write(folder.join(JOURNAL), serde_json::to_vec(&moves).unwrap()).unwrap();
        let refused = within(dir.path(), |_| Ok(())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        assert!(refused.to_string().contains("is writable by every user"), "{refused}");
        tidy(dir.path());
        assert!(dir.path().join("kept").exists());
    }

    #[test]
    fn a_run_waits_for_another_one_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let refused = within(dir.path(), |_| {
            tidy(dir.path());
            let started = Instant::now();
            let refused = Workplace::enter(dir.path(), Duration::from_millis(100)).unwrap_err();
            assert!(started.elapsed() < PATIENCE);
            Ok(refused)
        });
        let refused = refused.unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!(refused.to_string().contains("another run writes to this folder"), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // It has ended.
        within(dir.path(), |_| Ok(())).unwrap();
    }
}
