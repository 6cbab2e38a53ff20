//! Errors as C gets them: a code, and words that the thread keeps.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use peerwarp::build::pack::PackError;
use peerwarp::harness::session::SimError;
use peerwarp::harness::workload::WorkloadError;
use peerwarp::input::InputError;
use peerwarp::runtime::{RuntimeError, SelectError};

/// What a function returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerwarpResult {
    /// It did what it is for.
    Ok = 0,
    /// An argument, a setting or a variable is not one of those allowed.
    Invalid = 1,
    /// This process has no GPU that it can use.
    NoGpu = 2,
    /// The checker of simulated ranks found a fault of the kernel.
    Found = 3,
    /// A wait of a kernel ran out of time, and the world needs `peerwarp_world_reset`.
    Aborted = 4,
    /// A file, the driver or another rank failed.
    Failed = 5,
    /// A bug in Peerwarp, which is worth a report.
    Bug = 6,
}

/// Why a function failed.
#[derive(Debug)]
pub struct Failure {
    result: PeerwarpResult,
    words: String,
}

impl Failure {
    pub fn new(result: PeerwarpResult, words: impl ToString) -> Failure {
        Failure { result, words: words.to_string() }
    }

    /// A field, its value, and what it may be.
    pub fn invalid(field: impl Display, value: impl Display, allowed: impl Display) -> Failure {
        Failure::new(PeerwarpResult::Invalid, format!("{field} = {value}: {allowed}"))
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        Failure::new(PeerwarpResult::Invalid, error)
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        let result = match &error {
            RuntimeError::Invalid { .. } => PeerwarpResult::Invalid,
            RuntimeError::Aborted(_) | RuntimeError::Poisoned { .. } => PeerwarpResult::Aborted,
            error if error.is_no_gpu() => PeerwarpResult::NoGpu,
            _ => PeerwarpResult::Failed,
        };
        Failure::new(result, error)
    }
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Failure {
        match error {
            WorkloadError::Input(error) => error.into(),
            WorkloadError::Runtime(error) => error.into(),
            WorkloadError::Kernel(words) => Failure::new(PeerwarpResult::Failed, words),
        }
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Failure {
        match error {
            SimError::Workload(error) => error.into(),
            SimError::Found(found) => Failure::new(PeerwarpResult::Found, found),
        }
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Failure {
        Failure::new(PeerwarpResult::Failed, error)
    }
}

impl From<SelectError> for Failure {
    fn from(error: SelectError) -> Failure {
        match error {
            SelectError::Input(error) => error.into(),
            SelectError::Pack(error) => error.into(),
        }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn keep(words: &str) {
    // C's texts end at the first NUL.
    let words = CString::new(words.replace('\0', "\u{fffd}")).unwrap_or_default();
    // The thread may be ending.
    let _ = LAST.try_with(|last| *last.borrow_mut() = words);
}

/// Words of the last function that failed on this thread, in UTF-8; empty if none did. They stay until the next one fails here.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs the body of a function, and keeps the words of its error. A panic is an error, too.
pub fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> PeerwarpResult {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let words = format!("a bug in Peerwarp, which is worth a report: {said}");
        Err(Failure::new(PeerwarpResult::Bug, words))
    });
    match done {
        Ok(()) => PeerwarpResult::Ok,
        Err(Failure { result, words }) => {
            keep(&words);
            result
        }
    }
}

/// A text that C passes.
///
/// # Safety
/// `text` is null or ends with NUL, and stays as it is for `'a`.
pub unsafe fn text<'a>(field: impl Display, text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(field, "null", "a text"));
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(field, text.to_string_lossy(), "a text in UTF-8"))
}
