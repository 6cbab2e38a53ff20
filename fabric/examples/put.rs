//! Latency and bandwidth of puts between two processes of this host, as JSON.
//!
//! ```sh
//! cargo run --release -p peerwarp-fabric --example put            # tcp and shm
//! cargo run --release -p peerwarp-fabric --example put -- verbs   # another provider
//! ```
//!
//! `latency_us` is half of a round trip of 16 bytes, from a command in one ring to the count at the other side: a median.
//! `gigabytes_per_s` is of puts of one length after another, from the first command to the last delivery.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use peerwarp_fabric::{
    Book, Channel, Command, Endpoint, EndpointOptions, Memory, Op, Provider, Proxy, ProxyOptions, Ring,
    Station, UNIT, Words, library_version,
};
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Waits longer than anything measured.
const LONG: Duration = Duration::from_secs(30);
const ROUND_TRIPS: usize = 2000;
const LENGTHS: [usize; 4] = [7168, 64 << 10, 1 << 20, 8 << 20];
/// Bytes that are put for each length.
const TOTAL: usize = 256 << 20;
/// Room for several puts under way: they read and write different places.
const BYTES: usize = 64 << 20;

struct Rank {
    rank: u16,
    proxy: Proxy,
    words: Words,
    ring: Ring,
    domain: String,
}

impl Rank {
    /// Opens an endpoint and exchanges cards over pipes.
    fn join(rank: u16, provider: Provider, hear: &mut impl BufRead, say: &mut impl Write) -> Outcome<Rank> {
        let domain = (provider == Provider::Tcp).then(|| "lo".into());
        let endpoint = Endpoint::open(&EndpointOptions { provider: Some(provider), domain })?;
        let domain = endpoint.domain().to_owned();
        let channel = Channel { outbox: Memory::zeroed(BYTES)?, inbox: Memory::zeroed(BYTES)? };
        let station = Station::new(endpoint, rank, 2, &[channel])?;
        let card: String = station.card().iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(say, "{card}")?;
        say.flush()?;
        let mut line = String::new();
        hear.read_line(&mut line)?;
        let digits = line.trim().as_bytes().chunks(2);
        let card: Vec<u8> =
            digits.map(|d| Ok(u8::from_str_radix(std::str::from_utf8(d)?, 16)?)).collect::<Outcome<_>>()?;
        let mut book = Book::new(&station);
        book.insert(1 - rank, &card)?;
        let words = Words::new(Memory::zeroed(Words::bytes(1, 2))?, 1, 2)?;
        let ring = Ring::new(Memory::zeroed(Ring::bytes(1024))?, 0, 1024)?;
        let proxy = Proxy::start(station, book, vec![ring.clone()], words.clone(), &ProxyOptions::default())?;
        Ok(Rank { rank, proxy, words, ring, domain })
    }

    /// Puts bytes from and to a place; returns the ring's commands so far.
    fn put(&self, at: usize, bytes: usize) -> Outcome<u64> {
        let (at, units) = ((at / UNIT) as u32, (bytes / UNIT) as u32);
        let command =
            Command { op: Op::PutAndCount, channel: 0, peer: 1 - self.rank, from: at, to: at, units };
        Ok(self.ring.push(&command, &self.words, LONG)? + 1)
    }

    fn wait(&self, count: usize) -> Outcome<u64> {
        Ok(self.words.wait_count(0, 1 - self.rank, count as u64, LONG)?)
    }

    /// Seconds of each round trip, and of all puts of each length.
    fn measure(&self) -> Outcome<(Vec<f64>, Vec<f64>)> {
        let mut trips = vec![];
        for trip in 1..=ROUND_TRIPS {
            let start = Instant::now();
            if self.rank == 1 {
                self.wait(trip)?;
            }
            self.put(0, UNIT)?;
            if self.rank == 0 {
                self.wait(trip)?;
            }
            trips.push(start.elapsed().as_secs_f64());
        }
        let (mut whole, mut count) = (vec![], ROUND_TRIPS);
        for bytes in LENGTHS {
            let (puts, start) = (TOTAL / bytes, Instant::now());
            if self.rank == 0 {
                let mut commands = 0;
                for n in 0..puts {
                    commands = self.put(n % (BYTES / bytes) * bytes, bytes)?;
                }
                self.ring.wait_delivered(commands, &self.words, LONG)?;
            } else {
                count += puts;
                self.wait(count)?;
            }
            whole.push(start.elapsed().as_secs_f64());
        }
        Ok((trips, whole))
    }
}

fn parent(provider: Provider) -> Outcome<serde_json::Value> {
    let mut child = Process::new(std::env::current_exe()?)
        .args(["--rank-1", &provider.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(mut say), Some(hear)) = (child.stdin.take(), child.stdout.take()) else {
        return Err("the other process has no pipes".into());
    };
    let mut hear = BufReader::new(hear);
    let rank = Rank::join(0, provider, &mut hear, &mut say)?;
    let (mut trips, whole) = rank.measure()?;
    // Closing the pipe lets the other process close its proxy.
    rank.proxy.close(LONG)?;
    drop(say);
    if !child.wait()?.success() {
        return Err("the other process failed".into());
    }
    trips.sort_by(f64::total_cmp);
    let rates: Vec<_> = LENGTHS
        .iter()
        .zip(whole)
        .map(|(bytes, seconds)| json!({ "bytes": bytes, "gigabytes_per_s": TOTAL as f64 / seconds / 1e9 }))
        .collect();
    let (major, minor) = library_version()?;
    Ok(json!({
        "provider": provider.to_string(),
        "domain": rank.domain,
        "libfabric": format!("{major}.{minor}"),
        "latency_us": trips[trips.len() / 2] / 2.0 * 1e6,
        "bandwidth": rates,
    }))
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, provider] = &args[..]
        && flag == "--rank-1"
    {
        let mut hear = BufReader::new(std::io::stdin());
        let rank = Rank::join(1, provider.parse()?, &mut hear, &mut std::io::stdout())?;
        rank.measure()?;
        hear.read_line(&mut String::new())?;
        rank.proxy.close(LONG)?;
        return Ok(());
    }
    let named: Vec<Provider> = args.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let providers = if named.is_empty() { vec![Provider::Tcp, Provider::Shm] } else { named };
    let results = providers.into_iter().map(parent).collect::<Outcome<Vec<_>>>()?;
    println!("{}", serde_json::to_string_pretty(&results)?);
    Ok(())
}
