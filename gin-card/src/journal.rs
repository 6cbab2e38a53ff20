//! What the card says: to NCCL's log where there is one, else to standard error.

use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use crate::abi::{LOG_NET, LOG_WARN, Logger};

/// Where lines go, and the last one.
static JOURNAL: Mutex<(Logger, String)> = Mutex::new((None, String::new()));

/// Takes NCCL's log for all lines from now on.
///
/// # Safety
/// The function stays callable with NCCL's arguments until the process ends.
pub unsafe fn set_logger(logger: Logger) {
    JOURNAL.lock().unwrap_or_else(PoisonError::into_inner).0 = logger;
}

/// Writes a line, unless it is the same as the last one: NCCL asks again after an error.
pub fn say(line: &str) {
    let line = format!("gin-card, process {}: {line}", std::process::id());
    let mut journal = JOURNAL.lock().unwrap_or_else(PoisonError::into_inner);
    if journal.1 == line {
        return;
    }
    match (journal.0, CString::new(line.replace('\0', " "))) {
        // SAFETY: the format takes one text, and both end with a zero; `set_logger` says the rest.
        (Some(logger), Ok(line)) => unsafe {
            logger(LOG_WARN, LOG_NET, c"gin-card".as_ptr(), 0, c"%s".as_ptr(), line.as_ptr());
        },
        _ => eprintln!("{line}"),
    }
    journal.1 = line;
}
