//! Proxies of two ranks in one process: what is refused, ordered, counted and given back.

mod there;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use peerwarp_fabric::{
    Book, BookError, Channel, CloseError, Command, Endpoint, EndpointOptions, Fault, FaultKind, Memory, Op,
    Provider, Proxy, ProxyOptions, PutName, Ring, RingError, StartError, Station, Words, library_version,
};

use there::library_is_there;

/// More than any wait takes.
const LONG: Duration = Duration::from_secs(20);
/// Units of inboxes and outboxes.
const UNITS: u32 = 4096;

fn options(provider: Provider) -> EndpointOptions {
    let domain = (provider == Provider::Tcp).then(|| "lo".into());
    EndpointOptions { provider: Some(provider), domain }
}

fn both() -> [Provider; 2] {
    [Provider::Tcp, Provider::Shm]
}

/// One of two ranks with one channel and one ring.
struct Rank {
    proxy: Proxy,
    words: Words,
    ring: Ring,
    channel: Channel,
}

fn channel() -> Channel {
    let memory = || Memory::zeroed(UNITS as usize * 16).unwrap();
    Channel { outbox: memory(), inbox: memory() }
}

fn station(provider: Provider, rank: u16, channels: &[Channel]) -> Station {
    Station::new(Endpoint::open(&options(provider)).unwrap(), rank, 2, channels).unwrap()
}

fn words(channels: u8) -> Words {
    Words::new(Memory::zeroed(Words::bytes(channels, 2)).unwrap(), channels, 2).unwrap()
}

fn ring(slots: u64) -> Ring {
    Ring::new(Memory::zeroed(Ring::bytes(slots)).unwrap(), 0, slots).unwrap()
}

impl Rank {
    fn start(
        station: Station,
        peer: u16,
        card: &[u8],
        channel: &Channel,
        slots: u64,
        options: &ProxyOptions,
    ) -> Rank {
        let mut book = Book::new(&station);
        book.insert(peer, card).unwrap();
        let (ring, words, channel) = (ring(slots), words(1), channel.clone());
        let proxy = Proxy::start(station, book, vec![ring.clone()], words.clone(), options).unwrap();
        Rank { proxy, words, ring, channel }
    }
}

fn two_ranks(provider: Provider, slots: u64, options: &ProxyOptions) -> [Rank; 2] {
    let channels = [channel(), channel()];
    let [one, other] = [0, 1].map(|rank| station(provider, rank, &channels[usize::from(rank)..][..1]));
    let cards = [one.card(), other.card()];
    [
        Rank::start(one, 1, &cards[1], &channels[0], slots, options),
        Rank::start(other, 0, &cards[0], &channels[1], slots, options),
    ]
}

/// A rank, and the open endpoint of one that has no proxy.
fn half_a_world(provider: Provider, options: &ProxyOptions) -> (Rank, Station) {
    let channel = channel();
    let [one, other] = [0, 1].map(|rank| station(provider, rank, std::slice::from_ref(&channel)));
    let card = other.card();
    (Rank::start(one, 1, &card, &channel, 8, options), other)
}

fn put(peer: u16, from: u32, to: u32, units: u32) -> Command {
    Command { op: Op::Put, channel: 0, peer, from, to, units }
}

fn counted(command: Command) -> Command {
    Command { op: Op::PutAndCount, ..command }
}

impl Rank {
    fn push(&self, command: Command) -> Result<u64, RingError> {
        self.ring.push(&command, &self.words, LONG)
    }

    fn wait_fault(&self) -> Fault {
        let start = Instant::now();
        loop {
            match self.proxy.faults().into_iter().next() {
                Some(fault) => return fault,
                None => assert!(start.elapsed() < LONG, "no fault is reported"),
            }
            std::thread::yield_now();
        }
    }
}

