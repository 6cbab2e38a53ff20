//! Arbitrary and mutated bytes, for everything that reads what another process says.
//!
//! `PEERWARP_FUZZ_SECONDS` says for how long. What was found is in `testdata`: messages and attacks that inputs are made of,
//! and the seeds of inputs that failed once.

use std::cell::Cell;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use std::{fs, io};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, FileFailurePersistence, TestError, TestRunner};

use super::bootstrap::{Introduction, Part, Seals};
use super::channel::{Channel, LONGEST, Message};
use super::deadline::Deadline;
use super::form::FormError;
use super::handover::{IPC, PARCEL, Parcel};
use super::handshake::{Knock, Meeting, Opening, Session, Side, check_start};
use super::introductions::{Caller, Entrance, Introductions};
use super::rendezvous::tests::secret;
use super::rendezvous::{Card, complete};
use super::teams::Teams;

/// A folder of `testdata`.
const MESSAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/runtime/net/testdata/messages");
/// Seeds of inputs that failed once: they are tried first.
const FAILED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/runtime/net/testdata/failed-inputs.txt");

/// How long inputs are made by default.
const SECONDS: f64 = 3.0;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(MESSAGES).unwrap().map(|file| file.unwrap().path());
    let read = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
    };
    let mut corpus: Vec<_> = files.map(read).collect();
    corpus.sort();
    corpus
}

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Put(Index, u8),
    Cut(Index, u8),
    Insert(Index, Vec<u8>),
    /// What follows in another message takes the place of what follows here.
    Splice(Index, Index, Index),
}

/// Where JSON, and numbers in it, are at their ends.
const TOKENS: [&str; 12] = [
    "null",
    "[]",
    "{}",
    "-1",
    "1e999",
    "-0.0",
    "18446744073709551616",
    "4294967296",
    "\"\\ud800\"",
    "[[[[",
    ",",
    "\"",
];

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    prop_oneof![
        (at(), 0..8u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Put(at, byte)),
        (at(), 1..40u8).prop_map(|(at, count)| Change::Cut(at, count)),
        (at(), vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), prop::sample::select(&TOKENS[..])).prop_map(|(at, t)| Change::Insert(at, t.into())),
        (at(), at(), at()).prop_map(|(at, other, from)| Change::Splice(at, other, from)),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change], corpus: &[(String, Vec<u8>)]) -> Vec<u8> {
    for change in changes {
        let ends = bytes.len() + 1;
        let at = |at: &Index| at.index(ends);
        match change {
            Change::Flip(i, bit) => drop(bytes.get_mut(at(i)).map(|byte| *byte ^= 1 << bit)),
            Change::Put(i, new) => drop(bytes.get_mut(at(i)).map(|byte| *byte = *new)),
            Change::Cut(i, count) => {
                let start = at(i);
                drop(bytes.drain(start..(start + usize::from(*count)).min(bytes.len())));
            }
            Change::Insert(i, new) => drop(bytes.splice(at(i)..at(i), new.iter().copied())),
            Change::Splice(i, other, from) => {
                let other = &corpus[other.index(corpus.len())].1;
                bytes.truncate(at(i));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
        }
    }
    bytes
}

/// Bytes of any kind, most of them close to a message.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let corpus = corpus();
    prop_oneof![
        1 => vec(any::<u8>(), 0..300),
        6 => (any::<Index>(), vec(change(), 0..6)).prop_map(move |(which, changes)| {
            changed(corpus[which.index(corpus.len())].1.clone(), &changes, &corpus)
        }),
    ]
}

