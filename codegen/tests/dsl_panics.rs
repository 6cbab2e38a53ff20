//! Panics inside and outside of traces, and the panic hook. One test: the hook is of the whole process.

use std::panic::{catch_unwind, panic_any};
use std::sync::atomic::{AtomicU32, Ordering};

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, rt, trace};

static PRINTED: AtomicU32 = AtomicU32::new(0);

/// For what is made only to see that it cannot be.
fn unused<T>(_: T) {}

fn error_of(body: impl FnOnce()) -> TraceError {
    let error = trace(TraceMeta::new("test", 2, 32, 1), |_| role("r", 1, |_| body())).unwrap_err();
    assert!(!rt::active());
    error
}

#[test]
fn only_panics_outside_of_traces_are_printed() {
    std::panic::set_hook(Box::new(|info| {
        PRINTED.fetch_add(1, Ordering::Relaxed);
        eprintln!("{info}");
    }));
    let printed = || PRINTED.load(Ordering::Relaxed);

    let (error, line) = (error_of(|| panic!("no {}", "luck")), line!());
    assert_eq!((error.message.as_str(), error.loc.line), ("the kernel function panicked: no luck", line));
    assert_eq!(printed(), 0, "the error says it");
    let error = error_of(|| panic_any(7));
    assert!(error.message.contains("a payload that is not text"), "{error}");
    let error = error_of(|| unused(arange(0)));
    assert_eq!(error.message, "a tile of zero elements");
    assert_eq!(printed(), 0);

    let error = error_of(|| unused(trace(TraceMeta::new("inner", 2, 32, 1), |_| panic!("inner")).unwrap()));
    assert!(error.message.contains("panicked") && error.message.contains("inner"), "{error}");

    assert!(catch_unwind(|| panic!("outside")).is_err());
    assert_eq!(printed(), 1, "the hook that was there before is still asked");
}
