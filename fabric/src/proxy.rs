//! The proxy of a GPU: one thread between its rings and the network.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::book::{Book, BookError, Station};
use crate::carrier::{Carrier, Lane};
use crate::command::PutName;
use crate::error::FabricError;
use crate::fault::Fault;
use crate::ring::Ring;
use crate::words::{Words, proxy};

/// How much longer than its budget a proxy may take to end: closing an endpoint waits for the system.
const GRACE: Duration = Duration::from_secs(2);

/// Faults that are kept in words.
const KEPT: usize = 64;

/// How a proxy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyOptions {
    /// How long a peer may take in nothing of what is under way to it. Then the oldest put is a [`Fault::Late`].
    ///
    /// An idle peer with which puts were exchanged gets a pulse, a put of 16 bytes that is not counted, each quarter of the budget; one that stops to take
    /// them in is a [`Fault::Silent`]. Kernels wait for twice this budget, so that the proxy names a dead peer first.
    pub budget: Duration,
    /// The core that the thread is pinned to.
    pub core: Option<usize>,
    /// Commands of a ring that may be under way at once.
    pub window: usize,
}

impl Default for ProxyOptions {
    fn default() -> ProxyOptions {
        ProxyOptions { budget: Duration::from_secs(10), core: None, window: 4096 }
    }
}

/// Why a proxy does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The book is not complete, or an address in it is refused.
    #[error(transparent)]
    Book(#[from] BookError),
    /// The counts are too few, or the thread cannot be started.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

/// What a proxy has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Puts that were delivered.
    pub puts: u64,
    /// Bytes of those puts.
    pub bytes: u64,
    /// Puts that arrived and were counted.
    pub arrivals: u64,
    /// How often the proxy itself was held up for a quarter of its budget.
    pub stalls: u64,
}

/// Why a proxy did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// A fault came up while the proxy ran.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Commands were under way when the budget was used up.
    #[error("{count} commands were not delivered within {budget:?}; {}", left(.oldest))]
    Unfinished {
        /// Commands.
        count: u64,
        /// The oldest put of those that the proxy has taken.
        oldest: Option<PutName>,
        /// The budget.
        budget: Duration,
    },
    /// The thread does not end: it hangs in a call of libfabric, and is left behind with its endpoint.
    #[error("the proxy did not end within {budget:?}; {}", proxy(.beats))]
    Stuck {
        /// The budget and what was granted beyond.
        budget: Duration,
        /// Whether it ran meanwhile.
        beats: bool,
    },
}

fn left(put: &Option<PutName>) -> String {
    put.map_or_else(|| "the proxy had not taken them".into(), |put| format!("the oldest is {put}"))
}

/// What the proxy's thread and its owner share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// When to end at the latest, once that is asked for.
    until: Mutex<Option<Instant>>,
    ends: AtomicBool,
    unplugged: AtomicBool,
    stalled: AtomicBool,
    faults: Mutex<Vec<Fault>>,
}

impl Shared {
    /// When to end at the latest, once that is asked for.
    pub fn until(&self) -> Option<Instant> {
        let ends = self.ends.load(Ordering::Acquire);
        ends.then(|| *self.until.lock().unwrap_or_else(PoisonError::into_inner)).flatten()
    }

    pub fn unplugged(&self) -> bool {
        self.unplugged.load(Ordering::Relaxed)
    }

    /// Whether a test holds the proxy up.
    pub fn stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Keeps a fault, in words here and as a word for kernels.
    pub fn report(&self, fault: Fault, words: &Words) {
        let status = fault.status();
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < KEPT {
            faults.push(fault);
        }
        // After the words: a kernel's status always has them.
        words.set_status(status);
    }

    fn first_fault(&self) -> Option<Fault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }
}

/// A running proxy.
///
/// Dropping it closes it with a budget of a second, and tells no errors.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    words: Words,
    ended: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

/// How the thread ended: what it did, and commands that were left, with the oldest put.
pub(crate) struct Outcome {
    pub summary: Summary,
    pub left: u64,
    pub oldest: Option<PutName>,
}

/// Holds a proxy's thread up until it is dropped.
#[doc(hidden)]
#[derive(Debug)]
pub struct Stall<'a>(&'a Proxy);

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        self.0.shared.stalled.store(false, Ordering::Relaxed);
    }
}