/// A flush orders puts that are not counted before one that is.
#[test]
fn a_count_behind_a_flush_stands_for_all_puts() {
    if !library_is_there() {
        return;
    }
    for provider in both() {
        let [one, other] = two_ranks(provider, 64, &ProxyOptions::default());
        for round in 1..=50u64 {
            one.channel.outbox.write(0, &vec![round; UNITS as usize * 2]);
            for n in 0..8 {
                one.push(put(1, n * 400, n * 400, 400)).unwrap();
            }
            one.push(Command::FLUSH).unwrap();
            let last = one.push(counted(put(1, 4000, 4000, 1))).unwrap();
            assert_eq!(other.words.wait_count(0, 0, round, LONG), Ok(round));
            let mut got = vec![0; 4001 * 2];
            other.channel.inbox.read(0, &mut got);
            let stale = got[..8 * 400 * 2].iter().chain(&got[8000..]).filter(|word| **word != round).count();
            assert_eq!(stale, 0, "over {provider} in round {round}");
            one.ring.wait_delivered(last + 1, &one.words, LONG).unwrap();
        }
        assert_eq!(other.words.count(0, 0), 50);
        let summary = one.proxy.close(LONG).unwrap();
        assert_eq!((summary.puts, summary.arrivals), (50 * 9, 0));
        assert_eq!(summary.bytes, 50 * 16 * (8 * 400 + 1));
        assert_eq!(other.proxy.close(LONG).unwrap().arrivals, 50);
    }
}

/// Closing delivers what is in the rings.
#[test]
fn closing_flushes_the_rings() {
    if !library_is_there() {
        return;
    }
    for provider in both() {
        let [one, other] = two_ranks(provider, 256, &ProxyOptions::default());
        for n in 0..200 {
            one.push(counted(put(1, n, n, 20))).unwrap();
        }
        assert_eq!(one.proxy.close(LONG).unwrap().puts, 200);
        assert_eq!(other.words.wait_count(0, 0, 200, LONG), Ok(200));
        assert_eq!(other.proxy.close(LONG).unwrap().arrivals, 200);
    }
}

/// Among puts to a peer, in the order of one ring.
#[test]
fn puts_to_the_own_rank_arrive() {
    if !library_is_there() {
        return;
    }
    for provider in both() {
        let [one, other] = two_ranks(provider, 8, &ProxyOptions::default());
        let at = |channel: &Channel, unit: u32| {
            let mut got = [0; 2];
            channel.inbox.read(unit as usize * 16, &mut got);
            got
        };
        for round in 1..=50u64 {
            one.channel.outbox.write(0, &[round, !round]);
            one.push(put(0, 0, 7, 1)).unwrap();
            one.push(counted(put(1, 0, 3, 1))).unwrap();
            one.push(Command::FLUSH).unwrap();
            let last = one.push(counted(put(0, 0, UNITS - 1, 1))).unwrap();
            assert_eq!(one.words.wait_count(0, 0, round, LONG), Ok(round));
            // The flush has waited for the put to the peer.
            let got = [at(&one.channel, 7), at(&one.channel, UNITS - 1), at(&other.channel, 3)];
            assert_eq!(got, [[round, !round]; 3], "over {provider}");
            assert_eq!(other.words.wait_count(0, 0, round, LONG), Ok(round));
            one.ring.wait_delivered(last + 1, &one.words, LONG).unwrap();
        }
        assert_eq!(at(&one.channel, 3), [0; 2]);
        let summary = one.proxy.close(LONG).unwrap();
        assert_eq!((summary.puts, summary.bytes, summary.arrivals), (150, 150 * 16, 50));
        assert_eq!(other.proxy.close(LONG).unwrap().arrivals, 50);
    }
}

/// Credits are put from and to the same unit.
#[test]
fn two_ranks_of_a_process_put_to_each_other_at_once() {
    if !library_is_there() {
        return;
    }
    let shm_holds = library_version().unwrap() < (2, 0);
    for provider in both().into_iter().filter(|p| *p != Provider::Shm || shm_holds) {
        let ranks = two_ranks(provider, 64, &ProxyOptions::default());
        std::thread::scope(|scope| {
            for (rank, peer) in [(&ranks[0], 1), (&ranks[1], 0)] {
                let Rank { words, ring, channel, .. } = rank;
                scope.spawn(move || {
                    // Two banks: the peer puts again once it has this rank's next put, which comes after the comparison.
                    for round in 0..400u64 {
                        let half = UNITS / 2;
                        let bank = round as u32 % 2 * half;
                        let place = bank as usize * 2..(bank + half) as usize * 2;
                        let own = &channel.outbox.words()[place.clone()];
                        own.iter()
                            .for_each(|word| word.store(round << 8 | u64::from(peer), Ordering::Relaxed));
                        let number = ring.push(&counted(put(peer, bank, bank, half)), words, LONG).unwrap();
                        words.wait_count(0, peer, round + 1, LONG).unwrap();
                        let got = channel.inbox.words()[place].iter();
                        let wanted = round << 8 | u64::from(1 - peer);
                        let same = got.map(|word| word.load(Ordering::Relaxed)).all(|word| word == wanted);
                        assert!(same, "{provider}: round {round}");
                        ring.wait_delivered(number + 1, words, LONG).unwrap();
                    }
                });
            }
        });
    }
}

