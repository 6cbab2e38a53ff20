use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{JoinHandle, spawn};
use std::time::Instant;

use super::super::channel::{Channel, Message};
use super::super::deadline::Deadline;
use super::super::handshake::{Knock, Meeting, Opening, Side};
use super::super::introductions::{Introductions, Next, between, introduce};
use super::super::rendezvous::tests::{free_address, reach, secret};
use super::*;

const LONG: Duration = Duration::from_secs(30);
/// Enough for ranks to come on a machine that does other things.
const SHORT: Duration = Duration::from_secs(1);

fn launched(rank: u32, ranks: u32, node: &str, address: &str) -> Launched {
    let (address, secret) = (address.to_owned(), secret());
    Launched { launcher: "torchrun", rank, ranks, local_rank: 0, node: Some(node.into()), address, secret }
}

type Joined = Result<Bootstrap, RuntimeError>;

fn join(launched: Launched, timeout: Duration) -> JoinHandle<Joined> {
    let options = BootstrapOptions { timeout, ..BootstrapOptions::default() };
    spawn(move || Bootstrap::join(&launched, &options))
}

/// What ranks on these nodes come to, each in a thread.
fn joined(nodes: &[&str], address: &str, timeout: Duration) -> Vec<Joined> {
    let ranks = nodes.len() as u32;
    let joining = (0..).zip(nodes).map(|(rank, node)| join(launched(rank, ranks, node, address), timeout));
    joining.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Has each rank do something in a thread of its own.
fn each<T: Send + 'static>(ranks: Vec<Bootstrap>, act: fn(&mut Bootstrap) -> T) -> Vec<T> {
    let acting = ranks.into_iter().map(|mut rank| spawn(move || act(&mut rank)));
    acting.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
}

fn world(nodes: &[&str], timeout: Duration) -> Vec<Bootstrap> {
    joined(nodes, &free_address(), timeout).into_iter().map(Result::unwrap).collect()
}

/// Bytes of a rank in an exchange: of another length on each.
fn bytes(rank: u32, exchange: u8) -> Vec<u8> {
    vec![exchange; 3 * rank as usize]
}

fn error<T>(result: Result<T, RuntimeError>) -> String {
    result.map(drop).unwrap_err().to_string()
}

#[test]
fn ranks_of_two_nodes_exchange_bytes() {
    let v6 = TcpListener::bind("[::1]:0").ok().map(|socket| socket.local_addr().unwrap().to_string());
    for address in [Some(free_address()), v6].into_iter().flatten() {
        // Ranks come as `srun --distribution=cyclic` places them.
        let ranks: Vec<Bootstrap> =
            joined(&["a", "b", "a", "b"], &address, LONG).into_iter().map(Result::unwrap).collect();
        for rank in &ranks {
            assert_eq!((rank.teams().nodes(), rank.teams().rail(1)), (2, Some(vec![2, 3])));
        }
        let exchanged = each(ranks, |rank| {
            let exchange = |number: u8| rank.exchange(&bytes(rank.rank(), number)).unwrap();
            [1, 2].map(exchange)
        });
        let all = |number| (0..4).map(|rank| bytes(rank, number)).collect::<Vec<_>>();
        assert_eq!(exchanged, vec![[all(1), all(2)]; 4]);
    }
}

#[test]
fn many_ranks_meet() {
    let names: Vec<String> = (0..192).map(|rank| (rank / 32).to_string()).collect();
    let ranks = world(&names.iter().map(String::as_str).collect::<Vec<_>>(), LONG);
    assert_eq!(ranks[191].teams().nodes(), 6);
    let sums = each(ranks, |rank| {
        let own = rank.rank().to_le_bytes();
        let all = rank.exchange(&own).unwrap();
        let number = |bytes: &Vec<u8>| u32::from_le_bytes(bytes.as_slice().try_into().unwrap());
        all.iter().map(number).sum::<u32>()
    });
    assert_eq!(sums, [191 * 96; 192]);
}

#[test]
fn nodes_of_different_sizes_are_named_on_all_ranks() {
    for rank in joined(&["a", "b", "a"], &free_address(), LONG) {
        let words = "the node of rank 0 has 2 ranks, and the node of rank 1 has 1: all nodes of a world need equally many";
        assert_eq!(error(rank), words);
    }
}

