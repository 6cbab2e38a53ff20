//! `peerwarp tune`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use peerwarp_codegen::family::{Choice, Target};
use serde_json::json;

use crate::families::moe::MoeShape;
use crate::families::moe::kernels::{Dispatch, Layout};
use crate::harness::request::{Request, Scope};
use crate::harness::tune::gpu::{Effort, OnGpus};
use crate::harness::tune::{
    End, Key, Made, Options, Outcome, Table, TableError, TuneError, Watch, device_slug, tune as tune_keys,
};
use crate::input::{self, InputError};
use crate::runtime::{Launched, World, WorldOptions};

use super::App;
use super::args::{Selection, TuneArgs};
use super::output::{Done, Failure, Progress, Style, table};
use super::run_gpu::{jit, wait_budget, world_here};
use super::select::read_catalogue;

/// How long a kernel that does not end may hold everything up, unless told otherwise.
const WAIT_BUDGET: f64 = 1.0;

/// Iterations of the run-off for each one of a measurement: it has the last word, and only a few pairs.
const RUN_OFF: u32 = 3;

/// Parts of the progress bar.
const PARTS: u64 = 1000;

pub(super) fn tune(app: &App, args: &TuneArgs, style: Style) -> Result<Done, Failure> {
    let keys = keys(app, args)?;
    let ranks = same_ranks(&keys)?;
    let budget = budget(args.budget)?;
    let there = args.out.as_deref().map(existing).transpose()?.flatten();
    if let Some(launched) = Launched::here()? {
        let with = format!("a process for each rank, as {} started them", launched.launcher);
        return Err(InputError::conflict("ranks", ranks, with, "one process, which uses all GPUs").into());
    }
    let wait_budget = wait_budget(Some(args.wait_budget.unwrap_or(WAIT_BUDGET)))?;
    let options = WorldOptions { wait_budget, ..WorldOptions::default() };
    let world = Arc::new(world_here(ranks, &options)?);
    let (device, target) = device(&world)?;
    let out = args.out.clone().unwrap_or_else(|| default_out(&device));
    let there = match &args.out {
        Some(_) => there,
        None => existing(&out)?,
    };
    let mut tuned = there.unwrap_or_else(|| Table::new(&device, target));
    tuned.check_device(&device, target).map_err(|e| refused(&out, &e))?;

    let jit = jit(&world)?;
    let made = Made {
        peerwarp: env!("CARGO_PKG_VERSION").into(),
        driver: world.members()[0].gpu.info().driver.clone(),
        compiler: jit.version(),
    };
    let options = Options { trials: args.trials, budget, force: args.force, made };
    let effort = Effort { iterations: args.iterations, run_off: RUN_OFF * args.iterations, check: true };
    let mut on = OnGpus::new(&world, Arc::new(jit), effort, args.seed)?;
    let progress = Progress::new("tuning", PARTS);
    let mut keeping = Keeping { out: &out, progress: &progress };
    let outcomes = tune_keys(&keys, &mut tuned, &mut on, &options, &mut keeping);
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
        let MoeShape { hidden, experts, topk, tokens, dtype, .. } = key.shape;
        let (at, layout) = ((part * PARTS as f64) as u64, key.layout.name());
        let what = format!("tuning h{hidden} e{experts} k{topk} {dtype} by {layout}, {tokens} tokens");
        self.progress.at(at, what);
    }

    fn keep(&mut self, table: &Table) -> Result<(), TableError> {
        table.write(self.out)
    }
}

/// What is to be tuned: every shape that is asked for, once with each layout. All shapes with rows by expert come first, as
/// they stand unless somebody asks for something else: they are there if time does not suffice for all.
fn keys(app: &App, args: &TuneArgs) -> Result<Vec<Key>, InputError> {
    let layouts = layouts(args.selection.layout.as_deref())?;
    let shapes = shapes(app, args)?;
    Ok(layouts.iter().flat_map(|&layout| shapes.iter().map(move |&shape| Key { shape, layout })).collect())
}

