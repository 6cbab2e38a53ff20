//! `peerwarp bench`.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::families::moe::scenario;
use crate::harness::bench::{
    self, Bench, BenchError, BenchOptions, Case, CaseTimes, Peer, Stats, gpumode, report,
};
use crate::harness::scenario::{Inputs, ScenarioError};
use crate::harness::tune::{Choice, Tuned};
use crate::input::{self, InputError};
use crate::runtime::{self, Launched, World, WorldOptions};

use super::App;
use super::args::{BenchArgs, Selection};
use super::fused;
use super::output::{Done, Failure, Pending, Progress, Style, bytes, table};
use super::run::{inputs, resolved};
use super::run_gpu::{jit, moe_only, tuned_for, wait_budget, with_round_trip};

pub(super) fn bench(app: &App, args: &BenchArgs, style: Style) -> Result<Done, Failure> {
    let inputs = inputs(&args.inputs, 1)?;
    // What is wrong with the input is told before what is wrong with the machine.
    cases(app, args, &inputs, args.selection.tuned(|| None)?.as_ref())?;
    // Every process gets all times, and one is enough to tell them.
    let first = Launched::here()?.is_none_or(|launched| launched.rank == 0);
    // Before the work, which takes long; what is there stays until there is something to put in its place.
    let html = args.html.as_deref().filter(|_| first);
    let html = html.map(|path| Pending::new("--html", path)).transpose()?;
    // Kept until the world has them: to open them twice takes seconds.
    let gpus = runtime::gpus().unwrap_or_default();
    let tuned = args.selection.tuned(|| gpus.first().and_then(tuned_for))?;
    let (cases, from) = cases(app, args, &inputs, tuned.as_ref())?;
    let world = world(args, &inputs, &cases)?;
    drop(gpus);
    let images = jit(&world)?;
    let options = BenchOptions {
        iterations: args.iterations,
        rounds: args.rounds,
        flush_l2: args.flush_l2,
        check: !args.skip_check,
    };
    let progress = Progress::new("timing", cases.len() as u64);
    let routing = inputs.routing.to_string();
    let timed = bench::run(&cases, &options, &routing, &world, &images, &mut || progress.tick());
    progress.finish();
    let mut timed = timed?;
    if args.compare {
        // Peers get the GPUs to themselves.
        drop(world);
        let progress = Progress::spinner("timing peers");
        bench::compare(&mut timed, &cases, &options, &args.python);
        progress.finish();
    }
    if let Some(html) = html {
        html.write(bench::html(&timed).as_bytes())?;
    }
    Ok(if first { done(&timed, &from, style) } else { Done::nothing() })
}

/// All ranks in this process, or one of them.
fn world(args: &BenchArgs, inputs: &Inputs, cases: &[Case]) -> Result<Arc<World>, Failure> {
    let ranks = same_ranks(cases)?;
    if let (true, Some(launched)) = (args.compare, Launched::here()?) {
        let with = format!("a process for each rank, as {} started them", launched.launcher);
        let allowed = "one process, which gives its GPUs up to peers";
        return Err(InputError::conflict("--compare", "true", with, allowed).into());
    }
    let method = [
        ("iterations", args.iterations.to_string()),
        ("rounds", args.rounds.to_string()),
        ("flushing of caches", args.flush_l2.to_string()),
        ("sharing of multiprocessors", args.share_multiprocessors.to_string()),
        ("check", (!args.skip_check).to_string()),
        ("routing", format!("{}, seed {}", inputs.routing, inputs.seed)),
    ];
    let facts = method.map(|(name, value)| (name.to_owned(), value)).into();
    let wait_budget = wait_budget(args.wait_budget)?;
    let share_multiprocessors = args.share_multiprocessors;
    let options = WorldOptions { wait_budget, facts, share_multiprocessors, ..WorldOptions::default() };
    Ok(Arc::new(super::run_gpu::world(ranks, options, cases.iter().map(|case| &case.tuning))?))
}

/// Every shape with every dtype and every number of tokens, and where their kernels come from.
fn cases(
    app: &App,
    args: &BenchArgs,
    inputs: &Inputs,
    tuned: Option<&Tuned>,
) -> Result<(Vec<Case>, Vec<Choice>), Failure> {
    let (mut cases, mut all_from) = (vec![], vec![]);
    for (mut selection, inputs) in selections(args, inputs)? {
        let settings = args.fused.then(|| fused::settings(&mut selection));
        let (variants, from) = resolved(app, &selection, tuned)?;
        moe_only("bench", &variants)?;
        let (problem, tuning) = scenario::problem(&variants, &inputs)?;
        let tuning = with_round_trip(tuning, settings.as_deref())?;
        cases.push(Case { problem, tuning });
        all_from.push(from);
    }
    Ok((cases, all_from))
}

