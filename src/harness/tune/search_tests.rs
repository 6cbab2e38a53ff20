use super::super::example::{KEY, PairKey, pair, set, stranger_task, value};
use super::super::fake::Fake;
use super::super::space;
use super::*;

const BUDGET: Budget = Budget { trials: 120, until: None };

/// A candidate some steps from the defaults, in both components.
fn far() -> Candidate {
    let components = KEY.task().suite.components();
    let mut far = pair(KEY);
    for number in [3, 7, 5, 9, 2] {
        let (steps, _) = space::steps(&components, &far);
        far = steps[number * 5 % steps.len()].to.clone();
    }
    assert_eq!(far.changed(&pair(KEY)), [0, 1]);
    far
}

fn flags() -> Candidate {
    let flags = [("protocol", "flags")];
    set(&set(&pair(KEY), 0, &flags), 1, &flags)
}

fn run(fake: &mut Fake, budget: &Budget) -> Result<Searched, SearchError> {
    let task = KEY.task();
    let mut ticks = 0;
    let seeds = seeds(&task, &[]);
    fake.start(&task);
    let found = search(&task, fake, &seeds, budget, &mut || ticks += 1)?;
    assert!(ticks >= found.trials.len());
    Ok(found)
}

#[test]
fn finds_the_best_candidate_wherever_it_is() {
    for best in [far(), flags()] {
        let mut fake = Fake::new(best.clone());
        let found = run(&mut fake, &BUDGET).unwrap();
        assert_eq!(found.winner, best);
        assert!(found.trials.len() <= 120, "{}", found.trials.len());
        assert_eq!(found.components, [10.0, 10.0]);
        assert_eq!(found.refused, []);
        // The default was in the run-off, and was slower.
        let default = pair(KEY);
        assert!(found.round_us(&default).unwrap() > found.round_us(&best).unwrap());
        assert!(found.round_us(found.model.as_ref().unwrap()).is_some());
        // Nothing was timed twice.
        let asked: BTreeSet<_> = fake.asked.iter().map(|c| c.names().to_vec()).collect();
        assert_eq!(asked.len(), fake.asked.len());
    }
}

#[test]
fn what_is_measured_is_prepared_before_and_most_of_it_long_before() {
    let mut fake = Fake::new(far());
    run(&mut fake, &BUDGET).unwrap();
    assert!(fake.asked.iter().all(|candidate| fake.prepared.contains(candidate)));
    let kernels =
        |all: &[Candidate]| -> BTreeSet<String> { all.iter().flat_map(|c| c.names().to_vec()).collect() };
    let (measured, early) = (kernels(&fake.prepared), kernels(&fake.precompiled));
    assert!(2 * measured.intersection(&early).count() > measured.len());
}

#[test]
fn a_budget_holds_and_the_default_is_always_measured() {
    let mut fake = Fake::new(far());
    let budget = Budget { trials: 10, until: None };
    let found = run(&mut fake, &budget).unwrap();
    assert_eq!(fake.asked.len(), 10);
    assert!(found.rounds.len() >= 2);
    let mut fake = Fake::new(far());
    let late = Budget { trials: 10, until: Some(Instant::now()) };
    let found = run(&mut fake, &late).unwrap();
    let default = pair(KEY);
    assert_eq!((fake.asked.len(), &found.winner), (1, &default));
}

#[test]
fn the_default_wins_unless_another_is_clearly_faster() {
    let mut fake = Fake::new(far());
    fake.step = 1e-4;
    let default = pair(KEY);
    assert_eq!(run(&mut fake, &BUDGET).unwrap().winner, default);
}

#[test]
fn what_cannot_be_used_is_reported_and_does_not_win() {
    let best = far();
    let mut fake = Fake::new(best.clone());
    let bad = best.names()[0].clone();
    let named = bad.clone();
    fake.refuses =
        Box::new(move |c| c.has(&named).then(|| (Some(named.clone()), "too many registers".into())));
    let found = run(&mut fake, &BUDGET).unwrap();
    assert_ne!(found.winner.names()[0], best.names()[0]);
    assert_eq!(found.winner.names()[1], best.names()[1]);
    let refusal = Refusal { variant: bad, reason: "too many registers".into() };
    assert_eq!(found.refused, [refusal]);
}

