//! MoE problems on the simulator.

use std::sync::Arc;

use peerwarp_codegen::family::Family;
use peerwarp_codegen::ir::{ParamKind, Planted, Verified, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Memory, Options, SimError};
use rayon::prelude::*;

use super::data::Round;
use super::{Errors, MoeRun, MoeTuning, Traffic, Way, fused, steps};
use crate::families::moe::kernels::RoundTrip;
use crate::families::moe::{MoeError, MoeProblem, MoeShape};

/// Lanes of the warps that are simulated. Nothing but the order of float sums, of which the kernels have none, depends
/// on it.
const WARP_SIZE: u32 = 32;

/// The epoch word of dispatch, named as its parameter.
const DISPATCH_EPOCH: &str = "epoch";

/// Combine counts its own epochs.
const COMBINE_EPOCH: &str = "combine_epoch";

/// A problem ready to be simulated, any number of times.
#[derive(Debug)]
pub struct MoeSim {
    shape: MoeShape,
    rounds: Arc<[Round]>,
    machine: Machine,
    variants: Vec<String>,
    traffic: Traffic,
    /// Names of the words that count epochs.
    epochs: Vec<&'static str>,
}

impl MoeSim {
    /// `rounds` rounds of a problem, back to back.
    pub fn new(problem: &MoeProblem, tuning: &MoeTuning, rounds: u32) -> Result<MoeSim, MoeError> {
        MoeSim::build(problem, tuning, rounds, &mut |kernel| Compiled::new(kernel))
    }

    /// As [`MoeSim::new`], with bugs planted into its kernels by `plant`.
    #[doc(hidden)]
    pub fn planted(
        problem: &MoeProblem,
        tuning: &MoeTuning,
        rounds: u32,
        plant: &mut dyn FnMut(&mut Planted),
    ) -> Result<MoeSim, MoeError> {
        MoeSim::build(problem, tuning, rounds, &mut |kernel| with_bugs(kernel, plant))
    }

    fn build(
        problem: &MoeProblem,
        tuning: &MoeTuning,
        rounds: u32,
        compile: &mut dyn FnMut(Verified) -> Compiled,
    ) -> Result<MoeSim, MoeError> {
        problem.check()?;
        tuning.check(&problem.shape)?;
        let dispatch = tuning.dispatch_launches();
        let combine = tuning.combine_launches();
        let variants =
            dispatch.iter().map(Family::variant_name).chain(combine.iter().map(Family::variant_name));
        let variants = variants.collect();
        let mut traced = vec![];
        for config in &dispatch {
            traced.push((Arc::new(compile(verify(config.trace(WARP_SIZE)?)?)), Bindings::new()));
        }
        for config in &combine {
            traced
                .push((Arc::new(compile(verify(config.trace(WARP_SIZE)?)?)), combine_bindings(tuning.way())));
        }
        let rounds = all_rounds(problem, tuning.way(), rounds)?;
        let (dispatch, combine) = traced.split_at(dispatch.len());
        let machine = machine(&problem.shape, &rounds, dispatch, combine)?;
        let epochs = vec![DISPATCH_EPOCH, COMBINE_EPOCH];
        Ok(MoeSim::of(problem.shape, rounds, machine, variants, epochs))
    }

    /// `rounds` rounds of a problem, back to back, each in one launch.
    pub fn fused(problem: &MoeProblem, config: &RoundTrip, rounds: u32) -> Result<MoeSim, MoeError> {
        MoeSim::build_fused(problem, config, rounds, &mut |kernel| Compiled::new(kernel))
    }

    /// As [`MoeSim::fused`], with bugs planted into its kernel by `plant`.
    #[doc(hidden)]
    pub fn fused_planted(
        problem: &MoeProblem,
        config: &RoundTrip,
        rounds: u32,
        plant: &mut dyn FnMut(&mut Planted),
    ) -> Result<MoeSim, MoeError> {
        MoeSim::build_fused(problem, config, rounds, &mut |kernel| with_bugs(kernel, plant))
    }

    fn build_fused(
        problem: &MoeProblem,
        config: &RoundTrip,
        rounds: u32,
        compile: &mut dyn FnMut(Verified) -> Compiled,
    ) -> Result<MoeSim, MoeError> {
        problem.check()?;
        fused::check(config, &problem.shape)?;
        let kernel = Arc::new(compile(verify(config.trace(WARP_SIZE)?)?));
        let rounds = all_rounds(problem, config.way(), rounds)?;
        let machine = fused_machine(&problem.shape, &rounds, &kernel)?;
        Ok(MoeSim::of(problem.shape, rounds, machine, vec![config.variant_name()], vec![DISPATCH_EPOCH]))
    }

