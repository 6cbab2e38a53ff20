//! Files that users name, and files of folders that strangers may have filled: read in bounded time and memory.
//!
//! [`read`] takes regular files only: a pipe or a device may never end, or never begin. [`stream_text`] takes pipes and standard
//! input, each with a time in which its text has to come.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use super::InputError;
use super::trust::{Distrust, Rule};

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

/// As [`read`], of text in UTF-8, with or without a byte-order mark.
pub(crate) fn text(field: &str, path: &Path) -> Result<String, InputError> {
    utf8(field, path, read(field, path, TEXT)?)
}

fn utf8(field: &str, path: &Path, bytes: Vec<u8>) -> Result<String, InputError> {
    let text = String::from_utf8(bytes).map_err(|e| {
        InputError::malformed(
            field,
            path.display(),
            format!("not UTF-8: {}", e.utf8_error()),
            "a text in UTF-8",
        )
    })?;
    Ok(without_mark(&text).to_owned())
}

/// A text without the byte-order mark that it may begin with.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// How long a pipe may be without a writer.
const WRITER: Duration = Duration::from_secs(5);
/// How long a writer may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Whether a path names what [`stream_text`] reads: `-` for standard input, or a pipe.
pub(crate) fn is_stream(path: &Path) -> bool {
    path.as_os_str() == "-" || fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo())
}

/// Text out of a pipe that a user has named, or out of standard input, which is `-`.
///
/// # Errors
/// No writer opens the pipe in [`WRITER`], the writer is silent for [`SILENCE`], or the text has more than [`TEXT`] bytes or is no UTF-8.
pub(crate) fn stream_text(field: &str, path: &Path) -> Result<String, InputError> {
    let input = io::stdin();
    let all = match path.as_os_str() == "-" {
        true => drained(input.as_fd(), TEXT, Patience { writer: None, silence: SILENCE }),
        false => {
            // Without this flag the opening waits for a writer.
            let mut options = OpenOptions::new();
            let pipe = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
            pipe.and_then(|pipe| {
                drained(pipe.as_fd(), TEXT, Patience { writer: Some(WRITER), silence: SILENCE })
            })
        }
    };
    let all = all.map_err(|e| {
        let allowed = match e.kind() {
            io::ErrorKind::TimedOut => "a file, a folder, or a pipe into which a program writes".to_owned(),
            io::ErrorKind::FileTooLarge => format!("{TEXT} bytes at most"),
            _ => String::new(),
        };
        InputError::io(field, path.display(), &e).allowed(allowed)
    })?;
    utf8(field, path, all)
}

/// Which stream is read, and how long it may keep a command waiting.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// How long no writer may have it open: of a pipe that was opened without waiting for one.
    writer: Option<Duration>,
    /// How long a writer may be silent.
    silence: Duration,
}

/// All bytes of a stream, `limit` at most.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`], [`io::ErrorKind::FileTooLarge`], or what the system says.
fn drained(input: BorrowedFd<'_>, limit: u64, patience: Patience) -> io::Result<Vec<u8>> {
    let (mut all, mut room) = (vec![], [0; 1 << 16]);
    let late = |why: String| Err(io::Error::new(io::ErrorKind::TimedOut, why));
    // Standard input blocks: only what is ready is read.
    let mut ready = patience.writer.is_none() && ready_within(input, patience.silence)?;
    let mut begun = Instant::now();
    loop {
        let read = match (patience.writer, ready) {
            (None, false) => Err(rustix::io::Errno::AGAIN),
            _ => rustix::io::read(input, &mut room),
        };
        let most = match (read, patience.writer) {
            (Ok(0), Some(writer)) if all.is_empty() && !ready => {
                // A pipe reads as empty while no program has it open for writing.
                if begun.elapsed() >= writer {
                    return late(format!("no program opened it for writing in {} s", writer.as_secs()));
                }
                writer
            }
            (Ok(0), _) => return Ok(all),
            (Ok(n), _) => {
                all.extend_from_slice(&room[..n]);
                within_limit(all.len() as u64, limit)?;
                begun = Instant::now();
                if patience.writer.is_some() {
                    // Only a read says that the last writer is gone.
                    ready = true;
                    continue;
                }
                patience.silence
            }
            (Err(rustix::io::Errno::AGAIN), _) if begun.elapsed() < patience.silence => patience.silence,
            (Err(rustix::io::Errno::AGAIN), _) => {
                return late(format!("its writer was silent for {} s", patience.silence.as_secs()));
            }
            (Err(rustix::io::Errno::INTR), _) => continue,
            (Err(e), _) => return Err(e.into()),
        };
        ready = ready_within(input, most.saturating_sub(begun.elapsed()))?;
    }
}

