//! Random kernels in the simulator and as emitted text: the same results and no findings where every rule of
//! `docs/explanation/memory-model.md` is kept, findings in both where one is broken. `PEERWARP_SEED` draws other kernels.

#[path = "../../../tests/host/build.rs"]
#[allow(dead_code)] // so are the next ones: the tests of the crate above use more of them
mod build;
#[path = "../../../tests/host/job.rs"]
#[allow(dead_code)]
mod job;
mod kernel;
mod plan;
#[path = "../../../tests/host/ptx.rs"]
mod ptx;
#[path = "../../../tests/host/rewrite.rs"]
mod rewrite;
#[path = "../../../tests/host/same.rs"]
#[allow(dead_code)]
mod same;
mod tiles;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rayon::prelude::*;

use build::{Language, Mode, Program, Text};
use job::Emitted;
use kernel::RANKS;
use plan::{Plan, ROOM, Random, Rule};
use same::{Case, Left, difference};
use tiles::{Pair, TILE};

const LAUNCHES: u32 = 3;
/// Kernels of a seed that keep every rule.
const KERNELS: u64 = 40;
/// Schedules of a kernel, each random and adversarial.
const SCHEDULES: u64 = 2;
/// The same of a kernel that breaks a rule, until the mistake shows.
const BREAKING_SCHEDULES: [u64; 3] = [1, 4, 16];
/// Kernels of a translation unit.
const UNIT: usize = 10;
/// Bytes of the emitted text that a failure shows.
const SHOWN: usize = 20_000;

fn seed() -> u64 {
    std::env::var("PEERWARP_SEED").map_or(0, |seed| seed.parse().expect("PEERWARP_SEED is a number"))
}

fn case(plan: &Plan) -> Case {
    let (steps, kernels) = (plan.steps.clone(), plan.clone());
    let name = format!("seed {}, {plan:?}", seed());
    let mut case = Case::new(name, LAUNCHES, move |language: Language| {
        vec![kernel::kernel(&kernels, language.target().warp_size())]
    });
    let room = steps.len() * ROOM as usize;
    let mut values = Random(plan.number);
    for rank in 0..RANKS {
        let x: Vec<f32> = (0..room).map(|_| values.below(1000) as f32).collect();
        let n = steps.iter().flat_map(|step| {
            let [start, end, by] = step.range;
            [4 * values.below(100), start, end, by]
        });
        let n: Vec<u32> = n.collect();
        case = case.input(rank, "x", &x).input(rank, "n", &n);
        case = case.input(rank, "out", &vec![0f32; room]).input(rank, "carry", &vec![7f32; 2 * room]);
        for name in ["counts", "totals"] {
            case = case.input(rank, name, &vec![0u32; steps.len()]);
        }
    }
    case.output("out").output("counts").output("totals")
}

fn pair_case(pair: Pair) -> Case {
    let name = format!("seed {}, {pair:?}", seed());
    let case =
        Case::new(name, LAUNCHES, move |language: Language| pair.kernels(language.target().warp_size()));
    let mut values = Random(pair.number);
    (0..RANKS).fold(case.output("out").output("again"), |case, rank| {
        // Sums of small integers are exact in any order.
        let one = |_| half::bf16::from_f32(values.below(4) as f32).to_bits();
        let x: Vec<u16> = (0..2 * TILE * TILE).map(one).collect();
        case.input(rank, "x", &x)
    })
}

/// One case in one language, with what both leave.
struct Outcome<'c> {
    case: &'c Case,
    language: Language,
    emitted: Vec<Emitted>,
    simulated: Left,
    executed: Left,
}

impl Outcome<'_> {
    /// What a reader needs to see what is wrong.
    fn report(&self, what: &str) -> String {
        let text: String = self.emitted.iter().map(|e| e.source.text.as_str()).collect();
        let text: String = text.chars().take(SHOWN).collect();
        format!(
            "{:?}: {what}: {}\nPEERWARP_SEED={} cargo test -p peerwarp-codegen-tests random\n{text}",
            self.language,
            self.case.name,
            seed()
        )
    }
}

/// Runs all cases in a language, whose kernels are one program. More schedules follow while nothing is found.
fn outcomes<'c>(cases: &[&'c Case], language: Language, schedules: &[u64]) -> Vec<Outcome<'c>> {
    let emitted: Vec<Vec<Emitted>> = cases.par_iter().map(|case| case.emitted(language)).collect();
    let text = |e: &Emitted| Text::of(&e.source, language);
    let texts: Vec<Text> = emitted.iter().flatten().map(text).collect();
    let program = Program::of_units(&texts.chunks(UNIT).collect::<Vec<_>>(), Mode::Checked);
    let outcome = |(&case, emitted): (&&'c Case, Vec<Emitted>)| {
        let until_found = |run: &dyn Fn(u64) -> Left| {
            let (&last, fewer) = schedules.split_last().expect("there are schedules");
            let found = fewer.iter().map(|&n| run(n)).find(|left| matches!(left, Left::Wrong(_)));
            found.unwrap_or_else(|| run(last))
        };
        let simulated = until_found(&|n| case.simulated(language, n));
        let executed = until_found(&|n| case.executed_by(&program, &emitted, language, n));
        Outcome { case, language, emitted, simulated, executed }
    };
    cases.par_iter().zip(emitted).map(outcome).collect()
}

/// Panics with the first line of each report, and the first report.
fn none_fails(failures: Vec<String>) {
    if let Some(first) = failures.first() {
        let titles: Vec<&str> = failures.iter().filter_map(|report| report.lines().next()).collect();
        panic!("{} fail:\n{}\nThe first one is\n{first}", failures.len(), titles.join("\n"));
    }
}