#[test]
fn memory_of_several_channels_is_registered_once() {
    if !library_is_there() {
        return;
    }
    for provider in both() {
        let mut endpoint = Endpoint::open(&options(provider)).unwrap();
        let [one, other] = [0, 1].map(|_| Memory::zeroed(4096).unwrap());
        let first = endpoint.register(&one).unwrap();
        assert_eq!(endpoint.register(&one.clone()), Ok(first), "{provider}");
        assert_ne!(endpoint.register(&other), Ok(first), "{provider}");
    }
}

#[test]
fn a_world_of_one_rank_puts_to_itself() {
    if !library_is_there() {
        return;
    }
    let memory = Memory::zeroed(4096).unwrap();
    let channel = Channel { outbox: memory.clone(), inbox: memory.clone() };
    let endpoint = Endpoint::open(&options(Provider::Tcp)).unwrap();
    let station = Station::new(endpoint, 0, 1, &[channel]).unwrap();
    let counts = Memory::zeroed(Words::bytes(1, 1)).unwrap();
    let (book, ring, words) = (Book::new(&station), ring(8), Words::new(counts, 1, 1).unwrap());
    let proxy =
        Proxy::start(station, book, vec![ring.clone()], words.clone(), &ProxyOptions::default()).unwrap();
    memory.write(0, &[5, 6]);
    for command in [put(0, 0, 0, 1), put(0, 0, 2, 1)] {
        ring.push(&counted(command), &words, LONG).unwrap();
    }
    assert_eq!(words.wait_count(0, 0, 2, LONG), Ok(2));
    let mut got = [0; 6];
    memory.read(0, &mut got);
    assert_eq!(got, [5, 6, 0, 0, 5, 6]);
    assert_eq!(proxy.close(LONG).unwrap().puts, 2);
}

#[test]
fn a_full_ring_in_front_of_a_stalled_proxy_is_named() {
    if !library_is_there() {
        return;
    }
    let [one, other] = two_ranks(Provider::Tcp, 8, &ProxyOptions::default());
    let stall = one.proxy.stall();
    let budget = Duration::from_millis(200);
    let push = || one.ring.push(&counted(put(1, 0, 0, 1)), &one.words, budget);
    // The proxy may take a few before it comes to a stop.
    let full = std::iter::repeat_with(push).take(1000).find_map(Result::err);
    let Some(RingError::Full { ring: 0, slots: 8, taken, beats: false, .. }) = full.clone() else {
        panic!("{full:?}");
    };
    assert!(full.unwrap().to_string().ends_with("8 more wait; this rank's proxy has stalled"));
    drop(stall);
    // It goes on where it was.
    assert_eq!(other.words.wait_count(0, 0, taken + 8, LONG), Ok(taken + 8));
    one.proxy.close(LONG).unwrap();
    other.proxy.close(LONG).unwrap();
}

/// Over shared memory this runs between processes: see `processes`. Inside one process the provider shares the mapping that
/// goes with the endpoint.
#[test]
fn an_endpoint_that_goes_is_named_with_its_oldest_put() {
    if !library_is_there() {
        return;
    }
    let (one, other) = half_a_world(Provider::Tcp, &ProxyOptions::default());
    one.push(counted(put(1, 0, 0, 1))).unwrap();
    while one.ring.taken() == 0 {
        std::thread::yield_now();
    }
    one.proxy.unplug();
    let fault = one.wait_fault();
    let under_way = PutName { peer: 1, channel: 0, ring: 0, number: 0 };
    assert_eq!(fault, Fault::Endpoint { put: Some(under_way), reason: "it was closed".into() });
    assert_eq!(one.words.status().map(|status| status.kind), Some(FaultKind::Endpoint));
    assert_eq!(one.proxy.close(LONG), Err(CloseError::Fault(fault)));
    drop(other);
}

