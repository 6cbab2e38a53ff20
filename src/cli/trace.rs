//! `peerwarp trace`.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use crate::build::pack::Pack;
use crate::harness::choose::Device;
use crate::harness::trace::clock::{ClockLine, ClockOffset};
use crate::harness::trace::clocks::{Clocks, ClocksError};
use crate::harness::trace::{self, FlagRow, KernelRow, Recorded, SiteRow, Summary, chrome};
use crate::harness::workload::{Given, Inputs, Problem};
use crate::input::{InputError, nearest};
use crate::runtime::image::Images;
use crate::runtime::{Launched, World, WorldOptions};

use super::App;
use super::args::TraceArgs;
use super::output::{Done, Failure, Pending, Progress, Style, shown, table};
use super::run_gpu::{jit, notes, open_pack, wait_budget, world_here};
use super::select::Chosen;

pub(super) fn trace(app: &App, args: &TraceArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    let tables = args.selection.tables(app)?;
    let chosen = app.choose(&args.selection, given, false, &tables.on(Device::default()))?;
    let traced = problem(&chosen, args)?;
    let ranks = traced.ranks();
    if traced.nodes() != 1 {
        let with = "trace, which compares the clocks of one node";
        return Err(InputError::conflict("nodes", traced.nodes(), with, "1").into());
    }
    if args.keep > args.rounds {
        let allowed = format!("at most --rounds, {}", args.rounds);
        return Err(InputError::not_allowed("--keep", args.keep, allowed).into());
    }
    let (wait_budget, share_gpus) = (wait_budget(args.wait_budget)?, args.share_gpus);
    let options = WorldOptions { wait_budget, share_gpus, ..WorldOptions::default() };
    if let Some(launched) = Launched::here()? {
        let with = format!("{} processes, as {} started them", launched.ranks, launched.launcher);
        return Err(InputError::conflict("trace", "one process", with, "one process for all ranks").into());
    }
    let pack = args.pack.as_deref().map(open_pack).transpose()?;
    let chosen = pack.as_ref().map_or(Ok(chosen.clone()), |pack| app.in_pack(chosen, &tables, pack))?;
    if let (Some(pack), Some(folder)) = (&pack, &args.pack) {
        check_traced(pack, folder, &*problem(&chosen, args)?)?;
    }
    // Before the work, which takes long; what is there stays until there is something to put in its place.
    let out = args.out.as_deref().map(|path| Pending::new("--out", path)).transpose()?;
    let progress = Progress::spinner("tracing on GPUs");
    let world = Arc::new(world_here(ranks, &options)?);
    let chosen = match &pack {
        Some(_) => chosen,
        None => app.on_device(chosen, &tables.on(Device::of_gpu(world.members()[0].gpu.info())))?,
    };
    let recorded = record(problem(&chosen, args)?, &world, args, pack.as_ref())?;
    progress.finish();
    if let Some(out) = out {
        out.write(&file(&recorded, args.keep as usize))?;
    }
    Ok(done(&recorded, args, style).noted(notes(&world)))
}

/// What is traced: as many rounds as are launched at once.
fn problem(chosen: &Chosen, args: &TraceArgs) -> Result<Arc<dyn Problem>, Failure> {
    let given = chosen.given.clone();
    let inputs = Inputs { seed: args.inputs.seed, rounds: args.warmup, ragged: false, given };
    Ok(chosen.suite.problem(&chosen.variants, &inputs)?.into())
}

/// Whether all kernels of these launches record a timeline in a pack. For which GPU they are is asked when there is one.
fn check_traced(pack: &Pack, folder: &Path, problem: &dyn Problem) -> Result<(), InputError> {
    for name in &problem.variants() {
        let of_name = || pack.kernels().map(|kernel| kernel.entry).filter(|entry| entry.variant == *name);
        if of_name().any(|entry| entry.timeline.is_some()) {
            continue;
        }
        let allowed = match of_name().next() {
            None => format!("a pack that has {name}"),
            Some(_) => format!("a pack that was made with --timeline, so that {name} records one"),
        };
        let mut error = InputError::not_allowed("--pack", folder.display(), allowed);
        let known: Vec<&str> = pack.kernels().map(|kernel| kernel.entry.variant.as_str()).collect();
        error.nearest = nearest(name, &known).into_iter().filter(|near| near != name).collect();
        return Err(error);
    }
    Ok(())
}

impl From<ClocksError> for Failure {
    fn from(error: ClocksError) -> Failure {
        match error {
            ClocksError::Runtime(e) => e.into(),
            ClocksError::Clock(e) => InputError::malformed("clocks", "", e, "records of all ranks").into(),
        }
    }
}

