use std::sync::atomic::Ordering;

use super::*;
use crate::families::moe::RowDtype;
use crate::families::moe::kernels::Protocol;
use crate::runtime::WorldOptions;
use crate::runtime::mock::{Machine, MockGpu, Uncompiled};

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };

const EFFORT: Effort = Effort { iterations: 4, run_off: 6, check: true };

fn on(mocked: &Arc<Machine>, images: Arc<dyn Images + Send + Sync>) -> OnGpus {
    // Mocks are asked for the time between events; hosts have to be faster than it.
    mocked.gap.store(60_000_000_000, Ordering::Relaxed);
    let world = Arc::new(World::of_gpus(&MockGpu::all(mocked, 2), &WorldOptions::default()).unwrap());
    OnGpus::new(&world, images, EFFORT, 1).unwrap()
}

fn pairs() -> [MoeTuning; 2] {
    let default = MoeTuning::defaults(&SHAPE).unwrap();
    [default.clone(), default.small()]
}

#[test]
fn operations_are_timed_alone_and_pairs_in_turn_and_nothing_is_left() {
    let mocked = Arc::new(Machine::default());
    let mut on = on(&mocked, Arc::new(Uncompiled));
    on.prepare(&pairs());
    let minute = 60e6;
    let alone = on.alone(&pairs()[0]).unwrap();
    assert_eq!(alone, Alone { dispatch: minute, combine: minute });
    let before = mocked.graphs.load(Ordering::Relaxed);
    let times = on.round_trips(&pairs()).unwrap();
    assert_eq!(times, [[minute; 6], [minute; 6]]);
    assert_eq!(mocked.graphs.load(Ordering::Relaxed) - before, 2 * 2 * u64::from(6 + WARMUP));
    assert_eq!(on.limit_us(&SHAPE), None);
    drop(on);
    assert_eq!(mocked.alive(), 0);
}

#[test]
fn what_computes_nothing_is_wrong() {
    let mocked = Arc::new(Machine::default());
    let error = on(&mocked, Arc::new(Uncompiled)).check(&pairs()[0]).unwrap_err();
    let MeasureError::Refused { variant, reason } = error else { panic!("{error}") };
    assert_eq!(variant, Some(pairs()[0].dispatch.variant_name()));
    assert!(reason.starts_with("wrong result: "), "{reason}");
}

/// Refuses one variant, and counts.
struct Refusing {
    variant: String,
    asked: Mutex<Vec<String>>,
}

// SAFETY: another one's images, as they are.
unsafe impl Images for Refusing {
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError> {
        let name = variant.variant_name();
        self.asked.lock().unwrap().push(name.clone());
        if name == self.variant {
            let log = "\nptxas error: too many registers\nand more".into();
            return Err(RuntimeError::Compile { variant: name, arch: target.arch().into(), log });
        }
        Uncompiled.image(variant, target)
    }
}

#[test]
fn what_does_not_compile_is_refused_and_the_rest_goes_on() {
    let mocked = Arc::new(Machine::default());
    let [bad, good] = pairs();
    let variant = bad.combine.variant_name();
    let images = Arc::new(Refusing { variant: variant.clone(), asked: Mutex::default() });
    let shared: Arc<dyn Images + Send + Sync> = Arc::clone(&images) as _;
    let mut on = on(&mocked, shared);
    for _ in 0..2 {
        let error = on.alone(&bad).unwrap_err();
        let MeasureError::Refused { variant: named, reason } = error else { panic!("{error}") };
        assert_eq!(named.as_deref(), Some(variant.as_str()));
        assert!(reason.contains("does not compile for sm_90a"), "{reason}");
    }
    on.alone(&good).unwrap();
    // Each was compiled once, though it was asked for by both ranks and time and again.
    let mut asked = images.asked.lock().unwrap().clone();
    let all = asked.len();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), all);
}

#[test]
fn a_machine_that_fails_is_no_candidates_fault() {
    let mocked = Arc::new(Machine::default());
    let mut on = on(&mocked, Arc::new(Uncompiled));
    // No event is ever later than another.
    mocked.gap.store(1, Ordering::Relaxed);
    let error = on.alone(&pairs()[0]).unwrap_err();
    assert!(matches!(error, MeasureError::Machine(_)), "{error}");
}

#[test]
fn pairs_of_a_key_share_inputs_and_those_of_a_way_the_reference() {
    let mocked = Arc::new(Machine::default());
    let mut on = on(&mocked, Arc::new(Uncompiled));
    let [default, small] = pairs();
    let inputs = |on: &mut OnGpus, t: &MoeTuning| Arc::clone(&on.of_key(t).unwrap().inputs);
    let rounds = |on: &mut OnGpus, t: &MoeTuning| on.of_key(t).unwrap().rounds(t.way());
    let (first, round) = (inputs(&mut on, &default), rounds(&mut on, &default));
    assert!(Arc::ptr_eq(&first, &inputs(&mut on, &small)));
    assert!(Arc::ptr_eq(&round, &rounds(&mut on, &small)));
    // Sums of plain rows are others.
    let plain = default.clone().with_dedup(false);
    assert_eq!(rounds(&mut on, &plain)[0].way, plain.way());
    assert!(Arc::ptr_eq(&round, &rounds(&mut on, &small)));
    // Rows in place are the same rows elsewhere.
    let flags = Key::by_token(SHAPE).defaults().unwrap().with_protocol(Protocol::Flags);
    let packets = flags.clone().with_protocol(Protocol::Packets);
    assert_ne!(flags.way(), packets.way());
    for tuning in [&packets, &flags] {
        let (made, apart) =
            (rounds(&mut on, tuning), Round::new(&on.of_key(tuning).unwrap().problem, tuning.way(), 0));
        assert_eq!((made[0].way, &made[0].out), (tuning.way(), &apart.out));
    }
    // Another layout has other outputs of experts.
    let token = Key::by_token(SHAPE).defaults().unwrap();
    assert!(!Arc::ptr_eq(&first, &inputs(&mut on, &token)));
    assert_eq!(rounds(&mut on, &token)[0].way, token.way());
}

/// Compiles nothing before it may.
struct Gated(Mutex<()>);

// SAFETY: another one's images, as they are.
unsafe impl Images for Gated {
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError> {
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
    let all: Vec<Variant> = kernels(&pairs()).collect();
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
