use super::example::{KEY, Pair, PairKey, TARGET, pair, small, stranger_task, value};
use super::fake::Fake;
use super::*;
use crate::harness::workload::Given;

#[derive(Default)]
struct Seen {
    progress: Vec<f64>,
    kept: Vec<Table>,
}

impl Watch for Seen {
    fn progress(&mut self, part: f64, _: &Key) {
        self.progress.push(part);
    }

    fn keep(&mut self, table: &Table) -> Result<(), TableError> {
        self.kept.push(table.clone());
        Ok(())
    }
}

fn options() -> Options {
    let made = Made { peerwarp: "0.1.0".into(), driver: "13".into(), compiler: "nvrtc".into() };
    Options { trials: 20, budget: None, force: false, made }
}

fn tasks() -> Vec<Task> {
    [8, 16].map(|tokens| KEY.tokens(tokens).task()).into()
}

fn run(table: &mut Table, fake: &mut Fake, options: &Options, seen: &mut Seen) -> Vec<Outcome> {
    tune(&tasks(), table, fake, options, seen).unwrap()
}

fn fake() -> Fake {
    Fake::new(small(&pair(KEY)))
}

#[test]
fn every_task_gets_a_record_that_is_kept_at_once() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    let outcomes = run(&mut table, &mut fake, &options(), &mut seen);
    assert_eq!(seen.kept.iter().map(|t| t.records.len()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(seen.kept[1], table);
    assert!(seen.progress.windows(2).all(|w| w[0] <= w[1]), "{:?}", seen.progress);
    assert!(seen.progress.iter().all(|part| (0.0..=1.0).contains(part)));
    let record = table.record(&KEY.of()).unwrap();
    record.winner(&Pair).unwrap();
    assert_eq!((record.tried, record.limit_us), (20, Some(7.5)));
    assert!(record.us < record.default.us.unwrap());
    assert!(record.measured.starts_with("20") && record.measured.len() == 10, "{}", record.measured);
    let End::Tuned { trials, run_off, .. } = &outcomes[1].end else { panic!("{outcomes:?}") };
    assert_eq!(trials.len(), 20);
    assert!(run_off.len() >= 2 && run_off[0].variants == record.default.variants);
    // What won for 8 tokens is where the search for 16 begins: right after the default.
    let first = table.record(&KEY.tokens(8).of()).unwrap().winner(&Pair).unwrap();
    let moved = &lookup::alike(&table, &KEY.task())[0];
    assert_eq!(&fake.asked[21], moved);
    assert_eq!(value(&moved.variants()[0], "warps"), value(&first.variants()[0], "warps"));
    assert_eq!(record.metrics.keys().collect::<Vec<_>>(), ["get", "put"]);
}

#[test]
fn what_is_there_is_skipped_unless_forced_or_earlier() {
    let (mut table, mut seen) = (Table::new("A", TARGET), Seen::default());
    run(&mut table, &mut fake(), &options(), &mut seen);
    let skipped =
        |outcomes: &[Outcome]| outcomes.iter().map(|o| matches!(o.end, End::Skipped)).collect::<Vec<_>>();
    let mut again = fake();
    let outcomes = run(&mut table, &mut again, &options(), &mut seen);
    assert_eq!((skipped(&outcomes), again.asked.len()), (vec![true, true], 0));
    // Interrupted after the first: it goes on with the second.
    table.records.pop();
    let outcomes = run(&mut table, &mut fake(), &options(), &mut seen);
    assert_eq!(skipped(&outcomes), [true, false]);
    table.records[0].revisions.clear();
    let outcomes = run(&mut table, &mut fake(), &options(), &mut seen);
    assert_eq!(skipped(&outcomes), [false, true]);
    assert!(table.records[0].is_current(&Pair, None));
    // Measured with a driver of another major version.
    let mut driver = options();
    driver.made.driver = "14".into();
    let outcomes = run(&mut table.clone(), &mut fake(), &driver, &mut seen);
    assert_eq!(skipped(&outcomes), [false, false]);
    let forced = Options { force: true, ..options() };
    assert_eq!(skipped(&run(&mut table, &mut fake(), &forced, &mut seen)), [false, false]);
}

#[test]
fn a_task_that_fails_does_not_end_the_run() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    fake.refuses = Box::new(|c| {
        let few = c.names()[0].contains("_t8_");
        few.then(|| (None, "does not compile".into()))
    });
    let outcomes = run(&mut table, &mut fake, &options(), &mut seen);
    assert!(matches!(&outcomes[0].end, End::Failed { reason } if reason.contains("does not compile")));
    assert!(matches!(&outcomes[1].end, End::Tuned { .. }));
    assert_eq!(table.records.len(), 1);
}

