//! `peerwarp tune`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use peerwarp_codegen::family::{FieldRole, Target, Variant};
use serde_json::json;

use crate::harness::choose::{Device, choose};
use crate::harness::tune::gpu::{Effort, OnGpus};
use crate::harness::tune::{
    End, Key, Made, Options, Outcome, Table, TableError, Task, TuneError, Tuned, Watch, device_slug,
    tune as tune_tasks,
};
use crate::harness::workload::Given;
use crate::input::InputError;
use crate::runtime::cuda::Nvrtc;
use crate::runtime::{Launched, World, WorldOptions};

use super::App;
use super::args::TuneArgs;
use super::output::{Done, Failure, Progress, Style, shown, table};
use super::run_gpu::{jit, limits, profile, wait_budget, world_here};
use super::select::Chosen;

/// How long a kernel that does not end may hold everything up, unless told otherwise.
const WAIT_BUDGET: f64 = 1.0;

/// Iterations of the run-off for each one of a measurement: it has the last word, and only a few candidates.
const RUN_OFF: u32 = 3;

/// Parts of the progress bar.
const PARTS: u64 = 1000;

pub(super) fn tune(app: &App, args: &TuneArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    let tasks = tasks(app, args, given)?;
    let (ranks, nodes) = (same("ranks", &tasks, |v| v.ranks())?, same("nodes", &tasks, |v| v.nodes())?);
    let budget = budget(args.budget)?;
    let profile = args.profile.as_deref().map(profile).transpose()?;
    let there = args.out.as_deref().map(existing).transpose()?.flatten();
    if let Some(launched) = Launched::here()? {
        let with = format!("a process for each rank, as {} started them", launched.launcher);
        return Err(InputError::conflict("ranks", ranks, with, "one process, which uses all GPUs").into());
    }
    let wait_budget = wait_budget(Some(args.wait_budget.unwrap_or(WAIT_BUDGET)))?;
    let options = WorldOptions { wait_budget, nodes, ..WorldOptions::default() };
    let world = Arc::new(world_here(ranks, &options)?);
    let limits = limits(profile.as_ref(), &world)?;
    let (device, target) = device(&world)?;
    let out = args.out.clone().unwrap_or_else(|| default_out(&device));
    let there = match &args.out {
        Some(_) => there,
        None => existing(&out)?,
    };
    let mut tuned = there.unwrap_or_else(|| Table::new(&device, target));
    tuned.check_device(&device, target).map_err(|e| refused(&out, &e))?;
    let known = Device::of_gpu(world.members()[0].gpu.info());
    let known =
        if tuned.records.is_empty() { known } else { known.with_tuned(Some(Tuned::new(tuned.clone()))) };
    let start = |task: Task| match choose(task.suite, task.defaults.variants(), &known) {
        Ok(found) => task.from(found.variants),
        Err(_) => task,
    };
    let tasks: Vec<Task> = tasks.into_iter().map(|task| start(task.on(limits))).collect();

    let made = Made {
        peerwarp: env!("CARGO_PKG_VERSION").into(),
        driver: world.members()[0].gpu.info().driver.clone(),
        compiler: Nvrtc::find()?.version(),
    };
    let options = Options { trials: args.trials, budget, force: args.force, made };
    let effort = Effort { iterations: args.iterations, run_off: RUN_OFF * args.iterations, check: true };
    let mut on = OnGpus::new(&world, Arc::new(jit(&world)?), effort, args.seed)?;
    let progress = Progress::new("tuning", PARTS);
    let mut keeping = Keeping { out: &out, progress: &progress };
    let outcomes = tune_tasks(&tasks, &mut tuned, &mut on, &options, &mut keeping);
    progress.finish();
    Ok(done(&tuned, &outcomes?, &out, style))
}

/// Shows how far it is, and writes the table whenever it has another record.
struct Keeping<'a> {
    out: &'a Path,
    progress: &'a Progress,
}

impl Watch for Keeping<'_> {
    fn progress(&mut self, part: f64, key: &Key) {
        self.progress.at((part * PARTS as f64) as u64, format!("tuning {key}"));
    }

    fn keep(&mut self, table: &Table) -> Result<(), TableError> {
        table.write(self.out)
    }
}

