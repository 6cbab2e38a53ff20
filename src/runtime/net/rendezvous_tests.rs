use std::io::{Read, Write};
use std::thread::{JoinHandle, spawn};
use std::time::Instant;

use super::super::handshake::{Knock, Opening, PROTOCOL};
use super::*;
use crate::input::logged;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
/// Enough for others to come, on a machine that has much to do, and not for ever where none does.
const WHILE: Duration = Duration::from_secs(3);

/// A port that was free a moment ago.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// What the ranks of tests know.
pub(crate) fn secret() -> Secret {
    Secret::new("what the ranks of tests know and strangers do not").unwrap()
}

/// What strangers believe that it is.
fn guess() -> Secret {
    Secret::new("what strangers believe that the ranks know").unwrap()
}

fn card(rank: u32, ranks: u32) -> Card {
    let facts = BTreeMap::from([("kernel tables".to_owned(), "abc".to_owned())]);
    Card { rank, ranks, bus_id: format!("{rank}"), facts, ..Card::default() }
}

type Joined = Result<(Rendezvous, Vec<Card>), FormError>;

fn join(address: &str, card: Card, timeout: Duration) -> JoinHandle<Joined> {
    let address = address.to_owned();
    spawn(move || Rendezvous::join(&address, &secret(), card, timeout))
}

/// All ranks of a world of `ranks`.
fn world(ranks: u32, timeout: Duration) -> Vec<Rendezvous> {
    let address = free_address();
    let joining: Vec<_> = (0..ranks).map(|r| join(&address, card(r, ranks), timeout)).collect();
    joining.into_iter().map(|j| j.join().unwrap().unwrap().0).collect()
}

#[test]
fn all_get_each_rank_s_card_and_values_by_rank() {
    let address = free_address();
    // The last one first: rank 0 does not listen yet.
    let joining: Vec<_> = (0..4).rev().map(|r| join(&address, card(r, 4), LONG)).collect();
    let mut ranks: Vec<Rendezvous> = vec![];
    for joined in joining {
        let (rendezvous, cards) = joined.join().unwrap().unwrap();
        assert_eq!(cards, (0..4).map(|r| card(r, 4)).collect::<Vec<_>>());
        ranks.push(rendezvous);
    }
    let gathering = ranks.into_iter().map(|mut r| {
        spawn(move || {
            let own = r.rank * 10;
            (0..3).map(|i| r.gather(Value::from(own + i)).unwrap()).collect::<Vec<_>>()
        })
    });
    for gathered in gathering.collect::<Vec<_>>() {
        let want = |i: u32| (0..4).map(|r| Value::from(r * 10 + i)).collect::<Vec<_>>();
        assert_eq!(gathered.join().unwrap(), [want(0), want(1), want(2)]);
    }
}

#[test]
fn what_differs_is_named_to_all() {
    let address = free_address();
    let mut other = card(1, 2);
    other.facts.insert("kernel tables".into(), "xyz".into());
    let joining = [join(&address, card(0, 2), LONG), join(&address, other, LONG)];
    for joined in joining {
        let said = joined.join().unwrap().unwrap_err().to_string();
        assert_eq!(
            said,
            "kernel tables of rank 1 is xyz, and abc on rank 0: it has to be the same on all ranks"
        );
    }
}

#[test]
fn a_fact_that_one_rank_does_not_have_differs() {
    let mut other = card(1, 2);
    other.facts.insert("wheel".into(), "2".into());
    let error = fits(&BTreeMap::from([(0, card(0, 2))]), &other).unwrap_err().to_string();
    assert!(error.starts_with("wheel of rank 1 is 2, and not known on rank 0"), "{error}");
    other.facts.clear();
    let error = fits(&BTreeMap::from([(0, card(0, 2))]), &other).unwrap_err().to_string();
    assert!(error.starts_with("kernel tables of rank 1 is not known, and abc on rank 0"), "{error}");
}

#[test]
fn ranks_that_make_no_world_are_named() {
    let there = BTreeMap::from([(0, card(0, 3)), (1, card(1, 3))]);
    let said = |new: Card| fits(&there, &new).unwrap_err().to_string();
    assert_eq!(said(card(1, 3)), "two processes say that they are rank 1");
    assert_eq!(
        said(card(2, 4)),
        "world size of rank 2 is 4, and 3 on rank 0: it has to be the same on all ranks"
    );
    assert!(said(card(3, 3)).starts_with("rank 3 says something that makes no sense"));
    let same = Card { bus_id: "1".into(), ..card(2, 3) };
    assert_eq!(
        said(same),
        "ranks 1 and 2 both have GPU 1: every rank needs a GPU of its own, unless `share_gpus` is set"
    );
}

