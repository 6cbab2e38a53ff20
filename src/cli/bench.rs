//! `peerwarp bench`.

use std::fmt::Write as _;
use std::sync::Arc;

use peerwarp_codegen::family::Family;
use serde_json::{Value, json};

use crate::families::moe::kernels::RoundTrip;
use crate::families::moe::run::MoeTuning;
use crate::families::moe::workload;
use crate::harness::bench::{self, Bench, BenchError, BenchOptions, Case, CaseTimes, Peer, Stats, report};
use crate::harness::tune::{Choice, Tuned};
use crate::harness::workload::{Given, Inputs, WorkloadError};
use crate::input::InputError;
use crate::runtime::cache::ModuleCache;
use crate::runtime::image::Jit;
use crate::runtime::{Launched, World, WorldOptions, cuda};

use super::App;
use super::args::BenchArgs;
use super::output::{Done, Failure, Pending, Progress, Style, bytes, table};
use super::run_gpu::{tuned_for, wait_budget};

pub(super) fn bench(app: &App, args: &BenchArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    // What is wrong with the input is told before what is wrong with the machine.
    cases(app, args, given, args.selection.tuned(|| None)?.as_ref())?;
    // Every process gets all times, and one is enough to tell them.
    let first = Launched::here()?.is_none_or(|launched| launched.rank == 0);
    // Before the work, which takes long; what is there stays until there is something to put in its place.
    let html = args.html.as_deref().filter(|_| first);
    let html = html.map(|path| Pending::new("--html", path)).transpose()?;
    // Kept until the world has them: to open them twice takes seconds.
    let gpus = cuda::gpus().unwrap_or_default();
    let tuned = args.selection.tuned(|| gpus.first().and_then(tuned_for))?;
    let (cases, from) = cases(app, args, given, tuned.as_ref())?;
    let world = world(args, given, &cases)?;
    drop(gpus);
    let images = Jit::new(ModuleCache::of_user())?;
    let options = BenchOptions {
        iterations: args.iterations,
        rounds: args.rounds,
        flush_l2: args.flush_l2,
        check: !args.skip_check,
    };
    let progress = Progress::new("timing", cases.len() as u64);
    let routing = given.get("routing").map_or("uniform", String::as_str).to_owned();
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
fn world(args: &BenchArgs, given: &Given, cases: &[Case]) -> Result<Arc<World>, Failure> {
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
        ("sharing of SMs", args.share_sms.to_string()),
        ("check", (!args.skip_check).to_string()),
        ("inputs", format!("{given:?}")),
    ];
    let facts = method.map(|(name, value)| (name.to_owned(), value)).into();
    let wait_budget = wait_budget(args.wait_budget)?;
    let share_multiprocessors = args.share_sms;
    let options = WorldOptions { wait_budget, facts, share_multiprocessors, ..WorldOptions::default() };
    let variants: Vec<Vec<String>> = cases.iter().map(|case| names(&case.tuning)).collect();
    Ok(Arc::new(super::run_gpu::world(ranks, options, &variants)?))
}

/// The kernels of a case.
fn names(tuning: &MoeTuning) -> Vec<String> {
    let dispatch = tuning.dispatch_launches().into_iter().map(|d| d.variant_name());
    let combine = tuning.combine_launches().into_iter().map(|c| c.variant_name());
    dispatch.chain(combine).chain(tuning.round_trip.as_ref().map(Family::variant_name)).collect()
}

/// Every problem, and where its kernels come from.
fn cases(
    app: &App,
    args: &BenchArgs,
    given: &Given,
    tuned: Option<&Tuned>,
) -> Result<(Vec<Case>, Vec<Choice>), Failure> {
    let (mut cases, mut all_from): (Vec<Case>, Vec<Choice>) = (vec![], vec![]);
    for chosen in app.choose_all(&args.selection, given, false, tuned)? {
        let round_trip = chosen.variants.iter().find_map(|v| v.as_any().downcast_ref::<RoundTrip>());
        if let (Some(round_trip), Some(case)) = (round_trip, cases.last_mut()) {
            case.tuning.round_trip = Some(round_trip.clone());
            continue;
        }
        let inputs = Inputs { seed: args.inputs.seed, rounds: 1, ragged: false, given: chosen.given };
        let (problem, tuning) = workload::problem(&chosen.variants, &inputs)?;
        cases.push(Case { problem, tuning });
        all_from.push(chosen.from);
    }
    Ok((cases, all_from))
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
            BenchError::Moe(e) => WorkloadError::from(e).into(),
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
