//! What a process does as one rank: rounds of rows to the other rank, in which every word is compared.

use std::io::{BufRead, Write};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peerwarp_gin_card::abi::{
    FORCE_STRONG_ORDER, GPU_MEMORY, HANDLE_BYTES, HOST_MEMORY, Handle, SIGNAL_ADD, SIGNAL_INCREMENT,
    SIGNAL_NEVER_RESET, Status,
};

use crate::card::{Put, Table};
use crate::driver::{Driver, MARK};

/// Rows of a round.
pub const ROWS: u64 = 64;
/// Words of a row.
const WORDS: usize = 96;
/// Words of a row of [`Kernel::Long`], which no message holds: 1.5 MiB.
const LONG: usize = 3 << 16;
/// Rows of a round of [`Kernel::Long`], which no ring holds: 10.5 MiB.
const LONG_ROWS: u64 = 7;
/// How long a kernel waits for rows.
const BUDGET: Duration = Duration::from_secs(30);
/// The same where a row is dropped.
const SHORT: Duration = Duration::from_millis(1500);

/// How a rank sends the rows of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Each row carries a signal, and each bank has its own.
    Each,
    /// As `Each`, with one signal for both banks: wrong.
    OneSignal,
    /// As `Each`; the rank also prints how long the rounds took.
    Timed,
    /// The last row carries the signal of all, behind the others.
    StrongBatch,
    /// The last row carries the signal of all, unordered: wrong.
    WeakBatch,
    /// As `Each`, with rows of more than a message, and more of them than a ring holds.
    Long,
    /// No rows: calls that are errors.
    Wrong,
}

const KERNELS: [Kernel; 7] = [
    Kernel::Each,
    Kernel::OneSignal,
    Kernel::Timed,
    Kernel::StrongBatch,
    Kernel::WeakBatch,
    Kernel::Long,
    Kernel::Wrong,
];

/// What the parent asks of both processes.
#[derive(Clone, Copy)]
pub struct Job {
    pub kernel: Kernel,
    pub rounds: u64,
    /// Of the table.
    pub version: u32,
    /// Whether memory is of the test's GPU.
    pub on_gpu: bool,
}

const VARIABLE: &str = "PEERWARP_TEST_GIN_CARD";