/// The layouts of a list; all, if none is given.
fn layouts(list: Option<&str>) -> Result<Vec<Layout>, InputError> {
    let Some(list) = list else { return Ok(Layout::ALL.to_vec()) };
    let mut layouts = vec![];
    for name in input::list(list) {
        let known = Layout::ALL.iter().map(Choice::name);
        let layout = Layout::from_name(name).ok_or_else(|| InputError::unknown("--layout", name, known))?;
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts.sort_by_key(|layout| Layout::ALL.iter().position(|known| known == layout));
    Ok(layouts)
}

/// Every shape that is asked for, once.
fn shapes(app: &App, args: &TuneArgs) -> Result<Vec<MoeShape>, InputError> {
    let selection = &Selection { layout: None, ..args.selection.clone() };
    refuse(selection)?;
    let mut requests = vec![];
    if !selection.is_empty() || args.catalogue.is_none() {
        requests.extend(selection.requests()?);
    }
    if let Some(name) = &args.catalogue {
        let moe = |r: &Request| r.scope == Scope::Moe;
        requests.extend(read_catalogue(name)?.requests.into_iter().filter(moe));
    }
    let lists = [("tokens", &selection.tokens), ("ranks", &selection.ranks), ("dtype", &selection.dtype)];
    for (field, given) in lists {
        if let Some(list) = given {
            requests = requests.iter().flat_map(|r| each(r, field, list)).collect();
        }
    }
    let mut shapes = vec![];
    for request in &requests {
        for variant in request.resolve(app.registry())? {
            if let Some(dispatch) = variant.as_any().downcast_ref::<Dispatch>()
                && !shapes.contains(&dispatch.shape())
            {
                shapes.push(dispatch.shape());
            }
        }
    }
    match shapes.is_empty() {
        false => Ok(shapes),
        true => Err(InputError::missing("selection", "--model, --hidden or --catalogue with MoE shapes")),
    }
}

/// A request for each value of a list.
fn each(request: &Request, field: &str, list: &str) -> Vec<Request> {
    let with = |value: &str| {
        let mut request = request.clone();
        request.key.retain(|(name, _)| name != field);
        request.key.push((field.to_owned(), value.to_owned()));
        request
    };
    input::list(list).map(with).collect()
}

/// What selects other things than shapes, or says what tuning is to find out.
fn refuse(selection: &Selection) -> Result<(), InputError> {
    let given = [
        ("--set", selection.settings.first()),
        ("--dedup", selection.dedup.as_ref()),
        ("--phase", selection.phase.as_ref()),
        ("--tuned", selection.tuned.as_ref()),
        ("--family", selection.family.as_ref()),
        ("VARIANT", selection.items.first()),
    ];
    match given.into_iter().find_map(|(field, value)| Some((field, value?))) {
        None => Ok(()),
        Some((field, value)) => {
            let with = "tune, which chooses the values of tuning fields";
            Err(InputError::conflict(field, value, with, "--model, --hidden or --catalogue"))
        }
    }
}

fn same_ranks(keys: &[Key]) -> Result<u32, InputError> {
    let all: BTreeSet<u32> = keys.iter().map(|key| key.shape.ranks).collect();
    match all.into_iter().collect::<Vec<_>>()[..] {
        [ranks] => Ok(ranks),
        [first, other, ..] => {
            Err(InputError::conflict("ranks", other, format!("ranks = {first}"), "one world size"))
        }
        [] => Err(InputError::missing("ranks", "2 to 64")),
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
            TuneError::Table(TableError::Emit(e)) => e.into(),
            TuneError::Table(e) => InputError::malformed("--out", "", e, "a file that can be written").into(),
        }
    }
}

fn done(tuned: &Table, outcomes: &[Outcome], out: &Path, style: Style) -> Done {
    let ok = !outcomes.iter().any(|o| matches!(o.end, End::Failed { .. }));
    let json = json!({ "ok": ok, "out": out, "device": tuned.device, "outcomes": outcomes });
    Done { text: text(tuned, outcomes, out, style), json, ok }
}

fn text(tuned: &Table, outcomes: &[Outcome], out: &Path, style: Style) -> String {
    let head = ["shape", "layout", "tokens", "tuned us", "default", "model", "limit", "tried", "refused"];
    let us = |t: Option<f64>| t.map_or_else(|| "-".to_owned(), |t| format!("{t:.1}"));
    let rows = outcomes.iter().filter_map(|outcome| {
        let s = outcome.key.shape;
        let name = format!("h{} e{} k{} {} r{}", s.hidden, s.experts, s.topk, s.dtype, s.ranks);
        let r = tuned.record(&outcome.key)?;
        let over = |t: Option<f64>| {
            us(t) + &t.map_or_else(String::new, |t| format!(" ({:.2}x)", t / r.us.round_trip))
        };
        Some(vec![
            name,
            r.layout.name().to_owned(),
            s.tokens.to_string(),
            us(Some(r.us.round_trip)),
            over(r.default.round_trip_us),
            over(r.model.round_trip_us),
            us(r.limit_us),
            r.tried.to_string(),
            r.refused.len().to_string(),
        ])
    });
    let mut text = table(&head, rows);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::When;
    use crate::harness::tune::record_for_tests;

    const SHAPE: MoeShape = MoeShape {
        hidden: 64,
        experts: 8,
        topk: 2,
        tokens: 4,
        ranks: 2,
        dtype: crate::families::moe::RowDtype::Bf16,
    };

    #[test]
    fn text_sets_tuned_times_beside_others() {
        let key = Key::by_expert(SHAPE);
        let mut tuned = Table::new("NVIDIA H200", "cuda:sm_90a".parse().unwrap());
        tuned.insert(record_for_tests(key));
        let failed = End::Failed { reason: "none of 3 pairs can be used".into() };
        let outcomes = [
            Outcome { key, end: End::Skipped },
            Outcome { key: key.with_tokens(8), end: failed },
            // A record of the other layout is not shown for this one.
            Outcome { key: Key::by_token(SHAPE), end: End::OutOfTime },
        ];
        let done = done(&tuned, &outcomes, Path::new("t.toml"), Style::stdout(When::Never));
        assert!(!done.ok);
        let of = |n: usize| {
            let outcome = &done.json["outcomes"][n];
            [&outcome["shape"]["tokens"], &outcome["layout"], &outcome["outcome"]].map(|v| v.to_string())
        };
        assert_eq!(of(1), ["8", "\"experts\"", "\"failed\""]);
        assert_eq!(of(2), ["4", "\"tokens\"", "\"out_of_time\""]);
        insta::assert_snapshot!(done.text);
    }

    #[test]
    fn layouts_are_those_of_the_list_and_else_all_by_expert_first() {
        let of = |list: Option<&str>| layouts(list).map_err(|e| e.headline());
        assert_eq!(of(None).unwrap(), [Layout::Experts, Layout::Tokens]);
        assert_eq!(of(Some("tokens")).unwrap(), [Layout::Tokens]);
        assert_eq!(of(Some("tokens, experts,tokens")).unwrap(), [Layout::Experts, Layout::Tokens]);
        assert_eq!(of(Some("token")).unwrap_err(), "--layout = token: no such name");
    }
}
