use peerwarp_codegen::family::{CudaArch, Target};

use super::fake::Fake;
use super::*;
use crate::moe::RowDtype;

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 16, ranks: 2, dtype: RowDtype::Bf16 };
const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

#[derive(Default)]
struct Seen {
    progress: Vec<f64>,
    kept: Vec<Table>,
}

impl Watch for Seen {
    fn progress(&mut self, part: f64, _: &MoeShape) {
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

fn shapes() -> Vec<MoeShape> {
    [8, 16].map(|tokens| MoeShape { tokens, ..SHAPE }).into()
}

fn run(table: &mut Table, fake: &mut Fake, options: &Options, seen: &mut Seen) -> Vec<Outcome> {
    tune(&shapes(), table, fake, options, seen).unwrap()
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
    let record = table.record(&SHAPE).unwrap();
    table.tuning(record).unwrap();
    assert_eq!((record.tried, record.limit_us), (20, Some(7.5)));
    assert!(record.us.round_trip < record.default.round_trip_us.unwrap());
    assert!(record.measured.starts_with("20") && record.measured.len() == 10, "{}", record.measured);
    let End::Tuned { trials, run_off, .. } = &outcomes[1].end else { panic!("{outcomes:?}") };
    assert_eq!(trials.len(), 20);
    assert!(run_off.len() >= 2 && run_off[0].dispatch == record.default.dispatch);
    // What won for 8 tokens is where the search for 16 begins: right after the default.
    let first = table.record(&MoeShape { tokens: 8, ..SHAPE }).unwrap().tuning().unwrap();
    let (d, c) = &fake.asked[21];
    let moved = &lookup::alike(&table, &SHAPE)[0];
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
fn a_budget_of_time_is_shared_by_what_is_left() {
    let (mut table, mut fake, mut seen) = (Table::new("A", TARGET), fake(), Seen::default());
    let none = Options { budget: Some(Duration::ZERO), ..options() };
    run(&mut table, &mut fake, &none, &mut seen);
    // The defaults, and nothing else.
    assert_eq!(fake.asked.len(), 2);
    assert_eq!(table.records.len(), 2);
}
