//! Host memory that a rank shares with its proxy, its GPU and its peers.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::FabricError;

/// Alignment of memory that [`Memory::zeroed`] allocates: a page.
const PAGE: usize = 4096;

/// Host memory as a row of atomic words. Clones share it; the last one frees it.
///
/// Code of this process reads and writes it as words. The network, peers and a GPU write it behind the compiler's back, and
/// a word that they write while it is read is either old or new.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    first: NonNull<AtomicU64>,
    words: usize,
    owner: Owner,
}

enum Owner {
    Own(Layout),
    /// Dropped with the memory.
    Caller(#[expect(dead_code, reason = "it is kept for its destructor")] Box<dyn Any + Send + Sync>),
}

// SAFETY: the words are atomic, the owner is Send and Sync, and the memory is freed once, with the last clone.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Owner::Own(layout) = self.owner {
            // SAFETY: `Memory::zeroed` allocated it with this layout, and this is the last clone.
            unsafe { dealloc(self.first.as_ptr().cast(), layout) }
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.bytes())
    }
}

impl Memory {
    /// Zeroed pages of at least so many bytes.
    ///
    /// # Errors
    /// [`FabricError::Memory`] at 0 bytes, and where the system has no memory.
    pub fn zeroed(bytes: usize) -> Result<Memory, FabricError> {
        let refused = |allowed| FabricError::Memory { what: "a region", bytes, allowed };
        if bytes == 0 {
            return Err(refused("1 or more are allowed"));
        }
        let layout = bytes.checked_next_multiple_of(PAGE).and_then(|b| Layout::from_size_align(b, PAGE).ok());
        let layout = layout.ok_or_else(|| refused("fewer are allowed"))?;
        // SAFETY: the layout's size is not 0.
        let first = NonNull::new(unsafe { alloc_zeroed(layout) });
        let first = first.ok_or_else(|| refused("the system has no more memory"))?.cast();
        Ok(Memory(Arc::new(Inner { first, words: layout.size() / 8, owner: Owner::Own(layout) })))
    }

    /// Memory of the caller's, such as pinned memory of a driver.
    ///
    /// # Safety
    /// The memory stays valid until `owner` is dropped. Rust code reaches it through this value and its clones only.
    ///
    /// # Errors
    /// [`FabricError::Memory`] unless the address and the length are multiples of 8.
    pub unsafe fn from_raw(
        first: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Memory, FabricError> {
        if bytes == 0 || !bytes.is_multiple_of(8) || !first.as_ptr().addr().is_multiple_of(8) {
            let allowed = "an address and a length that are multiples of 8 are allowed";
            return Err(FabricError::Memory { what: "a region of the caller's", bytes, allowed });
        }
        Ok(Memory(Arc::new(Inner { first: first.cast(), words: bytes / 8, owner: Owner::Caller(owner) })))
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.words * 8
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory holds so many aligned words, is initialised, and lives as long as `self`.
        unsafe { slice::from_raw_parts(self.0.first.as_ptr(), self.0.words) }
    }

    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.0.first.as_ptr().cast()
    }

    /// Copies words out, from a byte offset that is a multiple of 8. Words past the end are left out.
    pub fn read(&self, offset: usize, into: &mut [u64]) {
        for (word, into) in self.words().iter().skip(offset / 8).zip(into) {
            *into = word.load(Ordering::Relaxed);
        }
    }

    /// Copies words in, to a byte offset that is a multiple of 8. Words past the end are left out.
    pub fn write(&self, offset: usize, from: &[u64]) {
        for (word, from) in self.words().iter().skip(offset / 8).zip(from) {
            word.store(*from, Ordering::Relaxed);
        }
    }

    /// Copies bytes to another memory, or to another place of this one. All numbers are multiples of 8. The two places are the
    /// same or share no byte. Words past an end are left out.
    pub(crate) fn copy(&self, offset: usize, bytes: usize, to: &Memory, to_offset: usize) {
        let from = self.words().iter().skip(offset / 8).take(bytes / 8);
        for (to, from) in to.words().iter().skip(to_offset / 8).zip(from) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_whole_pages() {
        let memory = Memory::zeroed(5000).unwrap();
        assert_eq!((memory.bytes(), memory.address().addr() % PAGE), (8192, 0));
        memory.write(16, &[7, 8]);
        let mut read = [9; 4];
        memory.read(8, &mut read);
        assert_eq!(read, [0, 7, 8, 0]);
        // What does not fit is left out.
        memory.write(8184, &[1, 2]);
        memory.read(8184, &mut read);
        assert_eq!(read, [1, 7, 8, 0]);
    }

    #[test]
    fn bytes_are_copied_between_places() {
        let [from, to] = [(); 2].map(|()| Memory::zeroed(4096).unwrap());
        from.write(16, &[1, 2, 3]);
        from.copy(16, 16, &to, 4080);
        from.copy(16, 16, &from, 0);
        let (mut at_end, mut at_start) = ([0; 2], [0; 5]);
        to.read(4080, &mut at_end);
        from.read(0, &mut at_start);
        assert_eq!((at_end, at_start), ([1, 2], [1, 2, 1, 2, 3]));
    }

    #[test]
    fn lengths_are_refused() {
        let words = Memory::zeroed(0).unwrap_err().to_string();
        assert_eq!(words, "0 bytes of memory for a region: 1 or more are allowed");
        assert!(Memory::zeroed(usize::MAX).is_err());
        let mut words = [0u64; 2];
        let first = NonNull::new(words.as_mut_ptr().cast()).unwrap();
        // SAFETY: refused, hence never used.
        let refused = unsafe { Memory::from_raw(first, 12, Box::new(())) };
        assert!(refused.unwrap_err().to_string().contains("multiples of 8"));
    }

    #[test]
    fn the_callers_memory_is_given_back_once() {
        let owner = Arc::new([const { AtomicU64::new(0) }; 4]);
        let first = NonNull::from(&owner[0]).cast();
        // SAFETY: the clone of the array lives as long as the memory.
        let memory = unsafe { Memory::from_raw(first, 32, Box::new(Arc::clone(&owner))) }.unwrap();
        memory.clone().write(24, &[5]);
        assert_eq!((owner[3].load(Ordering::Relaxed), Arc::strong_count(&owner)), (5, 2));
        drop(memory);
        assert_eq!(Arc::strong_count(&owner), 1);
    }
}
