use std::net::Shutdown;
use std::thread::{JoinHandle, spawn};

use super::*;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

/// A port that was free a moment ago.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn card(rank: u32, ranks: u32) -> Card {
    let facts = BTreeMap::from([("kernel tables".to_owned(), "abc".to_owned())]);
    Card { rank, ranks, bus_id: format!("{rank}"), socket: String::new(), facts }
}

type Joined = Result<(Rendezvous, Vec<Card>), FormError>;

fn join(address: &str, card: Card, timeout: Duration) -> JoinHandle<Joined> {
    let address = address.to_owned();
    spawn(move || Rendezvous::join(&address, card, timeout))
}

/// All ranks of a world of `ranks`.
fn world(ranks: u32, timeout: Duration) -> Vec<Rendezvous> {
    let address = free_address();
    let joining: Vec<_> = (0..ranks).map(|r| join(&address, card(r, ranks), timeout)).collect();
    joining.into_iter().map(|j| j.join().unwrap().unwrap().0).collect()
}

#[test]
fn all_get_everybodys_card_and_values_by_rank() {
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
    assert_eq!(said(same), "ranks 1 and 2 both have GPU 1: every rank needs a GPU of its own");
}

#[test]
fn ranks_that_do_not_come_are_named_to_those_who_did() {
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
    let error = Rendezvous::join(&address, card(1, 2), SHORT).unwrap_err();
    assert!(matches!(&error, FormError::NoAnswer { address: a, .. } if *a == address), "{error}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = Rendezvous::join(&address, card(0, 2), SHORT).unwrap_err();
    assert!(matches!(&error, FormError::Listen { address: a, .. } if *a == address), "{error}");
}

#[test]
fn a_rank_that_dies_while_others_are_awaited_is_named() {
    let address = free_address();
    let zero = join(&address, card(0, 3), LONG);
    let deadline = Deadline::after(LONG);
    let mut one = connect(&address, &deadline).unwrap();
    send(&mut one, &Message::Hello { protocol: PROTOCOL, card: card(1, 3) }).unwrap();
    one.shutdown(Shutdown::Both).unwrap();
    drop(one);
    let start = Instant::now();
    assert_eq!(zero.join().unwrap().unwrap_err(), FormError::Lost { rank: 1 });
    assert!(start.elapsed() < LONG / 2);
}

#[test]
fn strangers_are_not_let_in() {
    let address = free_address();
    let zero = join(&address, card(0, 2), LONG);
    let deadline = Deadline::after(LONG);
    let mut chatty = connect(&address, &deadline).unwrap();
    chatty.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut old = connect(&address, &deadline).unwrap();
    send(&mut old, &Message::Hello { protocol: PROTOCOL + 1, card: card(1, 2) }).unwrap();
    match deadline.receive(0, &mut old).unwrap() {
        Message::Failed(e) => {
            let said = format!("protocol of rank 1 is {}, and {PROTOCOL} on rank 0", PROTOCOL + 1);
            assert!(e.to_string().starts_with(&said), "{e}")
        }
        _ => panic!("welcome"),
    }
    let one = join(&address, card(1, 2), LONG);
    zero.join().unwrap().unwrap();
    one.join().unwrap().unwrap();
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
