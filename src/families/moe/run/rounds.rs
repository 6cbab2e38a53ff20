//! Rounds of an MoE problem as the harness runs them: dispatch, the stand-in expert, combine; or all of it in one launch.

use std::sync::{Arc, OnceLock};

use bytemuck::cast_slice;
use peerwarp_codegen::family::Family;
use peerwarp_codegen::ir::{Const, Dtype};
use peerwarp_codegen::threads;

use super::data::{NO_SLOT, Round, Semantics, placed, placements};
use super::{Traffic, between, fused};
use crate::families::moe::kernels::{IdType, Layout, Quantise, RoundTrip};
use crate::families::moe::nodes::NODE_ROWS;
use crate::families::moe::{MoeError, MoeKey, MoeProblem, MoeShape, MoeTuning, Placement, Routing, work};
use crate::harness::elements::decode;
use crate::harness::elements::loops::{larger, off_and_largest};
use crate::harness::suite::random_bytes;
use crate::harness::verdict::{Expected, Verdict};
use crate::harness::workload::{Contents, Metric, Problem, RankMemory};
use crate::runtime::op::LaunchSpec;

/// Bytes of random rows that timing repeats.
const PATTERN: usize = 1 << 20;

/// Rounds of a problem, back to back.
#[derive(Clone, Debug)]
pub struct MoeRounds {
    problem: MoeProblem,
    semantics: Semantics,
    launches: Vec<LaunchSpec>,
    /// How many launches are dispatch's: all of a round in one launch.
    dispatches: usize,
    /// Whether a round is one launch, with the experts in it.
    one_launch: bool,
    rounds: u32,
    /// Ranks without which the world goes on, as a mask.
    inactive: u64,
    /// What the reference says, once it is asked.
    reference: Arc<OnceLock<Arc<[Round]>>>,
}

impl MoeRounds {
    /// Rounds of dispatch, the stand-in expert and combine.
    ///
    /// # Errors
    /// The problem is malformed, the variants are not for it or do not go together, or there are no rounds.
    pub fn new(problem: &MoeProblem, tuning: &MoeTuning, rounds: u32) -> Result<MoeRounds, MoeError> {
        problem.check()?;
        tuning.check(&problem.shape)?;
        let launches = tuning.launch_specs();
        MoeRounds::of(problem, tuning.semantics(), launches, tuning.ends()[1], false, rounds)
    }

    /// Rounds in one launch each.
    ///
    /// # Errors
    /// As of [`MoeRounds::new`].
    pub fn in_one_launch(
        problem: &MoeProblem,
        config: &RoundTrip,
        rounds: u32,
    ) -> Result<MoeRounds, MoeError> {
        problem.check()?;
        fused::check(config, &problem.shape)?;
        let launch = LaunchSpec::new("round trip", config.clone().into_variant());
        MoeRounds::of(problem, config.semantics(), vec![launch], 1, true, rounds)
    }

    fn of(
        problem: &MoeProblem,
        semantics: Semantics,
        launches: Vec<LaunchSpec>,
        dispatches: usize,
        one_launch: bool,
        rounds: u32,
    ) -> Result<MoeRounds, MoeError> {
        if rounds == 0 {
            return Err(MoeError::invalid("rounds", rounds, "must be 1 or more"));
        }
        // The reference is computed in parallel.
        threads::pool()?;
        let (problem, reference) = (problem.clone(), Arc::default());
        Ok(MoeRounds { problem, semantics, launches, dispatches, one_launch, rounds, inactive: 0, reference })
    }

    /// What the reference says of each round. Computed when it is first asked: of many tokens it takes seconds.
    pub fn reference(&self) -> &Arc<[Round]> {
        let round = |i| Round::without(&self.problem, self.semantics, i, self.inactive);
        self.reference.get_or_init(|| (0..self.rounds).map(round).collect())
    }

    /// The same, with the reference's results shared among rounds of the same problem.
    #[must_use]
    pub fn like(mut self, other: &MoeRounds) -> MoeRounds {
        if (&self.problem, self.semantics, self.rounds) == (&other.problem, other.semantics, other.rounds) {
            self.reference = Arc::clone(&other.reference);
        }
        self
    }

    /// What the routing demands.
    pub fn traffic(&self) -> Traffic {
        Traffic::of(&self.placed_shape(), &self.routings().iter().collect::<Vec<_>>())
    }

