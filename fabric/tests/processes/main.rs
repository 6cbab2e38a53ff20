//! Ranks in processes of their own, which put to each other through their proxies.

mod faults;
mod lines;
mod parent;
mod rank;
#[path = "../there/mod.rs"]
mod there;
mod traffic;

/// How often something is done, of a number for CI: PEERWARP_FABRIC_TIMES times as often. 200 ranks die or stop at 25.
fn times(ci: u64) -> u64 {
    ci * std::env::var("PEERWARP_FABRIC_TIMES").map_or(1, |times| times.parse().unwrap())
}

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    if let Some(job) = rank::Job::here() {
        rank::run(&job);
    }
}

/// Processes that do these jobs, one for each rank.
fn start(jobs: impl IntoIterator<Item = rank::Job>) -> parent::Processes {
    parent::Processes::start("child", jobs.into_iter().map(|job| job.variables().collect::<Vec<_>>()))
}