/// What is to be tuned, each problem once.
fn tasks(app: &App, args: &TuneArgs, given: &Given) -> Result<Vec<Task>, Failure> {
    let mut chosen = vec![];
    if args.catalogue.is_none() || !app.selects_nothing(&args.selection, given)? {
        chosen.extend(app.choose_all(&args.selection, given, false, &Device::default())?);
    }
    if let Some(name) = &args.catalogue {
        chosen.extend(app.choose_catalogue(name, given)?);
    }
    refuse(args, given, &chosen)?;
    let mut tasks: Vec<Task> = vec![];
    for Chosen { suite, variants, given, .. } in chosen {
        let task = Task::new(suite, variants, given);
        if !tasks.iter().any(|known| known.key() == task.key()) {
            tasks.push(task);
        }
    }
    match tasks.is_empty() {
        false => Ok(tasks),
        true => Err(InputError::missing("selection", "kernels to tune").into()),
    }
}

/// Values of fields that tuning is to find out, and several variants of one family: a record has one of each.
fn refuse(args: &TuneArgs, given: &Given, chosen: &[Chosen]) -> Result<(), InputError> {
    for Chosen { variants, .. } in chosen {
        for (at, variant) in variants.iter().enumerate() {
            if let Some(other) = variants[..at].iter().find(|v| v.family().name() == variant.family().name())
            {
                let (value, with) = (variant.variant_name(), other.variant_name());
                return Err(InputError::conflict("VARIANT", value, with, "one variant of each family"));
            }
        }
    }
    let tuned = |name: &str| {
        let families = chosen.iter().flat_map(|c| &c.variants).map(|v| v.family());
        families.flat_map(|f| f.fields()).any(|f| f.role == FieldRole::Tune && f.name == name)
    };
    let options = given.iter().filter(|(name, _)| tuned(name));
    let options = options.map(|(name, value)| (format!("--{name}"), value));
    let common = [("--set", args.selection.settings.first()), ("--tuned", args.selection.tuned.as_ref())];
    let common = common.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    match common.chain(options).next() {
        None => Ok(()),
        Some((field, value)) => {
            let with = "tune, which chooses the values of tuning fields";
            Err(InputError::conflict(field, value, with, "key fields"))
        }
    }
}

/// What all tasks have to have the same of: the world size, or its nodes.
fn same(field: &str, tasks: &[Task], of: fn(&Variant) -> u32) -> Result<u32, InputError> {
    let all: BTreeSet<u32> = tasks.iter().flat_map(|t| t.defaults.variants()).map(of).collect();
    match all.into_iter().collect::<Vec<_>>()[..] {
        [one] => Ok(one),
        [first, other, ..] => {
            Err(InputError::conflict(field, other, format!("{field} = {first}"), "one world size"))
        }
        [] => Err(InputError::missing(field, "kernels to tune")),
    }
}

fn budget(seconds: Option<f64>) -> Result<Option<Duration>, InputError> {
    let Some(seconds) = seconds else { return Ok(None) };
    match (1.0..=86400.0).contains(&seconds) {
        true => Ok(Some(Duration::from_secs_f64(seconds))),
        false => Err(InputError::not_allowed("--budget", seconds, "1 to 86400 seconds")),
    }
}

/// The table that is there already.
fn existing(path: &Path) -> Result<Option<Table>, InputError> {
    match path.try_exists() {
        Ok(false) => Ok(None),
        _ => Table::read(path).map(Some).map_err(|e| refused(path, &e)),
    }
}

fn refused(path: &Path, error: &TableError) -> InputError {
    let allowed = "a table of this device that `tune` wrote, to go on with, or a file that is not there";
    InputError::malformed("--out", path.display(), error, allowed)
}

fn default_out(device: &str) -> PathBuf {
    Path::new("generated").join("tuned").join(format!("{}.toml", device_slug(device)))
}

/// What all ranks run on.
fn device(world: &World) -> Result<(String, Target), InputError> {
    let info = |at: usize| world.members()[at].gpu.info();
    let first = info(0);
    let same = |at: &usize| (&info(*at).name, info(*at).target) == (&first.name, first.target);
    match (0..world.members().len()).find(|at| !same(at)) {
        None => Ok((first.name.clone(), first.target)),
        Some(other) => {
            let with = format!("{} of rank 0", first.name);
            Err(InputError::conflict(
                format!("GPU of rank {other}"),
                &info(other).name,
                with,
                "GPUs of a kind",
            ))
        }
    }
}

