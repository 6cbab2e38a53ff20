//! MoE as a suite: which variants go together, and what they are run on.

use peerwarp_codegen::family::{Family, FamilyEntry, Registry, Variant};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::kernels::{Combine, CombineDtype, CombineKey, Dispatch, DispatchKey, Hook, Phase, RoundTrip};
use super::routing::{self, Source};
use super::run::{MoeTuning, Round, Traffic, Way};
use super::select;
use super::{MoeError, MoeProblem, MoeShape, Routing, RowDtype};
use crate::harness::request::Request;
use crate::harness::tune::Components;
use crate::harness::verdict::{Expected, Verdict};
use crate::harness::workload::{
    Contents, Given, Inputs, Metric, OptionSpec, Problem, RankMemory, Suite, Work, WorkloadError,
};
use crate::input::InputError;
use crate::runtime::op::LaunchSpec;

/// Dispatch, a stand-in expert, and combine; or all of it in one launch.
#[derive(Debug)]
pub struct MoeSuite;

impl Suite for MoeSuite {
    fn name(&self) -> &'static str {
        "moe"
    }

    fn families(&self) -> Vec<FamilyEntry> {
        vec![Dispatch::entry(), Combine::entry(), RoundTrip::entry()]
    }

    fn problem(&self, variants: &[Variant], inputs: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
        let one_launch: Vec<&RoundTrip> = own(variants);
        if let [config] = one_launch[..]
            && variants.len() == 1
        {
            let problem = problem_of(config.dispatch().shape(), inputs)?;
            let launches = vec![LaunchSpec::new("round trip", config.clone().into_variant())];
            return Ok(Box::new(Rounds::new(&problem, config.way(), inputs.rounds, launches, 0)));
        }
        if let Some(other) = one_launch.first() {
            let allowed = "one variant with a whole round in a launch, or a dispatch and a combine";
            return Err(InputError::not_allowed("VARIANT", other.variant_name(), allowed).into());
        }
        let (problem, tuning) = problem(variants, inputs)?;
        let way = tuning.way();
        let mut launches = vec![];
        for config in tuning.dispatch_launches() {
            launches.push(LaunchSpec::new("dispatch", config.into_variant()));
        }
        let sending = launches.len();
        for config in tuning.combine_launches() {
            let y = if way.y_is_rows() { "rows" } else { "y" };
            let launch = LaunchSpec::new("combine", config.into_variant());
            launches.push(launch.with_buffer("y", y).with_buffer("epoch", "combine_epoch"));
        }
        Ok(Box::new(Rounds::new(&problem, way, inputs.rounds, launches, sending)))
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

    fn catalogues(&self) -> &'static [(&'static str, &'static str)] {
        select::CATALOGUES
    }

    fn catalogue_entry(
        &self,
        entry: &toml::Table,
        defaults: &toml::Table,
        origin: &str,
        registry: &Registry,
    ) -> Result<Vec<Vec<Request>>, InputError> {
        select::catalogue_entry(entry, defaults, origin, registry)
    }

    fn components(&self) -> Components {
        Components { together: Some(together) }
    }
}

impl From<MoeError> for WorkloadError {
    fn from(error: MoeError) -> WorkloadError {
        match error {
            MoeError::Invalid { field, value, allowed } => {
                InputError::not_allowed(field, value, allowed).into()
            }
            MoeError::Family(e) => e.into(),
            other => WorkloadError::Kernel(other.to_string()),
        }
    }
}

/// Whether a dispatch and a combine go together.
fn together(variants: &[Variant]) -> Result<(), String> {
    if !own::<RoundTrip>(variants).is_empty() {
        return Ok(());
    }
    let tuning = tuning(variants).map_err(|e| e.to_string())?;
    tuning.check(&tuning.dispatch.shape()).map_err(|e| e.to_string())
}

/// The configurations of one family.
fn own<F: Family>(variants: &[Variant]) -> Vec<&F> {
    variants.iter().filter_map(|v| v.as_any().downcast_ref()).collect()
}

/// The problem that the inputs describe, and the kernels that solve it.
pub(crate) fn problem(
    variants: &[Variant],
    inputs: &Inputs,
) -> Result<(MoeProblem, MoeTuning), WorkloadError> {
    let tuning = tuning(variants)?;
    tuning.check(&tuning.dispatch.shape())?;
    Ok((problem_of(tuning.dispatch.shape(), inputs)?, tuning))
}

fn problem_of(shape: MoeShape, inputs: &Inputs) -> Result<MoeProblem, WorkloadError> {
    let routings = (0..inputs.rounds).map(|round| routing_of(&shape, inputs, round));
    Ok(MoeProblem::with_rounds(shape, routings.collect::<Result<_, _>>()?, inputs.seed)?)
}

