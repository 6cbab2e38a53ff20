//! Libraries that stand in for drivers: every call succeeds, except those that a test names.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use libloading::Library;
use tempfile::TempDir;

use super::open;

/// The longest that a test of all errors may last before it counts as one that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A library that is compiled for a test, and loaded.
pub(crate) struct Stub {
    dir: TempDir,
    /// Its file.
    pub path: PathBuf,
    /// The errors that the library's documentation names.
    pub errors: Vec<i32>,
    library: &'static Library,
}

impl Stub {
    /// `tests/data/driver/<name>.c`, as `lib<name>.so`.
    pub fn new(name: &str) -> Stub {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/driver");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("lib{name}.so"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&path).arg(sources.join(format!("{name}.c")));
        let built = compiler.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let errors = std::fs::read_to_string(sources.join(format!("{name}_errors.h"))).unwrap();
        let number = |line: &str| line.strip_prefix("E(")?.split(',').next()?.parse().ok();
        let errors = errors.lines().filter_map(number).collect();
        // SAFETY: it was just built, and has no initialisers.
        let library = unsafe { open(&[path.as_path()]) }.unwrap();
        Stub { dir, path, errors, library }
    }

    /// Lets these calls, with commas between them, answer with this number from now on.
    pub fn fail(&self, calls: &str, error: i32) {
        let calls = std::ffi::CString::new(calls).unwrap();
        // SAFETY: the type of the function in `answer.h`, which copies the text.
        unsafe {
            let fail = self.library.get::<unsafe extern "C" fn(*const std::ffi::c_char, i32)>(b"stub_fail");
            fail.unwrap()(calls.as_ptr(), error);
        }
    }

    /// How often they have since.
    pub fn answered(&self) -> i32 {
        // SAFETY: the type of the function in `answer.h`.
        unsafe { self.library.get::<unsafe extern "C" fn() -> i32>(b"stub_answered").unwrap()() }
    }

    /// A copy that lacks a call.
    pub fn without(&self, call: &str) -> PathBuf {
        let mut bytes = std::fs::read(&self.path).unwrap();
        let name = format!("\0{call}\0").into_bytes();
        let found: Vec<usize> =
            (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(&name)).collect();
        assert!(!found.is_empty(), "{call} is no call of {}", self.path.display());
        found.iter().for_each(|at| bytes[at + 1] = b'X');
        let path = self.dir.path().join(format!("without_{call}.so"));
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// Runs a test, which fails if it does not end.
pub(crate) fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let running = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
        panic!("a call hangs");
    }
    running.join().unwrap();
}
