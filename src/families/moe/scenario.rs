//! MoE dispatch and combine as a scenario: `run` and `check` for them.

use peerwarp_codegen::family::{Family, Variant};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::families::moe::kernels::{
    Combine, CombineDtype, CombineKey, Dispatch, DispatchKey, Hook, Phase, RoundTrip,
};
use crate::families::moe::routing::Source;
use crate::families::moe::run::{Errors, MoeSim, MoeTuning};
use crate::families::moe::{MoeError, MoeProblem, MoeShape, Routing, RowDtype};
use crate::harness::scenario::{DynScenario, Inputs, Prepared, Ran, Scenario, ScenarioError};
use crate::harness::verdict::Verdict;
use crate::input::InputError;

/// Dispatch, a stand-in expert, combine.
#[derive(Debug)]
pub struct MoeScenario;

impl DynScenario for MoeScenario {
    fn families(&self) -> Vec<&'static str> {
        vec![Dispatch::NAME, Combine::NAME]
    }

    fn prepare(&self, variants: &[Variant], inputs: &Inputs) -> Result<Prepared, ScenarioError> {
        let (problem, tuning) = problem(variants, inputs)?;
        let sim = MoeSim::new(&problem, &tuning, inputs.rounds)?;
        Ok(prepared(sim, tuning.dispatch.dedup))
    }
}

/// A round trip in one launch, with the stand-in expert in it.
impl Scenario for RoundTrip {
    fn prepare(&self, inputs: &Inputs) -> Result<Prepared, ScenarioError> {
        let problem = problem_of(self.dispatch().shape(), inputs)?;
        Ok(prepared(MoeSim::fused(&problem, self, inputs.rounds)?, true))
    }
}

fn prepared(sim: MoeSim, dedup: bool) -> Prepared {
    let traffic = sim.traffic().clone();
    let column =
        |of: fn(&crate::families::moe::run::RankTraffic) -> u64| traffic.ranks.iter().map(of).collect();
    let saving = 100.0 * traffic.dedup_saving;
    let saved = if dedup { "" } else { " (not used)" };
    let prepared = Prepared::from_fn(move |options| {
        let outcome = sim.machine().run(options)?;
        Ok(Ran { verdict: verdict(sim.errors(&outcome.memory)), report: outcome.report })
    });
    prepared
        .column("tokens sent", column(|r| r.tokens_sent))
        .column("tokens received", column(|r| r.tokens_received))
        .column("expert rows", column(|r| r.rows))
        .fact("rows to other ranks", if dedup { traffic.rows_dedup } else { traffic.rows_plain })
        .fact("dedup saving", format!("{saving:.1} % of rows{saved}"))
}

/// The problem that the inputs describe, and the kernels that solve it.
pub(crate) fn problem(
    variants: &[Variant],
    inputs: &Inputs,
) -> Result<(MoeProblem, MoeTuning), ScenarioError> {
    let tuning = tuning(variants)?;
    tuning.check(&tuning.dispatch.shape())?;
    Ok((problem_of(tuning.dispatch.shape(), inputs)?, tuning))
}

fn problem_of(shape: MoeShape, inputs: &Inputs) -> Result<MoeProblem, ScenarioError> {
    let routings = (0..inputs.rounds).map(|round| routing(&shape, inputs, round));
    Ok(MoeProblem::with_rounds(shape, routings.collect::<Result<_, _>>()?, inputs.seed)?)
}

impl From<MoeError> for ScenarioError {
    fn from(error: MoeError) -> ScenarioError {
        match error {
            MoeError::Invalid { field, value, allowed } => {
                InputError::not_allowed(field, value, allowed).into()
            }
            MoeError::Family(e) => e.into(),
            other => ScenarioError::Kernel(other.to_string()),
        }
    }
}

fn verdict(errors: Errors) -> Verdict {
    let Errors { compared, wrong, first_wrong, max_abs_err, max_rel_err } = errors;
    Verdict { compared, wrong, first_wrong, max_abs_err, max_rel_err }
}

