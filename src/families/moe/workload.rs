//! MoE as a suite: which variants go together, and what they are run on.

use std::any::Any;

use peerwarp_codegen::family::{Family, FamilyEntry, Operation, Registry, Variant};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::kernels::{Combine, CombineNodes, Dispatch, DispatchNodes, RoundTrip};
use super::routing::{self, Source};
use super::run::MoeRounds;
use super::{
    MoeError, MoeProblem, MoeShape, MoeTuning, Routing, baselines, catalogue, cost, far_cost, legal, select,
};
use crate::harness::bench::Limits;
use crate::harness::request::Request;
use crate::harness::tune::{Components, CostModel};
use crate::harness::workload::{
    Baseline, Given, Inputs, OptionSpec, Predicted, Problem, Suite, WorkloadError,
};
use crate::input::InputError;

/// Dispatch, a stand-in expert, and combine; or all of it in one launch.
#[derive(Debug)]
pub struct MoeSuite;

impl Suite for MoeSuite {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn families(&self) -> Vec<FamilyEntry> {
        let nodes = [DispatchNodes::entry(), CombineNodes::entry()];
        [Dispatch::entry(), Combine::entry(), RoundTrip::entry()].into_iter().chain(nodes).collect()
    }

    fn problem(&self, variants: &[Variant], inputs: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
        Ok(Box::new(rounds(variants, inputs)?))
    }

    fn problem_like(
        &self,
        like: &dyn Problem,
        variants: &[Variant],
        inputs: &Inputs,
    ) -> Result<Box<dyn Problem>, WorkloadError> {
        let rounds = rounds(variants, inputs)?;
        Ok(match (like as &dyn Any).downcast_ref::<MoeRounds>() {
            Some(like) => Box::new(rounds.like(like)),
            None => Box::new(rounds),
        })
    }

    fn options(&self) -> Vec<OptionSpec> {
        select::options()
    }

    fn expand(&self, given: &Given) -> Result<Vec<Given>, InputError> {
        select::expand(given)
    }

    fn select(&self, given: &Given, small: bool, registry: &Registry) -> Result<Vec<Request>, InputError> {
        select::select(given, small, registry)
    }

    fn predicted(&self) -> Option<Predicted> {
        Some(far_cost::predicted())
    }

    fn catalogues(&self) -> &'static [(&'static str, &'static str)] {
        catalogue::CATALOGUES
    }

    fn catalogue_entry(
        &self,
        entry: &toml::Table,
        defaults: &toml::Table,
        origin: &str,
        registry: &Registry,
    ) -> Result<Vec<Vec<Request>>, InputError> {
        catalogue::entry(entry, defaults, origin, registry)
    }

    fn components(&self) -> Components {
        Components { together: Some(legal::together) }
    }

    fn cost_model(&self, variants: &[Variant]) -> Option<Box<dyn CostModel>> {
        cost::model(variants)
    }

    fn cost_model_on(&self, variants: &[Variant], limits: &Limits) -> Option<Box<dyn CostModel>> {
        cost::model_on(variants, limits)
    }

    fn baselines(&self) -> Option<Baseline> {
        Some(baselines::BASELINES)
    }
}

impl From<MoeError> for WorkloadError {
    fn from(error: MoeError) -> WorkloadError {
        match error {
            MoeError::Invalid { field, value, allowed } => {
                InputError::not_allowed(field, value, allowed).into()
            }
            MoeError::Family(e) => e.into(),
            MoeError::Threads(e) => e.into(),
            other => WorkloadError::Kernel(other.to_string()),
        }
    }
}

/// Rounds of what these variants are.
fn rounds(variants: &[Variant], inputs: &Inputs) -> Result<MoeRounds, WorkloadError> {
    let one_launch: Vec<&RoundTrip> = own(variants);
    if let [config] = one_launch[..]
        && variants.len() == 1
    {
        let problem = problem(config.dispatch().shape(), inputs)?;
        return Ok(MoeRounds::in_one_launch(&problem, config, inputs.rounds)?);
    }
    if let Some(other) = one_launch.first() {
        let allowed = "one variant with a whole round in a launch, or a dispatch and a combine";
        return Err(InputError::not_allowed("VARIANT", other.variant_name(), allowed).into());
    }
    let tuning = tuning(variants)?;
    tuning.check(&tuning.key.shape)?;
    let problem = problem(tuning.key.shape, inputs)?;
    Ok(MoeRounds::new(&problem, &tuning, inputs.rounds)?)
}