impl From<TuneError> for Failure {
    fn from(error: TuneError) -> Failure {
        match error {
            TuneError::Machine(e) => e.into(),
            TuneError::Table(e) => InputError::malformed("--out", "", e, "a file that can be written").into(),
        }
    }
}

fn done(tuned: &Table, outcomes: &[Outcome], out: &Path, style: Style) -> Done {
    let ok = !outcomes.iter().any(|o| matches!(o.end, End::Failed { .. }));
    let json = json!({ "ok": ok, "out": shown(out), "device": tuned.device, "outcomes": outcomes });
    Done { text: text(tuned, outcomes, out, style), json, ok }
}

/// One table for each suite: what its keys have in common stands above it, and where they differ in its first column.
fn text(tuned: &Table, outcomes: &[Outcome], out: &Path, style: Style) -> String {
    let mut suites: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        suites.entry(&outcome.key.suite).or_default().push(outcome);
    }
    let mut text: String = suites.values().map(|outcomes| of_suite(tuned, outcomes)).collect();
    for outcome in outcomes {
        if let End::Failed { reason } = &outcome.end {
            writeln!(text, "{}: {reason}", style.bad("failed")).expect("string");
        }
    }
    let count = |of: fn(&End) -> bool| outcomes.iter().filter(|o| of(&o.end)).count();
    let skipped = count(|end| matches!(end, End::Skipped));
    if skipped > 0 {
        writeln!(text, "{skipped} were there already; --force tunes them anew").expect("string");
    }
    let left = count(|end| matches!(end, End::OutOfTime));
    if left > 0 {
        writeln!(text, "{left} had no time left in --budget; the same command goes on with them")
            .expect("string");
    }
    writeln!(text, "{} records in {}", tuned.records.len(), out.display()).expect("string");
    text
}

fn of_suite(tuned: &Table, outcomes: &[&Outcome]) -> String {
    let first = &outcomes[0].key;
    let common = |name: &str| outcomes.iter().all(|o| o.key.fields.get(name) == first.fields.get(name));
    let head = ["", "tuned us", "default", "model", "limit", "tried", "refused"];
    let us = |t: Option<f64>| t.map_or_else(|| "-".to_owned(), |t| format!("{t:.1}"));
    let rows = outcomes.iter().filter_map(|outcome| {
        let r = tuned.record(&outcome.key)?;
        let over = |t: Option<f64>| us(t) + &t.map_or_else(String::new, |t| format!(" ({:.2}x)", t / r.us));
        Some(vec![
            outcome.key.in_words(common),
            us(Some(r.us)),
            over(r.default.us),
            over(r.model.as_ref().and_then(|model| model.us)),
            us(r.limit_us),
            r.tried.to_string(),
            r.refused.len().to_string(),
        ])
    });
    format!("{}: {}\n{}", first.suite, first.in_words(|name| !common(name)), table(&head, rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::When;
    use crate::harness::tune::example::{KEY, TARGET, record, record_of, stranger_task};

    #[test]
    fn text_sets_tuned_times_beside_others() {
        let stranger = stranger_task(64);
        let mut tuned = Table::new("NVIDIA H200", TARGET);
        tuned.insert(record(KEY));
        tuned.insert(record_of(&stranger, &stranger.defaults));
        let failed = End::Failed { reason: "none of 3 candidates can be used".into() };
        let outcomes = [
            Outcome { key: KEY.of(), end: End::Skipped },
            Outcome { key: KEY.tokens(8).of(), end: failed },
            // A record of the other layout is not shown for this one.
            Outcome { key: KEY.slots().of(), end: End::OutOfTime },
            Outcome { key: stranger.key(), end: End::Skipped },
        ];
        let done = done(&tuned, &outcomes, Path::new("t.toml"), Style::stdout(When::Never));
        assert!(!done.ok);
        let of = |n: usize| {
            let outcome = &done.json["outcomes"][n];
            [&outcome["key"]["tokens"], &outcome["key"]["layout"], &outcome["outcome"]].map(|v| v.to_string())
        };
        assert_eq!(of(1), ["8", "\"rows\"", "\"failed\""]);
        assert_eq!(of(2), ["16", "\"slots\"", "\"out_of_time\""]);
        insta::assert_snapshot!(done.text);
    }
}