#[test]
fn keys_that_differ_in_more_than_covering_fields_are_tuned_apart() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    let (keys, tasks) = ([KEY, KEY.slots()], [KEY.task(), KEY.slots().task()]);
    let outcomes = tune(&tasks, &mut table, &mut fake, &options(), &mut seen).unwrap();
    assert_eq!(outcomes.iter().map(|o| o.key.clone()).collect::<Vec<_>>(), keys.map(PairKey::of));
    assert_eq!(fake.started, keys.map(PairKey::of));
    for (half, key) in fake.asked.chunks(20).zip(keys) {
        let layout = format!("_{}_", key.layout);
        assert!(half.iter().all(|c| c.names().iter().all(|name| name.contains(&layout))), "{half:?}");
        let record = table.record(&key.of()).unwrap();
        assert_eq!(Key::of("pair", record.winner(&Pair).unwrap().variants()), key.of());
        assert_eq!(record.default.variants, record::names(&pair(key)));
    }
    // One that is there says nothing of the other.
    table.records.retain(|r| r.of() == KEY.of());
    let outcomes = tune(&tasks, &mut table, &mut fake, &options(), &mut seen).unwrap();
    assert!(matches!(outcomes[0].end, End::Skipped) && matches!(outcomes[1].end, End::Tuned { .. }));
}

#[test]
fn a_budget_of_time_is_shared_by_what_is_left() {
    let second = Duration::from_secs(1);
    // Two keys left: half of the time, less what checks and the run-off will take.
    assert_eq!(share(10 * second, 2, second), 4 * second);
    assert_eq!(share(4 * second, 1, Duration::ZERO), 4 * second);
    assert_eq!(share(second, 2, second), Duration::ZERO);
}

#[test]
fn what_a_budget_does_not_suffice_for_is_left_to_the_next_run() {
    let (mut table, mut seen) = (Table::new("A", TARGET), Seen::default());
    let mut slow = Fake { takes: Duration::from_millis(400), ..fake() };
    let short = Options { budget: Some(Duration::from_millis(200)), ..options() };
    let outcomes = run(&mut table, &mut slow, &short, &mut seen);
    // The first one's default, which took all of it.
    assert_eq!(slow.asked.len(), 1);
    assert!(matches!(outcomes[0].end, End::Tuned { .. }) && matches!(outcomes[1].end, End::OutOfTime));
    assert_eq!(table.records.len(), 1);
    let outcomes = run(&mut table, &mut fake(), &options(), &mut seen);
    assert!(matches!(outcomes[0].end, End::Skipped) && matches!(outcomes[1].end, End::Tuned { .. }));
}

#[test]
fn time_that_a_run_off_takes_is_kept_for_it() {
    let (mut table, mut seen) = (Table::new("A", TARGET), Seen::default());
    let mut slow = Fake { run_off_takes: Duration::from_millis(700), ..fake() };
    let budget = Options { budget: Some(Duration::from_millis(1200)), trials: 10, ..options() };
    run(&mut table, &mut slow, &budget, &mut seen);
    // The second has half a second, of which its run-off would take more: its default alone is measured.
    assert_eq!(slow.asked.len(), 11);
    assert_eq!(table.records.len(), 2);
}

#[test]
fn a_task_whose_defaults_do_not_go_together_fails_alone() {
    let (mut table, mut seen) = (Table::new("A", TARGET), Seen::default());
    let [put, get] = [pair(KEY), pair(KEY.tokens(8))].map(|c| c.variants().to_vec());
    let bad = Task::new(&Pair, [put[0].clone(), get[1].clone()], Given::new());
    let outcomes = tune(&[bad, KEY.task()], &mut table, &mut fake(), &options(), &mut seen).unwrap();
    assert!(matches!(&outcomes[0].end, End::Failed { reason } if reason.contains("tokens must be the same")));
    assert!(matches!(outcomes[1].end, End::Tuned { .. }));
}

#[test]
fn a_strangers_family_is_tuned_and_found_again_beside_other_suites() {
    let (mut table, mut seen) = (Table::new("A", TARGET), Seen::default());
    run(&mut table, &mut fake(), &options(), &mut seen);
    let task = stranger_task(640);
    let best = small(&task.defaults);
    let mut fake = Fake::new(best.clone());
    let outcomes = tune(std::slice::from_ref(&task), &mut table, &mut fake, &options(), &mut seen).unwrap();
    let End::Tuned { record, .. } = &outcomes[0].end else { panic!("{outcomes:?}") };
    assert_eq!((record.suite.as_str(), &record.model), ("stranger", &None));
    assert_eq!(Key::to_string(&record.of()), "stranger: elements 640, ranks 2");
    assert_eq!(table.records.len(), 3);
    let table = Table::parse(&table.text(), "t.toml").unwrap();
    let tuned = Tuned::new(table);
    let found = tuned.find(task.suite, task.defaults.variants()).unwrap();
    assert_eq!((Candidate::new(found.variants), found.by), (best, Choice::Tuned));
    // None of its fields covers: another key has nothing.
    assert!(tuned.find(task.suite, stranger_task(641).defaults.variants()).is_none());
    assert_eq!(tuned.winners(&Pair).count(), 2);
    assert_eq!(tuned.notes(&[&Pair, task.suite]), [""; 0]);
}
