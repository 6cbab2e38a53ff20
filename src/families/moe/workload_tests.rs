use super::*;
use crate::families::moe::RowDtype;
use crate::families::moe::kernels::CombineDtype;
use crate::harness::workload::Given;
use std::sync::Arc;

use crate::harness::session::{HostSteps, SimLaunches, SimSession};
use crate::harness::verdict::Verdict;
use crate::harness::workload::RankMemory;
use peerwarp_codegen::sim::Options;

const SHAPE: [(&str, &str); 6] =
    [("hidden", "32"), ("experts", "5"), ("topk", "2"), ("tokens", "4"), ("ranks", "3"), ("dtype", "fp8")];

fn resolve(tuning: &[(&str, &str)]) -> Vec<Variant> {
    let own = |family: FamilyEntry| {
        let has = |name: &str| family.fields().iter().any(|f| f.answers_to(name));
        let tuning = tuning.iter().filter_map(|(f, v)| match f.split_once('.') {
            Some((of, field)) => (of == family.name()).then_some((field, *v)),
            None => has(f).then_some((*f, *v)),
        });
        let menus = [("hook", "raw"), ("layout", "expert-major"), ("phase", "both")];
        let given = |f: &str| tuning.clone().any(|t| t.0 == f);
        let menus = menus.into_iter().filter(|(f, _)| has(f) && !given(f));
        let dtype = if family.name() == Combine::NAME { ("dtype", "bf16") } else { SHAPE[5] };
        let all = SHAPE[..5].iter().copied().chain([dtype]).chain(menus).chain(tuning.clone());
        family.build(&all.map(|(f, v)| (f.to_owned(), v.to_owned())).collect::<Vec<_>>()).unwrap()
    };
    [Dispatch::entry(), Combine::entry()].map(own).into()
}

fn given(tokens_per_rank: &str) -> Given {
    [("tokens-per-rank".to_owned(), tokens_per_rank.to_owned())].into()
}

fn error(variants: &[Variant]) -> String {
    tuning(variants).unwrap_err().to_string()
}

#[test]
fn selections_give_fitting_pairs() {
    let both = tuning(&resolve(&[])).unwrap();
    assert!(!both.key.split && both.plan.dedup && both.key.combined == CombineDtype::Bf16);
    assert_eq!(both.key.shape.dtype, RowDtype::Fp8);
    let plain = resolve(&[("dedup", "false"), ("moe_combine.send_blocks", "4")]);
    let plain = tuning(&plain).unwrap();
    assert!(!plain.plan.dedup);
    assert_eq!(plain.plan.combine.send_blocks, 4);
    assert_ne!(plain.plan.dispatch.send_blocks, 4);

    let halves = |phases: [&str; 2]| phases.iter().flat_map(|p| resolve(&[("phase", p)])).collect::<Vec<_>>();
    for order in [["send", "recv"], ["recv", "send"]] {
        let split = tuning(&halves(order)).unwrap();
        assert_eq!(split, both.clone().with_split(true));
    }
}

#[test]
fn the_other_family_is_filled_in() {
    for keep in [Dispatch::NAME, Combine::NAME] {
        let mut variants = resolve(&[("dedup", "false")]);
        variants.retain(|v| v.family().name() == keep);
        let t = tuning(&variants).unwrap();
        assert!(!t.plan.dedup);
        t.check(&t.key.shape).unwrap();
    }
}

#[test]
fn halves_and_strangers_are_refused() {
    let report = [
        error(&[]),
        error(&resolve(&[("phase", "send")])),
        error(&[resolve(&[]), resolve(&[("warps", "4")])].concat_variants()),
        error(&[resolve(&[("phase", "send")]), resolve(&[("phase", "send")])].concat_variants()),
        error(
            &[resolve(&[("phase", "send")]), resolve(&[("phase", "recv"), ("warps", "4")])].concat_variants(),
        ),
        error(
            &[resolve(&[("phase", "send")]), resolve(&[("phase", "recv")]), resolve(&[])].concat_variants(),
        ),
    ];
    insta::assert_snapshot!(report.join("\n"));
}

trait ConcatVariants {
    fn concat_variants(self) -> Vec<Variant>;
}

impl<const N: usize> ConcatVariants for [Vec<Variant>; N] {
    fn concat_variants(self) -> Vec<Variant> {
        self.into_iter().flatten().collect()
    }
}