    fn routings(&self) -> Vec<Routing> {
        (0..self.rounds).map(|i| self.routing(i)).collect()
    }

    /// The routing of a round: where a table places experts, with their slots for ids.
    fn routing(&self, round: u32) -> Routing {
        let placements = placements(&self.problem, &self.semantics.key, round);
        placed(self.problem.routing(round), &placements, (*self.shape(), self.placed_shape()))
    }

    /// The shape, with slots for experts where a table places these.
    fn placed_shape(&self) -> MoeShape {
        self.shape().with_slots(self.semantics.key.expert_slots)
    }

    /// How many of each token's entries name experts of ranks that are not active, or that have no slot, of a rank that is active.
    fn missing(&self, rank: u32, round: u32) -> Vec<u32> {
        let is_active = |rank: u32| self.inactive >> rank & 1 == 0;
        let (map, is_placed) = (self.semantics.key.map(), self.semantics.key.expert_slots > 0);
        let has_none = |id: i32| is_placed && id == NO_SLOT;
        let is_missing = |id: &&i32| has_none(**id) || map.owner(**id).is_some_and(|owner| !is_active(owner));
        let ids = &self.routing(round).ids[rank as usize];
        let tokens = ids.chunks(self.shape().topk as usize).filter(|_| is_active(rank));
        tokens.map(|ids| ids.iter().filter(is_missing).count() as u32).collect()
    }

    /// What the counts of experts' entries begin with.
    fn load_before(&self, round: u32) -> Vec<u32> {
        (0..self.shape().experts).map(|expert| expert * 3 + round).collect()
    }

    /// What they are after a round, on a rank that is active.
    fn load(&self, rank: u32, round: u32) -> Vec<u32> {
        let mut load = self.load_before(round);
        for &id in &self.problem.routing(round).ids[rank as usize] {
            usize::try_from(id).ok().and_then(|id| load.get_mut(id)).into_iter().for_each(|n| *n += 1);
        }
        load
    }

    fn shape(&self) -> &MoeShape {
        &self.problem.shape
    }

    /// What there is of the caller's, by name and in bytes.
    fn sent(&self, rank: u32, round: u32) -> Vec<Contents> {
        let sent = self.reference()[round as usize].inputs(rank);
        let mut all = vec![
            Contents::of("n", &[sent.n]),
            Contents::new("x", sent.x),
            ids_of(&self.semantics.key, &sent.ids),
            Contents::of("weights", &sent.weights),
        ];
        all.extend(self.tables(&placements(&self.problem, &self.semantics.key, round), rank));
        all.extend(
            self.semantics.key.expert_load.then(|| Contents::of("expert_load", &self.load_before(round))),
        );
        // Also where there are none, for want of rows: all rounds have the same buffers.
        if self.shape().scales() > 0 && self.semantics.key.quantise == Quantise::None {
            all.push(Contents::new("x_scale", sent.x_scale));
        }
        all.extend(sent.tensor_scale.map(|scale| Contents::of("tensor_scale", &[scale])));
        all
    }
}

impl Problem for MoeRounds {
    fn ranks(&self) -> u32 {
        self.shape().ranks
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }

    fn inputs(&self, rank: u32, round: u32) -> Vec<Contents> {
        self.sent(rank, round)
    }

    fn numbers(&self, rank: u32, round: u32) -> Vec<(String, Const)> {
        let there = super::data::rows_there(self.shape(), self.problem.routing(round), round, rank);
        self.numbers_of(there, super::data::empty_id(&self.placed_shape(), round))
    }

    fn has_host_steps(&self) -> bool {
        !self.one_launch
    }

    fn host_writes(&self) -> bool {
        !self.one_launch && !self.semantics.y_is_rows()
    }

    fn after_launch(&self, launch: usize, round: u32, memory: &mut dyn RankMemory) -> Result<(), String> {
        if self.one_launch {
            return Ok(());
        }
        if launch == 0 {
            // The table may change as soon as dispatch has sent.
            let next = placements(&self.problem, &self.semantics.key, round + 1);
            let tables = self.tables(&next, memory.rank());
            tables.iter().try_for_each(|c| memory.write(&c.buffer, c.at, &c.bytes))?;
        }
        if launch + 1 != self.dispatches {
            return Ok(());
        }
        let at = self.reference()[round as usize].within_node(memory.rank());
        between::check_and_run_expert(at, memory)
    }

