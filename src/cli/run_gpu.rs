//! `peerwarp run --backend gpu`.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use peerwarp_codegen::family::{Family, Variant};
use serde_json::{Value, json};

use crate::build::pack::Pack;
use crate::families::moe::kernels::{Combine, Dispatch, Hook};
use crate::families::moe::run::{Errors, GpuRunError, MoeGpu, MoeGpuRun, MoeTuning};
use crate::families::moe::scenario;
use crate::harness::scenario::{Inputs, ScenarioError};
use crate::harness::tune::Tuned;
use crate::input::InputError;
use crate::runtime::cache::ModuleCache;
use crate::runtime::gpu::Gpu;
use crate::runtime::image::{Images, Jit};
use crate::runtime::{self, Launched, RuntimeError, World, WorldOptions};

use super::App;
use super::args::{GpuArgs, Selection};
use super::fused;
use super::output::{Done, Failure, Progress, Style, table};
use super::run::{resolved, selected};

impl GpuArgs {
    /// Refuses options that mean nothing to the simulator.
    pub fn refuse(&self) -> Result<(), InputError> {
        let given = [
            ("--rounds", self.rounds.map(|n| n.to_string())),
            ("--replays", self.replays.map(|n| n.to_string())),
            ("--pack", self.pack.as_ref().map(|p| p.display().to_string())),
            ("--wait-budget", self.wait_budget.map(|n| n.to_string())),
        ];
        match given.into_iter().find_map(|(field, value)| Some((field, value?))) {
            None => Ok(()),
            Some((field, value)) => {
                let with = "--backend, which is the simulator";
                Err(InputError::conflict(field, value, with, "this option with --backend gpu"))
            }
        }
    }

    fn wait_budget(&self) -> Result<Duration, InputError> {
        wait_budget(self.wait_budget)
    }
}

/// `--wait-budget`, or the runtime's own.
pub(super) fn wait_budget(seconds: Option<f64>) -> Result<Duration, InputError> {
    let default = WorldOptions::default().wait_budget;
    let Some(seconds) = seconds else { return Ok(default) };
    match (0.001..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(InputError::not_allowed("--wait-budget", seconds, "0.001 to 3600 seconds")),
    }
}

/// Rounds that are run unless told otherwise: more than one, for buffers are used again from the second on.
const ROUNDS: u32 = 3;

/// Runs dispatch and combine on this machine's GPUs.
pub(super) fn run(
    app: &App,
    selection: &Selection,
    inputs: &Inputs,
    args: &GpuArgs,
    style: Style,
) -> Result<Done, Failure> {
    let (variants, _) = selected(app, selection)?;
    moe_only("--backend gpu", &variants)?;
    let inputs = Inputs { rounds: args.rounds.unwrap_or(ROUNDS), ..inputs.clone() };
    scenario::problem(&variants, &inputs)?;
    let options = WorldOptions { wait_budget: args.wait_budget()?, ..WorldOptions::default() };
    let pack = args.pack.as_deref().map(open_pack).transpose()?;
    let replays = args.replays.unwrap_or(0);
    // Kept until the world has them: to open them twice takes seconds.
    let gpus = runtime::gpus().unwrap_or_default();
    // A pack has what it has, and tables are of kernels without an expert.
    let own = || gpus.first().filter(|_| args.pack.is_none() && replays == 0).and_then(tuned_for);
    let (variants, from) = resolved(app, selection, selection.tuned(own)?.as_ref())?;
    let (problem, mut tuning) = scenario::problem(&variants, &inputs)?;
    if replays > 0 {
        tuning = tuning.with_hook(Hook::Expert);
    }
    let progress = Progress::spinner("running on GPUs");
    let world = Arc::new(world(problem.shape.ranks, options, [&tuning])?);
    let images: Box<dyn Images> = match pack {
        Some(pack) => Box::new(pack),
        None => Box::new(jit(&world)?),
    };
    let ran = MoeGpu::new(&problem, &tuning, inputs.rounds, &world, &*images)?.run(replays);
    progress.finish();
    let mut done = done(&ran?, &inputs, style);
    done.json["tuned"] = json!(from);
    Ok(done)
}

