//! Exchanges that go well.

use std::time::Duration;

use crate::rank::{Job, mix};
use crate::{start, times};

fn exchange(provider: &str, ranks: u16, rounds: u64) {
    let job = |rank| Job {
        rank,
        ranks,
        provider: provider.into(),
        rounds,
        seed: mix(&[ranks.into(), rounds]),
        budget: Duration::from_secs(10),
        fault: String::new(),
    };
    let mut all = start((0..ranks).map(job));
    all.tell_all("go");
    all.hear_all("rounds");
    all.tell_all("close");
    let summaries = all.hear_all("closed ");
    let number = |summary: &String, at: usize| summary.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
    let total = |at| summaries.iter().map(|summary| number(summary, at)).sum::<u64>();
    // What was delivered is what was counted.
    assert_eq!(total(0), total(2));
    let messages = rounds * u64::from(ranks) * u64::from(ranks - 1);
    assert!((2 * messages..=4 * messages).contains(&total(0)), "{summaries:?}");
    all.end(&(0..ranks).collect::<Vec<_>>());
}

#[test]
fn two_ranks_over_tcp() {
    if !crate::there::library_is_there() {
        return;
    }
    exchange("tcp", 2, times(1000));
}

#[test]
fn four_ranks_over_tcp() {
    if !crate::there::library_is_there() {
        return;
    }
    exchange("tcp", 4, times(1000));
}

#[test]
fn two_ranks_over_shared_memory() {
    if !crate::there::library_is_there() {
        return;
    }
    exchange("shm", 2, times(1000));
}

#[test]
fn four_ranks_over_shared_memory() {
    if !crate::there::library_is_there() {
        return;
    }
    exchange("shm", 4, times(1000));
}