/// Which kernels run together, from the variants that were selected. Of a family that is not among them, the variant
/// that goes with the other's.
fn tuning(variants: &[Variant]) -> Result<MoeTuning, ScenarioError> {
    let dispatch = one(variants, |d: &Dispatch| d.phase, |d, phase| Dispatch { phase, ..d })?;
    let combine = one(variants, |c: &Combine| c.phase, |c, phase| Combine { phase, ..c })?;
    let (dispatch, combine, split) = match (dispatch, combine) {
        (Some((d, split)), Some((c, other))) => {
            if split != other {
                let (field, allowed) = ("phase of combine", "the same launches as dispatch");
                return Err(InputError::conflict(field, c.variant_name(), d.variant_name(), allowed).into());
            }
            (d, c, split)
        }
        (Some((d, split)), None) => {
            let c = combine_for(&d)?;
            (d, c, split)
        }
        (None, Some((c, split))) => (dispatch_for(&c)?, c, split),
        (None, None) => {
            return Err(InputError::missing("variant", "moe_dispatch, moe_combine, or both").into());
        }
    };
    Ok(MoeTuning { dispatch, combine, split, round_trip: None })
}

/// The configuration of one family, in one phase, and whether it is to be launched in two.
fn one<F: Family>(
    variants: &[Variant],
    phase: impl Fn(&F) -> Phase,
    in_phase: impl Fn(F, Phase) -> F,
) -> Result<Option<(F, bool)>, ScenarioError> {
    let all: Vec<&F> = variants.iter().filter_map(|v| v.as_any().downcast_ref()).collect();
    let whole = |c: &F| in_phase(c.clone(), Phase::Both);
    let conflict = |a: &F, b: &F| {
        let allowed = "one variant of a family, or the two halves of one";
        Err(InputError::conflict("VARIANT", b.variant_name(), a.variant_name(), allowed).into())
    };
    match all[..] {
        [] => Ok(None),
        [c] if phase(c) == Phase::Both => Ok(Some((c.clone(), false))),
        [c] => {
            let allowed = "both, or split for two launches: one half alone never ends";
            Err(InputError::not_allowed("phase", c.variant_name(), allowed).into())
        }
        [a, b] if phase(a) != Phase::Both && phase(b) != Phase::Both && phase(a) != phase(b) => {
            if whole(a) == whole(b) { Ok(Some((whole(a), true))) } else { conflict(a, b) }
        }
        [a, b, ..] => conflict(a, b),
    }
}

fn combine_for(d: &Dispatch) -> Result<Combine, ScenarioError> {
    let MoeShape { hidden, experts, topk, tokens, ranks, dtype } = d.shape();
    let (dtype, layout, phase) = (dtype.into(), d.layout, Phase::Both);
    let key = CombineKey { hidden, experts, topk, tokens, ranks, dtype, layout, phase };
    let combine = Combine { dedup: d.dedup, ..Combine::with_defaults(&key)? };
    Ok(combine.with_protocol(d.protocol.arrival()))
}

fn dispatch_for(c: &Combine) -> Result<Dispatch, ScenarioError> {
    let Combine { hidden, experts, topk, tokens, ranks, .. } = *c;
    let dtype = match c.dtype {
        CombineDtype::Bf16 => RowDtype::Bf16,
        CombineDtype::Fp16 => RowDtype::Fp16,
    };
    let (hook, layout, phase) = (Hook::None, c.layout, Phase::Both);
    let key = DispatchKey { hidden, experts, topk, tokens, ranks, dtype, hook, layout, phase };
    Ok(Dispatch { dedup: c.dedup, protocol: c.protocol.arrival(), ..Dispatch::with_defaults(&key)? })
}

/// Routing of one round. If sizes may vary, they do so from round to round too.
fn routing(shape: &MoeShape, inputs: &Inputs, round: u32) -> Result<Routing, InputError> {
    let mut rng = ChaCha8Rng::seed_from_u64(inputs.seed);
    rng.set_stream(u64::from(round));
    let seed = if round == 0 { inputs.seed } else { rng.random() };
    let vary =
        inputs.ragged && inputs.tokens_per_rank.is_none() && !matches!(inputs.routing, Source::File(_));
    let counts = vary.then(|| ragged(shape, &mut rng));
    inputs.routing.routing(shape, counts.as_deref().or(inputs.tokens_per_rank.as_deref()), seed)
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
#[path = "scenario_tests.rs"]
mod tests;