/// The compiler for the GPUs of a world.
pub(super) fn jit(world: &World) -> Result<Jit, RuntimeError> {
    Jit::for_target(world.members()[0].gpu.info().target, ModuleCache::of_user())
}

/// What users must know of the GPUs of a world that have not been tested on hardware.
pub(super) fn untested(world: &World) -> Option<&'static str> {
    world.members().iter().find_map(|member| member.gpu.untested())
}

/// The table of tuned variants that comes with the program for a GPU.
pub(super) fn tuned_for(gpu: &Arc<dyn Gpu>) -> Option<Tuned> {
    Tuned::builtin(&gpu.info().name, gpu.info().target)
}

/// The pack that an option names: it has all kernels, and no compiler is needed.
pub(super) fn open_pack(folder: &Path) -> Result<Pack, InputError> {
    let readable = "a folder that `pack` wrote";
    Pack::open(folder).map_err(|e| InputError::malformed("--pack", folder.display(), e, readable))
}

/// With round trips in one launch beside dispatch and combine, if there are settings for them.
pub(super) fn with_round_trip(tuning: MoeTuning, settings: Option<&[String]>) -> Result<MoeTuning, Failure> {
    let Some(settings) = settings else { return Ok(tuning) };
    if !tuning.dispatch.dedup {
        let allowed = "dispatch with dedup: in one launch a row goes to a rank once";
        return Err(InputError::conflict("--fused", "true", tuning.dispatch.variant_name(), allowed).into());
    }
    let round_trip = fused::round_trip(&tuning.dispatch.shape(), settings)?;
    Ok(MoeTuning { round_trip: Some(round_trip), ..tuning })
}

/// The ranks, for these kernels: this process's alone, or those of the processes that were started with it.
pub(super) fn world<'a>(
    ranks: u32,
    mut options: WorldOptions,
    tunings: impl IntoIterator<Item = &'a MoeTuning>,
) -> Result<World, Failure> {
    let Some(launched) = Launched::here()? else { return world_here(ranks, &options) };
    if launched.ranks != ranks {
        let with = format!("{} processes, as {} started them", launched.ranks, launched.launcher);
        return Err(
            InputError::conflict("--ranks", ranks, with, "one process a rank, or a single one").into()
        );
    }
    for (number, tuning) in (1..).zip(tunings) {
        let of = if number == 1 { String::new() } else { format!(" of problem {number}") };
        let mut fact = |what: &str, value| options.facts.insert(format!("{what}{of}"), value);
        fact("dispatch variant", tuning.dispatch.variant_name());
        fact("combine variant", tuning.combine.variant_name());
        fact("split launches", tuning.split.to_string());
        if let Some(round_trip) = &tuning.round_trip {
            fact("round trip variant", round_trip.variant_name());
        }
    }
    Ok(World::of_process(&runtime::gpus()?, &launched, &options)?)
}

/// All ranks in this process.
pub(super) fn world_here(ranks: u32, options: &WorldOptions) -> Result<World, Failure> {
    let gpus = runtime::gpus()?;
    let found = gpus.len() as u32;
    let few = RuntimeError::TooFewGpus { backend: gpus[0].info().target.backend(), found, needed: ranks };
    Ok(World::of_gpus(gpus.get(..ranks as usize).ok_or(few)?, options)?)
}

pub(super) fn moe_only(what: &str, variants: &[Variant]) -> Result<(), InputError> {
    let other =
        variants.iter().map(|v| v.family().name()).find(|f| ![Dispatch::NAME, Combine::NAME].contains(f));
    match other {
        None => Ok(()),
        Some(family) => {
            let allowed = format!("{what} runs {} and {}", Dispatch::NAME, Combine::NAME);
            Err(InputError::not_allowed("family", family, allowed))
        }
    }
}

impl From<GpuRunError> for Failure {
    fn from(error: GpuRunError) -> Failure {
        match error {
            GpuRunError::Moe(e) => ScenarioError::from(e).into(),
            GpuRunError::Runtime(e) => e.into(),
        }
    }
}

