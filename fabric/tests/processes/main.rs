//! Ranks in processes of their own, which put to each other through their proxies.

mod faults;
mod parent;
mod rank;
mod traffic;

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    if let Some(job) = rank::Job::here() {
        rank::run(&job);
    }
}