#[test]
fn a_node_is_a_machine_unless_it_has_a_name() {
    let of = |node: Option<&str>, machine: &str| {
        let launched = Launched { node: node.map(str::to_owned), ..launched(0, 2, "", "") };
        node_of(&launched, machine)
    };
    fn node_of(launched: &Launched, machine: &str) -> Result<String, RuntimeError> {
        super::node(launched, machine.to_owned())
    }
    assert_ne!(of(Some("x"), "x").unwrap(), of(None, "x").unwrap());
    assert_eq!(of(Some("x"), "x").unwrap(), of(Some("x"), "y").unwrap());
    assert_ne!(of(None, "x").unwrap(), of(None, "y").unwrap());
    assert!(error(of(None, "")).starts_with("PEERWARP_NODE = : a name of this rank's node"));
}

#[test]
fn ranks_that_differ_are_named_on_all_ranks() {
    let address = free_address();
    let other = join(launched(1, 3, "a", &address), LONG);
    let zero = join(launched(0, 2, "a", &address), LONG);
    for rank in [zero, other] {
        let words = "world size of rank 1 is 3, and 2 on rank 0: it has to be the same on all ranks";
        assert_eq!(error(rank.join().unwrap()), words);
    }
    let address = free_address();
    let ranks = [0, 1, 1].map(|rank| join(launched(rank, 3, "a", &address), LONG));
    let said = ranks.map(|rank| error(rank.join().unwrap()));
    // Either process that says it is rank 1 may find its connection closed.
    assert_eq!(said[0], "two processes say that they are rank 1");
}

#[test]
fn ranks_that_do_not_come_or_fail_are_named() {
    let address = free_address();
    let zero = join(launched(0, 3, "a", &address), SHORT);
    let two = join(launched(2, 3, "a", &address), LONG);
    for rank in [zero, two] {
        assert!(error(rank.join().unwrap()).contains("nothing of rank 1 at 127.0.0.1:"));
    }
    let said = each(world(&["a", "a"], SHORT), |rank| match rank.rank() {
        0 => error(rank.agree(Ok(()))),
        _ => error(rank.agree(Err::<(), _>(RuntimeError::invalid("x", 1, "less")))),
    });
    assert_eq!(said, ["rank 1 failed: x = 1: less", "x = 1: less"]);
    let mut ranks = world(&["a", "a", "a"], SHORT);
    let idle = ranks.remove(2);
    let said = each(ranks, |rank| error(rank.exchange(&[])));
    let words = "rank 2 did not come within 1.0s: it is stuck, or makes other calls than the rest";
    assert_eq!(said, [words; 2]);
    drop(idle);
    let said = each(world(&["a", "a"], LONG), |rank| match rank.rank() {
        0 => error(rank.exchange(&[])),
        _ => error(rank.agree(Ok(()))),
    });
    assert!(said.iter().all(|said| said.contains("says something that makes no sense")), "{said:?}");
}

#[test]
fn too_many_bytes_are_named_on_all_ranks() {
    let said = each(world(&["a"; 3], LONG), |rank| {
        let room = rank.room();
        match rank.rank() {
            1 => error(rank.exchange(&vec![0; room + 1])),
            _ => error(rank.exchange(&[])),
        }
    });
    let words = "bytes of an exchange = 1398038: at most 1398037 for each of 3 ranks";
    assert_eq!(
        said,
        [format!("rank 1 failed: {words}"), words.to_owned(), format!("rank 1 failed: {words}")]
    );
}

#[test]
fn the_bytes_of_all_ranks_fit_in_a_message() {
    for ranks in [2, 64, RANKS] {
        // The longest text of each byte.
        let part = Part { bytes: vec![255; room(ranks)], seal: [255; 32] };
        let part = serde_json::to_string(&Ok::<_, String>(part)).unwrap().len();
        let others = Message::All(vec![]).encode().unwrap().len();
        assert!((part + 1) * ranks as usize + others <= LONGEST as usize, "{part} bytes of {ranks} ranks");
    }
    // What a network card says of 64 channels.
    assert!(room(RANKS) > 2500);
}

#[test]
fn rank_0_needs_a_file_for_each_rank() {
    assert!(check_files(RANKS, None).is_ok() && check_files(2, Some(130)).is_ok());
    let words = "open files = 1024: at least 1152 on rank 0, for 1024 ranks (`ulimit -n 1152`)";
    assert_eq!(error(check_files(RANKS, Some(1024))), words);
}

fn introductions(nonce: u8) -> Vec<Introduction> {
    let of = |node: &str, nonce| Introduction { node: node.into(), nonce: [nonce; 32] };
    vec![of("a", 1), of("b", nonce)]
}