#[test]
fn random_kernels_agree() {
    let plans: Vec<Plan> = (seed() * KERNELS..(seed() + 1) * KERNELS).map(Plan::kept).collect();
    for rule in Rule::ALL {
        let kept = plans.iter().flat_map(|plan| &plan.steps).any(|step| step.rule == rule);
        assert!(kept || rule == Rule::LaneOrder, "no kernel of seed {} has {rule:?}", seed());
    }
    let mut cases: Vec<Case> = plans.iter().map(case).collect();
    cases.push(pair_case(Pair::new(seed(), false)));
    let wrong = |o: &Outcome| difference(&o.simulated, &o.executed).map(|what| o.report(&what));
    let cases: Vec<&Case> = cases.iter().collect();
    let of = |language| outcomes(&cases, language, &[SCHEDULES]);
    let all: Vec<Outcome> = Language::ALL.into_iter().flat_map(of).collect();
    let adds = |o: &Outcome| o.emitted.iter().any(|e| e.source.text.contains("multimem.ld_reduce"));
    assert!(all.iter().any(adds), "no kernel of seed {} reads all ranks' windows as one", seed());
    none_fails(all.iter().filter_map(wrong).collect());
}

#[test]
fn broken_rules_are_found_in_both() {
    let rules = Rule::ALL.into_iter().filter(|rule| !rule.broken().is_empty());
    let rules: Vec<(u64, Rule)> = (0..).zip(rules).collect();
    let case = |&(i, rule): &(u64, Rule)| case(&Plan::breaking(rule, seed() * 100 + i));
    let cases: Vec<Case> = rules.iter().map(case).collect();
    let cases: Vec<&Case> = cases.iter().collect();
    let mut failures = vec![];
    for language in Language::ALL {
        for (outcome, (_, rule)) in outcomes(&cases, language, &BREAKING_SCHEDULES).iter().zip(&rules) {
            let missed = missed(*rule, outcome).map(|what| format!("{rule:?} is broken, but {what}"));
            failures.extend(missed.map(|what| outcome.report(&what)));
        }
    }
    none_fails(failures);
}

fn missed(rule: Rule, outcome: &Outcome) -> Option<String> {
    match (&outcome.simulated, &outcome.executed) {
        (Left::Wrong(found), Left::Wrong(_)) => {
            let named = rule.broken().iter().any(|kind| found.contains(kind.name()));
            (!named).then(|| format!("the simulator finds {found:?}"))
        }
        (Left::Same(_), _) => Some("the simulator finds nothing".into()),
        (Left::Wrong(_), Left::Same(_)) => Some("the emitted text shows nothing".into()),
    }
}

/// The simulator has no order of lanes. An operation compares the words of the emitted kernels.
#[test]
fn launches_that_share_a_matrix_in_two_orders_are_refused() {
    let case = pair_case(Pair::new(seed(), true));
    for language in Language::ALL {
        assert!(matches!(case.simulated(language, 1), Left::Same(_)), "{language:?}");
        let refused =
            Left::Wrong(BTreeSet::from(["the elements of parts lie in different orders".to_owned()]));
        assert_eq!(case.executed(language, 1), refused, "{language:?}");
    }
}

/// The page lists the rules that the exchanges are named after.
#[test]
fn the_page_has_every_rule() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/explanation/memory-model.md");
    let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let (_, rules) = text.split_once("## Rules").expect("the page has rules");
    let rules = rules.split("\n## ").next().unwrap_or_default();
    let name = |line: &'_ str| line.strip_prefix("- `")?.split_once('`').map(|(name, _)| name.to_owned());
    let stated: Vec<String> = rules.lines().filter_map(name).collect();
    assert_eq!(stated, Rule::ALL.map(|rule| rule.name().to_owned()));
}

/// The texts of a backend's templates, the shared ones among them.
fn templates(backend: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates");
    let (mut open, mut text) = (vec![folder.join(backend), folder.join("prim")], String::new());
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("an entry").path()));
        } else {
            text += &fs::read_to_string(&path).expect("a template");
        }
    }
    text
}

/// Whether a text has an instruction, perhaps with more qualifiers.
fn has_instruction(text: &str, instruction: &str) -> bool {
    let words = text.split(|c: char| !(c.is_alphanumeric() || "_.:".contains(c)));
    let qualifies = |word: &str| {
        let mut parts = word.split('.');
        instruction.split('.').all(|part| parts.any(|other| other == part))
    };
    text.contains(instruction) || words.filter(|word| word.contains('.')).any(qualifies)
}

/// What the page says that an operation is printed as stands in the templates.
#[test]
fn the_page_names_instructions_of_the_templates() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/explanation/memory-model.md");
    let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let table = text.lines().skip_while(|line| !line.starts_with("| operation")).skip(2);
    let table = table.take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = table.map(|line| line.split(" | ").collect()).collect();
    assert!(rows.len() > 15 && rows.iter().all(|row| row.len() == 5), "{rows:#?}");
    let mut named = 0;
    for (column, backend) in [(2, "cuda"), (3, "hip")] {
        let templates = templates(backend);
        for row in &rows {
            let instructions = row[column].split('`').skip(1).step_by(2);
            for instruction in
                instructions.filter(|i| !i.starts_with('.') && !row[0].contains(&format!("`{i}`")))
            {
                assert!(
                    has_instruction(&templates, instruction),
                    "no template of {backend} has `{instruction}`: {row:?}"
                );
                named += 1;
            }
        }
        assert!(!templates.contains("ld.global.nc"), "{backend}");
    }
    assert!(named > 35, "{named} instructions");
    assert!(!has_instruction(&templates("cuda"), "st.release.cta") && has_instruction("a.b.c x", "a.c"));
}