#[test]
fn ranks_that_do_not_come_are_named_to_the_others() {
    let address = free_address();
    let joining = [join(&address, card(0, 4), SHORT), join(&address, card(2, 4), SHORT)];
    for joined in joining {
        match joined.join().unwrap().unwrap_err() {
            FormError::Missing { missing, .. } => assert_eq!(missing, [1, 3]),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn without_rank_0_the_address_is_named() {
    let address = free_address();
    let error = Rendezvous::join(&address, &secret(), card(1, 2), SHORT).unwrap_err();
    assert!(matches!(&error, FormError::NoAnswer { address: a, .. } if *a == address), "{error}");
}

#[test]
fn what_rank_0_listens_at_is_named_with_absent_ranks() {
    let error = join(&free_address(), card(0, 2), SHORT).join().unwrap().unwrap_err().to_string();
    // Debian's hosts lead a machine's own name to 127.0.1.1.
    assert!(error.contains("nothing of rank 1 at 127.0.0.1:"), "{error}");
    assert!(error.ends_with(", which other machines do not reach"), "{error}");
}

#[test]
fn an_address_at_which_nothing_listens_is_named() {
    let address = free_address();
    let error = Rendezvous::join(&address, &secret(), card(1, 2), SHORT).unwrap_err().to_string();
    let said = format!("rank 0 did not answer at {address} for 300.0ms: nothing listens at {address}");
    assert_eq!(error, said);
}

#[test]
fn the_silence_of_a_firewall_is_named_within_the_budget() {
    // The system drops connections that find a full queue, as a firewall drops them.
    let any = rustix::net::SocketAddrV4::new([127, 0, 0, 1].into(), 0);
    let silent = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
    let silent = silent.unwrap();
    rustix::net::bind(&silent, &any).unwrap();
    rustix::net::listen(&silent, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap();
    let mut queued = vec![];
    while let Ok(stream) = TcpStream::connect_timeout(&address, SHORT) {
        queued.push(stream);
        assert!(queued.len() < 64, "the queue is never full");
    }
    let start = Instant::now();
    let address = address.to_string();
    let error = Rendezvous::join(&address, &secret(), card(1, 2), WHILE).unwrap_err().to_string();
    assert!(start.elapsed() < WHILE + Duration::from_secs(2), "{:?}", start.elapsed());
    let said = format!("{address} gives no answer, not even a refusal: a firewall drops what is sent there");
    assert!(error.contains(&said), "{error}");
}

#[test]
fn a_name_without_an_address_is_named() {
    let error = Rendezvous::join("no-such-host.invalid:1", &secret(), card(1, 2), SHORT).unwrap_err();
    assert!(
        matches!(&error, FormError::NoAnswer { address, .. } if address.starts_with("no-such")),
        "{error}"
    );
    let said = error.to_string();
    assert!(!said.contains("no attempt") && !said.contains("nothing listens"), "{said}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = Rendezvous::join(&address, &secret(), card(0, 2), SHORT).unwrap_err();
    assert!(matches!(&error, FormError::Listen { address: a, .. } if *a == address), "{error}");
}

#[test]
fn a_rank_that_dies_while_others_are_awaited_is_named() {
    let address = free_address();
    let zero = join(&address, card(0, 3), LONG);
    let mut one = connect(&address, &secret(), 1, &Deadline::after(LONG)).unwrap();
    one.send(&Message::Hello(card(1, 3))).unwrap();
    drop(one);
    let start = Instant::now();
    assert_eq!(zero.join().unwrap().unwrap_err(), FormError::Lost { rank: 1 });
    assert!(start.elapsed() < LONG / 2);
}

/// Connects to rank 0 as soon as it listens.
pub(crate) fn reach(address: &str) -> TcpStream {
    let end = Instant::now() + LONG;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) if stream.local_addr().unwrap() != stream.peer_addr().unwrap() => return stream,
            _ => assert!(Instant::now() < end, "no process listens"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All that is said on a connection until it is closed.
fn heard(mut stream: TcpStream) -> Vec<u8> {
    let mut all = vec![];
    stream.set_read_timeout(Some(LONG)).unwrap();
    // A connection that is closed with something unread is an error, after what was said.
    let _ = stream.read_to_end(&mut all);
    all
}

/// A proof of what this one believes to be the secret.
fn knock(stream: &mut TcpStream, rank: u32) -> Vec<u8> {
    let place = between(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let _ = introduce(stream, &place, &guess(), (rank, 0), &Deadline::after(LONG));
    vec![]
}

/// What a stranger does, and what they say after that.
type Act = Box<dyn Fn(&mut TcpStream) -> Vec<u8> + Send>;

#[test]
fn strangers_are_turned_away_and_told_nothing() {
    logged::keep();
    let hello = br#"{"Hello":{"rank":1,"ranks":3,"bus_id":"","socket":"","facts":{}}}"#;
    let framed = [&(hello.len() as u32).to_le_bytes(), hello.as_slice()].concat();
    let start = b"peerwarp".as_slice();
    let old = [start, &2u32.to_le_bytes()].concat();
    let current = [start, &PROTOCOL.to_le_bytes()].concat();
    let says = |bytes: Vec<u8>| Box::new(move |_: &mut TcpStream| bytes.clone()) as Act;
    let acts: [(Act, &str); 6] = [
        (says(b"GET / HTTP/1.1\r\n\r\n".into()), "do not speak Peerwarp's protocol"),
        (says(framed), "do not speak Peerwarp's protocol"),
        (says(old), "speak version 2 of the protocol"),
        (says([current, vec![0xff; Knock::BYTES]].concat()), "do not know the world's secret"),
        (Box::new(|stream| knock(stream, 1)), "do not know the world's secret"),
        (Box::new(|stream| knock(stream, u32::MAX)), "do not know the world's secret"),
    ];
    let turned_away = acts.map(|(act, reason)| spawn(move || is_turned_away(act, reason)));
    turned_away.into_iter().for_each(|stranger| stranger.join().unwrap());
}

/// Has a stranger come to a rank 0 of its own.
fn is_turned_away(act: Act, reason: &str) {
    let address = free_address();
    let zero = join(&address, card(0, 2), WHILE);
    let mut stranger = reach(&address);
    let name = stranger.local_addr().unwrap();
    let already = match act(&mut stranger) {
        said if said.is_empty() => Opening::BYTES,
        said => {
            stranger.write_all(&said).unwrap();
            0
        }
    };
    let told = heard(stranger);
    assert_eq!(already + told.len(), Opening::BYTES, "{reason}: {told:?}");
    match zero.join().unwrap().unwrap_err() {
        FormError::Missing { missing, turned_away, .. } => {
            assert_eq!((missing, turned_away), (vec![1], BTreeMap::from([(reason.to_owned(), 1)])));
        }
        other => panic!("{other}"),
    }
    let line = format!("WARN: rank 0: turned {name} away: they {reason}");
    assert!(logged::kept().contains(&line), "{line}");
}

#[test]
fn processes_that_were_turned_away_are_counted_in_the_error() {
    let turned_away = BTreeMap::from([("say nothing".to_owned(), 2), ("lie".to_owned(), 1)]);
    let place = "10.0.0.1:29500".to_owned();
    let error = FormError::Missing { missing: vec![1, 2], place, waited: SHORT, turned_away };
    let said = "after 300.0ms there was nothing of ranks 1, 2 at 10.0.0.1:29500; 3 other connections were turned away: \
                1 lie, 2 say nothing";
    assert_eq!(error.to_string(), said);
}

#[test]
fn strangers_do_not_keep_a_world_from_forming() {
    let address = free_address();
    let zero = join(&address, card(0, 2), LONG);
    // As many as are heard at once, and more, who say nothing; and one who says it slowly. One after the other they would
    // have minutes.
    let idle: Vec<TcpStream> = (0..100).map(|_| reach(&address)).collect();
    let mut slow = reach(&address);
    slow.write_all(b"peer").unwrap();
    let mut wrong = reach(&address);
    knock(&mut wrong, 1);
    let one = join(&address, card(1, 2), LONG);
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
    drop((idle, slow));
}

#[test]
fn a_guest_that_proved_it_and_says_another_rank_is_turned_away() {
    let address = free_address();
    let zero = join(&address, card(0, 3), LONG);
    for message in [Message::Hello(card(2, 3)), Message::Part(Value::Null)] {
        let mut liar = connect(&address, &secret(), 1, &Deadline::after(LONG)).unwrap();
        liar.send(&message).unwrap();
        assert_eq!(liar.receive(0, &Deadline::after(LONG)).unwrap_err(), FormError::Lost { rank: 0 });
    }
    let others = [1, 2].map(|rank| join(&address, card(rank, 3), LONG));
    zero.join().unwrap().unwrap();
    others.into_iter().for_each(|other| drop(other.join().unwrap().unwrap()));
}

/// Somebody who listens where rank 0 should, and does not know the secret. Yields what a rank says to them.
fn imposter(listener: TcpListener) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&Opening { nonce: [7; 32] }.encode()).unwrap();
    let mut said = vec![0; Knock::BYTES];
    stream.read_exact(&mut said).unwrap();
    // Its own proof, sent back.
    stream.write_all(&said[Knock::BYTES - 32..]).unwrap();
    said.extend(heard(stream));
    said
}

#[test]
fn who_listens_first_is_not_believed_to_be_rank_0() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let imposter = spawn(move || imposter(listener));
    let error = Rendezvous::join(&address, &secret(), card(1, 2), WHILE).unwrap_err();
    assert_eq!(imposter.join().unwrap().len(), Knock::BYTES, "more than the proof was said");
    assert!(matches!(&error, FormError::NoAnswer { .. }), "{error}");
}

#[test]
fn rank_0_is_found_after_an_imposter_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let one = join(&address, card(1, 2), LONG);
    imposter(listener);
    let zero = join(&address, card(0, 2), LONG);
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
}

#[test]
fn what_is_passed_on_through_a_third_process_proves_nothing() {
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let (outside, inside) = (between.local_addr().unwrap().to_string(), free_address());
    let zero = join(&inside, card(0, 2), WHILE);
    let one = join(&outside, card(1, 2), WHILE);
    let (rank, host) = (between.accept().unwrap().0, reach(&inside));
    let pass = |from: &TcpStream, to: &TcpStream| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        spawn(move || {
            let passed = io::copy(&mut from, &mut to).unwrap_or_default();
            let _ = to.shutdown(std::net::Shutdown::Write);
            passed
        })
    };
    let passed = [pass(&host, &rank), pass(&rank, &host)];
    drop((rank, host, between));
    let passed = passed.map(|p| p.join().unwrap());
    assert_eq!(passed, [Opening::BYTES as u64, Knock::BYTES as u64]);
    assert!(matches!(zero.join().unwrap().unwrap_err(), FormError::Missing { .. }));
    assert!(matches!(one.join().unwrap().unwrap_err(), FormError::NoAnswer { .. }));
}

/// What rank 1 makes of a rank 0 that knows the secret, and hands out these cards and these parts.
fn scripted(welcome: Vec<Card>, all: Vec<Value>) -> Result<Vec<Value>, FormError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let host = spawn(move || {
        let (secret, deadline) = (secret(), Deadline::after(LONG));
        let mut introductions = Introductions::new(&listener, &secret, 0);
        let Ok(Next::Guest(guest)) = introductions.next(&[], &deadline) else { panic!("no process came") };
        let mut channel = Channel::new(guest.stream, guest.session);
        channel.receive(1, &deadline).unwrap();
        channel.send(&Message::Welcome(welcome)).unwrap();
        if channel.receive(1, &deadline).is_ok() {
            channel.send(&Message::All(all)).unwrap();
            let _ = channel.receive(1, &deadline);
        }
    });
    let said = Rendezvous::join(&address, &secret(), card(1, 2), LONG)
        .and_then(|(mut rendezvous, _)| rendezvous.gather(Value::Null));
    host.join().unwrap();
    said
}

#[test]
fn lists_have_each_rank_once_and_in_order() {
    let good = [card(0, 2), card(1, 2)];
    let two = vec![Value::from(0), Value::from(1)];
    assert_eq!(scripted(good.to_vec(), two.clone()).unwrap(), two);
    let malformed = |said: Result<Vec<Value>, FormError>, reason: &str| match said.unwrap_err() {
        FormError::Malformed { rank: 0, reason: said } => assert_eq!(said, reason),
        other => panic!("{other}"),
    };
    let [zero, one] = good.clone();
    for (cards, reason) in [
        (vec![], "0 cards of 2 ranks"),
        (vec![zero.clone()], "1 cards of 2 ranks"),
        (vec![zero.clone(), one.clone(), card(2, 2)], "3 cards of 2 ranks"),
        (vec![one.clone(), zero.clone()], "the card of rank 1 in place of rank 0's"),
        (vec![one.clone(), one.clone()], "the card of rank 1 in place of rank 0's"),
        (vec![zero.clone(), card(7, 2)], "the card of rank 7 in place of rank 1's"),
        (
            vec![zero.clone(), Card { socket: "/x".into(), ..one.clone() }],
            "a card of rank 1 that is not its own",
        ),
    ] {
        malformed(scripted(cards, two.clone()), reason);
    }
    let same = Card { bus_id: one.bus_id.clone(), ..zero.clone() };
    assert!(matches!(scripted(vec![same, one.clone()], two.clone()), Err(FormError::SameGpu { .. })));
    // Another computer has a GPU there, too.
    let elsewhere = Card { machine: "other".into(), bus_id: one.bus_id.clone(), ..zero.clone() };
    scripted(vec![elsewhere, one.clone()], two.clone()).unwrap();
    let shared = Card { share_gpus: true, ..zero.clone() };
    match scripted(vec![shared, one.clone()], two).unwrap_err() {
        FormError::Mismatch { field, rank: 1, value, other_rank: 0, other } => {
            assert_eq!((&*field, &*value, &*other), ("share_gpus", "false", "true"));
        }
        other => panic!("{other}"),
    }
    for parts in [0, 1, 3] {
        malformed(scripted(good.to_vec(), vec![Value::Null; parts]), &format!("{parts} parts of 2 ranks"));
    }
}

#[test]
fn a_rank_that_is_gone_is_named_to_all_others() {
    let mut ranks = world(3, LONG);
    drop(ranks.remove(1));
    let gathering: Vec<_> =
        ranks.into_iter().map(|mut r| spawn(move || (r.gather(Value::Null), r))).collect();
    for gathered in gathering {
        let (result, mut rendezvous) = gathered.join().unwrap();
        assert_eq!(result.unwrap_err(), FormError::Lost { rank: 1 });
        assert_eq!(rendezvous.gather(Value::Null).unwrap_err(), FormError::Lost { rank: 1 });
    }
}

#[test]
fn rank_0_that_is_gone_is_named() {
    let mut ranks = world(2, LONG);
    drop(ranks.remove(0));
    assert_eq!(ranks[0].gather(Value::Null).unwrap_err(), FormError::Lost { rank: 0 });
}

#[test]
fn a_rank_that_does_not_come_to_a_step_is_named() {
    let mut ranks = world(3, SHORT);
    let idle = ranks.remove(1);
    let gathering: Vec<_> = ranks.into_iter().map(|mut r| spawn(move || r.gather(Value::Null))).collect();
    for gathered in gathering {
        assert_eq!(gathered.join().unwrap().unwrap_err(), FormError::Late { rank: 1, waited: SHORT });
    }
    drop(idle);
}

#[test]
fn what_fails_on_one_rank_fails_on_all() {
    let ranks = world(3, LONG);
    let agreeing = ranks.into_iter().map(|mut r| {
        spawn(move || {
            let own = if r.rank == 2 { Err("no memory".to_owned()) } else { Ok(r.rank) };
            r.agree(own)
        })
    });
    for (rank, agreed) in agreeing.collect::<Vec<_>>().into_iter().enumerate() {
        match (rank, agreed.join().unwrap().unwrap_err()) {
            (2, Disagreed::Own(own)) => assert_eq!(own, "no memory"),
            (0 | 1, Disagreed::Other(e)) => assert_eq!(e.to_string(), "rank 2 failed: no memory"),
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_ranks_share_comes_by_rank_and_has_to_make_sense() {
    let sharing = |act: fn(&mut Rendezvous) -> String| {
        let ranks = world(3, LONG).into_iter().map(|mut r| spawn(move || act(&mut r)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect::<Vec<_>>()
    };
    let times = sharing(|r| format!("{:?}", r.share::<_, String>(Ok(vec![0.5, f64::from(r.rank)])).unwrap()));
    assert_eq!(times, ["[[0.5, 0.0], [0.5, 1.0], [0.5, 2.0]]"; 3]);
    let mixed = sharing(|r| match r.rank {
        1 => format!("{}", r.share::<_, String>(Ok("one".to_owned())).is_ok()),
        _ => match r.share::<_, String>(Ok(1)).unwrap_err() {
            Disagreed::Other(e) => e.to_string(),
            Disagreed::Own(e) => e,
        },
    });
    assert!(mixed[0].starts_with("rank 1 says something that makes no sense"), "{mixed:?}");
}