impl Job {
    /// For a child's environment.
    pub fn variables(&self, rank: usize) -> [(&'static str, String); 1] {
        let kernel = KERNELS.iter().position(|kernel| *kernel == self.kernel).unwrap();
        [(VARIABLE, format!("{kernel} {} {} {} {rank}", self.rounds, self.version, u8::from(self.on_gpu)))]
    }

    /// What the parent asks of this process.
    pub fn here() -> Option<Job> {
        let told = Job::told()?;
        let (kernel, version) = (KERNELS[told[0] as usize], told[2] as u32);
        Some(Job { kernel, rounds: told[1], version, on_gpu: told[3] != 0 })
    }

    fn told() -> Option<Vec<u64>> {
        let told = std::env::var(VARIABLE).ok()?;
        Some(told.split(' ').map(|number| number.parse().unwrap()).collect())
    }
}

/// A line for the parent. A broken pipe is a parent that is gone.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "@{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

/// The parent's next line.
fn hear() -> String {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).is_err() || line.is_empty() {
        std::process::exit(3);
    }
    line.trim_end().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> [u8; HANDLE_BYTES] {
    std::array::from_fn(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap())
}

/// The word that a rank sends at a place of a round.
fn word(rank: usize, round: u64, place: usize) -> u64 {
    (round << 32 | (rank as u64) << 31 | place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Memory whose words the card writes, too.
fn memory(words: usize) -> &'static [AtomicU64] {
    Box::leak((0..words).map(|_| AtomicU64::new(0)).collect())
}

/// Why a round does not end.
enum Stop {
    /// Too few rows came: the count, and what was awaited.
    Timeout(u64, u64),
    /// A call failed.
    Failed(&'static str, Status),
}

struct Rank {
    kernel: Kernel,
    rank: usize,
    table: Table,
    collective: Handle,
    context: Handle,
    /// Two banks to send from, then two to receive in.
    window: &'static [AtomicU64],
    signals: &'static [AtomicU64],
    regions: [Handle; 2],
    /// Words of a bank.
    bank: usize,
}

// SAFETY: the handles are numbers.
unsafe impl Sync for Rank {}

pub fn run(job: &Job) {
    let rank = Job::told().unwrap()[4] as usize;
    let driver = job.on_gpu.then(Driver::load);
    let table = Table::load(job.version);
    let network = match table.init() {
        Ok(network) => network,
        Err(status) => return say(&format!("refused {status}")),
    };
    let (listener, handle) = table.listen(network);
    say(&format!("handle {}", hex(&handle)));
    let mut handles: Vec<_> = hear().split(' ').map(from_hex).collect();
    let collective = table.connect(network, &mut handles, rank, listener);
    // SAFETY: takes a number alone.
    assert_eq!(unsafe { (table.setup.close_listener)(listener) }, 0);
    let context = table.context(collective);
    let bank = if job.kernel == Kernel::Long { LONG_ROWS as usize * LONG } else { ROWS as usize * WORDS };
    let (window, signals) = (memory(4 * bank), memory(8));
    let (kind, mark) = if job.on_gpu { (GPU_MEMORY, MARK) } else { (HOST_MEMORY, 0) };
    let regions = [(window, 0), (signals, FORCE_STRONG_ORDER | SIGNAL_NEVER_RESET)]
        .map(|(words, flags)| table.register(collective, words, mark, kind, flags).unwrap());
    let rank = Rank { kernel: job.kernel, rank, table, collective, context, window, signals, regions, bank };
    say("ready");
    assert_eq!(hear(), "go");
    // NCCL puts on a thread of its own, too.
    let result = std::thread::scope(|scope| scope.spawn(|| rank.result(job.rounds)).join().unwrap());
    say(&format!("result {result}"));
    // A rank that has finished still carries what the other one waits for, as its parent's line comes when both have.
    rank.carry_until("close");
    rank.close(network);
    assert_eq!(driver.map_or(0, |driver| driver.left()), 0);
    say("closed");
}

impl Rank {
    fn result(&self, rounds: u64) -> String {
        if self.kernel == Kernel::Wrong {
            return self.wrong_calls();
        }
        let (start, mut wrong_rounds, mut wrong_rows) = (Instant::now(), 0, 0);
        for round in 0..rounds {
            if rounds == u64::MAX && round == 20 {
                say("busy");
            }
            match self.round(round) {
                Ok(0) => {}
                Ok(rows) => (wrong_rounds, wrong_rows) = (wrong_rounds + 1, wrong_rows + rows),
                Err(Stop::Timeout(count, of)) => {
                    return format!("timeout round {round} count {count} of {of}");
                }
                Err(Stop::Failed(call, status)) => return self.failed(call, status),
            }
        }
        match (wrong_rounds, self.kernel) {
            (0, Kernel::Timed) => format!("right us {}", start.elapsed().as_micros()),
            (0, _) => "right".into(),
            _ => format!("wrong rounds {wrong_rounds} rows {wrong_rows}"),
        }
    }

    /// What all calls say after one has failed.
    fn failed(&self, call: &'static str, status: Status) -> String {
        let put = self.table.put(&self.row(0, 0, Some((1, SIGNAL_INCREMENT, false)))).unwrap_err();
        let test = self.table.test(self.collective, without_provenance_mut(1)).unwrap_err();
        let progress = self.table.progress(self.context).unwrap_err();
        let has_error = self.table.has_error(self.context);
        assert!(["put", "test", "progress"].contains(&call) && status == 6, "{call} {status}");
        format!("failed iputSignal {put}, test {test}, progress {progress}, has error: {has_error}")
    }

    /// The word where rows of a bank are counted. A late row of the round before must not count for this one.
    fn signal_of(&self, bank: usize) -> usize {
        if self.kernel == Kernel::OneSignal { 1 } else { 1 + bank }
    }

    /// A row of a round's bank, with a signal's value, operation and strength.
    fn row(&self, bank: usize, row: usize, signal: Option<(u64, u32, bool)>) -> Put {
        let words = if self.kernel == Kernel::Long { LONG } else { WORDS };
        let at = |bank: usize| ((bank * self.bank + row * words) * 8) as u64;
        let signals = self.signal_of(bank) as u64 * 8;
        let signal =
            signal.map(|(value, operation, strong)| (self.regions[1], signals, value, operation, strong));
        let [window, _] = self.regions;
        Put {
            context: self.context,
            from: (window, at(bank)),
            to: (window, at(2 + bank)),
            bytes: words * 8,
            rank: 1 - self.rank as u32,
            signal,
        }
    }

    /// Sends a round's rows and awaits the other rank's. Returns how many of them are wrong.
    fn round(&self, round: u64) -> Result<u64, Stop> {
        let bank = (round % 2) as usize;
        for (place, to) in self.window[bank * self.bank..][..self.bank].iter().enumerate() {
            to.store(word(self.rank, round, place), Ordering::Relaxed);
        }
        let rows = if self.kernel == Kernel::Long { LONG_ROWS } else { ROWS };
        let mut requests = vec![];
        for row in 0..rows {
            let signal = match self.kernel {
                Kernel::StrongBatch | Kernel::WeakBatch if row + 1 < rows => None,
                Kernel::StrongBatch => Some((rows, SIGNAL_ADD, true)),
                Kernel::WeakBatch => Some((rows, SIGNAL_ADD, false)),
                _ => Some((1, SIGNAL_INCREMENT, false)),
            };
            let request = self.table.put(&self.row(bank, row as usize, signal));
            requests.push(request.map_err(|status| Stop::Failed("put", status))?);
        }
        let rounds = if self.kernel == Kernel::OneSignal { round + 1 } else { round / 2 + 1 };
        self.wait(self.signal_of(bank), rounds * rows, &mut requests)?;
        let words = self.bank / rows as usize;
        let right = |(place, at): (usize, &AtomicU64)| {
            at.load(Ordering::Relaxed) == word(1 - self.rank, round, place)
        };
        let got = self.window[(2 + bank) * self.bank..][..self.bank].iter().enumerate();
        let right: Vec<bool> = got.map(right).collect();
        Ok(right.chunks(words).filter(|row| row.contains(&false)).count() as u64)
    }

    /// Waits until so many rows have come, and own ones have been read.
    fn wait(&self, signal: usize, count: u64, requests: &mut Vec<Handle>) -> Result<(), Stop> {
        let drops = std::env::var_os("PEERWARP_GIN_DROP_PUT").is_some();
        let end = Instant::now() + if drops { SHORT } else { BUDGET };
        loop {
            self.table.progress(self.context).map_err(|status| Stop::Failed("progress", status))?;
            let mut still = vec![];
            for request in requests.drain(..) {
                let is_done = self.table.test(self.collective, request);
                if !is_done.map_err(|status| Stop::Failed("test", status))? {
                    still.push(request);
                }
            }
            *requests = still;
            let is = self.signals[signal].load(Ordering::Acquire);
            if is >= count && requests.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Stop::Timeout(is, count));
            }
        }
    }

    fn carry_until(&self, line: &str) {
        let parent = std::thread::spawn(hear);
        while !parent.is_finished() {
            let _ = self.table.progress(self.context);
        }
        assert_eq!(parent.join().unwrap(), line);
    }

    /// Closes everything, and looks for leaks.
    fn close(self, network: Handle) {
        // SAFETY: take numbers alone.
        unsafe {
            for region in self.regions {
                assert_eq!((self.table.setup.deregister)(self.collective, region), 0);
            }
            assert_eq!((self.table.setup.destroy_context)(self.context), 0);
            assert_eq!((self.table.setup.close_collective)(self.collective), 0);
            assert_eq!((self.table.ends.finalize)(network), 0);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("peerwarp-gin (deleted)") && !maps.contains("/dev/shm"), "{maps}");
        for file in std::fs::read_dir("/proc/self/fd").unwrap() {
            let target = std::fs::read_link(file.unwrap().path()).unwrap_or_default();
            let target = target.to_string_lossy().into_owned();
            assert!(!target.contains("peerwarp-gin") && !target.contains("[pidfd]"), "{target}");
        }
    }

    fn wrong_calls(&self) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(
            maps.contains("/memfd:peerwarp-gin (deleted)"),
            "the segments are files without a name\n{maps}"
        );
        let row = self.row(0, 0, None);
        let [window, signals] = self.regions;
        let wrong = without_provenance_mut(0xbad);
        let increment = |operation| Some((signals, 8, 1, operation, false));
        let statuses = [
            self.table.properties(1).unwrap_err(),
            self.table.put(&Put { rank: 2, ..row }).unwrap_err(),
            self.table.put(&Put { from: (window, 4 * self.bank as u64 * 8), ..row }).unwrap_err(),
            self.table.put(&Put { from: (wrong, 0), ..row }).unwrap_err(),
            self.table.put(&Put { signal: Some((wrong, 8, 1, SIGNAL_ADD, false)), ..row }).unwrap_err(),
            self.table.put(&Put { context: self.collective, ..row }).unwrap_err(),
            self.table.put(&Put { signal: increment(3), ..row }).unwrap_err(),
            self.table.put_into(&row, null_mut()),
            self.table.test(self.collective, wrong).unwrap_err(),
            self.table.register(self.collective, self.signals, 0, 9, 0).unwrap_err(),
            self.table.register(self.collective, self.signals, 0, GPU_MEMORY, 0).unwrap_err(),
            self.table.get(self.context),
        ];
        assert_eq!(statuses, [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5]);
        // NCCL's proxy for GIN is what this asks for.
        assert_eq!(self.table.properties(0).map(|card| card.net_device_type), Ok(2));
        // No request is that of something done.
        assert_eq!(self.table.test(self.collective, null_mut()), Ok(true));
        let mut request = self.context;
        // SAFETY: the result is a local.
        assert_eq!(unsafe { (self.table.ends.flush)(self.context, 0, signals, 0, &mut request) }, 0);
        assert!(request.is_null() && !self.table.has_error(self.context));
        "right".into()
    }
}