/// The configurations of one family.
fn own<F: Family>(variants: &[Variant]) -> Vec<&F> {
    variants.iter().filter_map(|v| v.as_any().downcast_ref()).collect()
}

fn problem(shape: MoeShape, inputs: &Inputs) -> Result<MoeProblem, WorkloadError> {
    let routings = (0..inputs.rounds).map(|round| routing_of(&shape, inputs, round));
    Ok(MoeProblem::with_rounds(shape, routings.collect::<Result<_, _>>()?, inputs.seed)?)
}

/// Which kernels run together, from the variants that were selected. Of a family that is not among them, the variant
/// that goes with the other's.
fn tuning(variants: &[Variant]) -> Result<MoeTuning, WorkloadError> {
    let (dispatch, combine): (Vec<&Dispatch>, Vec<&Combine>) = (own(variants), own(variants));
    let tuning = match (dispatch.first(), combine.first()) {
        (Some(d), Some(c)) => MoeTuning::of(d, c)?,
        (Some(d), None) => MoeTuning::of_dispatch(d)?,
        (None, Some(c)) => MoeTuning::of_combine(c)?,
        (None, None) => {
            return Err(InputError::missing("variant", "moe_dispatch, moe_combine, or both").into());
        }
    };
    let tuning = tuning.over_nodes_of(variants)?;
    let mut launches = tuning.launches();
    let ours = [Dispatch::NAME, Combine::NAME, DispatchNodes::NAME, CombineNodes::NAME];
    let variants = || variants.iter().filter(|v| ours.contains(&v.family().name()));
    for variant in variants() {
        let name = variant.variant_name();
        let Some(at) = launches.iter().position(|launch| launch.variant_name() == name) else {
            let first = variants().find(|v| v.family().name() == variant.family().name());
            let first = first.map_or_else(String::new, |v| v.variant_name());
            let allowed = "one variant of a family, or the two halves of one";
            return Err(InputError::conflict("VARIANT", name, first, allowed).into());
        };
        launches.remove(at);
    }
    // Of a family that is given nothing is missing.
    let is_half = |v: &&Variant| launches.iter().any(|launch| launch.family().name() == v.family().name());
    if let Some(half) = variants().find(is_half) {
        let allowed = "both, or split for two launches: one half alone never ends";
        return Err(InputError::not_allowed("phase", half.variant_name(), allowed).into());
    }
    Ok(tuning)
}

/// Routing of one round. If sizes may vary, they do so from round to round too.
fn routing_of(shape: &MoeShape, inputs: &Inputs, round: u32) -> Result<Routing, InputError> {
    let mut rng = ChaCha8Rng::seed_from_u64(inputs.seed);
    rng.set_stream(u64::from(round));
    let seed = if round == 0 { inputs.seed } else { rng.random() };
    let source: Source = inputs.given.get("routing").map_or(Ok(Source::Uniform), |text| text.parse())?;
    let counts = inputs.given.get("tokens-per-rank").map(|text| routing::parse_counts(text)).transpose()?;
    let vary = inputs.ragged && counts.is_none() && !matches!(source, Source::File(_));
    let counts = counts.or_else(|| vary.then(|| ragged(shape, &mut rng)));
    source.routing(shape, counts.as_deref(), seed)
}

/// Tokens of each rank: every other time all there can be, else anything down to none at all.
fn ragged(shape: &MoeShape, rng: &mut ChaCha8Rng) -> Vec<u32> {
    if rng.random() {
        return vec![shape.tokens; shape.ranks as usize];
    }
    let one = |_| if rng.random_ratio(1, 4) { 0 } else { rng.random_range(0..=shape.tokens) };
    (0..shape.ranks).map(one).collect()
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
