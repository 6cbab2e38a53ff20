//! Which ranks of a node go on: a page of memory that their processes share.
//!
//! Each change is a *view*: a number and the mask of the ranks that go on. A view is decided by the first process that writes it, in one
//! atomic step, so that no two processes go on with different ranks, also if the one that decided dies at once. The page outlives any
//! process.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, mem, ptr};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use super::deadline::{Deadline, timespec};
use super::form::FormError;

/// Views that a world may have.
pub(in crate::runtime) const VIEWS: usize = 4096;
/// Ranks of a node.
const RANKS: usize = 64;
/// How long a wait sleeps at most before it looks again: a process may die before it wakes the others.
const GLANCE: Duration = Duration::from_millis(5);
/// How long ranks that another one waited for in vain have after all others have come.
const GRACE: Duration = Duration::from_millis(50);

/// What processes share.
#[repr(C)]
struct Page {
    /// Counts what is written, and wakes those that wait.
    changes: AtomicU32,
    _padding: u32,
    /// The mask of each view; 0 while there is none.
    views: [AtomicU64; VIEWS],
    /// How far each rank got: a view and a step of it.
    steps: [AtomicU64; RANKS],
    /// Ranks that each rank has waited for in vain, as a mask.
    blamed: [AtomicU64; RANKS],
    /// How many processes took the place of each rank's first.
    replaced: [AtomicU32; RANKS],
}

/// A change that is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) struct View {
    /// Its number; 0 is that of the world as it was formed.
    pub number: u32,
    /// The ranks that go on, as a mask of those of the node.
    pub active: u64,
}

impl View {
    /// Whether a rank of the node goes on.
    pub fn has(&self, rank: u32) -> bool {
        self.active >> rank & 1 != 0
    }
}

/// What ranks of a view wait for each other at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Step {
    /// Nothing of theirs runs any more.
    Idle = 1,
    /// They share fresh memory.
    Renewed = 2,
}

/// How a wait for the ranks of a view ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Met {
    /// All of them came.
    All,
    /// Another view is decided.
    Changed,
    /// These did not come, as a mask.
    Missing(u64),
}

/// How a rank goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Way {
    /// The others go on without it.
    Left,
    /// It meets the ranks of the view that it knows, and decides the next one with them.
    Meet(View),
    /// Another view is decided, with it: all share fresh memory there.
    Renew(View),
}

/// What a look at the page shows of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// It is over.
    Ended(Met),
    /// These did not come, as a mask; whether each of them is lost or blamed.
    Waits { missing: u64, are_suspects: bool },
}

/// The system refuses memory that processes share.
fn refused(reason: impl Into<io::Error>) -> FormError {
    FormError::Socket { path: "shared memory".into(), reason: reason.into().to_string() }
}

/// The page, mapped into this process.
#[derive(Debug)]
pub(in crate::runtime) struct Ledger {
    page: NonNull<Page>,
    file: OwnedFd,
    /// This rank's number on its node.
    rank: u32,
    /// How many processes had it before this one.
    before: u32,
}

// SAFETY: all of the page is atomics.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and not used any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), mem::size_of::<Page>()) };
    }
}

