//! Files that are written beside their place and moved there as a whole: who reads them sees what was there before or all
//! of what is there now, and work that fails leaves what was there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use super::workplace::{OWN, is_at, lock_of};

/// A file that is to take another's place. Dropped without having been written, it leaves nothing behind. If its run is killed,
/// it is left; the next run that makes one in that folder removes it: it is locked (`flock`) as long as its run lives.
#[derive(Debug)]
pub(crate) struct Replacement {
    path: PathBuf,
    file: NamedTempFile,
}

impl Replacement {
    /// For this path, in whose folder it is made now: an obstacle to a new file there is reported before any work.
    pub fn of(path: &Path) -> io::Result<Replacement> {
        // As any new file: the umask takes away what it should.
        Replacement::with_mode(path, 0o666)
    }

    /// The same, and other users can neither read nor write it.
    pub fn private(path: &Path) -> io::Result<Replacement> {
        Replacement::with_mode(path, 0o600)
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<Replacement> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        remove_abandoned(folder);
        let mut builder = tempfile::Builder::new();
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
        loop {
            // The error without the name of the temporary file, which no user knows.
            let made = builder.prefix(OWN).tempfile_in(folder).map_err(|e| io::Error::from(e.kind()))?;
            // Until it is locked, another run may take it for abandoned.
            if lock_of(made.as_file())? && is_at(made.as_file(), made.path()) {
                return Ok(Replacement { path: path.to_owned(), file: made });
            }
        }
    }

    /// Fills it and puts it in place.
    pub fn write(mut self, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        content(self.file.as_file_mut())?;
        // Or else a machine that loses power may keep the new name without the new bytes.
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path).map(drop).map_err(|e| e.error)
    }
}

/// Removes files that killed runs have left: files that no process has locked. What cannot be looked at or removed is
/// somebody else's.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let own = name.as_encoded_bytes().starts_with(OWN.as_bytes());
        if !own || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits().cast_signed());
        if let Ok(file) = options.open(&path)
            && file.try_lock().is_ok()
            && is_at(&file, &path)
        {
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(name).collect()
    }

    /// A folder with a file in it that has something to lose.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        fs::write(&path, "old").unwrap();
        (folder, path)
    }

    #[test]
    fn what_is_there_is_replaced_when_all_is_written() {
        let (folder, path) = place();
        let seen_meanwhile = |file: &mut File| {
            file.write_all(b"new ")?;
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            file.write_all(b"and longer")
        };
        Replacement::of(&path).unwrap().write(seen_meanwhile).unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(folder.path())),
            ("new and longer", vec!["table".to_owned()])
        );
    }

    #[test]
    fn what_fails_half_way_leaves_the_old_file_and_nothing_beside_it() {
        let (folder, path) = place();
        let fails = |file: &mut File| {
            file.write_all(b"ne")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        let error = Replacement::of(&path).unwrap().write(fails).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        drop(Replacement::of(&path).unwrap());
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(folder.path())),
            ("old", vec!["table".to_owned()])
        );
    }

    #[test]
    fn what_cannot_be_put_in_place_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in the way");
        fs::create_dir_all(path.join("full")).unwrap();
        Replacement::of(&path).unwrap().write(|file| file.write_all(b"new")).unwrap_err();
        assert_eq!(
            (names(folder.path()), names(&path)),
            (vec!["in the way".to_owned()], vec!["full".to_owned()])
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_reported_without_the_name_of_a_temporary_file() {
        let folder = tempfile::tempdir().unwrap();
        let error = Replacement::of(&folder.path().join("no/table")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!error.to_string().contains(".peerwarp-"), "{error}");
    }

    #[test]
    fn what_a_killed_run_has_left_goes_away_and_what_a_living_one_has_stays() {
        let (folder, path) = place();
        // A file without a lock has no owner.
        fs::write(folder.path().join(".peerwarp-Ab12Cd"), "half").unwrap();
        fs::write(folder.path().join(".peerwarp-mine.d"), "").unwrap();
        fs::create_dir(folder.path().join(".peerwarp-update")).unwrap();
        let living = Replacement::of(&path).unwrap();
        assert_eq!(names(folder.path()).len(), 3, "{:?}", names(folder.path()));
        Replacement::of(&path).unwrap().write(|file| file.write_all(b"second")).unwrap();
        living.write(|file| file.write_all(b"first")).unwrap();
        let mut left = names(folder.path());
        left.sort();
        assert_eq!(
            (left, fs::read_to_string(&path).unwrap()),
            (vec![".peerwarp-update".into(), "table".into()], "first".into())
        );
    }

    #[test]
    fn others_may_read_it_as_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let (folder, path) = place();
        let plain = folder.path().join("plain");
        fs::write(&plain, "").unwrap();
        Replacement::of(&path).unwrap().write(|_| Ok(())).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
    }
}