#[test]
fn commands_that_make_no_sense_are_named() {
    if !library_is_there() {
        return;
    }
    let wrong = [
        (put(2, 0, 0, 1), "peer is 2, and ranks below 2 are allowed"),
        (put(0, 0, UNITS, 1), "bytes 65536 to 65552 of the inbox are asked for, and it has 65536"),
        (put(1, UNITS, 0, 1), "bytes 65536 to 65552 of the outbox are asked for, and it has 65536"),
        (put(1, 0, UNITS - 1, 2), "bytes 65520 to 65552 of the inbox are asked for, and it has 65536"),
        (Command { channel: 1, ..put(1, 0, 0, 1) }, "channel is 1, and channels below 1 are allowed"),
    ];
    for (command, reason) in wrong {
        let [one, other] = two_ranks(Provider::Tcp, 8, &ProxyOptions::default());
        one.push(command).unwrap();
        let fault = one.wait_fault().to_string();
        let Command { peer, channel, .. } = command;
        let expected = format!(
            "put 0 of ring 0 to rank {peer} on channel {channel} is refused: {reason}; the ring is closed"
        );
        assert_eq!(fault, expected);
        let status = one.words.status().unwrap();
        assert_eq!((status.kind, status.put.unwrap().peer), (FaultKind::Command, peer));
        assert!(matches!(one.push(put(1, 0, 0, 1)), Err(RingError::Fault { ring: 0, .. })));
        assert!(one.proxy.close(LONG).is_err());
        other.proxy.close(LONG).unwrap();
    }
}

/// A peer whose endpoint is open and which has no proxy takes nothing in.
#[test]
fn a_put_to_a_rank_without_a_proxy_is_late() {
    if !library_is_there() {
        return;
    }
    for provider in both() {
        let budget = Duration::from_millis(300);
        let (one, other) = half_a_world(provider, &ProxyOptions { budget, ..ProxyOptions::default() });
        one.push(counted(put(1, 0, 0, 1))).unwrap();
        let error = one.ring.wait_delivered(1, &one.words, LONG).unwrap_err().to_string();
        let late = "put 0 of ring 0 to rank 1 on channel 0 was not delivered in time";
        assert_eq!(error, format!("ring 0 takes no command, as the proxy reports: {late}"));
        let put = PutName { peer: 1, channel: 0, ring: 0, number: 0 };
        assert_eq!(one.proxy.close(LONG), Err(CloseError::Fault(Fault::Late { put, budget })));
        drop(other);
    }
}

/// Ranks that have exchanged a put, with a budget that is short.
fn two_that_met() -> [Rank; 2] {
    let budget = Duration::from_millis(400);
    let [one, other] = two_ranks(Provider::Tcp, 8, &ProxyOptions { budget, ..ProxyOptions::default() });
    one.push(counted(put(1, 0, 0, 1))).unwrap();
    other.words.wait_count(0, 0, 1, LONG).unwrap();
    one.ring.wait_delivered(1, &one.words, LONG).unwrap();
    [one, other]
}

/// Over shared memory survivors of `processes` do this. Puts in both directions inside one process end libfabric 2.6.
#[test]
fn idle_ranks_stay_in_touch() {
    if !library_is_there() {
        return;
    }
    let [one, other] = two_that_met();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((one.words.status(), other.words.status()), (None, None));
    one.proxy.close(LONG).unwrap();
    other.proxy.close(LONG).unwrap();
}

/// Over shared memory `processes` does this. Inside one process the provider shares the mapping that goes with the endpoint, and
/// the pulse that the silent rank takes in later is in it.
#[test]
fn an_idle_rank_that_turns_silent_is_named() {
    if !library_is_there() {
        return;
    }
    let [one, other] = two_that_met();
    let stall = other.proxy.stall();
    assert_eq!(one.wait_fault(), Fault::Silent { rank: 1, budget: Duration::from_millis(400) });
    let error = one.words.wait_count(0, 1, 1, LONG).unwrap_err().to_string();
    let silent = "rank 1 is awaited on channel 0, and the proxy reports: rank 1 does not answer";
    assert_eq!(error, silent);
    assert!(one.proxy.close(LONG).is_err());
    drop(stall);
}

