//! `peerwarp bench`.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::bench::{
    self, BaselineTimes, Bench, BenchError, BenchOptions, Case, CaseTimes, Stats, in_words, report,
};
use crate::harness::choose::Device;
use crate::harness::tune::Choice;
use crate::harness::workload::{Baseline, Given, Inputs};
use crate::input::InputError;
use crate::runtime::{Launched, World, WorldOptions, gpus};

use super::App;
use super::args::BenchArgs;
use super::output::{Done, Failure, Pending, Progress, Style, bytes, table};
use super::run_gpu::{jit, known_limits, notes, profile, wait_budget, world};
use super::select::Chosen;

pub(super) fn bench(app: &App, args: &BenchArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    // Errors of the input are reported before those of the machine.
    let tables = args.selection.tables(app)?;
    let chosen = app.choose_all(&args.selection, given, false, &tables.on(Device::default()))?;
    let baseline = args.compare.then(|| baseline(&chosen)).transpose()?;
    cases(&chosen, args)?;
    let profile = args.profile.as_deref().map(profile).transpose()?;
    // Every process gets all times, and one is enough to tell them.
    let first = Launched::here()?.is_none_or(|launched| launched.rank == 0);
    // Before the work, which takes long; what is there stays until there is something to put in its place.
    let html = args.html.as_deref().filter(|_| first);
    let html = html.map(|path| Pending::new("--html", path)).transpose()?;
    // Kept until the world has them: to open them twice takes seconds.
    let found = gpus().unwrap_or_default();
    let device = found.first().map_or_else(Device::default, |gpu| Device::of_gpu(gpu.info()));
    let device = tables.on(device);
    let chosen = chosen.into_iter().map(|chosen| app.on_device(chosen, &device));
    let chosen = chosen.collect::<Result<Vec<Chosen>, Failure>>()?;
    let cases = cases(&chosen, args)?;
    let world = world_of(args, &cases)?;
    drop(found);
    let mut notes = notes(&world);
    notes.extend(limit_over_nodes(world.teams().nodes()));
    let images = jit(&world)?;
    let options = BenchOptions {
        iterations: args.iterations,
        rounds: args.rounds,
        flush_l2: args.flush_l2,
        check: !args.skip_check,
        limits: known_limits(profile.as_ref(), &world, &images)?,
    };
    let progress = Progress::new("timing", cases.len() as u64);
    let inputs = inputs(given, args);
    let timed = bench::run(&cases, &options, &inputs, &world, &images, &mut || progress.tick());
    progress.finish();
    let mut timed = timed?;
    if let Some(baseline) = baseline {
        // Baselines get the GPUs to themselves.
        drop(world);
        let progress = Progress::spinner("timing baselines");
        let mut tell = |what: &str| progress.at(0, format!("timing baselines: {what}"));
        bench::compare(&mut timed, &baseline, &cases, &options, &args.python, &mut tell);
        progress.finish();
    }
    if let Some(html) = html {
        html.write(bench::html(&timed).as_bytes())?;
    }
    let from: Vec<Choice> = chosen.iter().map(|c| c.from.clone()).collect();
    Ok(if first { done(&timed, &from, style).noted(notes) } else { Done::nothing() })
}

/// What users must know of the limits of kernels over several nodes.
fn limit_over_nodes(nodes: u32) -> Option<(&'static str, String)> {
    let said =
        "limits count bytes between nodes at the rate of the links within one: no network reaches them";
    (nodes > 1).then(|| ("limit_over_nodes", said.to_owned()))
}

/// The scripts that time other libraries.
fn baseline(chosen: &[Chosen]) -> Result<Baseline, Failure> {
    if let Some(launched) = Launched::here()? {
        let with = format!("a process for each rank, as {} started them", launched.launcher);
        let allowed = "one process, which gives its GPUs up to baselines";
        return Err(InputError::conflict("--compare", "true", with, allowed).into());
    }
    let suites = |chosen: &[Chosen]| chosen.iter().map(|c| c.suite.name()).collect::<Vec<_>>();
    let [first, rest @ ..] = chosen else {
        return Err(InputError::missing("selection", "kernels to time").into());
    };
    if let Some(other) = suites(rest).into_iter().find(|name| *name != first.suite.name()) {
        let with = format!("{} and {other} at once", first.suite.name());
        return Err(InputError::conflict("--compare", "true", with, "kernels of one suite").into());
    }
    first.suite.baselines().ok_or_else(|| {
        let with = format!("{}, which has no baselines", first.suite.name());
        InputError::conflict("--compare", "true", with, "kernels that have some").into()
    })
}

/// All ranks in this process, or one of them.
fn world_of(args: &BenchArgs, cases: &[Case]) -> Result<Arc<World>, Failure> {
    let ranks = same_ranks(cases)?;
    let method = [
        ("iterations", args.iterations.to_string()),
        ("rounds", args.rounds.to_string()),
        ("flushing of caches", args.flush_l2.to_string()),
        ("sharing of SMs", args.share_sms.to_string()),
        ("check", (!args.skip_check).to_string()),
        ("seed", args.inputs.seed.to_string()),
    ];
    let method = method.map(|(name, value)| (name.to_owned(), value));
    let facts = method.into_iter().collect();
    let wait_budget = wait_budget(args.wait_budget)?;
    let (share_sms, share_gpus) = (args.share_sms, args.share_gpus);
    let nodes = cases.first().map_or(1, |case| case.problem.nodes());
    let options =
        WorldOptions { wait_budget, facts, share_sms, share_gpus, nodes, ..WorldOptions::default() };
    let problems: Vec<Vec<String>> =
        cases.iter().map(|case| [vec![case.problem.title()], case.problem.variants()].concat()).collect();
    Ok(Arc::new(world(ranks, options, &problems)?))
}

