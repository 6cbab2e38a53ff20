//! What commands that run kernels on GPUs have in common.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::build::pack::Pack;
use crate::harness::bench::Limits;
use crate::harness::topo::{Profile, limits_of};
use crate::input::InputError;
use crate::runtime::cache::ModuleCache;
use crate::runtime::image::{Images, Jit};
use crate::runtime::{Launched, NODE_VARIABLE, RuntimeError, World, WorldOptions, for_ranks, gpus};

use super::args::GpuArgs;
use super::output::Failure;

impl GpuArgs {
    /// Refuses options that mean nothing to the simulator, which `why` says runs it.
    pub fn refuse(&self, why: &str) -> Result<(), InputError> {
        let given = [
            ("--replays", self.replays.map(|n| n.to_string())),
            ("--pack", self.pack.as_ref().map(|p| p.display().to_string())),
            ("--wait-budget", self.wait_budget.map(|n| n.to_string())),
            ("--share-gpus", self.share_gpus.then(|| "true".to_owned())),
        ];
        match given.into_iter().find_map(|(field, value)| Some((field, value?))) {
            None => Ok(()),
            Some((field, value)) => {
                let with = format!("the simulator, which runs it, {why}");
                Err(InputError::conflict(field, value, with, "this option with --backend gpu"))
            }
        }
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

/// The device profile that `--profile` names.
pub(super) fn profile(path: &Path) -> Result<Profile, InputError> {
    Profile::read("--profile", path)
}

/// What the links of a world's GPUs take by their profile, which is of them or of GPUs of the same names.
pub(super) fn limits(profile: Option<&Profile>, world: &World) -> Result<Option<Limits>, InputError> {
    let Some(profile) = profile else { return Ok(None) };
    profile.check_ranks("--profile", world.ranks() as usize)?;
    let ranks = world.members().iter().map(|m| (m.rank as usize, m.gpu.info().name.as_str()));
    ranks.into_iter().try_for_each(|(rank, name)| profile.check_gpu("--profile", rank, name))?;
    profile.limits("--profile").map(Some)
}

/// What limits are computed from: a profile, the GPUs' names, or else a measurement of the links; or why there is none.
///
/// # Errors
/// The profile is of other GPUs.
pub(super) fn known_limits(
    profile: Option<&Profile>,
    world: &Arc<World>,
    images: &dyn Images,
) -> Result<Result<Limits, String>, InputError> {
    if let Some(limits) = limits(profile, world)? {
        return Ok(Ok(limits));
    }
    let named = Limits::of(world.members().iter().map(|m| m.gpu.info().name.as_str()));
    Ok(named.map_or_else(|| limits_of(world, images), Ok))
}

/// The compiler for the GPUs of a world.
pub(super) fn jit(world: &World) -> Result<Jit, RuntimeError> {
    Jit::for_target(world.members()[0].gpu.info().target, ModuleCache::of_user())
}

/// What users must know of the GPUs of a world that have not been tested on hardware.
pub(super) fn untested(world: &World) -> Option<&'static str> {
    world.members().iter().find_map(|member| member.gpu.untested())
}

/// What users must know of a world, by its name in JSON.
pub(super) fn notes(world: &World) -> Vec<(&'static str, String)> {
    let untested = untested(world).map(|note| ("untested", note.to_owned()));
    let shared = (world.ranks_per_gpu() > 1).then(|| {
        let said = format!("up to {} ranks share a GPU", world.ranks_per_gpu());
        (
            "shared_gpus",
            format!("{said}: times say nothing about links, nor of a rank that has a GPU to itself"),
        )
    });
    untested.into_iter().chain(shared).collect()
}

/// The pack that an option names: it has all kernels, and no compiler is needed.
pub(super) fn open_pack(folder: &Path) -> Result<Pack, InputError> {
    let readable = "a folder that `pack` wrote";
    Pack::open(folder).map_err(|e| InputError::malformed("--pack", folder.display(), e, readable))
}

/// The ranks, for these problems, each by the names of its kernels: all in this process, or those of the processes that were
/// started with it.
pub(super) fn world(
    ranks: u32,
    mut options: WorldOptions,
    problems: &[Vec<String>],
) -> Result<World, Failure> {
    let Some(launched) = Launched::here()? else { return world_here(ranks, &options) };
    if launched.ranks != ranks {
        let with = format!("{} processes, as {} started them", launched.ranks, launched.launcher);
        return Err(
            InputError::conflict("--ranks", ranks, with, "one process a rank, or a single one").into()
        );
    }
    for (number, variants) in (1..).zip(problems) {
        let of = if number == 1 { String::new() } else { format!(" of problem {number}") };
        options.facts.insert(format!("variants{of}"), variants.join(", "));
    }
    // Processes have their nodes by their computers, or by name.
    let wanted = std::mem::replace(&mut options.nodes, 1);
    let world = World::of_process(&gpus()?, &launched, &options)?;
    same_nodes(wanted, world.teams().nodes(), launched.launcher)?;
    Ok(world)
}

/// Whether processes are on as many nodes as kernels are for.
fn same_nodes(wanted: u32, found: u32, launcher: &str) -> Result<(), InputError> {
    if wanted == found {
        return Ok(());
    }
    let with = format!("processes on {found}, as {launcher} started them");
    let allowed = format!("--nodes {found}, or {NODE_VARIABLE} with the name of each process's node");
    Err(InputError::conflict("--nodes", wanted, with, allowed))
}

/// All ranks in this process.
pub(super) fn world_here(ranks: u32, options: &WorldOptions) -> Result<World, Failure> {
    let gpus = gpus()?;
    let found = gpus.len() as u32;
    let few = RuntimeError::TooFewGpus { backend: gpus[0].info().target.backend(), found, needed: ranks };
    let gpus = for_ranks(&gpus, ranks, options.share_gpus).ok_or(few)?;
    Ok(World::of_gpus(&gpus, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_gpus_have_is_refused_without_them() {
        let none = GpuArgs { rounds: None, replays: None, pack: None, wait_budget: None, share_gpus: false };
        none.refuse("as --backend says").unwrap();
        let args = GpuArgs { replays: Some(2), ..none.clone() };
        let error = args.refuse("as --backend says").unwrap_err().to_string();
        assert!(error.starts_with("--replays = 2: contradicts the simulator, which runs it, as"), "{error}");
        let error = GpuArgs { share_gpus: true, ..none.clone() }.refuse("as there are 0").unwrap_err();
        assert!(error.to_string().starts_with("--share-gpus = true: contradicts the simulator"), "{error}");
        let error = GpuArgs { wait_budget: Some(1.5), ..none }.refuse("as there are 0").unwrap_err();
        assert!(error.to_string().starts_with("--wait-budget = 1.5: contradicts the simulator"), "{error}");
    }

    #[test]
    fn processes_are_on_the_nodes_that_kernels_are_for() {
        same_nodes(2, 2, "torchrun").unwrap();
        let said = same_nodes(2, 1, "torchrun").unwrap_err().to_string();
        assert!(
            said.starts_with("--nodes = 2: contradicts processes on 1, as torchrun started them"),
            "{said}"
        );
        assert!(said.contains("--nodes 1, or PEERWARP_NODE"), "{said}");
    }

    #[test]
    fn budgets_are_seconds() {
        assert_eq!(wait_budget(Some(0.25)).unwrap(), Duration::from_millis(250));
        assert_eq!(wait_budget(None).unwrap(), Duration::from_secs(5));
        for bad in [0.0, -1.0, f64::NAN, 1e9] {
            let error = wait_budget(Some(bad)).unwrap_err().to_string();
            assert!(error.contains("0.001 to 3600 seconds"), "{error}");
        }
    }
}