/// Records on the GPUs of a world, with kernels from a pack if there is one.
fn record(
    problem: Arc<dyn Problem>,
    world: &Arc<World>,
    args: &TraceArgs,
    pack: Option<&Pack>,
) -> Result<Recorded, Failure> {
    let jit = jit(world)?;
    let clocks = jit.clone().with_timeline(Clocks::slots(world.ranks()));
    let jit = jit.with_timeline(args.slots);
    let kernels: &dyn Images = pack.map_or(&jit, |pack| pack);
    Ok(trace::record(problem, world, args.rounds, kernels, &clocks)?)
}

fn file(recorded: &Recorded, keep: usize) -> Vec<u8> {
    let kept = &recorded.traces[recorded.traces.len() - keep..];
    serde_json::to_vec(&chrome::file(kept, &recorded.clocks)).expect("has strings for keys")
}

fn done(recorded: &Recorded, args: &TraceArgs, style: Style) -> Done {
    let summary = Summary::of(&recorded.traces);
    let json = json!({
        "ok": recorded.ran.ok,
        "variants": recorded.ran.variants,
        "rounds": args.rounds,
        "clocks": recorded.clocks,
        "summary": summary,
        "out": args.out.as_deref().map(shown),
    });
    let mut text = String::new();
    for variant in &recorded.ran.variants {
        writeln!(text, "{}", style.bold(variant)).expect("string");
    }
    let clocks = clocks(&recorded.clocks);
    writeln!(text, "\nclocks, against that of rank 0\n{clocks}").expect("string");
    write!(text, "{}", report(&summary)).expect("string");
    if let Some(path) = &args.out {
        writeln!(text, "\nwrote {}: open it at https://ui.perfetto.dev", path.display()).expect("string");
    }
    if !recorded.ran.ok {
        writeln!(text, "\n{}: the results are not right", style.bad("mismatch")).expect("string");
    }
    Done { text, json, ok: recorded.ran.ok }
}

fn clocks(lines: &[ClockLine]) -> String {
    let head = ["rank", "ahead before ns", "+-", "ahead after ns", "+-", "round trip ns", "step ns"];
    let row = |line: &ClockLine| {
        let of = |o: &ClockOffset| [o.offset_ns.to_string(), o.error_ns.to_string()];
        let trip = line.before.round_trip_ns.min(line.after.round_trip_ns);
        let step = line.before.resolution_ns.min(line.after.resolution_ns);
        let mut row = vec![line.before.rank.to_string()];
        row.extend(of(&line.before));
        row.extend(of(&line.after));
        row.extend([trip, step].map(|n| n.to_string()));
        row
    };
    table(&head, lines.iter().map(row))
}

fn micros(us: f64) -> String {
    if us.is_nan() { "-".into() } else { format!("{us:.2}") }
}

/// The summary for people.
fn report(summary: &Summary) -> String {
    let rounds = match summary.rounds {
        1 => "one round".into(),
        n => format!("medians of {n} rounds"),
    };
    let mut text = format!("{rounds}; microseconds from the first warp's start on the rank\n\n");
    let head =
        ["launch", "rank", "late by", "last start", "first send", "last send", "last wait", "end", "tail"];
    let row = |k: &KernelRow| {
        let times = [
            k.skew_us,
            k.last_start_us,
            k.first_send_us,
            k.last_send_us,
            k.last_wait_us,
            k.end_us,
            k.tail_us,
        ];
        let mut row = vec![k.kernel.clone(), k.rank.to_string()];
        row.extend(times.map(micros));
        row
    };
    writeln!(text, "{}", table(&head, summary.kernels.iter().map(row))).expect("string");
    let head = ["launch", "rank", "for", "waits", "had to", "arrival", "there before"];
    let row = |f: &FlagRow| {
        let mut row = vec![f.kernel.clone(), f.rank.to_string(), f.parameter.clone()];
        row.extend([f.waits, f.waited].map(|n| n.to_string()));
        row.extend([f.arrival_us, f.unseen_us].map(micros));
        row
    };
    writeln!(text, "{}", table(&head, summary.flags.iter().map(row))).expect("string");
    let head = [
        "launch",
        "rank",
        "role",
        "what",
        "line",
        "count",
        "warps",
        "total",
        "mean",
        "longest",
        "first begin",
        "last end",
    ];
    let row = |s: &SiteRow| {
        let what = if s.parameter.is_empty() { s.what.into() } else { format!("{} {}", s.what, s.parameter) };
        let mut row = vec![s.kernel.clone(), s.rank.to_string(), s.role.clone(), what, s.line.to_string()];
        row.extend([s.count, s.warps].map(|n| n.to_string()));
        let times = [s.total_us, s.mean_us, s.longest_us, s.first_begin_us, s.last_end_us];
        row.extend(times.map(micros));
        row
    };
    write!(text, "{}", table(&head, summary.sites.iter().map(row))).expect("string");
    if summary.dropped > 0 {
        writeln!(text, "\n{} records had no room: more of them have with --slots", summary.dropped)
            .expect("string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::trace::tests::sample;

    #[test]
    fn the_report_says_where_the_time_went() {
        insta::assert_snapshot!(report(&Summary::of(&[sample()])));
    }
}
