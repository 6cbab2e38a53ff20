use std::any::Any;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use peerwarp_codegen::family::{DynKernel, Target};

use super::super::example::{Copying, KEY, pair, set, small};
use super::*;
use crate::runtime::image::KernelImage;
use crate::runtime::mock::{Machine, Uncompiled, world};

const EFFORT: Effort = Effort { iterations: 4, run_off: 6, check: true };

fn on(mocked: &Machine, images: Arc<dyn Images + Send + Sync>) -> OnGpus {
    // Mocks are asked for the time between events; hosts have to be faster than it.
    mocked.gap.store(60_000_000_000, Ordering::Relaxed);
    let world = world(mocked);
    let mut on = OnGpus::new(&world, images, EFFORT, 1).unwrap();
    on.start(&KEY.task());
    on
}

fn candidates() -> [Candidate; 2] {
    [pair(KEY), small(&pair(KEY))]
}

#[test]
fn components_are_timed_by_themselves_and_rounds_in_turn_and_nothing_is_left() {
    let mocked = Machine::default();
    let mut on = on(&mocked, Arc::new(Uncompiled));
    on.prepare(&candidates());
    let minute = 60e6;
    assert_eq!(on.components(&candidates()[0]).unwrap(), [minute, minute]);
    assert_eq!(on.metrics(), ["put", "get"]);
    let before = mocked.graphs.load(Ordering::Relaxed);
    let times = on.rounds(&candidates()).unwrap();
    assert_eq!(times, [[minute; 6], [minute; 6]]);
    assert_eq!(mocked.graphs.load(Ordering::Relaxed) - before, 2 * 2 * u64::from(6 + WARMUP));
    assert_eq!(on.limit_us(), None);
    drop(on);
    assert_eq!(mocked.alive(), 0);
}

#[test]
fn what_computes_nothing_is_wrong() {
    let mocked = Machine::default();
    let error = on(&mocked, Arc::new(Uncompiled)).check(&candidates()[0]).unwrap_err();
    let MeasureError::Refused { variant, reason } = error else { panic!("{error}") };
    assert_eq!(variant, None);
    assert!(reason.starts_with("wrong result: round 0, rank 0, y 0"), "{reason}");
}

/// Refuses one variant, and counts.
struct Refusing {
    variant: String,
    asked: Mutex<Vec<String>>,
}

// SAFETY: images are the mock's, or none.
unsafe impl Images for Refusing {
    fn image(&self, variant: &dyn DynKernel, target: Target) -> Result<KernelImage, RuntimeError> {
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
    let mocked = Machine::default();
    let [bad, good] = candidates();
    let variant = bad.names()[1].clone();
    let images = Arc::new(Refusing { variant: variant.clone(), asked: Mutex::default() });
    let shared: Arc<dyn Images + Send + Sync> = Arc::clone(&images) as _;
    let mut on = on(&mocked, shared);
    for _ in 0..2 {
        let error = on.components(&bad).unwrap_err();
        let MeasureError::Refused { variant: named, reason } = error else { panic!("{error}") };
        assert_eq!(named.as_deref(), Some(variant.as_str()));
        assert!(reason.contains("does not compile for sm_90a"), "{reason}");
    }
    on.components(&good).unwrap();
    // Each was compiled once, though it was asked for by both ranks and time and again.
    let mut asked = images.asked.lock().unwrap().clone();
    let all = asked.len();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), all);
}

#[test]
fn a_machine_that_fails_is_no_candidates_fault() {
    let mocked = Machine::default();
    let mut on = on(&mocked, Arc::new(Uncompiled));
    // No event is ever later than another.
    mocked.gap.store(1, Ordering::Relaxed);
    let error = on.components(&candidates()[0]).unwrap_err();
    assert!(matches!(error, MeasureError::Machine(_)), "{error}");
}

#[test]
fn candidates_of_a_task_share_what_its_problem_has_computed() {
    let mocked = Machine::default();
    let mut on = on(&mocked, Arc::new(Uncompiled));
    let [default, small] = candidates();
    let computed = |on: &mut OnGpus, candidate: &Candidate| {
        let problem = on.problem(candidate).unwrap();
        problem.expected(0, 0);
        (&*problem as &dyn Any).downcast_ref::<Copying>().unwrap().computed()
    };
    assert_eq!([computed(&mut on, &default), computed(&mut on, &small)], [1, 1]);
    assert!(on.check(&default).is_err() && on.check(&small).is_err());
    assert_eq!(computed(&mut on, &default), 1);
    // The next task has a reference of its own.
    on.start(&KEY.slots().task());
    assert_eq!(computed(&mut on, &pair(KEY.slots())), 1);
}

#[test]
fn a_component_without_a_metric_is_refused() {
    let mocked = Machine::default();
    let mut on = on(&mocked, Arc::new(Uncompiled));
    let [one, ..] = candidates();
    let three = Candidate::new([one.variants(), &one.variants()[..1]].concat());
    let error = on.components(&three).unwrap_err();
    let MeasureError::Refused { reason, .. } = &error else { panic!("{error}") };
    assert!(reason.contains("pair has 2 metrics and 3 components"), "{reason}");
}

/// What a caller passes may be of another size for another candidate of the same key.
#[test]
fn a_candidate_with_other_buffers_gets_operands_of_its_own() {
    let mocked = Arc::new(Machine::default());
    let mut on = on(&mocked, Arc::new(Uncompiled));
    let [narrow, _] = candidates();
    let wide = set(&narrow, 0, &[("vectors", "8")]);
    let minute = 60e6;
    let made = |on: &OnGpus| Arc::as_ptr(on.task.as_ref().unwrap().operands.as_ref().unwrap());
    assert_eq!(on.components(&narrow).unwrap(), [minute, minute]);
    let first = on.task.as_ref().unwrap().operands.clone().unwrap();
    // Those with the same buffers share what was made.
    assert_eq!(on.components(&small(&narrow)).unwrap(), [minute, minute]);
    assert_eq!(made(&on), Arc::as_ptr(&first));
    assert_eq!(on.components(&wide).unwrap(), [minute, minute]);
    assert_ne!(made(&on), Arc::as_ptr(&first));
    assert_eq!(on.rounds(&[narrow, wide]).unwrap(), [[minute; 6], [minute; 6]]);
    drop((on, first));
    assert_eq!(mocked.alive(), 0);
}
