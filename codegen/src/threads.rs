//! Threads that the system may refuse: each is started here, and a refusal is an error.
//!
//! Rayon's own start of its global pool panics on a refusal. So [`pool`] is called before the first parallel iterator of a public
//! function. A started pool stays, and needs no more threads.

use std::error::Error;
use std::io;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The system starts no further thread or process for this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the system starts no further thread or process ({reason}): raise the limit of processes (`ulimit -u`, `pids.max` of a \
     container or cgroup) or of memory (`ulimit -v`), or set RAYON_NUM_THREADS to fewer threads; then start the program anew"
)]
pub struct ThreadsRefused {
    /// The system's words.
    pub reason: String,
}

impl From<&io::Error> for ThreadsRefused {
    fn from(error: &io::Error) -> ThreadsRefused {
        ThreadsRefused { reason: error.to_string() }
    }
}

impl From<ThreadsRefused> for io::Error {
    fn from(refused: ThreadsRefused) -> io::Error {
        io::Error::new(io::ErrorKind::WouldBlock, refused)
    }
}

/// Starts rayon's global pool, unless this process has it already.
///
/// # Errors
/// The system refuses a thread, or did so before: rayon tries it once.
pub fn pool() -> Result<(), ThreadsRefused> {
    static STARTED: OnceLock<Result<(), ThreadsRefused>> = OnceLock::new();
    let start = || match ThreadPoolBuilder::new().build_global() {
        Ok(()) => Ok(()),
        // An error without a source says that the program has started the pool by itself.
        Err(e) => e.source().map_or(Ok(()), |why| Err(ThreadsRefused { reason: why.to_string() })),
    };
    STARTED.get_or_init(start).clone()
}

/// Starts a pool of so many threads.
///
/// # Errors
/// The system refuses one of them.
pub fn own_pool(threads: usize) -> Result<ThreadPool, ThreadsRefused> {
    let built = ThreadPoolBuilder::new().num_threads(threads).build();
    built.map_err(|e| ThreadsRefused { reason: e.to_string() })
}

/// Starts a thread.
///
/// # Errors
/// The system refuses it.
pub fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ThreadsRefused> {
    Builder::new().spawn(work).map_err(|e| ThreadsRefused::from(&e))
}

/// Starts a thread of a scope.
///
/// # Errors
/// The system refuses it.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, ThreadsRefused> {
    Builder::new().spawn_scoped(scope, work).map_err(|e| ThreadsRefused::from(&e))
}