fn inputs(given: &Given, args: &BenchArgs) -> Inputs {
    Inputs { seed: args.inputs.seed, rounds: 1, ragged: false, given: given.clone() }
}

/// The problems.
fn cases(chosen: &[Chosen], args: &BenchArgs) -> Result<Vec<Case>, Failure> {
    let case = |chosen: &Chosen| {
        let problem = chosen.suite.problem(&chosen.variants, &inputs(&chosen.given, args))?;
        Ok(Case { problem: problem.into() })
    };
    let cases = chosen.iter().map(case).collect::<Result<Vec<Case>, Failure>>()?;
    same_ranks(&cases)?;
    Ok(cases)
}

/// The world size of all cases.
fn same_ranks(cases: &[Case]) -> Result<u32, InputError> {
    let nodes = |case: &Case| case.problem.nodes();
    let of_first = cases.first().map_or(1, nodes);
    if let Some(other) = cases.iter().map(nodes).find(|n| *n != of_first) {
        let with = format!("nodes = {of_first}");
        return Err(InputError::conflict("nodes", other, with, "one number of nodes"));
    }
    let ranks = |case: &Case| case.problem.ranks();
    let first = cases.first().map_or(0, ranks);
    match cases.iter().map(ranks).find(|r| *r != first) {
        None => Ok(first),
        Some(other) => {
            Err(InputError::conflict("ranks", other, format!("ranks = {first}"), "one world size"))
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error {
            BenchError::Runtime(e) => e.into(),
            BenchError::Wrong { .. } => Failure::Kernel(error.to_string()),
        }
    }
}

fn done(bench: &Bench, from: &[Choice], style: Style) -> Done {
    let mut json = json!({ "ok": true, "tuned": from });
    if let (Value::Object(all), Value::Object(found)) = (&mut json, json!(bench)) {
        all.extend(found);
    }
    Done { text: text(bench, from, style), json, ok: true }
}

fn text(bench: &Bench, from: &[Choice], style: Style) -> String {
    let mut text = String::new();
    for (name, value) in report::facts(bench) {
        writeln!(text, "{name:<12}{value}").expect("string");
    }
    for (number, case) in bench.cases.iter().enumerate() {
        writeln!(text, "\n{}", style.bold(&case.title)).expect("string");
        if let Some(from) = from.get(number).filter(|from| **from != Choice::Default) {
            writeln!(text, "kernels: {from}").expect("string");
        }
        write!(text, "{}", case_table(bench, number, case)).expect("string");
    }
    let absent = |b: &BaselineTimes| b.absent.as_ref().map(|why| format!("absent: {}: {why}\n", b.name));
    text.extend(bench.baselines.iter().filter_map(absent));
    let unchecked = |b: &BaselineTimes| {
        let timed = b.absent.is_none() && !b.checked;
        timed.then(|| format!("not compared: {}: whether its results are right was not looked at\n", b.name))
    };
    text.extend(bench.baselines.iter().filter_map(unchecked));
    text
}

/// Ours and, below each metric, what baselines take for it.
fn case_table(bench: &Bench, number: usize, case: &CaseTimes) -> String {
    let head = ["us", "median", "p10", "p90", "p99", "ranks apart", "wire", "GB/s", "limit", "distance"];
    let us = |t: f64| format!("{t:.1}");
    let unknown = || "unknown".to_owned();
    let stats = |s: &Stats, spread: f64| [s.median, s.p10, s.p90, s.p99, spread].map(us);
    let mut rows: Vec<Vec<String>> = vec![];
    for t in &case.times {
        let limit = t.limit.map_or_else(unknown, |l| us(l.us));
        let over = t.over_limit().map_or_else(String::new, |o| format!("{o:.2}x the limit"));
        let (wire, gbps) = (t.bytes.map_or_else(unknown, bytes), t.gbps.map_or_else(unknown, us));
        let mut row = vec![in_words(&t.metric, t.rounds)];
        row.extend(stats(&t.us, t.rank_spread_us));
        row.extend([wire, gbps, limit, over]);
        rows.push(row);
        for (baseline, t) in bench.baseline_times(number, &t.metric, t.rounds) {
            let mut row = vec![format!("  {}", baseline.name)];
            row.extend(stats(&t.us, t.rank_spread_us));
            row.extend([String::new(), String::new(), String::new()]);
            row.push(t.over_ours.map_or_else(String::new, |o| format!("{o:.2}x ours")));
            rows.push(row);
        }
    }
    table(&head, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::When;

    #[test]
    fn text_has_every_time_with_its_limit_and_baselines_below() {
        let made_up = include_str!("../harness/bench/testdata/result.json");
        let bench: Bench = serde_json::from_str(made_up).unwrap();
        insta::assert_snapshot!(text(&bench, &[Choice::Tuned], Style::stdout(When::Never)));
        assert_eq!(done(&bench, &[Choice::Default], Style::stdout(When::Never)).json["ok"], true);
    }

    #[test]
    fn limits_over_nodes_are_said_to_be_of_links() {
        assert_eq!(limit_over_nodes(1), None);
        let (name, said) = limit_over_nodes(2).unwrap();
        assert!(name == "limit_over_nodes" && said.contains("no network reaches them"), "{said}");
    }
}
