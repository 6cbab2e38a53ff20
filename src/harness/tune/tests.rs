use peerwarp_codegen::family::{Choice as _, CudaArch, Target};

use super::fake::Fake;
use super::*;
use crate::families::moe::kernels::Layout;
use crate::families::moe::{MoeShape, RowDtype};

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 16, ranks: 2, dtype: RowDtype::Bf16 };
const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

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

const KEY: Key = Key { shape: SHAPE, layout: Layout::Experts };

fn keys() -> Vec<Key> {
    [8, 16].map(|tokens| KEY.with_tokens(tokens)).into()
}

fn run(table: &mut Table, fake: &mut Fake, options: &Options, seen: &mut Seen) -> Vec<Outcome> {
    tune(&keys(), table, fake, options, seen).unwrap()
}

fn fake() -> Fake {
    Fake::new(MoeTuning::defaults(&SHAPE).unwrap().small())
}

#[test]
fn every_shape_gets_a_record_that_is_kept_at_once() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    let outcomes = run(&mut table, &mut fake, &options(), &mut seen);
    assert_eq!(seen.kept.iter().map(|t| t.records.len()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(seen.kept[1], table);
    assert!(seen.progress.windows(2).all(|w| w[0] <= w[1]), "{:?}", seen.progress);
    assert!(seen.progress.iter().all(|part| (0.0..=1.0).contains(part)));
    let record = table.record(&KEY).unwrap();
    table.tuning(record).unwrap();
    assert_eq!((record.tried, record.limit_us), (20, Some(7.5)));
    assert!(record.us.round_trip < record.default.round_trip_us.unwrap());
    assert!(record.measured.starts_with("20") && record.measured.len() == 10, "{}", record.measured);
    let End::Tuned { trials, run_off, .. } = &outcomes[1].end else { panic!("{outcomes:?}") };
    assert_eq!(trials.len(), 20);
    assert!(run_off.len() >= 2 && run_off[0].dispatch == record.default.dispatch);
    // What won for 8 tokens is where the search for 16 begins: right after the default.
    let first = table.record(&KEY.with_tokens(8)).unwrap().tuning().unwrap();
    let (d, c) = &fake.asked[21];
    let moved = &lookup::alike(&table, &KEY)[0];
    assert_eq!((d, c), (&Pair::of(moved).dispatch, &Pair::of(moved).combine));
    assert_eq!(moved.dispatch.warps, first.dispatch.warps);
}

#[test]
fn what_is_there_is_skipped_unless_forced_or_drifted() {
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
    table.records[0].kernels = "0123".into();
    let outcomes = run(&mut table, &mut fake(), &options(), &mut seen);
    assert_eq!(skipped(&outcomes), [false, true]);
    table.tuning(&table.records[0]).unwrap();
    let forced = Options { force: true, ..options() };
    assert_eq!(skipped(&run(&mut table, &mut fake(), &forced, &mut seen)), [false, false]);
}

#[test]
fn a_shape_that_fails_does_not_end_the_run() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    fake.refuses = Box::new(|t| (t.dispatch.tokens == 8).then(|| (None, "does not compile".into())));
    let outcomes = run(&mut table, &mut fake, &options(), &mut seen);
    assert!(matches!(&outcomes[0].end, End::Failed { reason } if reason.contains("does not compile")));
    assert!(matches!(&outcomes[1].end, End::Tuned { .. }));
    assert_eq!(table.records.len(), 1);
}

#[test]
fn layouts_of_a_shape_are_tuned_apart() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    let token = Key::by_token(SHAPE);
    let outcomes = tune(&[KEY, token], &mut table, &mut fake, &options(), &mut seen).unwrap();
    assert_eq!(outcomes.iter().map(|o| o.key).collect::<Vec<_>>(), [KEY, token]);
    for (half, key) in fake.asked.chunks(20).zip([KEY, token]) {
        let layout = format!("_{}_", key.layout.name());
        assert!(half.iter().all(|(d, c)| d.contains(&layout) && c.contains(&layout)), "{half:?}");
        let record = table.record(&key).unwrap();
        assert_eq!(Key::of(&table.tuning(record).unwrap().dispatch), key);
        assert_eq!(record.default.dispatch, Pair::of(&key.defaults().unwrap()).dispatch);
    }
    // One that is there says nothing of the other.
    table.records.retain(|r| r.layout == Layout::Experts);
    let outcomes = tune(&[KEY, token], &mut table, &mut fake, &options(), &mut seen).unwrap();
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
fn a_key_without_legal_defaults_fails_alone() {
    let (mut table, mut seen) = (Table::new("A", TARGET), Seen::default());
    let bad = Key::by_token(MoeShape { hidden: 12, ..SHAPE });
    let outcomes = tune(&[bad, KEY], &mut table, &mut fake(), &options(), &mut seen).unwrap();
    assert!(matches!(&outcomes[0].end, End::Failed { reason } if reason.contains("hidden = 12")));
    assert!(matches!(outcomes[1].end, End::Tuned { .. }));
}