impl Ledger {
    /// Makes the page, with a first view of these ranks, as a mask.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn create(active: u64) -> Result<OwnedFd, FormError> {
        let file = memfd_create("peerwarp-ledger", MemfdFlags::CLOEXEC).map_err(refused)?;
        ftruncate(&file, mem::size_of::<Page>() as u64).map_err(refused)?;
        let ledger = Ledger::open(file, 0)?;
        ledger.page().views[0].store(active, Ordering::SeqCst);
        ledger.file()
    }

    /// Maps the page.
    ///
    /// # Errors
    /// The file is none, or the system refuses it.
    pub fn open(file: OwnedFd, rank: u32) -> Result<Ledger, FormError> {
        let (bytes, protection) = (mem::size_of::<Page>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping of a file that no process makes shorter.
        let at = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0) };
        let page =
            NonNull::new(at.map_err(refused)?.cast()).ok_or_else(|| refused(io::ErrorKind::OutOfMemory))?;
        let mut ledger = Ledger { page, file, rank, before: 0 };
        ledger.before = ledger.page().replaced[rank as usize].load(Ordering::SeqCst);
        Ok(ledger)
    }

    /// The same for a process that takes a rank's place: none that had it before has it any more.
    pub fn take_over(file: OwnedFd, rank: u32) -> Result<Ledger, FormError> {
        let mut ledger = Ledger::open(file, rank)?;
        ledger.before = ledger.page().replaced[rank as usize].fetch_add(1, Ordering::SeqCst) + 1;
        Ok(ledger)
    }

    /// The file that another process maps.
    pub fn file(&self) -> Result<OwnedFd, FormError> {
        self.file.try_clone().map_err(refused)
    }

    /// Whether this process has its rank: no other one has taken its place.
    pub fn has_place(&self) -> bool {
        self.page().replaced[self.rank as usize].load(Ordering::SeqCst) == self.before
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped as long as `self` lives; any bytes are a page.
        unsafe { self.page.as_ref() }
    }

    fn changed(&self) {
        let changes = &self.page().changes;
        changes.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(changes, futex::Flags::empty(), u32::MAX);
    }

    /// The last view that is decided.
    pub fn view(&self) -> View {
        let views = &self.page().views;
        let decided = views.partition_point(|view| view.load(Ordering::SeqCst) != 0);
        let number = decided.saturating_sub(1);
        View { number: number as u32, active: views[number].load(Ordering::SeqCst) }
    }

    /// How this rank goes on, which knows the view of this number.
    pub fn way(&self, known: u32) -> Way {
        match self.view() {
            view if !view.has(self.rank) || !self.has_place() => Way::Left,
            view if view.number == known => Way::Meet(view),
            view => Way::Renew(view),
        }
    }

    /// Decides the view after one, unless another process has; none if there have been too many.
    pub fn decide(&self, after: View, active: u64) -> Option<View> {
        let next = self.page().views.get(after.number as usize + 1)?;
        #[cfg(test)]
        tests::reach("deciding");
        let decided = next.compare_exchange(0, active, Ordering::SeqCst, Ordering::SeqCst);
        #[cfg(test)]
        tests::reach("decided");
        self.changed();
        Some(View { number: after.number + 1, active: decided.err().unwrap_or(active) })
    }

    /// Tells others which ranks of the node this one waited for in vain, as a mask.
    pub fn blame(&self, ranks: u64) {
        self.page().blamed[self.rank as usize].store(ranks, Ordering::SeqCst);
        self.changed();
    }

    /// Says that this rank runs in a view: all of its ranks have met there. What it had waited for in vain is over.
    pub fn runs(&self, view: View) {
        self.page().blamed[self.rank as usize].store(0, Ordering::SeqCst);
        let step = &self.page().steps[self.rank as usize];
        // A process that has this rank's place by now is in a later view.
        let here = |step: u64| (step >> 8 == u64::from(view.number)).then_some(u64::from(view.number) << 8);
        let _ = step.fetch_update(Ordering::SeqCst, Ordering::SeqCst, here);
        self.changed();
    }

    /// Comes to a step of a view, and waits until all of its ranks do. Ranks that `lost` says are gone are not waited for, nor for long
    /// those that others blame; `deadline` is that of the others.
    pub fn meet(&self, view: View, step: Step, lost: impl Fn() -> u64, deadline: &Deadline) -> Met {
        self.come(view, step);
        #[cfg(test)]
        tests::reach(if step == Step::Idle { "idle" } else { "renewed" });
        let mut grace: Option<Deadline> = None;
        loop {
            let changes = self.page().changes.load(Ordering::SeqCst);
            let (missing, are_suspects) = match self.look(view, step, lost()) {
                Look::Ended(met) => return met,
                Look::Waits { missing, are_suspects } => (missing, are_suspects),
            };
            if !are_suspects {
                grace = None;
            } else if grace.get_or_insert_with(|| Deadline::after(GRACE)).left().is_zero() {
                return Met::Missing(missing);
            }
            if deadline.left().is_zero() {
                return Met::Missing(missing);
            }
            let until = timespec(GLANCE.min(deadline.left()));
            let _ = futex::wait(&self.page().changes, futex::Flags::empty(), changes, Some(&until));
        }
    }

    /// Says that this rank came to a step of a view.
    fn come(&self, view: View, step: Step) {
        self.page().steps[self.rank as usize].fetch_max(here(view, step), Ordering::SeqCst);
        self.changed();
    }

    /// Looks whether all ranks of a view came to a step of it, but those that are lost, a mask.
    fn look(&self, view: View, step: Step, lost: u64) -> Look {
        let page = self.page();
        if self.view().number != view.number {
            return Look::Ended(Met::Changed);
        }
        let came = |rank: usize| page.steps[rank].load(Ordering::SeqCst) >= here(view, step);
        let ranks = (0..RANKS).filter(|&rank| view.has(rank as u32));
        let missing = ranks.clone().filter(|&rank| !came(rank)).fold(0, |mask, rank| mask | 1 << rank);
        if missing == 0 {
            return Look::Ended(Met::All);
        }
        if missing & !lost == 0 {
            return Look::Ended(Met::Missing(missing));
        }
        let blamed = ranks.filter(|&rank| came(rank)).map(|rank| page.blamed[rank].load(Ordering::SeqCst));
        Look::Waits { missing, are_suspects: missing & !blamed.fold(lost, |all, mask| all | mask) == 0 }
    }
}

/// A step of a view, as the page has it: later ones are larger.
fn here(view: View, step: Step) -> u64 {
    u64::from(view.number) << 8 | step as u64
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
pub(in crate::runtime) mod tests;
