//! Handles of C. A handle is a number, cast to a pointer. Functions look it up and never follow it, so that a wrong one is an error
//! and harms nothing.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Failure;

/// What is behind handles of a kind.
pub trait Object: Any + Send + Sync {
    /// What the argument is called: `world`.
    const NAME: &'static str;
    /// What it is: `a world`.
    const A: &'static str;
}

struct Known {
    a: &'static str,
    object: Arc<dyn Any + Send + Sync>,
}

/// By handle. No handle is used twice, so that one that was freed is never another object's.
struct Table {
    last: usize,
    known: BTreeMap<usize, Known>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { last: 0, known: BTreeMap::new() });

fn table() -> MutexGuard<'static, Table> {
    lock(&TABLE)
}

/// Locks what no panic can leave half-written.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an object, and puts its handle where C wants it: null if there is none.
///
/// # Safety
/// `place` is null, or a pointer can be written there.
pub unsafe fn put<H, O: Object>(
    place: *mut *mut H,
    make: impl FnOnce() -> Result<O, Failure>,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid(O::NAME, "null", "where the handle is put"));
    }
    // SAFETY: as the caller says.
    unsafe { *place = std::ptr::null_mut() };
    let object: Arc<dyn Any + Send + Sync> = Arc::new(make()?);
    let mut table = table();
    table.last += 1;
    let handle = table.last;
    table.known.insert(handle, Known { a: O::A, object });
    // SAFETY: as the caller says.
    unsafe { *place = std::ptr::without_provenance_mut(handle) };
    Ok(())
}

fn wrong<O: Object>(handle: usize, known: Option<&Known>) -> Failure {
    let value = match (handle, known) {
        (0, _) => "null".to_owned(),
        (_, Some(known)) => format!("the handle of {}", known.a),
        (_, None) => format!("{handle:#x}"),
    };
    Failure::invalid(O::NAME, value, format_args!("the handle of {} that has not been freed", O::A))
}

/// The object of a handle.
pub fn get<H, O: Object>(handle: *mut H) -> Result<Arc<O>, Failure> {
    let (handle, table) = (handle.addr(), table());
    let known = table.known.get(&handle);
    let object = known.and_then(|known| Arc::clone(&known.object).downcast().ok());
    object.ok_or_else(|| wrong::<O>(handle, known))
}

/// Takes the object of a handle, which is none from here on. Other threads may still use the object.
pub fn take<H, O: Object>(handle: *mut H) -> Result<Arc<O>, Failure> {
    let (handle, mut table) = (handle.addr(), table());
    match table.known.remove(&handle).map(|known| (known.a, known.object.downcast())) {
        Some((_, Ok(object))) => Ok(object),
        Some((a, Err(object))) => {
            let known = Known { a, object };
            let why = wrong::<O>(handle, Some(&known));
            table.known.insert(handle, known);
            Err(why)
        }
        None => Err(wrong::<O>(handle, None)),
    }
}

/// Gives an object that [`take`] took its handle again.
pub fn give_back<H, O: Object>(handle: *mut H, object: Arc<O>) {
    table().known.insert(handle.addr(), Known { a: O::A, object });
}