/// Which kernels run together, from the variants that were selected. Of a family that is not among them, the variant
/// that goes with the other's.
fn tuning(variants: &[Variant]) -> Result<MoeTuning, WorkloadError> {
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
) -> Result<Option<(F, bool)>, WorkloadError> {
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

fn combine_for(d: &Dispatch) -> Result<Combine, WorkloadError> {
    let MoeShape { hidden, experts, topk, tokens, ranks, dtype } = d.shape();
    let (dtype, layout, phase) = (dtype.into(), d.layout, Phase::Both);
    let key = CombineKey { hidden, experts, topk, tokens, ranks, dtype, layout, phase };
    let combine = Combine { dedup: d.dedup, ..Combine::with_defaults(&key)? };
    Ok(combine.with_protocol(d.protocol.arrival()))
}

fn dispatch_for(c: &Combine) -> Result<Dispatch, WorkloadError> {
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

/// Rounds of a problem.
#[derive(Debug)]
struct Rounds {
    rounds: Vec<Round>,
    launches: Vec<LaunchSpec>,
    traffic: Traffic,
    /// How many launches are dispatch's, if experts run on the host.
    sending: usize,
}

impl Rounds {
    fn new(problem: &MoeProblem, way: Way, rounds: u32, launches: Vec<LaunchSpec>, sending: usize) -> Rounds {
        let rounds: Vec<Round> = (0..rounds).map(|i| Round::new(problem, way, i)).collect();
        let traffic = Traffic::of(&rounds);
        Rounds { rounds, launches, traffic, sending }
    }
}

impl Problem for Rounds {
    fn ranks(&self) -> u32 {
        self.rounds[0].shape.ranks
    }

    fn rounds(&self) -> u32 {
        self.rounds.len() as u32
    }

    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }

    fn inputs(&self, rank: u32, round: u32) -> Vec<Contents> {
        let sent = self.rounds[round as usize].inputs(rank);
        let all = vec![
            Contents::of("n", &[sent.n]),
            Contents::new("x", sent.x),
            Contents::of("x_scale", &sent.x_scale),
            Contents::of("ids", &sent.ids),
            Contents::of("weights", &sent.weights),
        ];
        all.into_iter().filter(|c| !c.bytes.is_empty()).collect()
    }

    fn has_host_steps(&self) -> bool {
        self.sending > 0
    }

    fn host_writes(&self) -> bool {
        self.sending > 0 && !self.rounds[0].way.y_is_rows()
    }

    fn after_launch(&self, launch: usize, round: u32, memory: &mut dyn RankMemory) -> Result<(), String> {
        if launch + 1 != self.sending {
            return Ok(());
        }
        let (round, rank) = (&self.rounds[round as usize], memory.rank());
        for expected in round.dispatched(rank) {
            let got = memory.read(expected.buffer, expected.at, expected.bytes.len())?;
            expected.wrong(&got).map_or(Ok(()), Err)?;
        }
        round.experts_outputs(rank).try_for_each(|(at, y)| memory.write("y", at, &y))
    }

    fn expected(&self, rank: u32, round: u32) -> Vec<Expected> {
        let round = &self.rounds[round as usize];
        vec![Expected::exactly("out", round.shape.dtype.combined(), round.out[rank as usize].clone())]
    }

    fn compare(&self, rank: u32, round: u32, _: &Expected, found: &[u8], verdict: &mut Verdict) {
        let errors = self.rounds[round as usize].errors(round as usize, rank, found);
        let super::run::Errors { compared, wrong, first_wrong, max_abs_err, max_rel_err } = errors;
        verdict.merge(Verdict { compared, wrong, first_wrong, max_abs_err, max_rel_err });
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric { name: "round trip".into(), launches: 0..self.launches.len(), work: Work::default() }]
    }

    fn title(&self) -> String {
        self.rounds[0].shape.to_string()
    }

    fn per_rank(&self) -> Vec<(String, Vec<u64>)> {
        let column = |name: &str, of: fn(&super::run::RankTraffic) -> u64| {
            (name.to_owned(), self.traffic.ranks.iter().map(of).collect())
        };
        vec![
            column("tokens sent", |r| r.tokens_sent),
            column("tokens received", |r| r.tokens_received),
            column("expert rows", |r| r.rows),
        ]
    }

    fn facts(&self) -> Vec<(String, serde_json::Value)> {
        let dedup = self.rounds[0].way.dedup;
        let rows = if dedup { self.traffic.rows_dedup } else { self.traffic.rows_plain };
        let saving = 100.0 * self.traffic.dedup_saving;
        let saved = if dedup { "" } else { " (not used)" };
        vec![
            ("rows to other ranks".into(), rows.into()),
            ("dedup saving".into(), format!("{saving:.1} % of rows{saved}").into()),
        ]
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