#[test]
fn a_seal_holds_for_one_rank_one_exchange_and_one_world() {
    let seals = Seals::new(&secret(), &introductions(2));
    let part = || seals.close(1, 5, b"card");
    assert_eq!(seals.open(1, 5, part()).unwrap(), b"card");
    let other = Secret::new(&"s".repeat(32)).unwrap();
    let mut moved = introductions(2);
    moved[1].node = "a".into();
    for other in [
        Seals::new(&other, &introductions(2)),
        Seals::new(&secret(), &introductions(3)),
        Seals::new(&secret(), &introductions(2)[..1]),
        Seals::new(&secret(), &moved),
    ] {
        assert!(other.open(1, 5, part()).is_err());
    }
    assert!(seals.open(0, 5, part()).is_err() && seals.open(1, 4, part()).is_err());
    let changed = Part { bytes: b"cart".to_vec(), ..part() };
    let said = seals.open(1, 5, changed).unwrap_err().to_string();
    assert!(said.ends_with("bytes of another rank, another exchange or another world"), "{said}");
}

/// What a rank sends in place of what it should.
type Act<T> = fn(&Seals, Vec<T>) -> Vec<T>;

fn as_it_is<T>(_: &Seals, all: Vec<T>) -> Vec<T> {
    all
}

/// What rank 1 makes of a rank 0 that knows the secret, and hands out other introductions and parts than it got.
fn handed_out(introduce: Act<Introduction>, part: Act<Part>) -> String {
    let address = free_address();
    let one = launched(1, 2, "a", &address);
    let listener = TcpListener::bind(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let host = spawn(move || {
        let (secret, deadline) = (secret(), Deadline::after(LONG));
        let mut entrance = Introductions::new(&listener, &secret, 0);
        let Ok(Next::Guest(guest)) = entrance.next(&[], &deadline) else { panic!("no rank came") };
        let mut channel = Channel::new(guest.stream, guest.session);
        let Ok(Message::Hello(card)) = channel.receive(1, &deadline) else { panic!("no card") };
        channel.send(&Message::Welcome(vec![Card { rank: 0, ..card.clone() }, card])).unwrap();
        let zero = Introduction { node: "node a".into(), nonce: [1; 32] };
        let all = introduce(&Seals::new(&secret, &[]), vec![zero, said(&mut channel).unwrap()]);
        channel.send(&sent(&all)).unwrap();
        let seals = Seals::new(&secret, &all);
        if let Some(one) = said(&mut channel) {
            channel.send(&sent(&part(&seals, vec![seals.close(0, 1, b"zero"), one]))).unwrap();
            assert!(said::<Part>(&mut channel).is_none(), "a rank goes on");
        }
    });
    let exchanged = join(one, LONG).join().unwrap().and_then(|mut bootstrap| bootstrap.exchange(b"one"));
    host.join().unwrap();
    exchanged.map_or_else(|e| e.to_string(), |all| format!("{all:?}"))
}

/// What rank 1 says next; none if it is gone.
fn said<T: serde::de::DeserializeOwned>(channel: &mut Channel) -> Option<T> {
    match channel.receive(1, &Deadline::after(LONG)) {
        Ok(Message::Part(value)) => serde_json::from_value::<Result<T, String>>(value).unwrap().ok(),
        _ => None,
    }
}

fn sent<T: Serialize>(all: &[T]) -> Message {
    Message::All(all.iter().map(|one| serde_json::json!(Ok::<_, String>(one))).collect())
}

#[test]
fn a_card_that_is_swapped_or_replayed_is_refused() {
    let words = |rank: u32| {
        format!(
            "rank {rank} says something that makes no sense: bytes of another rank, another exchange or another world"
        )
    };
    let parts = |act| handed_out(as_it_is, act);
    assert_eq!(parts(as_it_is), format!("{:?}", [b"zero".as_slice(), b"one"]));
    assert_eq!(parts(|_, parts| parts.into_iter().rev().collect()), words(0));
    assert_eq!(parts(|seals, _| vec![seals.close(0, 1, b"zero"), seals.close(1, 2, b"one")]), words(1));
    let earlier: Act<Part> = |_, mut parts| {
        parts[0] = Seals::new(&secret(), &introductions(7)).close(0, 1, b"zero");
        parts
    };
    assert_eq!(parts(earlier), words(0));
    let changed: Act<Part> = |_, mut parts| {
        parts[0].bytes[0] ^= 1;
        parts
    };
    assert_eq!(parts(changed), words(0));
}

#[test]
fn introductions_of_an_earlier_world_are_refused() {
    let words = "rank 0 says something that makes no sense: an introduction of rank 1 that is not its own";
    assert_eq!(handed_out(|_, _| introductions(2), as_it_is), words);
    assert_eq!(handed_out(|_, all| all.into_iter().rev().collect(), as_it_is), words);
}

/// All that rank 1 says to a rank 0 of an earlier world with the same secret, as somebody who reads the network has it.
fn recorded() -> Vec<u8> {
    let address = free_address();
    let zero = join(launched(0, 3, "a", &address), LONG);
    let mut stream = reach(&address);
    let mut opening = [0; Opening::BYTES];
    stream.read_exact(&mut opening).unwrap();
    let place = between(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let host_nonce = Opening::decode(&opening).unwrap().nonce;
    let meeting = Meeting { place: &place, host: 0, guest: 1, host_nonce, guest_nonce: [5; 32] };
    let proof = meeting.proof(&secret(), Side::Guest);
    let mut said = Knock { rank: 1, nonce: [5; 32], proof }.encode().to_vec();
    let (bus_id, socket, facts) = (String::new(), String::new(), BTreeMap::new());
    let hello = Message::Hello(Card { rank: 1, ranks: 3, bus_id, socket, facts, ..Card::default() });
    let text = hello.encode().unwrap();
    let seal = meeting.session(&secret(), Side::Guest).seal(&text);
    said.extend([&(text.len() as u32).to_le_bytes(), text.as_slice(), &seal].concat());
    stream.write_all(&said).unwrap();
    // The earlier rank 0 understood it: it misses facts of the card, not the proof.
    assert!(error(zero.join().unwrap()).contains("of rank 1 is not known"));
    said
}

/// A rank that has proved the secret, and then says that a message of 4 GiB follows.
fn claims_too_much(address: &str) -> TcpStream {
    let mut stream = reach(address);
    let place = between(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    introduce(&mut stream, &place, &secret(), (1, 0), &Deadline::after(LONG)).unwrap();
    stream.write_all(&[0xff; 64]).unwrap();
    stream
}

#[test]
fn hostile_guests_neither_join_nor_delay_a_world() {
    let replayed = recorded();
    let address = free_address();
    let zero = join(launched(0, 2, "a", &address), LONG);
    // Silent and stalled guests stay connected while the world forms.
    let silent = reach(&address);
    let mut stalled = reach(&address);
    stalled.write_all(&replayed[..20]).unwrap();
    let mut others = vec![];
    for said in [replayed, b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 1 << 16]] {
        let mut stream = reach(&address);
        // Rank 0 may close the connection before all is said.
        let _ = stream.write_all(&said);
        others.push(stream);
    }
    let wrong = Secret::new(&"w".repeat(32)).unwrap();
    let stranger = Launched { secret: wrong, ..launched(1, 2, "a", &address) };
    let said = error(join(stranger, SHORT).join().unwrap());
    assert!(said.contains("turned this rank away: they have another secret"), "{said}");
    others.push(claims_too_much(&address));
    let start = Instant::now();
    let one = join(launched(1, 2, "a", &address), LONG);
    let ranks: Vec<Bootstrap> = [zero, one].map(|rank| rank.join().unwrap().unwrap()).into();
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    let exchanged = each(ranks, |rank| rank.exchange(&[rank.rank() as u8]).unwrap());
    assert_eq!(exchanged, vec![vec![vec![0], vec![1]]; 2]);
    // Rank 0 told strangers its nonce and no more.
    for mut stream in others.into_iter().take(3) {
        let mut told = vec![];
        let _ = stream.read_to_end(&mut told);
        assert!(told.len() <= Opening::BYTES, "{told:?}");
    }
    drop((silent, stalled));
}

#[test]
fn hostile_guests_are_counted_by_reason() {
    let replayed = recorded();
    let address = free_address();
    let zero = join(launched(0, 2, "a", &address), Duration::from_secs(3));
    let mut guests = vec![claims_too_much(&address)];
    for said in [replayed, b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let mut stream = reach(&address);
        stream.write_all(&said).unwrap();
        guests.push(stream);
    }
    let said = error(zero.join().unwrap());
    for reason in [
        "3 other connections were turned away",
        "1 do not know the world's secret",
        "1 do not speak Peerwarp's protocol",
        "1 say something that makes no sense",
    ] {
        assert!(said.contains(reason), "{said}");
    }
    drop(guests);
}

#[test]
fn a_host_of_another_version_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let host = spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut opening = Opening { nonce: [7; 32] }.encode();
        opening[8] = 99;
        stream.write_all(&opening).unwrap();
        let mut said = vec![];
        let _ = stream.read_to_end(&mut said);
        // It goes on listening: later attempts have too little time to change what is said of it.
        (said, listener)
    });
    let said = error(join(launched(1, 2, "a", &address), SHORT).join().unwrap());
    assert!(
        said.contains(&format!("the processes that listen at {address} speak version 99 of the protocol")),
        "{said}"
    );
    assert_eq!(host.join().unwrap().0, b"", "a rank says nothing to another version");
}
