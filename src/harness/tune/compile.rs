//! Kernels that are compiled while others are measured.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use peerwarp_codegen::family::{DynKernel, Target, Variant};
use peerwarp_codegen::threads;
use rayon::ThreadPool;

use crate::runtime::RuntimeError;
use crate::runtime::image::{Images, KernelImage};

/// An image, or why there is none.
type Made = Arc<OnceLock<Result<KernelImage, String>>>;

/// Compiles kernels on threads of its own as soon as it knows of them, each once.
pub(super) struct Compiling {
    images: Arc<dyn Images + Send + Sync>,
    target: Target,
    made: Mutex<HashMap<String, Made>>,
    /// Kernels that were started and are not done.
    under_way: Arc<AtomicUsize>,
    at_work: Arc<AtWork>,
    threads: ThreadPool,
}

impl Compiling {
    pub fn new(images: Arc<dyn Images + Send + Sync>, target: Target) -> Result<Compiling, RuntimeError> {
        // One processor is left for the thread that measures.
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        Compiling::on_threads(processors.saturating_sub(1).max(1), images, target)
    }

    fn on_threads(
        number: usize,
        images: Arc<dyn Images + Send + Sync>,
        target: Target,
    ) -> Result<Compiling, RuntimeError> {
        let threads = threads::own_pool(number)?;
        Ok(Compiling {
            images,
            target,
            made: Mutex::default(),
            under_way: Arc::default(),
            at_work: Arc::default(),
            threads,
        })
    }

    fn place(&self, variant: &str) -> (Made, bool) {
        let mut made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let new = !made.contains_key(variant);
        (Arc::clone(made.entry(variant.to_owned()).or_default()), new)
    }

    /// Starts to compile a kernel, unless that was started before.
    pub fn start(&self, variant: Variant) {
        let (place, new) = self.place(&variant.variant_name());
        if new {
            let (images, target, under_way) =
                (Arc::clone(&self.images), self.target, Arc::clone(&self.under_way));
            let at_work = Arc::clone(&self.at_work);
            under_way.fetch_add(1, Ordering::Relaxed);
            self.threads.spawn(move || {
                at_work.unless_over(|| {
                    place.get_or_init(|| make(&*images, &*variant, target));
                });
                under_way.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Lets a thread do something else beside what it compiles. It is not waited for.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.threads.spawn(work);
    }

    /// Whether half of the threads or more have nothing to do: the others are left for what is certain to be needed.
    pub fn is_idle(&self) -> bool {
        2 * (self.under_way.load(Ordering::Relaxed) + 1) <= self.threads.current_num_threads()
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.at_work.end();
    }
}

/// Work of threads that are not joined, except at the end: a process that ends while the compiler's library is at work
/// crashes in it.
#[derive(Default)]
struct AtWork {
    /// How many are at work; none starts any more once it is over.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl AtWork {
    fn state(&self) -> MutexGuard<'_, (usize, bool)> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn unless_over(&self, work: impl FnOnce()) {
        let mut state = self.state();
        if state.1 {
            return;
        }
        state.0 += 1;
        drop(state);
        work();
        self.state().0 -= 1;
        self.changed.notify_all();
    }

    /// Waits for those that are at work; those that have not started do nothing.
    fn end(&self) {
        let mut state = self.state();
        state.1 = true;
        while state.0 > 0 {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

fn make(images: &dyn Images, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, String> {
    images.image(variant, target).map_err(|e| match e {
        RuntimeError::Compile { log, .. } => log,
        other => other.to_string(),
    })
}

// SAFETY: images are those of another source, for the variant and target that were asked for.
unsafe impl Images for Compiling {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        if target != self.target {
            return self.images.image(variant, target);
        }
        let name = variant.variant_name();
        let (place, _) = self.place(&name);
        // Waits for a thread that is at it; what none has started yet is made here.
        let made = place.get_or_init(|| make(&*self.images, variant, target));
        let refused = |log| RuntimeError::Compile { variant: name, arch: target.arch().into(), log };
        made.clone().map_err(refused)
    }
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