#[test]
fn ranks_that_were_held_up_themselves_blame_no_peer() {
    if !library_is_there() {
        return;
    }
    let [one, other] = two_that_met();
    let stalls = [one.proxy.stall(), other.proxy.stall()];
    one.push(counted(put(1, 0, 0, 1))).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    drop(stalls);
    assert_eq!(other.words.wait_count(0, 0, 2, LONG), Ok(2));
    assert!(one.proxy.close(LONG).unwrap().stalls >= 1);
    assert!(other.proxy.close(LONG).unwrap().stalls >= 1);
}

#[test]
fn closing_with_too_small_a_budget_names_what_is_left() {
    if !library_is_there() {
        return;
    }
    let (one, other) = half_a_world(Provider::Tcp, &ProxyOptions::default());
    one.push(counted(put(1, 0, 0, 1))).unwrap();
    while one.ring.taken() == 0 {
        std::thread::yield_now();
    }
    let error = one.proxy.close(Duration::from_millis(100)).unwrap_err().to_string();
    let left =
        "1 commands were not delivered within 100ms; the oldest is put 0 of ring 0 to rank 1 on channel 0";
    assert_eq!(error, left);
    drop(other);
}

#[test]
fn what_does_not_fit_is_refused() {
    if !library_is_there() {
        return;
    }
    let one = station(Provider::Tcp, 0, &[channel()]);
    let start = |station: Station, book, words| {
        Proxy::start(station, book, vec![], words, &ProxyOptions::default()).map(drop).unwrap_err()
    };
    let book = Book::new(&one);
    assert_eq!(start(one, book, words(1)), StartError::Book(BookError::Missing { missing: vec![1] }));

    let (one, other) = (station(Provider::Tcp, 0, &[channel()]), station(Provider::Tcp, 1, &[channel()]));
    let mut book = Book::new(&one);
    book.insert(1, &other.card()).unwrap();
    let error = start(one, book, words(2)).to_string();
    assert_eq!(error, "channels of the words is 2, and 1 are allowed");

    let unknown = EndpointOptions { domain: Some("no-such-card0".into()), ..options(Provider::Tcp) };
    let error = Endpoint::open(&unknown).map(drop).unwrap_err().to_string();
    assert!(error.contains("on domain `no-such-card0`: it offers "), "{error}");
    let endpoint = Endpoint::open(&options(Provider::Tcp)).unwrap();
    assert!(Station::new(endpoint, 2, 2, &[]).is_err());
}

/// Open files, threads and mappings of libfabric's making.
fn held() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Run in a process of its own by the test below, as other tests open files and start threads.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn cycles() {
    for provider in both() {
        let cycle = |fault: bool| {
            let [one, other] = two_ranks(provider, 8, &ProxyOptions::default());
            one.push(counted(put(1, 0, 0, 1))).unwrap();
            other.words.wait_count(0, 0, 1, LONG).unwrap();
            if fault {
                one.proxy.unplug();
                one.wait_fault();
                drop(one.proxy);
            } else {
                one.proxy.close(LONG).unwrap();
            }
            other.proxy.close(LONG).unwrap();
        };
        cycle(false);
        cycle(true);
        let before = held();
        (0..20).for_each(|n| cycle(n % 2 == 0));
        assert_eq!(held(), before, "files and threads over {provider}");
        let left = std::fs::read_dir("/dev/shm")
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().contains(&std::process::id().to_string()));
        assert_eq!(left.count(), 0, "shared memory over {provider}");
    }
}

#[test]
fn nothing_is_leaked() {
    if !library_is_there() {
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let ran =
        command.args(["--exact", "cycles", "--ignored", "--nocapture", "--test-threads=1"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
fn a_core_that_is_absent_is_refused() {
    if !library_is_there() {
        return;
    }
    let one = station(Provider::Tcp, 0, &[channel()]);
    let other = station(Provider::Tcp, 1, &[channel()]);
    let mut book = Book::new(&one);
    book.insert(1, &other.card()).unwrap();
    let options = ProxyOptions { core: Some(100_000), ..ProxyOptions::default() };
    let error = Proxy::start(one, book, vec![], words(1), &options).map(drop).unwrap_err().to_string();
    assert_eq!(error, "core is 100000, and values below 1024 are allowed");
}
