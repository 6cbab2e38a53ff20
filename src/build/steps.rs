//! Steps of updates, so that tests can end a run at each of them.

/// Takes a step: changes something in the file system. In tests a run may end before any of them.
pub(super) fn step<T>(change: impl FnOnce() -> T) -> T {
    #[cfg(test)]
    killed::here();
    change()
}

/// Ends runs as if they were killed: they unwind, and what drops on the way closes files and changes nothing.
#[cfg(test)]
pub(super) mod killed {
    use std::cell::Cell;
    use std::panic::{self, AssertUnwindSafe};

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    struct Killed;

    pub(super) fn here() {
        match LEFT.get() {
            None => {}
            // Not `panic!`, which would tell of it.
            Some(0) => panic::resume_unwind(Box::new(Killed)),
            Some(left) => LEFT.set(Some(left - 1)),
        }
    }

    /// What `run` returns; none if it was killed after this many steps.
    pub fn after<T>(steps: usize, run: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(Some(steps));
        let ran = panic::catch_unwind(AssertUnwindSafe(run));
        LEFT.set(None);
        match ran {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Killed>() => None,
            Err(cause) => panic::resume_unwind(cause),
        }
    }
}