/// Selections of one problem each, with what is particular about their inputs.
fn selections(args: &BenchArgs, inputs: &Inputs) -> Result<Vec<(Selection, Inputs)>, InputError> {
    let all = &args.selection;
    if args.gpumode {
        return gpumode_selections(args, inputs);
    }
    let list = |given: &Option<String>| -> Vec<Option<String>> {
        match given {
            None => vec![None],
            Some(text) => input::list(text).map(|part| Some(part.to_owned())).collect(),
        }
    };
    let mut selections = vec![];
    for dtype in list(&all.dtype) {
        for tokens in list(&all.tokens) {
            let one = Selection { dtype: dtype.clone(), tokens, ..all.clone() };
            selections.push((super::run::sized(&one, inputs, None)?, inputs.clone()));
        }
    }
    Ok(selections)
}

fn gpumode_selections(args: &BenchArgs, inputs: &Inputs) -> Result<Vec<(Selection, Inputs)>, InputError> {
    let given = [("--tokens", &args.selection.tokens), ("--tokens-per-rank", &args.inputs.tokens_per_rank)];
    if let Some((field, value)) = given.into_iter().find_map(|(f, v)| Some((f, v.as_ref()?))) {
        return Err(InputError::conflict(field, value, "--gpumode, which says how many", "one of them"));
    }
    let ranks = match &args.selection.ranks {
        None => 8,
        Some(text) => {
            let allowed = "2 to 64";
            text.parse().map_err(|_| InputError::not_allowed("ranks", text, allowed))?
        }
    };
    let one = |shape: &bench::GpuModeShape| {
        let selection = Selection {
            hidden: Some(shape.hidden_dim.to_string()),
            experts: Some(shape.num_experts.to_string()),
            topk: Some(shape.experts_per_token.to_string()),
            tokens: Some(shape.max_num_tokens.to_string()),
            dtype: Some(args.selection.dtype.clone().unwrap_or_else(|| "fp16".into())),
            ..args.selection.clone()
        };
        let tokens = Some(shape.tokens(ranks, inputs.seed));
        (selection, Inputs { tokens_per_rank: tokens, ..inputs.clone() })
    };
    Ok(gpumode().iter().map(one).collect())
}

/// The world size of all cases.
fn same_ranks(cases: &[Case]) -> Result<u32, InputError> {
    let ranks = |case: &Case| case.problem.shape.ranks;
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
            BenchError::Moe(e) => ScenarioError::from(e).into(),
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
        writeln!(text, "\n{}", style.bold(&report::title(case))).expect("string");
        if let Some(from) = from.get(number).filter(|from| **from != Choice::Default) {
            writeln!(text, "kernels: {from}").expect("string");
        }
        write!(text, "{}", case_table(bench, number, case)).expect("string");
    }
    let absent = |peer: &Peer| peer.absent.as_ref().map(|why| format!("absent: {}: {why}\n", peer.name));
    text.extend(bench.peers.iter().filter_map(absent));
    text
}

/// Ours and, below each operation, what peers take for it.
fn case_table(bench: &Bench, number: usize, case: &CaseTimes) -> String {
    let head = ["us", "median", "p10", "p90", "p99", "ranks apart", "wire", "GB/s", "limit", "distance"];
    let us = |t: f64| format!("{t:.1}");
    let stats = |s: &Stats, spread: f64| [s.median, s.p10, s.p90, s.p99, spread].map(us);
    let mut rows: Vec<Vec<String>> = vec![];
    for t in &case.times {
        let limit = t.limit.map_or_else(|| "unknown".into(), |l| us(l.us));
        let over = t.over_limit().map_or_else(String::new, |o| format!("{o:.2}x the limit"));
        let wire = bytes(case.wire.busiest(t.what));
        let mut row = vec![t.what.words(bench.method.rounds)];
        row.extend(stats(&t.us, t.rank_spread_us));
        row.extend([wire, us(t.gbps), limit, over]);
        rows.push(row);
        for (peer, t) in bench.peer_times(number, t.what) {
            let mut row = vec![format!("  {}", peer.name)];
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
    fn text_has_every_time_with_its_limit_and_peers_below() {
        let made_up = include_str!("../harness/bench/testdata/result.json");
        let bench: Bench = serde_json::from_str(made_up).unwrap();
        insta::assert_snapshot!(text(&bench, &[Choice::Tuned], Style::stdout(When::Never)));
        assert_eq!(done(&bench, &[Choice::Default], Style::stdout(When::Never)).json["ok"], true);
    }
}