    fn expected(&self, rank: u32, round: u32) -> Vec<Expected> {
        let of = &self.reference()[round as usize];
        let out =
            Expected::exactly("out", self.semantics.key.combined.dtype(), of.out[rank as usize].clone());
        let missing = || {
            let counts = self.missing(rank, round);
            Expected::exactly("missing", Dtype::U32, cast_slice(&counts).to_vec())
        };
        let load =
            || Expected::exactly("expert_load", Dtype::U32, cast_slice(&self.load(rank, round)).to_vec());
        let counts = self.semantics.key.missing.then(missing).into_iter();
        let counts_load = self.semantics.key.expert_load && self.inactive >> rank & 1 == 0;
        [out].into_iter().chain(counts).chain(counts_load.then(load)).collect()
    }

    fn without(&self, inactive: u64) -> Option<Arc<dyn Problem>> {
        Some(Arc::new(MoeRounds { inactive, reference: Arc::default(), ..self.clone() }))
    }

    fn compare(&self, rank: u32, round: u32, expected: &Expected, found: &[u8], verdict: &mut Verdict) {
        match &*expected.buffer {
            "out" => self.reference()[round as usize].compare(round, rank, found, verdict),
            _ => expected.compare(found, &format!("round {round}, rank {rank}"), verdict),
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let (shape, routing, dedup) = (&self.placed_shape(), &self.routing(0), self.semantics.dedup);
        let dispatch = work::of_dispatch(shape, routing, dedup);
        let combine = work::of_combine(shape, routing, dedup, self.semantics.key.combine_dtype);
        if self.one_launch {
            return vec![Metric { name: "round_trip".into(), launches: 0..1, work: dispatch.then(&combine) }];
        }
        let (first, all) = (self.dispatches, self.launches.len());
        vec![
            Metric { name: "dispatch".into(), launches: 0..first, work: dispatch },
            Metric { name: "combine".into(), launches: first..all, work: combine },
        ]
    }

    fn round_name(&self) -> String {
        "round_trip".into()
    }

    fn timing_inputs(&self, rank: u32) -> Vec<Contents> {
        let (shape, routing, at) = (self.shape(), self.problem.routing(0), rank as usize);
        let mut rng = super::data::stream(self.problem.seed, 0, rank);
        let n = routing.tokens_per_rank(shape.topk)[at];
        let mut rows = |dtype| random_bytes(dtype, PATTERN, &mut rng);
        let mut all = vec![
            // Of opaque bytes any will do.
            Contents::repeated(
                "x",
                rows(self.semantics.key.quantise.from().or(shape.dtype.dispatched()).unwrap_or(Dtype::Fp8)),
            ),
            Contents::of("n", &[n]),
            ids_of(&self.semantics.key, &routing.ids[at]),
            Contents::of("weights", &routing.weights[at]),
        ];
        all.extend(self.tables(&placements(&self.problem, &self.semantics.key, 0), rank));
        all.extend(self.semantics.key.expert_load.then(|| Contents::of("expert_load", &self.load_before(0))));
        if shape.scales() > 0 && self.semantics.key.quantise == Quantise::None {
            all.push(Contents::repeated("x_scale", cast_slice(&[1.0f32; 1024]).to_vec()));
        }
        if self.semantics.key.has_tensor_scale() {
            all.push(Contents::of("tensor_scale", &[1.0f32]));
        }
        if self.host_writes() {
            all.push(Contents::repeated("y", rows(self.semantics.key.combined.dtype())));
        }
        all
    }

    fn timing_numbers(&self, _rank: u32) -> Vec<(String, Const)> {
        self.numbers_of(self.shape().tokens, -1)
    }

    fn baseline_case(&self) -> serde_json::Value {
        work::baseline_case(&self.problem, self.semantics.dedup)
    }

    fn title(&self) -> String {
        let MoeShape { hidden, experts, topk, ranks, dtype, .. } = self.shape();
        let n = self.tokens();
        format!("{experts} experts, topk {topk}, hidden {hidden}, {dtype}, {ranks} ranks, {n} tokens a rank")
    }

    fn short_title(&self) -> String {
        let MoeShape { hidden, experts, topk, dtype, .. } = self.shape();
        format!("h{hidden} e{experts} k{topk} {dtype}, {} tokens", self.tokens())
    }

    fn per_rank(&self) -> Vec<(String, Vec<u64>)> {
        let traffic = self.traffic();
        let column = |of: fn(&super::RankTraffic) -> u64| traffic.ranks.iter().map(of).collect();
        vec![
            ("tokens sent".into(), column(|r| r.tokens_sent)),
            ("tokens received".into(), column(|r| r.tokens_received)),
            ("expert rows".into(), column(|r| r.rows)),
        ]
    }

    fn facts(&self) -> Vec<(String, serde_json::Value)> {
        let traffic = self.traffic();
        let rows = if self.semantics.dedup { traffic.rows_dedup } else { traffic.rows_plain };
        let saving = 100.0 * traffic.dedup_saving;
        let used = if self.semantics.dedup { "" } else { " (not used)" };
        let along = (self.semantics.key.nodes > 1).then(|| {
            let routings = self.routings();
            let routings: Vec<_> = routings.iter().collect();
            let rows = Traffic::rows_to_nodes(self.shape(), self.semantics.key.nodes, &routings);
            ("rows to other nodes".into(), format!("{rows}, one for each token and node").into())
        });
        let facts = [
            ("rows to other ranks".into(), rows.into()),
            ("dedup saving".into(), format!("{saving:.1} % of rows{used}").into()),
        ];
        facts.into_iter().chain(along).collect()
    }
}

/// Expert ids as kernels take them.
fn ids_of(key: &MoeKey, ids: &[i32]) -> Contents {
    match key.ids {
        IdType::I32 => Contents::of("ids", ids),
        IdType::I64 => Contents::of("ids", &ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>()),
    }
}

impl MoeRounds {
    /// A rank's table, where one places experts.
    fn tables(&self, placements: &[Placement], rank: u32) -> Vec<Contents> {
        let Some(Placement { place, replicas }) = placements.get(rank as usize) else { return vec![] };
        let counts = (self.semantics.key.replicas > 1).then(|| Contents::of("replicas", replicas));
        [Contents::of("place", place)].into_iter().chain(counts).collect()
    }

