//! Files that users name, and files of folders that strangers may have filled: read in bounded time and memory.
//!
//! Regular files are read and nothing else. A pipe or a device may never end, or never begin: what comes out of one
//! (`<(command)` of a shell, too) has to be written to a file first.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use super::InputError;

/// The most bytes that a text which people write may have: a catalogue, a configuration, a table.
pub(crate) const TEXT: u64 = 16 << 20;

/// The most bytes that a manifest may have.
pub(crate) const MANIFEST: u64 = 256 << 20;

/// What a file must be whose kind is wrong.
const REGULAR: &str = "a regular file";

/// Whether a link at a path's end is followed. Links on the way to it are, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// The user has named the file.
    Follow,
    /// Something that is no user has: a manifest.
    Refuse,
}

/// Bytes of a file that a user has named with an option or a key.
///
/// # Errors
/// It is not there, is no regular file, or has more than `limit` bytes: `field` is what named it.
pub(crate) fn read(field: &str, path: &Path, limit: u64) -> Result<Vec<u8>, InputError> {
    bytes(path, limit, Links::Follow).map_err(|e| {
        let allowed = match e.kind() {
            io::ErrorKind::InvalidInput => {
                format!("{REGULAR}: what comes out of a pipe is to be written to one first")
            }
            io::ErrorKind::FileTooLarge => format!("{REGULAR} of {limit} bytes at most"),
            _ => String::new(),
        };
        InputError::io(field, path.display(), &e).allowed(allowed)
    })
}

/// As [`read`], of text.
pub(crate) fn text(field: &str, path: &Path) -> Result<String, InputError> {
    let bytes = read(field, path, TEXT)?;
    String::from_utf8(bytes).map_err(|e| {
        InputError::malformed(
            field,
            path.display(),
            format!("not UTF-8: {}", e.utf8_error()),
            "a text in UTF-8",
        )
    })
}

/// Bytes of a regular file, `limit` of them at most.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] of what is no regular file, [`io::ErrorKind::FileTooLarge`], or what the system says.
pub(crate) fn bytes(path: &Path, limit: u64, links: Links) -> io::Result<Vec<u8>> {
    let before = match links {
        Links::Follow => fs::metadata(path)?,
        Links::Refuse => fs::symlink_metadata(path)?,
    };
    // Before it is opened: that alone does something to devices.
    regular(&before)?;
    // Something else may stand there by now. Without the first flag opening a pipe waits for a writer.
    let mut flags = OFlags::NONBLOCK;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let found = file.metadata()?;
    regular(&found)?;
    within_limit(found.len(), limit)?;
    let mut all = vec![];
    File::take(file, limit + 1).read_to_end(&mut all)?;
    within_limit(all.len() as u64, limit)?;
    Ok(all)
}

fn within_limit(bytes: u64, limit: u64) -> io::Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {limit} bytes")))
}

fn regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("is {what}, and must be {REGULAR}")))
}

/// Whether a manifest's name of a file stays in the manifest's folder as it is written: names with `/` between, no `..`.
pub(crate) fn is_inside(file: &str) -> bool {
    let normal = Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
    normal && !file.is_empty() && !file.ends_with('/') && !file.contains('\0')
}

/// The path of a file that a manifest in `folder` names. None of the folders on the way from there to it is a symbolic
/// link; the file itself may be one.
///
/// This looks at each of them once. It keeps manifests from leading out of a folder, not a program out that swaps a folder
/// for a link in between: who may do so has the user's rights in the folder anyway.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if the name leaves the folder or a link is on the way.
pub(crate) fn inside(folder: &Path, file: &str) -> io::Result<PathBuf> {
    let wrong = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !is_inside(file) {
        return wrong(format!("{file:?} is not in the folder"));
    }
    let mut way = PathBuf::new();
    for part in Path::new(file).parent().into_iter().flat_map(Path::components) {
        way.push(part);
        if fs::symlink_metadata(folder.join(&way)).is_ok_and(|found| found.is_symlink()) {
            let way = way.display();
            return wrong(format!("{way} is a symbolic link, and files of the folder do not go through one"));
        }
    }
    Ok(folder.join(file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn regular_files_are_read_up_to_their_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "1234").unwrap();
        symlink(&path, dir.path().join("link")).unwrap();
        assert_eq!(bytes(&path, 4, Links::Refuse).unwrap(), b"1234");
        assert_eq!(bytes(&dir.path().join("link"), 4, Links::Follow).unwrap(), b"1234");
        let kind = |path: &Path, limit, links| bytes(path, limit, links).unwrap_err().kind();
        assert_eq!(kind(&path, 3, Links::Follow), io::ErrorKind::FileTooLarge);
        assert_eq!(kind(&dir.path().join("link"), 4, Links::Refuse), io::ErrorKind::InvalidInput);
        assert_eq!(kind(dir.path(), 4, Links::Follow), io::ErrorKind::InvalidInput);
        assert_eq!(kind(Path::new("/dev/zero"), 4, Links::Follow), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&dir.path().join("no"), 4, Links::Follow), io::ErrorKind::NotFound);
        let told = read("--f", Path::new("/dev/zero"), 4).unwrap_err().to_string();
        assert!(
            told.starts_with("--f = /dev/zero: is a device, and must be a regular file\n  allowed: "),
            "{told}"
        );
        fs::write(&path, b"\xff").unwrap();
        assert!(text("--f", &path).unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn names_stay_in_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        fs::create_dir_all(out.join("a/b")).unwrap();
        symlink(dir.path(), out.join("a/up")).unwrap();
        assert_eq!(inside(&out, "a/b/c").unwrap(), out.join("a/b/c"));
        assert_eq!(inside(&out, "a/up").unwrap(), out.join("a/up"));
        for bad in ["", "..", "../x", "/x", "a/../../x", "./a", "a/", "a\0", "a/up/x", "a/up/y/x"] {
            assert_eq!(inside(&out, bad).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad:?}");
        }
    }
}
