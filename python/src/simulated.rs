//! Runs on simulated ranks, with the caller's bytes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Failure;

/// Whether there is something for each rank.
pub fn one_each(field: &str, found: usize, ranks: u32) -> Result<(), Failure> {
    match found == ranks as usize {
        true => Ok(()),
        false => Err(Failure::invalid(field, found, format!("{ranks}, one for each rank"))),
    }
}

/// Locks something that no panic can leave half-written.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
