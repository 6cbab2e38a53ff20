use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use super::super::handshake::Opening;
use super::super::rendezvous::tests::secret;
use super::*;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

fn doors(count: u32) -> (Vec<Door>, Vec<Card>) {
    let doors: Vec<Door> = (0..count).map(|_| Door::open().unwrap()).collect();
    let card = |(rank, door): (u32, &Door)| Card {
        rank,
        ranks: count,
        bus_id: rank.to_string(),
        socket: door.path().display().to_string(),
        ..Card::default()
    };
    let cards = (0..).zip(&doors).map(card).collect();
    (doors, cards)
}

fn connect(
    door: Door,
    rank: u32,
    secret: Secret,
    cards: &[Card],
    timeout: Duration,
) -> JoinHandle<Result<Handover, FormError>> {
    let cards = cards.to_vec();
    spawn(move || door.connect(rank, &secret, &cards, &Deadline::after(timeout)))
}

#[test]
fn handles_come_with_their_rank_and_size() {
    let (doors, cards) = doors(3);
    let connecting: Vec<_> =
        (0..).zip(doors).map(|(rank, door)| connect(door, rank, secret(), &cards, LONG)).collect();
    let exchanging = (0..).zip(connecting).map(|(rank, connecting): (u8, _)| {
        spawn(move || {
            let handover = connecting.join().unwrap().unwrap();
            let handles = [0, 1].map(|i| ShareHandle::Ipc(vec![10 * rank + i; IPC]));
            let taken = handover.exchange(&handles, u64::from(rank) + 100, &Deadline::after(LONG)).unwrap();
            let plain = |(rank, bytes, handle)| match handle {
                ShareHandle::Ipc(raw) => (rank, bytes, raw[0], raw.len()),
                ShareHandle::Fd(_) => panic!("a descriptor"),
            };
            taken.into_iter().map(plain).collect::<Vec<_>>()
        })
    });
    let exchanging: Vec<_> = exchanging.collect();
    let taken: Vec<_> = exchanging.into_iter().map(|e| e.join().unwrap()).collect();
    assert_eq!(taken[0], [(1, 101, 10, IPC), (2, 102, 20, IPC)]);
    assert_eq!(taken[1], [(0, 100, 0, IPC), (2, 102, 21, IPC)]);
    assert_eq!(taken[2], [(0, 100, 1, IPC), (1, 101, 11, IPC)]);
}

#[test]
fn processes_of_other_users_are_turned_away_on_both_sides() {
    let own = geteuid().as_raw();
    // Who listens believes that ranks are another user's.
    let (mut both, cards) = doors(2);
    both[0].user = own + 1;
    let (one, zero) = (both.pop().unwrap(), both.pop().unwrap());
    let zero = connect(zero, 0, secret(), &cards, SHORT);
    let error = connect(one, 1, secret(), &cards, LONG).join().unwrap().unwrap_err();
    assert!(matches!(&error, FormError::Socket { path, .. } if *path == cards[0].socket), "{error}");
    assert_eq!(zero.join().unwrap().unwrap_err(), FormError::Late { rank: 1, waited: SHORT });
    // Who connects does, and says nothing.
    let (mut both, cards) = doors(2);
    both[1].user = own + 1;
    let (one, zero) = (both.pop().unwrap(), both.pop().unwrap());
    let error = connect(one, 1, secret(), &cards, LONG).join().unwrap().unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("the processes that listen there are processes of user {own}")),
        "{error}"
    );
    zero.listener.set_nonblocking(false).unwrap();
    let mut heard = vec![];
    zero.listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
    assert!(heard.is_empty());
}

/// Where these tests are root's: a process that really is another user's.
#[test]
fn a_process_of_another_user_gets_no_opening() {
    if !geteuid().is_root() {
        return eprintln!("skipped: only root can be somebody else");
    }
    use std::os::unix::process::CommandExt;
    let (mut both, cards) = doors(2);
    let (one, zero) = (both.pop().unwrap(), both.pop().unwrap());
    // As if the folder did not keep them out.
    for (path, mode) in [(zero.folder.path(), 0o755), (zero.path().as_path(), 0o777)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect(sys.argv[1]); \
                   sys.exit(len(s.recv(100)))";
    let mut python = std::process::Command::new("python3");
    python.args(["-c", program, &cards[0].socket]).uid(65534).gid(65534);
    let Ok(mut stranger) = python.spawn() else { return eprintln!("skipped: there is no python3") };
    let zero = connect(zero, 0, secret(), &cards, LONG);
    assert_eq!(stranger.wait().unwrap().code(), Some(0), "the stranger was told something");
    connect(one, 1, secret(), &cards, LONG).join().unwrap().unwrap();
    zero.join().unwrap().unwrap();
}

#[test]
fn processes_of_this_user_that_do_not_know_the_secret_are_turned_away() {
    let (mut both, cards) = doors(2);
    let (one, zero) = (both.pop().unwrap(), both.pop().unwrap());
    let zero = connect(zero, 0, secret(), &cards, LONG);
    let guess = Secret::draw().unwrap();
    let error =
        connect(Door::open().unwrap(), 1, guess, &cards, LONG).join().unwrap().unwrap_err().to_string();
    assert!(error.contains("turned this rank away"), "{error}");
    // A rank that no other rank waits for, although it knows the secret.
    let mut known = UnixStream::connect(&cards[0].socket).unwrap();
    let place = place(Path::new(&cards[0].socket));
    introduce(&mut known, &place, &secret(), (5, 0), &Deadline::after(LONG)).unwrap();
    assert_eq!(known.read(&mut [0]).unwrap(), 0);
    // One that says nothing, and stays.
    let idle = UnixStream::connect(&cards[0].socket).unwrap();
    connect(one, 1, secret(), &cards, LONG).join().unwrap().unwrap();
    zero.join().unwrap().unwrap();
    drop(idle);
}

#[test]
fn a_door_behind_which_somebody_else_is_gets_no_handles() {
    let (mut both, cards) = doors(2);
    let (one, zero) = (both.pop().unwrap(), both.pop().unwrap());
    zero.listener.set_nonblocking(false).unwrap();
    let imposter = spawn(move || {
        let (mut stream, _) = zero.listener.accept().unwrap();
        stream.write_all(&Opening { nonce: [1; 32] }.encode()).unwrap();
        stream.write_all(&[0; 32]).unwrap();
        let mut heard = vec![];
        // It hangs up before it has read all.
        let _ = stream.read_to_end(&mut heard);
        heard.len()
    });
    let error = connect(one, 1, secret(), &cards, LONG).join().unwrap().unwrap_err().to_string();
    assert!(error.ends_with("the processes that listen there do not know the world's secret"), "{error}");
    assert_eq!(imposter.join().unwrap(), super::super::handshake::Knock::BYTES);
}
