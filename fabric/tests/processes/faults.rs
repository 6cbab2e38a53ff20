//! Ranks that die, stop, stall or lose their network card in the middle of an exchange.

use std::time::{Duration, Instant};

use peerwarp_fabric::library_version;
use rustix::process::{Signal, kill_process};

use crate::rank::{Job, mix};
use crate::{start, times};

/// How long a peer may be silent.
const BUDGET: Duration = Duration::from_secs(1);
/// What a survivor may need to say so on a machine that does other things, beyond the budgets of proxies and kernels.
const SLACK: Duration = Duration::from_secs(2);

fn jobs(provider: &str, ranks: u16, seed: u64, fault: impl Fn(u16) -> String) -> Vec<Job> {
    let job = |rank| Job {
        rank,
        ranks,
        provider: provider.into(),
        rounds: u64::MAX,
        seed,
        budget: BUDGET,
        fault: fault(rank),
    };
    (0..ranks).map(job).collect()
}

/// Whether a dead rank may take other ranks' proxies with it, so that ranks name each other: the shared-memory provider of
/// libfabric 1.17 spins on a lock that the dead rank may hold.
fn spins(provider: &str) -> bool {
    provider == "shm" && library_version().unwrap() < (1, 18)
}

/// One rank of four gets a signal at a time that the seed says. All others name it, and no other rank.
fn one_of_four(provider: &str, signal: Signal, seed: u64) {
    let victim = (mix(&[seed, 1]) % 4) as u16;
    let mut all = start(jobs(provider, 4, seed, |_| String::new()));
    all.tell_all("go");
    std::thread::sleep(Duration::from_micros(mix(&[seed, 2]) % 80_000));
    kill_process(all.pid(victim), signal).unwrap();
    let start = Instant::now();
    let survivors: Vec<u16> = (0..4).filter(|rank| *rank != victim).collect();
    let (said, last) = all.hear(&survivors, "fault ");
    let elapsed = last - start;
    assert!(elapsed < 3 * BUDGET + SLACK, "named after {elapsed:?} over {provider}, seed {seed}: {said:?}");
    let victim = format!("rank {victim}");
    for said in said {
        let (sentence, faults) = said.split_once(" | ").unwrap();
        if spins(provider) {
            assert!(sentence.contains("rank"), "{victim} got {signal:?}, seed {seed}: {said}");
            continue;
        }
        assert!(sentence.contains(&victim), "{victim} got {signal:?} over {provider}, seed {seed}: {said}");
        for fault in faults.split(" | ").filter(|fault| !fault.is_empty()) {
            assert!(fault.contains(&victim), "{victim} got {signal:?} over {provider}, seed {seed}: {said}");
        }
    }
    all.tell_all("close");
    all.end(&survivors);
}

fn several(provider: &str, signal: Signal) {
    for n in 0..times(2) {
        one_of_four(provider, signal, mix(&[n, signal.as_raw() as u64]));
    }
}

#[test]
fn a_killed_rank_is_named_over_tcp() {
    if !crate::there::library_is_there() {
        return;
    }
    several("tcp", Signal::KILL);
}

#[test]
fn a_stopped_rank_is_named_over_tcp() {
    if !crate::there::library_is_there() {
        return;
    }
    several("tcp", Signal::STOP);
}

#[test]
fn a_killed_rank_is_named_over_shared_memory() {
    if !crate::there::library_is_there() {
        return;
    }
    several("shm", Signal::KILL);
}

#[test]
fn a_stopped_rank_is_named_over_shared_memory() {
    if !crate::there::library_is_there() {
        return;
    }
    several("shm", Signal::STOP);
}

/// What both of two ranks say when something happens to rank 0 in round 20.
fn two_ranks(provider: &str, fault: &str) -> Vec<String> {
    let planted = |rank| if rank == 0 { format!("{fault} 20") } else { String::new() };
    let mut all = start(jobs(provider, 2, 7, planted));
    all.tell_all("go");
    let said = all.hear_all("fault ");
    all.tell_all("close");
    let closed = all.hear(&[1], "failed ");
    assert!(closed.0[0].contains("rank 0"), "{closed:?}");
    said
}

#[test]
fn a_stalled_proxy_is_named_on_both_sides() {
    if !crate::there::library_is_there() {
        return;
    }
    for provider in ["tcp", "shm"] {
        let said = two_ranks(provider, "stall");
        assert!(said[0].contains("this rank's proxy has stalled"), "{said:?}");
        assert!(said[1].contains("rank 0"), "{said:?}");
    }
}

#[test]
fn a_network_card_that_goes_is_named_on_both_sides() {
    if !crate::there::library_is_there() {
        return;
    }
    for provider in ["tcp", "shm"] {
        let said = two_ranks(provider, "unplug");
        assert!(said[0].contains("the endpoint of this rank is gone: it was closed"), "{said:?}");
        assert!(said[1].contains("rank 0"), "{said:?}");
    }
}