    fn of(
        shape: MoeShape,
        rounds: Arc<[Round]>,
        machine: Machine,
        variants: Vec<String>,
        epochs: Vec<&'static str>,
    ) -> MoeSim {
        let routings: Vec<_> = rounds.iter().map(|r| &r.routing).collect();
        let traffic = Traffic::of(&shape, &routings);
        MoeSim { shape, rounds, machine, variants, traffic, epochs }
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many rounds had gone before.
    pub fn start_after(&mut self, epoch: u32) -> Result<(), MoeError> {
        for word in &self.epochs {
            self.machine.start_epoch(word, epoch)?;
        }
        Ok(())
    }

    /// The simulated machine with its programs.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Names of the kernels in the order of their launches in a round.
    pub fn variants(&self) -> &[String] {
        &self.variants
    }

    /// What the routing demands.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Runs it under one schedule.
    pub fn run(&self, options: &Options) -> MoeRun {
        let (report, errors, findings) = match self.machine.run(options) {
            Ok(outcome) => (outcome.report, Some(self.errors(&outcome.memory)), None),
            Err(findings) => (findings.report.clone(), None, Some(findings)),
        };
        let (link_bytes, link_flags) = MoeRun::links(&report, self.shape.ranks);
        MoeRun {
            ok: errors.as_ref().is_some_and(|e| e.wrong == 0),
            variants: self.variants.clone(),
            rounds: self.rounds.len() as u32,
            seed: options.seed,
            errors,
            traffic: self.traffic.clone(),
            bytes_on_wire: report.bytes_on_wire(),
            link_bytes,
            link_flags,
            steps: report.steps,
            findings,
        }
    }

    /// How the combined rows that a run left behind compare with the reference.
    pub fn errors(&self, memory: &Memory) -> Errors {
        let places =
            (0..self.rounds.len()).flat_map(|round| (0..self.shape.ranks).map(move |rank| (round, rank)));
        let places: Vec<(usize, u32)> = places.collect();
        let each = places.into_par_iter().map(|(round, rank)| self.errors_of(memory, round, rank));
        each.reduce(Errors::default, Errors::merge)
    }

    fn errors_of(&self, memory: &Memory, round: usize, rank: u32) -> Errors {
        let got = memory.read::<u8>(rank, &steps::kept(round as u32)).unwrap_or_default();
        self.rounds[round].errors(round, rank, got)
    }
}

type Launch = (Arc<Compiled>, Bindings);

fn with_bugs(kernel: Verified, plant: &mut dyn FnMut(&mut Planted)) -> Compiled {
    let mut kernel = Planted::from(kernel);
    plant(&mut kernel);
    Compiled::planted(kernel)
}

fn all_rounds(problem: &MoeProblem, way: Way, rounds: u32) -> Result<Arc<[Round]>, MoeError> {
    match rounds {
        0 => Err(MoeError::invalid("rounds", rounds, "must be 1 or more")),
        _ => Ok((0..rounds).map(|i| Round::new(problem, way, i)).collect()),
    }
}

/// Combine's parameters that are not dispatch's of the same name.
fn combine_bindings(way: Way) -> Bindings {
    let y = if way.y_is_rows() { "rows" } else { "y" };
    Bindings::new().buffer("y", y).buffer("epoch", COMBINE_EPOCH)
}

fn machine(
    shape: &MoeShape,
    rounds: &Arc<[Round]>,
    dispatch: &[Launch],
    combine: &[Launch],
) -> Result<Machine, SimError> {
    let mut machine = Machine::new(shape.ranks);
    for (compiled, _) in dispatch {
        machine.buffers_of(compiled.kernel())?;
    }
    for (compiled, _) in combine {
        for p in &compiled.kernel().params {
            let name = if p.kind == ParamKind::EpochWord { COMBINE_EPOCH } else { &p.name };
            machine.buffer(name, p.kind, p.dtype, p.len)?;
        }
    }
    keep_outputs(&mut machine, shape, rounds.len())?;
    for rank in 0..shape.ranks {
        for i in 0..rounds.len() {
            add_round(&mut machine, rank, rounds, i, dispatch, combine)?;
        }
    }
    Ok(machine)
}

/// Room for what each round yields.
fn keep_outputs(machine: &mut Machine, shape: &MoeShape, rounds: usize) -> Result<(), SimError> {
    let row = u64::from(shape.tokens) * u64::from(shape.hidden);
    (0..rounds as u32)
        .try_for_each(|i| machine.buffer(&steps::kept(i), ParamKind::Local, shape.dtype.combined(), row))
}

fn fused_machine(
    shape: &MoeShape,
    rounds: &Arc<[Round]>,
    kernel: &Arc<Compiled>,
) -> Result<Machine, SimError> {
    let mut machine = Machine::new(shape.ranks);
    machine.buffers_of(kernel.kernel())?;
    keep_outputs(&mut machine, shape, rounds.len())?;
    for rank in 0..shape.ranks {
        for i in 0..rounds.len() {
            let (inputs, outputs) = (Arc::clone(rounds), Arc::clone(rounds));
            machine.host(rank, "inputs", move |memory| steps::load(&inputs[i], memory))?;
            machine.launch(rank, kernel, &Bindings::new())?;
            machine.host(rank, "outputs", move |memory| steps::keep(&outputs[i], i as u32, memory))?;
        }
    }
    Ok(machine)
}

fn add_round(
    machine: &mut Machine,
    rank: u32,
    rounds: &Arc<[Round]>,
    i: usize,
    dispatch: &[Launch],
    combine: &[Launch],
) -> Result<(), SimError> {
    let all = || Arc::clone(rounds);
    let (inputs, expert, outputs) = (all(), all(), all());
    machine.host(rank, "inputs", move |memory| steps::load(&inputs[i], memory))?;
    for (kernel, bindings) in dispatch {
        machine.launch(rank, kernel, bindings)?;
    }
    machine.host(rank, "expert", move |memory| steps::check_and_run_expert(&expert[i], memory))?;
    for (kernel, bindings) in combine {
        machine.launch(rank, kernel, bindings)?;
    }
    machine.host(rank, "outputs", move |memory| steps::keep(&outputs[i], i as u32, memory))
}