fn card() -> impl Strategy<Value = Card> {
    // Few ranks and GPUs, so that some fit together.
    let facts = || btree_map("[ab]", "[xy]", 0..2);
    (0..4u32, 0..4u32, "[0-3]", ".{0,4}", facts()).prop_map(|(rank, ranks, bus_id, socket, facts)| Card {
        share_gpus: rank == 3,
        rank,
        ranks,
        machine: bus_id.clone(),
        node: bus_id.clone(),
        bus_id,
        socket,
        facts,
    })
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Into::into),
            btree_map(".{0,4}", inner, 0..5).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn error() -> impl Strategy<Value = FormError> {
    let waited = || (any::<u64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos));
    let text = || ".{0,9}";
    prop_oneof![
        (vec(any::<u32>(), 0..4), text(), waited(), btree_map(".{0,9}", any::<u32>(), 0..3)).prop_map(
            |(missing, place, waited, turned_away)| FormError::Missing {
                missing,
                place,
                waited,
                turned_away
            }
        ),
        (any::<u32>(), waited()).prop_map(|(rank, waited)| FormError::Late { rank, waited }),
        (text(), waited(), text()).prop_map(|(address, waited, reason)| FormError::NoAnswer {
            address,
            waited,
            reason
        }),
        (text(), text()).prop_map(|(path, reason)| FormError::Socket { path, reason }),
        (any::<u32>(), text()).prop_map(|(rank, reason)| FormError::Malformed { rank, reason }),
        (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>())
            .prop_map(|(from, to, wrote, found)| FormError::Unreachable { from, to, wrote, found }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        card().prop_map(Message::Hello),
        vec(card(), 0..4).prop_map(Message::Welcome),
        value().prop_map(Message::Part),
        vec(value(), 0..4).prop_map(Message::All),
        error().prop_map(Message::Failed),
    ]
}

/// What is accepted is what would be sent.
fn decoders(bytes: &[u8]) -> Result<(), TestCaseError> {
    let start = check_start(bytes);
    // What is refused stays refused, whatever follows.
    prop_assert!(start.is_ok() || check_start(&[bytes, b"more"].concat()).is_err());
    if let Some(Ok(opening)) = bytes.first_chunk().map(Opening::decode) {
        prop_assert!(opening.encode() == bytes[..Opening::BYTES]);
    }
    if let Some(Ok(knock)) = bytes.first_chunk().map(Knock::decode) {
        prop_assert!(knock.encode() == bytes[..Knock::BYTES]);
    }
    if let Some(Ok(parcel)) = bytes.first_chunk::<PARCEL>().map(Parcel::decode) {
        prop_assert!(parcel.encode() == bytes[..PARCEL]);
    }
    if let Ok(message) = Message::decode(bytes) {
        let again = Message::decode(&message.encode().unwrap()).unwrap();
        prop_assert_eq!(&again, &message);
        meaning(&message)?;
    }
    Ok(())
}

/// What a rank makes of a message that it can read.
fn meaning(message: &Message) -> Result<(), TestCaseError> {
    match message {
        Message::Failed(error) => drop(error.to_string()),
        Message::Welcome(cards) => {
            for own in cards {
                if complete(cards, own).is_ok() {
                    let ranks: Vec<u32> = cards.iter().map(|card| card.rank).collect();
                    prop_assert_eq!(ranks, (0..own.ranks).collect::<Vec<_>>());
                    prop_assert_eq!(&cards[own.rank as usize], own);
                }
            }
        }
        Message::Part(value) => {
            if let Ok(Ok(part)) = serde_json::from_value::<Result<Part, String>>(value.clone()) {
                prop_assert!(seals().open(1, 1, part).is_err(), "bytes without the key are a rank's");
            }
        }
        Message::All(values) => {
            let read = |value: &serde_json::Value| serde_json::from_value::<Result<_, String>>(value.clone());
            if let Ok(Ok(all)) = values.iter().map(read).collect::<Result<Result<Vec<Introduction>, _>, _>>()
            {
                let teams = Teams::by_node(&all.iter().map(|one| &one.node).collect::<Vec<_>>());
                prop_assert!(teams.is_err() || teams.unwrap().ranks() as usize == all.len());
            }
        }
        Message::Hello(_) => {}
    }
    Ok(())
}

/// The seals of a world of several nodes.
fn seals() -> Seals {
    let of = |nonce| Introduction { node: "node a".into(), nonce: [nonce; 32] };
    Seals::new(&secret(), &[of(1), of(2)])
}

