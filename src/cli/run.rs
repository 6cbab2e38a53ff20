//! `peerwarp run`.

use std::sync::Arc;

use peerwarp_codegen::sim::Options;

use crate::harness::choose::Device;
use crate::harness::run::{self, fitting};
use crate::harness::session::room_for;
use crate::harness::workload::{Given, Inputs, Problem};
use crate::input::InputError;
use crate::runtime::gpu::Gpu;
use crate::runtime::image::Images;
use crate::runtime::{Launched, World, WorldOptions, gpus};

use super::App;
use super::args::{Backend, RunArgs};
use super::output::{Done, Failure, Progress, Style};
use super::run_gpu::{jit, notes, open_pack, wait_budget, world};
use super::run_report::{Report, on_gpus, simulated};
use super::select::Chosen;

/// Rounds on GPUs unless told otherwise: more than one, for buffers are used again from the second on.
const ROUNDS: u32 = 3;

/// Where a problem is run, and why there.
enum Place {
    Simulator { why: String },
    Gpus { gpus: Vec<Arc<dyn Gpu>>, world: Option<Box<World>>, why: String },
}

pub(super) fn run(app: &App, args: &RunArgs, given: &Given, style: Style) -> Result<Done, Failure> {
    // Errors of the input are reported before those of the machine.
    let tables = args.selection.tables(app)?;
    let chosen = app.choose(&args.selection, given, false, &tables.on(Device::default()))?;
    let wait_budget = wait_budget(args.gpu.wait_budget)?;
    let nodes = chosen.variants.first().map_or(1, |v| v.nodes());
    let share_gpus = args.gpu.share_gpus;
    let options = WorldOptions { wait_budget, share_gpus, nodes, ..WorldOptions::default() };
    let pack = args.gpu.pack.as_deref().map(open_pack).transpose()?;
    let ranks = chosen.variants.first().map_or(0, |v| v.ranks());
    match place(args.backend, ranks, &options)? {
        Place::Simulator { why } => {
            args.gpu.refuse(&why)?;
            room_for(&chosen.variants)?;
            let problem = problem(&chosen, args, 1)?;
            let progress = Progress::spinner("simulating");
            let options = Options { seed: args.inputs.seed, ..Options::default() };
            let ran = run::on_simulator(&problem, &options);
            progress.finish();
            Ok(simulated(&report(&chosen, &*problem, args, &why), &ran?, style))
        }
        Place::Gpus { gpus, world: there, why } => {
            let chosen = match (&pack, gpus.first()) {
                (Some(pack), _) => app.in_pack(chosen, &tables, pack)?,
                (None, Some(gpu)) => app.on_device(chosen, &tables.on(Device::of_gpu(gpu.info())))?,
                (None, None) => chosen,
            };
            let problem = problem(&chosen, args, ROUNDS)?;
            let replays = replays(args, &*problem)?;
            let progress = Progress::spinner("running on GPUs");
            let world = match there {
                Some(world) => *world,
                None => world(ranks, options, &[problem.variants()])?,
            };
            drop(gpus);
            let images: Box<dyn Images> = match pack {
                Some(pack) => Box::new(pack),
                None => Box::new(jit(&world)?),
            };
            let notes = notes(&world);
            let ran = run::on_gpus(&problem, &Arc::new(world), &*images, replays);
            progress.finish();
            Ok(on_gpus(&report(&chosen, &*problem, args, &why), &ran?, style).noted(notes))
        }
    }
}

/// Where a world of so many ranks is run.
fn place(backend: Backend, ranks: u32, options: &WorldOptions) -> Result<Place, Failure> {
    let said = || "as --backend says".to_owned();
    match (backend, Launched::here()?) {
        (Backend::Sim, _) => Ok(Place::Simulator { why: said() }),
        (Backend::Gpu, _) => Ok(Place::Gpus { gpus: gpus().unwrap_or_default(), world: None, why: said() }),
        (Backend::Auto, Some(launched)) => {
            let why = format!("as {} started a process for each rank", launched.launcher);
            Ok(Place::Gpus { gpus: gpus().unwrap_or_default(), world: None, why })
        }
        (Backend::Auto, None) => {
            let found = gpus();
            Ok(match fitting(&found, ranks, options) {
                Ok(world) => {
                    let (gpus, why) = (found.unwrap_or_default(), on_those(&world));
                    Place::Gpus { gpus, world: Some(Box::new(world)), why }
                }
                Err(why) => Place::Simulator { why: format!("as {why}") },
            })
        }
    }
}

/// Why a world is on GPUs by default.
fn on_those(world: &World) -> String {
    match world.ranks_per_gpu() {
        1 => "as there is one for each rank".into(),
        _ => "as ranks may share them".into(),
    }
}

fn problem(chosen: &Chosen, args: &RunArgs, rounds: u32) -> Result<Arc<dyn Problem>, Failure> {
    let rounds = args.gpu.rounds.unwrap_or(rounds);
    let inputs = Inputs { seed: args.inputs.seed, rounds, ragged: false, given: chosen.given.clone() };
    Ok(Arc::from(chosen.suite.problem(&chosen.variants, &inputs)?))
}

/// How often a graph is launched, if kernels can do without the host in between.
fn replays(args: &RunArgs, problem: &dyn Problem) -> Result<u32, InputError> {
    let replaces = || {
        let params = problem.launches().iter().flat_map(|launch| launch.variant.params());
        let results: Vec<_> = params.filter(|p| p.binding.writes()).map(|p| p.name).collect();
        problem.inputs(0, 0).iter().any(|input| results.contains(&input.buffer))
    };
    match args.gpu.replays {
        Some(replays) if replays > 0 && problem.host_writes() => {
            let with = "what the host does between launches";
            let allowed = "kernels that need nothing of the host in between";
            Err(InputError::conflict("--replays", replays, with, allowed))
        }
        Some(replays) if replays > 0 && replaces() => {
            let with = "a result in the place of an input, which the next replay would take";
            Err(InputError::conflict("--replays", replays, with, "kernels that leave their inputs"))
        }
        replays => Ok(replays.unwrap_or(0)),
    }
}

fn report<'a>(chosen: &'a Chosen, problem: &'a dyn Problem, args: &RunArgs, why: &'a str) -> Report<'a> {
    Report { chosen, problem, seed: args.inputs.seed, why }
}
