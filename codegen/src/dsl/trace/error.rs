//! What a kernel author gets when tracing fails, and how a failure travels from an operator to [`trace`](super::tracer).
//!
//! Operators cannot return `Result`, so a failure unwinds with a private payload that `trace` catches. It never
//! reaches the panic hook, hence prints nothing. A panic of the author's own comptime code is caught as well; a hook
//! that is installed at the first trace remembers where it happened.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{PanicHookInfo, resume_unwind};
use std::sync::{Mutex, Once};

use crate::ir::Loc;

/// Why a kernel function could not be traced: what is wrong, at which line of the author's source, and what to do.
///
/// Displays as `file:line:col: message`, then one `note:` line for each other place that takes part, then `help:`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub struct TraceError {
    /// What is wrong.
    pub message: String,
    /// What to do about it; empty when a panic of the author's own code ended the trace.
    pub help: String,
    /// The author's line.
    pub loc: Loc,
    /// Other places in the author's source that take part, with what they are.
    pub notes: Vec<(Loc, String)>,
}

impl TraceError {
    /// An error at `loc`.
    pub fn new(loc: Loc, message: impl Into<String>, help: impl Into<String>) -> TraceError {
        TraceError { message: message.into(), help: help.into(), loc, notes: vec![] }
    }

    /// Adds another place that takes part.
    pub fn note(mut self, loc: Loc, what: impl Into<String>) -> TraceError {
        self.notes.push((loc, what.into()));
        self
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", place(&self.loc), self.message)?;
        for (loc, what) in &self.notes {
            write!(f, "\n  note: {}: {what}", place(loc))?;
        }
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}

impl fmt::Debug for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn place(loc: &Loc) -> String {
    format!("{}:{}:{}", loc.short_file(), loc.line, loc.col)
}

/// Payload of the unwinding that carries a trace error.
struct Failure {
    error: TraceError,
}

/// Ends the current trace with an error. Outside any trace (a device value used after its trace ended, say) it is an
/// ordinary panic with the same text.
pub(crate) fn raise(error: TraceError) -> ! {
    if super::tracer::active() {
        resume_unwind(Box::new(Failure { error }));
    }
    panic!("{error}")
}

/// Ends the current trace with an error at `loc`: what is wrong, and what to do.
pub fn fail_at(loc: Loc, message: impl Into<String>, help: impl Into<String>) -> ! {
    raise(TraceError::new(loc, message, help))
}

/// The trace error in a caught panic payload; `last` is the last place the trace reached.
pub(crate) fn from_payload(payload: Box<dyn Any + Send>, last: Loc) -> TraceError {
    let payload = match payload.downcast::<Failure>() {
        Ok(failure) => return failure.error,
        Err(other) => other,
    };
    let text = payload
        .downcast_ref::<&'static str>()
        .map(|s| s.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with a payload that is not text".into());
    let loc = PANIC_AT.with_borrow_mut(Option::take).unwrap_or(last);
    TraceError::new(loc, format!("the kernel function panicked: {text}"), "")
}

thread_local! {
    /// Where the last panic of this thread happened while it was tracing.
    static PANIC_AT: RefCell<Option<Loc>> = const { RefCell::new(None) };
}

/// Installs, once a process, a panic hook that remembers the place of a panic inside a trace instead of printing it
/// (the trace error says it), and hands every other panic to the hook that was there before.
pub(crate) fn install_hook() {
    static ONCE: Once = Once::new();
    if std::thread::panicking() {
        return; // the hook cannot be changed now; the place of a panic is then approximate
    }
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if !super::tracer::active() {
                return before(info);
            }
            if let Some(l) = info.location() {
                let loc = Loc { file: intern(l.file()), line: l.line(), col: l.column() };
                // The thread-local is gone while the thread ends; then no code asks for the place either.
                let _ = PANIC_AT.try_with(|at| at.replace(Some(loc)));
            }
        }));
    });
}

/// A file name that lives as long as the process, stored once.
fn intern(file: &str) -> &'static str {
    static FILES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut files = FILES.lock().unwrap_or_else(|e| e.into_inner());
    match files.get(file) {
        Some(known) => known,
        None => {
            let new: &'static str = String::from(file).leak();
            files.insert(new);
            new
        }
    }
}