/// One end of a connection between two ranks.
fn session(side: Side) -> Session {
    let meeting = Meeting { place: "here", host: 0, guest: 1, host_nonce: [1; 32], guest_nonce: [2; 32] };
    meeting.session(&secret(), side)
}

fn host() -> Session {
    session(Side::Host)
}

/// A connection on which a stranger puts bytes, in place of a rank's.
fn frames(bytes: &[u8]) -> Result<(), TestCaseError> {
    let deadline = Deadline::after(Duration::from_secs(20));
    let say = |bytes: &[u8]| {
        let (mut rank, reader) = UnixStream::pair().unwrap();
        rank.write_all(bytes).unwrap();
        reader
    };
    let receive = |bytes: &[u8]| Channel::new(say(bytes), host()).receive(1, &deadline);
    prop_assert!(receive(bytes).is_err());
    // A message whose mark is right arrives if it is one; with any other mark it does not.
    let length = (bytes.len() as u32).to_le_bytes();
    let mark = session(Side::Guest).seal(bytes);
    let sealed = [&length, bytes, &mark].concat();
    prop_assert_eq!(receive(&sealed).is_ok(), Message::decode(bytes).is_ok());
    let at = bytes.iter().map(|b| usize::from(*b)).sum::<usize>() % (sealed.len() - 4) + 4;
    let mut bad = sealed.clone();
    bad[at] ^= 1;
    prop_assert!(receive(&bad).is_err(), "byte {} was changed", at);
    // Nor do one that the reader has said itself, or the first as a second one.
    let reflected = [&length, bytes, &host().seal(bytes)].concat();
    prop_assert!(receive(&reflected).is_err());
    let mut twice = Channel::new(say(&[sealed.as_slice(), &sealed].concat()), host());
    let _ = twice.receive(1, &deadline);
    prop_assert!(twice.receive(1, &deadline).is_err());
    // What says that it is long gets no more memory than it has bytes.
    let mut text = vec![];
    let mut long = Channel::new(say(bytes), host());
    prop_assert!(long.read(LONGEST as usize, &mut text, &deadline).is_err());
    prop_assert!(text.capacity() <= 2 * bytes.len() + (1 << 15), "{} bytes", text.capacity());
    Ok(())
}

/// An entrance at which no process connects by itself.
struct Closed(UnixStream);

impl AsFd for Closed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Entrance for Closed {
    type Stream = UnixStream;

    fn accept(&self) -> io::Result<Caller<UnixStream>> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// Somebody who connects and says this in so many pieces; whether they pass for a rank, and what they are told.
fn introduced(pieces: impl FnOnce(Opening) -> Vec<Vec<u8>>) -> (bool, usize) {
    let closed = Closed(UnixStream::pair().unwrap().0);
    let secret = secret();
    let mut introductions = Introductions::new(&closed, &secret, 0);
    let (mut outside, stream) = UnixStream::pair().unwrap();
    introductions.open(Caller { stream, name: "somebody".into(), place: "here".into(), stranger: None });
    let mut opening = [0; Opening::BYTES];
    io::Read::read_exact(&mut outside, &mut opening).unwrap();
    let mut rank = false;
    for piece in pieces(Opening::decode(&opening).unwrap()) {
        if rank || introductions.newcomers() == 0 || outside.write_all(&piece).is_err() {
            break;
        }
        rank = introductions.hear(0).is_some();
    }
    drop(introductions);
    outside.set_nonblocking(true).unwrap();
    let mut told = vec![];
    let _ = io::Read::read_to_end(&mut outside, &mut told);
    (rank, told.len())
}

/// A stranger's bytes at an entrance, and those of a rank with changes.
fn strangers(bytes: &[u8], changes: &[Change]) -> Result<(), TestCaseError> {
    let pieces = |bytes: &[u8]| bytes.chunks(40).map(<[u8]>::to_vec).collect::<Vec<_>>();
    prop_assert_eq!(introduced(|_| pieces(bytes)), (false, 0));
    let same = Cell::new(false);
    let heard = introduced(|opening| {
        let meeting =
            Meeting { place: "here", host: 0, guest: 3, host_nonce: opening.nonce, guest_nonce: [9; 32] };
        let knock = Knock { rank: 3, nonce: [9; 32], proof: meeting.proof(&secret(), Side::Guest) }.encode();
        let said = changed(knock.to_vec(), changes, &corpus());
        same.set(said.starts_with(&knock));
        pieces(&said)
    });
    prop_assert_eq!(heard, if same.get() { (true, 32) } else { (false, 0) });
    Ok(())
}

/// Runs a property until the time is up; yields how many inputs it had.
fn run<S: Strategy>(
    strategy: &S,
    end: Instant,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) -> u64 {
    let inputs = Cell::new(0);
    loop {
        let persistence = Box::new(FileFailurePersistence::Direct(FAILED));
        let config = Config { cases: 256, failure_persistence: Some(persistence), ..Config::default() };
        // A runner makes so many inputs and no more.
        let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..config });
        let result = runner.run(strategy, |input| {
            inputs.set(inputs.get() + 1);
            property(input)
        });
        match result {
            Err(TestError::Fail(why, input)) => panic!("{why}\n{input:?}"),
            Err(TestError::Abort(why)) => panic!("{why}"),
            Ok(()) if Instant::now() >= end => return inputs.get(),
            Ok(()) => {}
        }
    }
}