#[test]
fn variants_that_are_wrong_together_are_reported_by_both_names() {
    let best = far();
    let mut fake = Fake::new(best.clone());
    let bad = best.clone();
    fake.refuses = Box::new(move |c| (*c == bad).then(|| (None, "did not end".into())));
    let found = run(&mut fake, &BUDGET).unwrap();
    let name = format!("{} with {}", best.names()[0], best.names()[1]);
    assert_ne!(found.winner, best);
    assert!(found.refused.iter().any(|r| r.variant == name && r.reason == "did not end"), "{found:?}");
}

#[test]
fn a_wrong_result_does_not_win() {
    let best = far();
    let mut fake = Fake::new(best.clone());
    let wrong = best.names()[0].clone();
    fake.wrong = Box::new(move |c| c.has(&wrong));
    let found = run(&mut fake, &BUDGET).unwrap();
    assert_ne!(found.winner.names()[0], best.names()[0]);
    assert!(found.refused.iter().any(|r| r.reason == "wrong result"));
    // The default may be wrong, too.
    let mut fake = Fake::new(best.clone());
    let default = pair(KEY);
    let wrong = default.names()[0].clone();
    fake.wrong = Box::new(move |c| c.has(&wrong));
    let found = run(&mut fake, &BUDGET).unwrap();
    assert_eq!((&found.winner, found.round_us(&default)), (&best, None));
}

#[test]
fn where_nothing_can_be_used_it_says_so() {
    let mut fake = Fake::new(far());
    fake.refuses = Box::new(|_| Some((None, "no such instruction".into())));
    let error = run(&mut fake, &BUDGET).unwrap_err().to_string();
    assert!(error.contains("none of 2 candidates") && error.contains("no such instruction"), "{error}");
}

#[test]
fn what_no_link_is_fast_enough_for_is_counted_and_not_tried() {
    // Ten microseconds, which is less than its bytes take.
    let task = PairKey { hidden: 8192, ..KEY }.task();
    let mut fake = Fake::new(task.defaults.clone());
    let seeds = seeds(&task, &[]);
    fake.start(&task);
    let found = search(&task, &mut fake, &seeds, &BUDGET, &mut || ()).unwrap();
    assert_eq!((found.trials.len(), &found.winner), (seeds.len(), &task.defaults));
    assert!(found.pruned["limit"] > 10 && found.pruned["illegal"] > 0, "{:?}", found.pruned);
}

#[test]
fn without_a_model_every_neighbour_is_tried() {
    let task = stranger_task(64);
    let best =
        [("warps", "2"), ("blocks", "32")].iter().fold(task.defaults.clone(), |c, f| set(&c, 0, &[*f]));
    let mut fake = Fake::new(best.clone());
    let seeds = seeds(&task, &[]);
    assert_eq!(seeds, std::slice::from_ref(&task.defaults));
    fake.start(&task);
    let found = search(&task, &mut fake, &seeds, &BUDGET, &mut || ()).unwrap();
    assert_eq!((&found.winner, found.model, found.pruned.len()), (&best, None, 0));
    // One component: what is wrong with a candidate is wrong with its variant.
    let mut fake = Fake::new(best.clone());
    let bad = best.clone();
    fake.refuses = Box::new(move |c| (*c == bad).then(|| (None, "did not end".into())));
    fake.start(&task);
    let found = search(&task, &mut fake, &seeds, &BUDGET, &mut || ()).unwrap();
    assert_eq!(found.refused, [Refusal { variant: best.names()[0].clone(), reason: "did not end".into() }]);
    assert_ne!(value(&found.winner.variants()[0], "blocks"), value(&task.defaults.variants()[0], "blocks"));
}
