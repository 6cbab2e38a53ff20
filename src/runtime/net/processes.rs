//! The other processes of a world, and memory that they may still have mapped.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::ledger::Ledger;
use super::links::Links;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::Sharing;
use crate::runtime::symmetric::Mapping;
use crate::runtime::world::lock;

/// The other processes of a world.
///
/// Memory that goes by IPC must not be freed as long as another process has it mapped. What this rank gives up is kept
/// until all ranks have given up the same allocation: that is looked at when they come together for the next one, and when
/// they all leave the world.
#[derive(Debug)]
pub(in crate::runtime) struct Processes {
    links: Mutex<Links>,
    /// Which ranks of the node go on.
    ledger: Mutex<Arc<Ledger>>,
    sharing: Sharing,
    /// How many allocations there were, the same on all ranks.
    allocations: AtomicU32,
    /// By the number of the allocation.
    given_up: Mutex<Vec<(u32, Mapping)>>,
    left: bool,
}

impl Processes {
    pub fn new(links: Links, ledger: Ledger, sharing: Sharing) -> Processes {
        let (allocations, given_up) = (AtomicU32::default(), Mutex::default());
        let (links, ledger) = (Mutex::new(links), Mutex::new(Arc::new(ledger)));
        Processes { links, ledger, sharing, allocations, given_up, left: false }
    }

    /// The connections to them.
    pub fn links(&self) -> MutexGuard<'_, Links> {
        lock(&self.links)
    }

    /// Which ranks of the node go on.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&lock(&self.ledger))
    }

    /// Decides with the others from here on, who have this page, and gives the next allocation the number that they give it.
    pub fn take_place(&self, ledger: Ledger, next: u32) {
        *lock(&self.ledger) = Arc::new(ledger);
        self.allocations.store(next, Ordering::Relaxed);
    }

    /// The number of the next allocation.
    pub fn next(&self) -> u32 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// The number of an allocation that all ranks are about to make. Frees what all of them have given up.
    pub fn next_allocation(&self) -> Result<u32, RuntimeError> {
        self.free_given_up()?;
        Ok(self.allocations.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes this rank's memory of an allocation, when it has unmapped that of the others.
    pub fn give_up(&self, allocation: u32, own: Mapping) {
        match self.sharing {
            // The driver keeps what others have mapped.
            Sharing::Vmm => drop(own),
            Sharing::Ipc => lock(&self.given_up).push((allocation, own)),
        }
    }

    fn free_given_up(&self) -> Result<(), RuntimeError> {
        if self.sharing == Sharing::Vmm {
            return Ok(());
        }
        let own: Vec<u32> = lock(&self.given_up).iter().map(|(allocation, _)| *allocation).collect();
        let all = self.links().gather(Ok(own))?;
        lock(&self.given_up).retain(|(allocation, _)| !by_all(*allocation, &all));
        Ok(())
    }

    /// Waits until all ranks have given up all memory, and frees this one's.
    pub fn leave(mut self) -> Result<(), RuntimeError> {
        self.free_all()
    }

    fn free_all(&mut self) -> Result<(), RuntimeError> {
        if mem::replace(&mut self.left, true) {
            return Ok(());
        }
        let freed = self.free_given_up();
        // What somebody may still have mapped stays until this process ends.
        lock(&self.given_up).drain(..).for_each(mem::forget);
        freed
    }
}

/// Whether all ranks have given up an allocation.
fn by_all(allocation: u32, given_up: &[Vec<u32>]) -> bool {
    // Nothing is known of any process.
    !given_up.is_empty() && given_up.iter().all(|rank| rank.contains(&allocation))
}

impl Drop for Processes {
    fn drop(&mut self) {
        // No process is left to tell: a process that asks leaves.
        let _ = self.free_all();
    }
}

#[cfg(test)]
mod tests {
    use super::by_all;

    #[test]
    fn what_no_process_has_given_up_is_not_given_up_by_all() {
        assert!(by_all(1, &[vec![0, 1], vec![1]]));
        assert!(!by_all(0, &[vec![0, 1], vec![1]]));
        assert!(!by_all(0, &[]));
    }
}
