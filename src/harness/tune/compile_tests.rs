use std::sync::atomic::Ordering;

use super::super::Candidate;
use super::super::example::{KEY, pair, small};
use super::*;
use crate::runtime::mock::Uncompiled;

/// Compiles nothing before it may.
struct Gated(Mutex<()>);

// SAFETY: nothing is launched.
unsafe impl Images for Gated {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
        drop(self.0.lock());
        Uncompiled.image(variant, target)
    }
}

#[test]
fn what_may_be_needed_takes_half_of_the_threads_at_most() {
    let gate = Arc::new(Gated(Mutex::default()));
    let held = gate.0.lock().unwrap();
    let target = "cuda:sm_90a".parse().unwrap();
    let compiling = Compiling::on_threads(4, Arc::clone(&gate) as _, target).unwrap();
    let all = [pair(KEY), small(&pair(KEY))];
    let all: Vec<Variant> = all.iter().flat_map(Candidate::variants).cloned().collect();
    let begun = all.into_iter().take_while(|_| compiling.is_idle()).map(|k| compiling.start(k)).count();
    assert_eq!(begun, 2);
    drop(held);
    while !compiling.is_idle() {
        std::thread::yield_now();
    }
}

#[test]
fn the_end_waits_for_those_at_work_and_lets_none_begin() {
    let at_work = Arc::new(AtWork::default());
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let worker = std::thread::spawn({
        let (at_work, done) = (Arc::clone(&at_work), Arc::clone(&done));
        move || {
            at_work.unless_over(|| {
                begun.send(()).unwrap();
                may_go_on.recv().unwrap();
                done.store(true, Ordering::SeqCst);
            });
        }
    });
    has_begun.recv().unwrap();
    let ending = std::thread::spawn({
        let (at_work, done) = (Arc::clone(&at_work), Arc::clone(&done));
        move || {
            at_work.end();
            done.load(Ordering::SeqCst)
        }
    });
    // It is over as soon as the end is asked for, while one is at work still.
    while !at_work.state().1 {
        std::thread::yield_now();
    }
    at_work.unless_over(|| panic!("it is over"));
    go_on.send(()).unwrap();
    assert!(ending.join().unwrap());
    worker.join().unwrap();
}