    /// The numbers that launches take.
    fn numbers_of(&self, rows_there: u32, empty_id: i32) -> Vec<(String, Const)> {
        let rows = ("rows_there".to_owned(), Const::U32(rows_there));
        let empty_id = ("empty_id".to_owned(), Const::I32(empty_id));
        if self.one_launch {
            return vec![rows];
        }
        let MoeKey { nodes, shape, .. } = self.semantics.key;
        let of_nodes = (nodes > 1).then(|| (NODE_ROWS.to_owned(), Const::U32(nodes * shape.tokens)));
        [rows, empty_id].into_iter().chain(of_nodes).collect()
    }

    /// Tokens of a rank in the first round: one number, or the least and the most.
    fn tokens(&self) -> String {
        let n = self.problem.routing(0).tokens_per_rank(self.shape().topk);
        match (n.iter().min(), n.iter().max()) {
            (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
            (_, most) => most.copied().unwrap_or(self.shape().tokens).to_string(),
        }
    }

    /// Rows that a rank has places for, where rows stand as this layout says.
    pub fn layout(&self) -> Layout {
        self.semantics.key.layout
    }
}

impl Round {
    /// How the combined rows of a rank compare: bit for bit with what the kernels have to compute, and for the size of errors
    /// with the sum over k in order, relative to the largest element of the row.
    fn compare(&self, number: u32, rank: u32, found: &[u8], verdict: &mut Verdict) {
        let (want, in_order) = (&self.out[rank as usize], &self.in_order[rank as usize]);
        let (dtype, hidden) = (self.semantics.key.combined.dtype(), self.shape.hidden as usize);
        let decoded = decode(dtype, found);
        verdict.compared += decoded.len() as u64;
        // All of them at once is faster than one by one.
        if found != want.as_slice() {
            for (i, (f, w)) in decoded.iter().zip(&decode(dtype, want)).enumerate() {
                if f.to_bits() != w.to_bits() {
                    let (token, element) = (i / hidden, i % hidden);
                    let place = format!("round {number}, rank {rank}, token {token}, element {element}");
                    verdict.wrong(format!("{place}: {f} where {w} is right"));
                }
            }
        }
        for (found, want) in decoded.chunks(hidden).zip(decode(dtype, in_order).chunks(hidden)) {
            let [off, largest] = off_and_largest(found, want);
            verdict.max_abs_err = larger(verdict.max_abs_err, off);
            if largest > 0.0 {
                verdict.max_rel_err = larger(verdict.max_rel_err, off / largest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::Routing;
    use crate::families::moe::RowDtype;
    use crate::harness::session::GpuSession;
    use crate::runtime::mock::{Machine, Uncompiled, world};

    #[test]
    fn errors_are_exact_where_bits_count_and_relative_to_rows_where_sums_do() {
        let shape = MoeShape { hidden: 8, experts: 2, topk: 1, tokens: 2, ranks: 2, dtype: RowDtype::Fp16 };
        let routing = Routing::with_weights(&shape, vec![vec![0, 1], vec![]], 1);
        let problem = MoeProblem::new(shape, routing, 1).unwrap();
        let tuning = MoeTuning::defaults(&shape).unwrap();
        let mut round = Round::new(&problem, tuning.semantics(), 0);
        let row = |values: &[f32]| crate::harness::elements::encode(shape.dtype.combined(), values);
        let with = |at: usize, value: f32| {
            let mut row = [1.0f32; 16];
            row[at] = value;
            row
        };
        round.out[0] = row(&with(1, -4.0));
        round.in_order[0] = row(&with(1, -4.5));
        let mut verdict = Verdict::default();
        round.compare(3, 0, &row(&with(1, -5.0)), &mut verdict);
        let said = "round 3, rank 0, token 0, element 1: -5 where -4 is right";
        assert_eq!(verdict.first_wrong.as_deref(), Some(said));
        assert_eq!((verdict.compared, verdict.wrong), (16, 1));
        assert_eq!((verdict.max_abs_err, verdict.max_rel_err), (0.5, 0.5 / 4.5));
    }

    #[test]
    fn entries_of_experts_of_ranks_that_left_are_missing() {
        let shape = MoeShape { hidden: 8, experts: 4, topk: 3, tokens: 2, ranks: 2, dtype: RowDtype::Bf16 };
        let ids = vec![vec![0, 2, 3, -1, 1, 4], vec![2, 3, 0]];
        let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids, 1), 1).unwrap();
        let tuning = MoeTuning::defaults(&shape).unwrap();
        let words =
            |bytes: &[u8]| bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        let counts = |missing: bool, inactive: u64| -> Vec<Vec<u32>> {
            let tuning = tuning.clone().with_missing(missing);
            let rounds = MoeRounds::new(&problem, &tuning, 1).unwrap().without(inactive).unwrap();
            let of_rank = |rank| rounds.expected(rank, 0).into_iter().find(|e| e.buffer == "missing");
            (0..2).filter_map(of_rank).map(|e| words(&e.bytes)).collect()
        };
        assert_eq!(counts(true, 0), [vec![0, 0], vec![0]]);
        assert_eq!(counts(true, 2), [vec![2, 0], vec![]]);
        assert_eq!(counts(true, 1), [vec![], vec![1]]);
        assert!(counts(false, 1).is_empty());
    }

    #[test]
    fn kernels_that_write_nothing_leave_poison() {
        let shape = MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Fp8 };
        let problem = MoeProblem::uniform(shape, &[3, 1], 1).unwrap();
        let rounds = Arc::new(MoeRounds::new(&problem, &MoeTuning::defaults(&shape).unwrap(), 1).unwrap());
        let machine = Machine::default();
        let world = world(&machine);
        let ran = GpuSession::new(rounds, &world, &Uncompiled).unwrap().poisoned().run(0).unwrap();
        assert!(!ran.ok);
        let wrong = ran.verdict.first_wrong.unwrap();
        assert!(wrong.starts_with("round 0, rank 0: rows of each expert: byte 0 is 0xff"), "{wrong}");
        // Both ranks' dispatches, and every element of what combine was to yield.
        assert_eq!((ran.verdict.compared, ran.verdict.wrong), (4 * 64, 2 + 4 * 64));
        assert_eq!(
            ran.launches.iter().map(|l| l.label.as_str()).collect::<Vec<_>>(),
            ["dispatch", "combine"]
        );
        drop(world);
        assert_eq!(machine.alive(), 0);
    }
}
