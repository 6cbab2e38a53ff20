use super::*;
use crate::families::moe::kernels::Protocol;
use crate::families::moe::{MoeShape, RowDtype};
use crate::harness::tune::fake::Fake;
use crate::harness::tune::{Pair, space};

const SHAPE: MoeShape =
    MoeShape { hidden: 1024, experts: 32, topk: 4, tokens: 32, ranks: 2, dtype: RowDtype::Bf16 };

const BUDGET: Budget = Budget { trials: 120, until: None };

/// A pair some steps from the defaults, in both kernels.
fn far() -> MoeTuning {
    let mut far = MoeTuning::defaults(&SHAPE).unwrap();
    for number in [3, 7, 5, 9, 2] {
        let (steps, _) = space::steps(&far);
        far = steps[number * 5 % steps.len()].to.clone();
    }
    far
}

fn run(fake: &mut Fake, budget: &Budget) -> Result<Found, SearchError> {
    let default = MoeTuning::defaults(&SHAPE).unwrap();
    let mut ticks = 0;
    let seeds = seeds(&default, &Model::new(SHAPE), &[]);
    let found = search(fake, &seeds, budget, &mut || ticks += 1)?;
    assert!(ticks >= found.trials.len());
    Ok(found)
}

#[test]
fn finds_the_best_pair_wherever_it_is() {
    for best in [far(), MoeTuning::defaults(&SHAPE).unwrap().with_protocol(Protocol::Flags)] {
        let mut fake = Fake::new(best.clone());
        let found = run(&mut fake, &BUDGET).unwrap();
        assert_eq!(found.winner, best);
        assert!(found.trials.len() <= 120, "{}", found.trials.len());
        assert_eq!((found.alone.dispatch, found.alone.combine), (10.0, 10.0));
        assert_eq!(found.refused, []);
        // The default was in the run-off, and was slower.
        let default = MoeTuning::defaults(&SHAPE).unwrap();
        assert!(found.round_trip_us(&default).unwrap() > found.round_trip_us(&best).unwrap());
        assert!(found.round_trip_us(&found.model).is_some());
        // Nothing was timed twice.
        let asked: BTreeSet<_> = fake.asked.iter().cloned().collect();
        assert_eq!(asked.len(), fake.asked.len());
    }
}

#[test]
fn what_is_measured_is_prepared_before_and_most_of_it_long_before() {
    let mut fake = Fake::new(far());
    run(&mut fake, &BUDGET).unwrap();
    let asked = |pair: &Pair| (pair.dispatch.clone(), pair.combine.clone());
    let prepared: BTreeSet<_> = fake.prepared.iter().map(asked).collect();
    assert!(fake.asked.iter().all(|pair| prepared.contains(pair)));
    let kernels = |all: &[Pair]| -> BTreeSet<String> {
        all.iter().flat_map(|pair| [pair.dispatch.clone(), pair.combine.clone()]).collect()
    };
    let (measured, foreseen) = (kernels(&fake.prepared), kernels(&fake.foreseen));
    assert!(2 * measured.intersection(&foreseen).count() > measured.len());
}

#[test]
fn a_budget_holds_and_the_default_is_always_measured() {
    let mut fake = Fake::new(far());
    let budget = Budget { trials: 10, until: None };
    let found = run(&mut fake, &budget).unwrap();
    assert_eq!(fake.asked.len(), 10);
    assert!(found.round_trips.len() >= 2);
    let mut fake = Fake::new(far());
    let late = Budget { trials: 10, until: Some(Instant::now()) };
    let found = run(&mut fake, &late).unwrap();
    let default = MoeTuning::defaults(&SHAPE).unwrap();
    assert_eq!((fake.asked.len(), &found.winner), (1, &default));
}

#[test]
fn the_default_wins_unless_another_is_clearly_faster() {
    let mut fake = Fake::new(far());
    fake.step = 1e-4;
    let default = MoeTuning::defaults(&SHAPE).unwrap();
    assert_eq!(run(&mut fake, &BUDGET).unwrap().winner, default);
}

#[test]
fn what_cannot_be_used_is_told_and_does_not_win() {
    let best = far();
    let mut fake = Fake::new(best.clone());
    let bad = best.dispatch.variant_name();
    let named = bad.clone();
    fake.refuses = Box::new(move |t| {
        (t.dispatch.variant_name() == named).then(|| (Some(named.clone()), "too many registers".into()))
    });
    let found = run(&mut fake, &BUDGET).unwrap();
    assert_ne!(found.winner.dispatch, best.dispatch);
    assert_eq!(found.winner.combine, best.combine);
    let refusal = Refusal { variant: bad, reason: "too many registers".into() };
    assert_eq!(found.refused, [refusal]);
}

#[test]
fn pairs_that_are_wrong_together_are_told_by_both_names() {
    let best = far();
    let mut fake = Fake::new(best.clone());
    let pair = best.clone();
    fake.refuses = Box::new(move |t| (*t == pair).then(|| (None, "did not end".into())));
    let found = run(&mut fake, &BUDGET).unwrap();
    let name = format!("{} with {}", best.dispatch.variant_name(), best.combine.variant_name());
    assert_ne!(found.winner, best);
    assert!(found.refused.iter().any(|r| r.variant == name && r.reason == "did not end"), "{found:?}");
}

#[test]
fn a_wrong_result_does_not_win() {
    let best = far();
    let mut fake = Fake::new(best.clone());
    let wrong = best.dispatch.clone();
    fake.wrong = Box::new(move |t| t.dispatch == wrong);
    let found = run(&mut fake, &BUDGET).unwrap();
    assert_ne!(found.winner.dispatch, best.dispatch);
    assert!(found.refused.iter().any(|r| r.reason == "wrong result"));
    // The default may be wrong, too.
    let mut fake = Fake::new(best.clone());
    let default = MoeTuning::defaults(&SHAPE).unwrap();
    let wrong = default.dispatch.clone();
    fake.wrong = Box::new(move |t| t.dispatch == wrong);
    let found = run(&mut fake, &BUDGET).unwrap();
    assert_eq!((&found.winner, found.round_trip_us(&default)), (&best, None));
}

#[test]
fn where_nothing_can_be_used_it_says_so() {
    let mut fake = Fake::new(far());
    fake.refuses = Box::new(|_| Some((None, "no such instruction".into())));
    let error = run(&mut fake, &BUDGET).unwrap_err().to_string();
    assert!(error.contains("none of 2 pairs") && error.contains("no such instruction"), "{error}");
}

#[test]
fn what_no_link_is_fast_enough_for_is_counted_and_not_tried() {
    let shape =
        MoeShape { hidden: 7168, experts: 256, topk: 8, tokens: 128, ranks: 8, dtype: RowDtype::Bf16 };
    let default = MoeTuning::defaults(&shape).unwrap();
    // Ten microseconds, which is less than its bytes take.
    let mut fake = Fake::new(default.clone());
    let seeds = seeds(&default, &Model::new(shape), &[]);
    let found = search(&mut fake, &seeds, &BUDGET, &mut || ()).unwrap();
    assert_eq!((found.trials.len(), &found.winner), (seeds.len(), &default));
    assert!(found.pruned["limit"] > 10 && found.pruned["illegal"] > 0, "{:?}", found.pruned);
}
