//! What a process does as one rank: it has the proxy of the rank, and starts the program that runs the rank's kernels.

use std::any::Any;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use peerwarp_fabric::{
    Book, Channel, Endpoint, EndpointOptions, Memory, Provider, Proxy, ProxyOptions, Ring, Station, Words,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

use super::lines::{bytes, hear, hex, say};
use crate::job::{EngineFile, LOG_SLOTS};

/// The variable with a process's task.
const VARIABLE: &str = "PEERWARP_TEST_RANK";

/// What the parent asks of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    pub rank: u16,
    pub ranks: u16,
    pub provider: String,
    /// For a peer to answer a proxy.
    pub budget: Duration,
    pub program: PathBuf,
    pub job: PathBuf,
    pub result: PathBuf,
    /// The file that the rank shares with its program, and then those of the other ranks of its node.
    pub files: Vec<(u16, PathBuf)>,
    pub engine: EngineFile,
    /// Says so when the first ring has given so many commands.
    pub tells_at: Option<u64>,
}

impl Task {
    /// For a child's environment.
    pub fn variable(&self) -> (String, String) {
        (VARIABLE.into(), serde_json::to_string(self).expect("a task is plain data"))
    }

    /// What the parent asks of this process.
    pub fn here() -> Option<Task> {
        let text = std::env::var(VARIABLE).ok()?;
        Some(serde_json::from_str(&text).expect("the parent has written it"))
    }
}

/// A file, mapped.
struct Mapped {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory, and reached through `Memory` only.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

impl Mapped {
    fn new(path: &Path, bytes: usize) -> Arc<Mapped> {
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(bytes as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the place.
        let first = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }.unwrap();
        Arc::new(Mapped { first: NonNull::new(first.cast()).unwrap(), bytes })
    }

    /// A part of it.
    fn part(self: &Arc<Self>, at: u64, bytes: usize) -> Memory {
        let at = at as usize;
        assert!(at + bytes <= self.bytes);
        let owner: Box<dyn Any + Send + Sync> = Box::new(Arc::clone(self));
        // SAFETY: it is inside the mapping, which lives as long as its owner.
        unsafe { Memory::from_raw(self.first.add(at), bytes, owner) }.unwrap()
    }
}

pub fn run(task: &Task) {
    let engine = &task.engine;
    let file = Mapped::new(&task.files[0].1, engine.bytes as usize);
    let (channels, slots) = (engine.channels as u8, 1 << LOG_SLOTS);
    let puts = file.part(engine.memory_at, (engine.bytes - engine.memory_at) as usize);
    let channel = Channel { outbox: puts.clone(), inbox: puts };
    let provider: Provider = task.provider.parse().unwrap();
    let domain = (provider == Provider::Tcp).then(|| "lo".into());
    let endpoint = Endpoint::open(&EndpointOptions { provider: Some(provider), domain }).unwrap();
    let all = vec![channel; channels.into()];
    let station = Station::new(endpoint, task.rank, task.ranks, &all).unwrap();

    say(&format!("card {}", hex(&station.card())));
    let cards = hear();
    let mut book = Book::new(&station);
    for (rank, card) in (0..).zip(cards.split(' ')).filter(|(rank, _)| *rank != task.rank) {
        book.insert(rank, &bytes(card)).unwrap();
    }
    let ring = Ring::new(file.part(engine.ring_at, Ring::bytes(slots)), 0, slots).unwrap();
    let words = file.part(engine.words_at, Words::bytes(channels, task.ranks));
    let words = Words::new(words, channels, task.ranks).unwrap();
    let options = ProxyOptions { budget: task.budget, ..ProxyOptions::default() };
    let proxy = Proxy::start(station, book, vec![ring.clone()], words.clone(), &options).unwrap();
    say("ready");

    assert_eq!(hear(), "go");
    let mut program = Command::new(&task.program);
    program.arg(&task.job).arg(&task.result);
    for (rank, path) in &task.files {
        program.arg(rank.to_string()).arg(path);
    }
    let mut program = program.spawn().unwrap();
    if let Some(commands) = task.tells_at {
        while ring.taken() < commands {
            assert!(program.try_wait().unwrap().is_none(), "the program ends before {commands} commands");
            std::thread::yield_now();
        }
        say("reached");
    }
    assert!(program.wait().unwrap().success());
    say("ended");
    match hear().as_str() {
        "drain" => {
            let mut sent = [0];
            file.part(engine.sent_at, 8).read(0, &mut sent);
            // A peer that has closed takes in nothing.
            ring.wait_delivered(sent[0], &words, task.budget).unwrap();
            say(&format!("ran {}", sent[0]));
        }
        "fault" => {
            // So many puts never arrive: only a fault ends the wait early.
            let ended = words.wait_count(0, task.rank, u64::MAX, 4 * task.budget).unwrap_err();
            let faults: Vec<String> = proxy.faults().iter().map(ToString::to_string).collect();
            say(&format!("fault {ended} | {}", faults.join(" | ")));
        }
        other => panic!("`{other}` is not understood"),
    }

    assert_eq!(hear(), "close");
    match proxy.close(Duration::from_secs(2)) {
        Ok(summary) => say(&format!("closed {} {}", summary.puts, summary.arrivals)),
        Err(e) => say(&format!("failed {e}")),
    }
}