#[test]
fn no_bytes_pass_for_what_they_are_not() {
    let seconds = std::env::var("PEERWARP_FUZZ_SECONDS").ok().map(|s| s.parse().expect("seconds"));
    let time = Duration::from_secs_f64(seconds.unwrap_or(SECONDS));
    let (start, mut inputs) = (Instant::now(), [0; 3]);
    // In turns: a failure of one is not found an hour late.
    while start.elapsed() < time {
        let turn = || Instant::now() + (time / 3).min(Duration::from_secs(20));
        inputs[0] += run(&bytes(), turn(), |bytes| decoders(&bytes));
        inputs[1] += run(&message(), turn(), |message| decoders(&message.encode().unwrap()));
        inputs[2] += run(&(bytes(), vec(change(), 0..3)), turn(), |(bytes, changes)| {
            frames(&bytes)?;
            strangers(&bytes, &changes)
        });
    }
    let [plain, made, connections] = inputs;
    println!(
        "{plain} inputs for each decoder, {made} messages there and back, {connections} inputs on connections, in {:.0?}",
        start.elapsed()
    );
}

#[test]
fn messages_in_the_tree_are_what_their_names_say() {
    let read = |name: &str, bytes: &[u8]| match name.split('-').next().unwrap() {
        "opening" => Opening::decode(bytes.try_into().unwrap()).is_ok(),
        "knock" => Knock::decode(bytes.try_into().unwrap()).is_ok(),
        "parcel" => Parcel::decode(bytes.try_into().unwrap()).is_ok(),
        _ => Message::decode(bytes).is_ok(),
    };
    let readable = corpus().into_iter().filter(|(name, bytes)| read(name, bytes)).map(|(name, _)| name);
    let want = [
        "all",
        "all-empty",
        "all-introductions",
        "failed-late",
        "failed-lost",
        "failed-mismatch",
        "failed-missing",
        "failed-unreachable",
        "hello",
        "knock",
        "opening",
        "parcel-fd",
        "parcel-ipc",
        "part",
        "part-error",
        "part-introduction",
        "part-sealed",
        "welcome",
        "welcome-empty",
        "welcome-rank-7",
        "welcome-same-rank",
    ];
    assert_eq!(readable.collect::<Vec<_>>(), want);
    let part = |name: &str| {
        let found = corpus().into_iter().find(|(file, _)| file == name).unwrap();
        let Ok(Message::Part(value)) = Message::decode(&found.1) else { panic!("{name} is no part") };
        value
    };
    let sealed = serde_json::json!(Ok::<_, String>(seals().close(1, 2, b"card")));
    assert_eq!(part("part-sealed"), sealed);
    serde_json::from_value::<Result<Introduction, String>>(part("part-introduction")).unwrap().unwrap();
    assert_eq!(Parcel { bytes: 1, ipc: Some([2; IPC]) }.encode().len(), PARCEL);
}