/// Whether a stream has bytes, or its end, before the time is over.
fn ready_within(input: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(input, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Why a file that decides what runs was not read.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The system says so, or it is no regular file, or it is too long.
    Io(io::Error),
    /// Another user may have written it.
    Distrust(Distrust),
}

/// Bytes of a regular file, `limit` of them at most.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] of what is no regular file, [`io::ErrorKind::FileTooLarge`], or what the system says.
pub(crate) fn bytes(path: &Path, limit: u64, links: Links) -> io::Result<Vec<u8>> {
    let (file, found) = open(path, links)?;
    content(file, &found, limit)
}

/// As [`bytes`], of a file that decides what runs. The rule holds for the file whose bytes are read, whatever takes its name.
pub(crate) fn trusted(path: &Path, limit: u64, links: Links, rule: Rule) -> Result<Vec<u8>, Refused> {
    let (file, found) = open(path, links).map_err(Refused::Io)?;
    rule.check(path, &found).map_err(Refused::Distrust)?;
    content(file, &found, limit).map_err(Refused::Io)
}

fn open(path: &Path, links: Links) -> io::Result<(File, Metadata)> {
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
    Ok((file, found))
}

fn content(file: File, found: &Metadata, limit: u64) -> io::Result<Vec<u8>> {
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
    use std::io::Write as _;
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

    /// A pipe in a folder.
    fn pipe(dir: &Path) -> PathBuf {
        let path = dir.join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    #[test]
    fn a_pipe_is_read_to_its_end_whenever_its_writer_comes() {
        let dir = tempfile::tempdir().unwrap();
        let path = pipe(dir.path());
        assert!(is_stream(&path) && is_stream(Path::new("-")) && !is_stream(dir.path()));
        for pieces in [vec![], vec!["{}"], vec!["{", "}"], vec![&"x".repeat(1 << 20)]] {
            let (held, tell) = std::sync::mpsc::channel::<()>();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    // Blocks until the reader has opened the pipe.
                    let mut pipe = OpenOptions::new().write(true).open(&path).unwrap();
                    pieces
                        .iter()
                        .for_each(|piece| io::Write::write_all(&mut pipe, piece.as_bytes()).unwrap());
                    held.send(()).unwrap();
                });
                assert_eq!(stream_text("--f", &path).unwrap(), pieces.concat());
                tell.recv().unwrap();
                writer.join().unwrap();
            });
        }
        // The writer of `<(command)` is often gone when the pipe is opened.
        let (read, write) = std::io::pipe().unwrap();
        { write }.write_all(b"\xef\xbb\xbf{}").unwrap();
        let reopened = PathBuf::from(format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&read)));
        assert_eq!(stream_text("--f", &reopened).unwrap(), "{}");
    }

    #[test]
    fn a_pipe_without_a_writer_and_a_silent_writer_are_refused_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = pipe(dir.path());
        let short = Duration::from_millis(30);
        let open = || {
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap()
        };
        let tell = |input: BorrowedFd<'_>, writer| {
            drained(input, 4, Patience { writer, silence: 2 * short }).unwrap_err().to_string()
        };
        let reader = open();
        assert_eq!(tell(reader.as_fd(), Some(short)), "no program opened it for writing in 0 s");
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(tell(reader.as_fd(), Some(short)), "its writer was silent for 0 s");
        writer.write_all(b"12345").unwrap();
        assert_eq!(tell(reader.as_fd(), Some(short)), "more than 4 bytes");
        // As standard input is: it blocks.
        let (read, write) = std::io::pipe().unwrap();
        assert_eq!(tell(read.as_fd(), None), "its writer was silent for 0 s");
        drop(write);
        let patience = Patience { writer: None, silence: short };
        assert_eq!(drained(read.as_fd(), 4, patience).unwrap(), b"");
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