#[test]
fn sizes_vary_with_the_seed_and_the_round_if_they_may() {
    let shape = tuning(&resolve(&[])).unwrap().key.shape;
    let counts = |seed, round, ragged| {
        let inputs = Inputs { seed, ragged, ..Inputs::default() };
        routing_of(&shape, &inputs, round).unwrap().tokens_per_rank(shape.topk)
    };
    assert!((0..20).all(|seed| counts(seed, 1, false) == [4, 4, 4]));
    let all: Vec<_> = (0..40).flat_map(|seed| [counts(seed, 0, true), counts(seed, 1, true)]).collect();
    assert!(all.iter().any(|c| c == &[4, 4, 4]));
    assert!(all.iter().any(|c| c.contains(&0)));
    assert!(all.iter().flatten().all(|n| *n <= 4));
    assert!((0..40).any(|seed| counts(seed, 0, true) != counts(seed, 1, true)));
    let inputs = Inputs { ragged: true, given: given("1,0,2"), ..Inputs::default() };
    assert_eq!(routing_of(&shape, &inputs, 3).unwrap().tokens_per_rank(shape.topk), [1, 0, 2]);
}

#[test]
fn runs_and_counts() {
    for phase in ["both", "split"] {
        let variants = match phase {
            "split" => [resolve(&[("phase", "send")]), resolve(&[("phase", "recv")])].concat_variants(),
            _ => resolve(&[]),
        };
        let inputs = Inputs { rounds: 2, given: given("4,0,1"), ..Inputs::default() };
        let problem: Arc<dyn Problem> = MoeSuite.problem(&variants, &inputs).unwrap().into();
        assert_eq!(problem.per_rank()[0], ("tokens sent".to_owned(), vec![8, 0, 2]));
        let ran = SimSession::new(problem).unwrap().run(&Options::default()).unwrap();
        assert!(ran.verdict.ok(), "{:?}", ran.verdict);
        assert_eq!(ran.verdict.compared, 2 * 5 * 32);
        assert!(ran.report.bytes_on_wire() > 0);
    }
}

#[test]
fn all_rounds_have_the_same_inputs() {
    let inputs = Inputs { rounds: 3, given: given("0,0,0"), ..Inputs::default() };
    let problem = MoeSuite.problem(&resolve(&[]), &inputs).unwrap();
    for (rank, round) in (0..3).flat_map(|rank| (0..3).map(move |round| (rank, round))) {
        let names: Vec<String> = problem.inputs(rank, round).into_iter().map(|c| c.buffer).collect();
        assert_eq!(names, ["n", "x", "ids", "weights", "x_scale"], "rank {rank}, round {round}");
    }
}

/// A problem's data, passed and taken as a caller does that has data and no problem.
struct ByHand(Box<dyn Problem>);

impl HostSteps for ByHand {
    fn numbers(&self, rank: u32) -> Vec<(String, peerwarp_codegen::ir::Const)> {
        self.0.numbers(rank, 0)
    }

    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let rank = memory.rank();
        match launches {
            0 => self.0.inputs(rank, 0).iter().try_for_each(|contents| contents.write(memory)),
            // Compares what came with the reference, and runs the experts.
            1 => self.0.after_launch(0, 0, memory),
            _ => {
                let mut verdict = Verdict::default();
                for expected in self.0.expected(rank, 0) {
                    let found = memory.read(&expected.buffer, expected.at, expected.bytes.len())?;
                    self.0.compare(rank, 0, &expected, &found, &mut verdict);
                }
                verdict.first_wrong.map_or(Ok(()), Err)
            }
        }
    }
}

#[test]
fn data_given_by_hand_yield_what_the_reference_says_with_or_without_combine() {
    for layout in ["expert-major", "rank-major"] {
        let variants = resolve(&[("layout", layout)]);
        let inputs = Inputs { given: given("4,0,1"), ..Inputs::default() };
        let problem = MoeSuite.problem(&variants, &inputs).unwrap();
        let launches = SimLaunches::new(problem.launches()).unwrap();
        let host: Arc<dyn HostSteps> = Arc::new(ByHand(problem));
        for (count, epoch) in [(1, 0), (2, 1), (1, 2), (2, u32::MAX)] {
            launches.run(count, epoch, &host, &Options::default()).unwrap().unwrap();
        }
    }
}