/// Says so if the thread ends without an outcome.
struct Ending {
    shared: Arc<Shared>,
    words: Words,
    well: bool,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.well {
            self.shared.report(Fault::Ended, &self.words);
        }
    }
}

impl Proxy {
    /// Starts the proxy of a station, with the cards of all ranks, a ring for each sending role, and the words that receiving
    /// roles poll.
    ///
    /// # Errors
    /// A card is missing, a peer's address is refused, the words are too few, or the thread cannot be started.
    pub fn start(
        station: Station,
        book: Book,
        rings: Vec<Ring>,
        words: Words,
        options: &ProxyOptions,
    ) -> Result<Proxy, StartError> {
        let counts = (station.ports.len() as u64, u64::from(station.ranks));
        for (field, value, least) in [
            ("channels of the words", words.channels().into(), counts.0),
            ("ranks of the words", words.ranks().into(), counts.1),
        ] {
            if value != least {
                return Err(FabricError::Range { field, value, allowed: least.to_string() }.into());
            }
        }
        let rank = station.rank;
        let shared = Arc::new(Shared::default());
        let lanes = rings.into_iter().map(|ring| Lane::new(ring, options.window.max(1))).collect();
        let carrier = Carrier::new(station, book, lanes, words.clone(), Arc::clone(&shared), options.budget)?;
        let (pinned, is_pinned) = channel();
        let (end, ended) = channel();
        let core = options.core;
        let ending = Ending { shared: Arc::clone(&shared), words: words.clone(), well: false };
        let run = move || {
            let mut ending = ending;
            let refused = core.and_then(|core| pin(core).err());
            let goes = refused.is_none();
            let _ = pinned.send(refused);
            ending.well = !goes;
            if goes {
                let outcome = carrier.run();
                ending.well = true;
                let _ = end.send(outcome);
            }
        };
        let thread = std::thread::Builder::new().name(format!("fabric-{rank}")).spawn(run);
        let thread = thread.map_err(|e| FabricError::Thread { reason: e.to_string() })?;
        let proxy = Proxy { shared, words, ended, thread: Some(thread) };
        match is_pinned.recv() {
            Ok(Some(refused)) => Err(refused.into()),
            _ => Ok(proxy),
        }
    }

    /// The words that receiving roles poll.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Faults so far, the first one first; at most 64 of them.
    pub fn faults(&self) -> Vec<Fault> {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Delivers all commands that are in the rings, for as long as the budget allows, then closes the endpoint.
    ///
    /// # Errors
    /// A fault came up earlier, commands are left, or the thread does not end.
    pub fn close(mut self, budget: Duration) -> Result<Summary, CloseError> {
        self.end(budget)
    }

    fn end(&mut self, budget: Duration) -> Result<Summary, CloseError> {
        let beat = self.words.beat();
        *self.shared.until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + budget);
        self.shared.ends.store(true, Ordering::Release);
        let outcome = match self.ended.recv_timeout(budget + GRACE) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                // The thread keeps what it uses, so that leaving it behind is sound.
                self.thread = None;
                return Err(CloseError::Stuck { budget: budget + GRACE, beats: self.words.beat() != beat });
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.join();
                return Err(self.shared.first_fault().unwrap_or(Fault::Ended).into());
            }
        };
        self.join();
        match (self.shared.first_fault(), outcome) {
            (Some(fault), _) => Err(fault.into()),
            (None, Outcome { left: 0, summary, .. }) => Ok(summary),
            (None, Outcome { left: count, oldest, .. }) => {
                Err(CloseError::Unfinished { count, oldest, budget })
            }
        }
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is reported as a fault.
            let _ = thread.join();
        }
    }

    /// Closes the endpoint under the proxy, as if its network card were removed.
    #[doc(hidden)]
    pub fn unplug(&self) {
        self.shared.unplugged.store(true, Ordering::Relaxed);
    }

    /// Holds the thread up, as if the system did not run it.
    #[doc(hidden)]
    pub fn stall(&self) -> Stall<'_> {
        self.shared.stalled.store(true, Ordering::Relaxed);
        Stall(self)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end(Duration::from_secs(1));
        }
    }
}

/// Pins the calling thread to a core.
fn pin(core: usize) -> Result<(), FabricError> {
    let most = rustix::thread::CpuSet::MAX_CPU;
    crate::error::below("core", core as u64, most as u64)?;
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let pinned = rustix::thread::sched_setaffinity(None, &set);
    pinned.map_err(|e| FabricError::Core { core, reason: e.to_string() })
}