fn done(ran: &MoeGpuRun, inputs: &Inputs, style: Style) -> Done {
    let mut json = json!({ "backend": "gpu", "variant": ran.variants.first(), "seed": inputs.seed });
    if let (Value::Object(all), Value::Object(ran)) = (&mut json, json!(ran)) {
        all.extend(ran);
    }
    let errors = json["errors"].take();
    if let (Value::Object(all), Value::Object(errors)) = (&mut json, errors) {
        all.remove("errors");
        all.extend(errors);
    }
    Done { text: text(ran, style), json, ok: ran.ok }
}

fn text(ran: &MoeGpuRun, style: Style) -> String {
    let mut text = String::new();
    for variant in &ran.variants {
        writeln!(text, "{}", style.bold(variant)).expect("string");
    }
    let head = ["rank", "tokens sent", "tokens received", "dispatch us", "combine us", "GPU"];
    let row = |(i, gpu): (usize, &String)| {
        let rank = ran.ranks[i];
        let traffic = &ran.traffic.ranks[rank as usize];
        let micros = |all: &[f64]| all.get(i).map_or_else(String::new, |us| format!("{us:.1}"));
        vec![
            rank.to_string(),
            traffic.tokens_sent.to_string(),
            traffic.tokens_received.to_string(),
            micros(&ran.dispatch_us),
            micros(&ran.combine_us),
            gpu.clone(),
        ]
    };
    writeln!(text, "\n{}", table(&head, ran.gpus.iter().enumerate().map(row))).expect("string");
    let Errors { compared, max_abs_err, max_rel_err, .. } = &ran.errors;
    let mut facts = vec![
        ("rounds", ran.rounds.to_string()),
        ("elements compared", compared.to_string()),
        ("largest absolute error", format!("{max_abs_err:.3e}")),
        ("largest relative error", format!("{max_rel_err:.3e}")),
    ];
    if let Some(r) = &ran.replayed {
        facts.push((
            "graph replays",
            format!("{} of {} rounds, {:.1} us a round", r.replays, r.rounds, r.round_us),
        ));
        facts.push(("elements compared", format!("{} after replays", r.errors.compared)));
    }
    for (name, value) in facts {
        writeln!(text, "{name:<24}{value}").expect("string");
    }
    writeln!(text, "\n{}", verdict(ran, style)).expect("string");
    text
}

fn verdict(ran: &MoeGpuRun, style: Style) -> String {
    let replayed = ran.replayed.as_ref().map(|r| &r.errors);
    let wrong = [Some(&ran.errors), replayed].into_iter().flatten().find_map(|e| e.first_wrong.as_ref());
    match ran.wrong_dispatch.as_ref().or(wrong) {
        None => format!("{}: every bit agrees with the reference", style.good("ok")),
        Some(first) => format!("{}: {first}", style.bad("mismatch")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(rounds: Option<u32>, wait_budget: Option<f64>) -> GpuArgs {
        GpuArgs { rounds, replays: None, pack: None, wait_budget }
    }

    #[test]
    fn what_only_gpus_have_is_refused_without_them() {
        let error = args(Some(2), None).refuse().unwrap_err().to_string();
        assert!(error.starts_with("--rounds = 2: contradicts --backend"), "{error}");
        let error = args(None, Some(1.5)).refuse().unwrap_err().to_string();
        assert!(error.starts_with("--wait-budget = 1.5: contradicts --backend"), "{error}");
        args(None, None).refuse().unwrap();
    }

    #[test]
    fn budgets_are_seconds() {
        assert_eq!(args(None, Some(0.25)).wait_budget().unwrap(), Duration::from_millis(250));
        assert_eq!(args(None, None).wait_budget().unwrap(), Duration::from_secs(5));
        for bad in [0.0, -1.0, f64::NAN, 1e9] {
            let error = args(None, Some(bad)).wait_budget().unwrap_err().to_string();
            assert!(error.contains("0.001 to 3600 seconds"), "{error}");
        }
    }
}
