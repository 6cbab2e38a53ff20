//! What the mock's GPUs have in common: their memory, what is alive, what was asked of them, and which calls fail.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Result;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::LaunchConfig;

/// Drivers have small numbers for streams of their own.
const FIRST_HANDLE: u64 = 0x100;

/// What a kernel was launched with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launched {
    pub gpu: u32,
    pub config: LaunchConfig,
    pub args: Vec<u64>,
}

/// What the GPUs of a test have in common, and what is looked at when the test is over.
#[derive(Debug, Default)]
pub(crate) struct Machine(pub(super) Arc<State>);

impl Deref for Machine {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl Drop for Machine {
    /// Whatever a test is about: nothing is freed twice or used after that, and nothing is left over. GPUs do not keep this alive,
    /// so that what was leaked with its GPU is found, too.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let (doubles, alive, leaks) = (self.doubles(), self.alive(), self.leaks.load(Ordering::Relaxed));
            assert_eq!(doubles, 0, "so many things were used after their end");
            assert_eq!(alive, leaks, "so many things are left over, and so many were to be");
        }
    }
}

/// What there is on a machine, and what has been asked of it.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// First byte and size of every allocation and mapping.
    pub(super) memory: Mutex<BTreeMap<u64, Region>>,
    /// Streams, events, modules and graphs that are alive.
    pub(super) handles: Mutex<BTreeSet<u64>>,
    /// Handles of streams that were destroyed: as drivers do, the next stream gets the last of them.
    pub(super) stale: Mutex<Vec<u64>>,
    /// How many there have been.
    made: AtomicU64,
    /// What was freed or destroyed a second time, or used after it was destroyed.
    doubles: AtomicU64,
    /// What a test leaves over on purpose.
    leaks: AtomicU64,
    /// Calls by name, of those that can fail.
    calls: Mutex<BTreeMap<&'static str, u32>>,
    pub launches: Mutex<Vec<Launched>>,
    /// How many maps of matrices were made.
    pub maps: AtomicU64,
    /// Blocks of whatever is loaded that an SM holds; 1 if it is 0.
    pub per_sm: AtomicU32,
    /// Blocks in clusters of whatever is loaded that a GPU holds; 0 if there are no clusters.
    pub clustered: AtomicU32,
    /// Time between two events, in nanoseconds; 1 us if it is 0.
    pub gap: AtomicU64,
    /// So much longer is the next time, in nanoseconds.
    pub growth: AtomicU64,
    /// Launches of graphs.
    pub graphs: AtomicU64,
    /// Blocks shared by IPC that were freed while somebody had them mapped.
    pub torn: AtomicU64,
    /// Calls that fail, by name and how many of them go well before.
    failing: Mutex<BTreeMap<&'static str, u32>>,
}

#[derive(Debug)]
pub(super) struct Region {
    pub bytes: u64,
    /// Keeps plain memory alive.
    pub _plain: Option<Vec<u64>>,
    pub file: Option<OwnedFd>,
    /// The block that it maps, if that was shared by IPC.
    pub of: Option<u64>,
}

impl State {
    /// Everything that has not been freed.
    pub fn alive(&self) -> u64 {
        self.memory.lock().unwrap().len() as u64 + self.handles.lock().unwrap().len() as u64
    }

    /// What was freed or destroyed a second time, or used after that.
    pub fn doubles(&self) -> u64 {
        self.doubles.load(Ordering::Relaxed)
    }

    /// So many things are left over when the test ends, on purpose.
    pub fn leaves(&self, things: u64) {
        self.leaks.store(things, Ordering::Relaxed);
    }

    /// How often something was called.
    pub fn calls(&self, call: &'static str) -> u32 {
        self.calls.lock().unwrap().get(call).copied().unwrap_or_default()
    }

    /// Lets a call fail after it went well `good` times.
    pub fn fail(&self, call: &'static str, good: u32) {
        self.failing.lock().unwrap().insert(call, good);
    }

    pub(super) fn attempt(&self, call: &'static str) -> Result<()> {
        *self.calls.lock().unwrap().entry(call).or_default() += 1;
        let mut failing = self.failing.lock().unwrap();
        match failing.get_mut(call) {
            Some(0) => Err(RuntimeError::Driver { call, gpu: None, reason: "told to".into() }),
            Some(good) => {
                *good -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(super) fn check(&self, call: &'static str, ptr: u64, bytes: u64) -> Result<()> {
        let memory = self.memory.lock().unwrap();
        let region = memory.range(..=ptr).next_back();
        match region.is_some_and(|(start, region)| ptr + bytes <= start + region.bytes) {
            true => Ok(()),
            false => Err(RuntimeError::Driver { call, gpu: None, reason: format!("no memory at {ptr:#x}") }),
        }
    }

    /// What a shared block is in.
    pub(super) fn file(&self, ptr: u64) -> OwnedFd {
        let memory = self.memory.lock().unwrap();
        memory[&ptr].file.as_ref().expect("a shared block").as_fd().try_clone_to_owned().unwrap()
    }

    pub(super) fn handle(&self) -> u64 {
        let handle = FIRST_HANDLE + self.made.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().unwrap().insert(handle);
        handle
    }

    pub(super) fn double(&self) {
        self.doubles.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn drop_handle(&self, handle: u64) -> Result<()> {
        if !self.handles.lock().unwrap().remove(&handle) {
            self.double();
        }
        Ok(())
    }

    /// Notes the use of a handle, which has to be alive if it is one of these; tests make up others.
    pub(super) fn touch(&self, handle: u64) {
        let made = self.made.load(Ordering::Relaxed);
        if (FIRST_HANDLE..FIRST_HANDLE + made).contains(&handle)
            && !self.handles.lock().unwrap().contains(&handle)
        {
            self.double();
        }
    }
}
