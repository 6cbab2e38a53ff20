//! Objects that NCCL holds by number, so that a wrong handle is an error and no wild pointer.

use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::Handle;
use crate::error::CardError;

/// The next handle of any registry: an object of another kind has another number.
static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Objects of one kind.
pub struct Registry<T> {
    what: &'static str,
    objects: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    /// A registry without objects. Errors call an object `what`.
    pub const fn new(what: &'static str) -> Registry<T> {
        Registry { what, objects: RwLock::new(BTreeMap::new()) }
    }

    /// Keeps an object, and returns its handle.
    pub fn insert(&self, object: T) -> Handle {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        self.objects.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(object));
        without_provenance_mut(handle)
    }

    /// The object of a handle.
    ///
    /// # Errors
    /// [`CardError::Handle`] if there is none.
    pub fn get(&self, handle: Handle) -> Result<Arc<T>, CardError> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(&handle.addr()).cloned().ok_or_else(|| self.missing(handle))
    }

    /// Gives up the object of a handle.
    ///
    /// # Errors
    /// [`CardError::Handle`] if there is none.
    pub fn remove(&self, handle: Handle) -> Result<Arc<T>, CardError> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(&handle.addr()).ok_or_else(|| self.missing(handle))
    }

    fn missing(&self, handle: Handle) -> CardError {
        CardError::Handle { what: self.what, handle: handle.addr() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_one_object_of_its_kind_until_it_is_removed() {
        let (cards, lists) = (Registry::new("card"), Registry::new("list"));
        let (card, list) = (cards.insert(7), lists.insert("x"));
        assert_eq!((*cards.get(card).unwrap(), *lists.get(list).unwrap()), (7, "x"));
        assert_eq!(cards.get(list).unwrap_err(), CardError::Handle { what: "card", handle: list.addr() });
        assert_eq!(*cards.remove(card).unwrap(), 7);
        let said = cards.remove(card).unwrap_err().to_string();
        assert_eq!(said, format!("{:#x} is no card of this card, or it is closed", card.addr()));
    }
}
