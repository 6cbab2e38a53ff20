//! Checks of the communication protocol: many schedules of simulated ranks, each with inputs of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use peerwarp_codegen::dsl::{self, Spare};
use peerwarp_codegen::family::Variant;
use peerwarp_codegen::ir::analysis::banks;
use peerwarp_codegen::sim::{Death, Findings, Options, Strategy, WARP_SIZE};
use peerwarp_codegen::threads;
use rayon::prelude::*;

use super::session::{SimSession, room_for};
use super::verdict::Verdict;
use super::workload::{Inputs, Problem, Suite, WorkloadError};
use crate::input::InputError;

/// What to explore.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// What kernels are run on; its seed is the first one.
    pub inputs: Inputs,
    /// How many seeds.
    pub seeds: u64,
    /// How many blocks a rank can run at once; as many as a launch has if none.
    pub resident_blocks: Option<u32>,
}

/// What is wrong under a schedule.
#[derive(Debug)]
pub enum Wrong {
    /// The protocol.
    Protocol(Box<Findings>),
    /// The result.
    Result(Verdict),
}

/// Default number of rounds: two more than the kernels have banks, so that each bank is used again. At least 4.
///
/// # Errors
/// A kernel cannot be traced.
pub fn default_epochs(variants: &[Variant]) -> Result<u32, WorkloadError> {
    let mut epochs = 4;
    for variant in variants {
        epochs = epochs.max(banks(&variant.trace(WARP_SIZE)?) + 2);
    }
    Ok(epochs)
}

/// What the lowest seed that shows something wrong showed, and the seed; none if all is well. Seeds are explored on all cores;
/// `tick` is called for each.
///
/// # Errors
/// The variants do not go together, the inputs are not for them, or a kernel is wrong.
pub fn explore(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    tick: impl Fn() + Sync,
) -> Result<Option<(u64, Wrong)>, WorkloadError> {
    explore_as(suite, variants, exploration, None, tick)
}

/// The same of kernels whose channels of a name lack something.
pub(super) fn explore_without(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    without: (&str, Spare),
) -> Result<Option<(u64, Wrong)>, WorkloadError> {
    explore_as(suite, variants, exploration, Some(without), || {})
}

fn explore_as(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    without: Option<(&str, Spare)>,
    tick: impl Fn() + Sync,
) -> Result<Option<(u64, Wrong)>, WorkloadError> {
    threads::pool()?;
    let Exploration { inputs, seeds, resident_blocks } = exploration;
    room_for(variants)?;
    let session = |inputs: &Inputs| {
        let problem: Arc<dyn Problem> = Arc::from(suite.problem(variants, inputs)?);
        match without {
            None => SimSession::with_fewer_rows(problem, inputs.seed),
            Some((channel, spare)) => {
                dsl::without(channel, spare, || SimSession::with_fewer_rows(problem, inputs.seed))
            }
        }
    };
    // An error of the input is reported once, not for every seed.
    session(inputs)?;
    // What is left of the last numbers there are.
    let seeds = (*seeds).min(u64::MAX - inputs.seed) as usize;
    // A seed at a time: no core is left with many of them when the others are done.
    let found = (0..seeds).into_par_iter().with_max_len(1).find_map_first(|n| {
        let seed = inputs.seed + n as u64;
        let options = Options { resident_blocks: *resident_blocks, ..schedule(seed) };
        let found = session(&Inputs { seed, ..inputs.clone() }).map(|session| one(&session, &options));
        tick();
        found.transpose().map(|found| found.map(|wrong| (seed, wrong)))
    });
    found.transpose()
}

/// What a rank's death showed, and what came after it.
#[derive(Debug)]
pub struct WrongDeath {
    /// The seed of the schedule.
    pub seed: u64,
    /// Which rank died, and when.
    pub death: Death,
    /// The ranks without which the world went on, a mask, if that is where something is wrong.
    pub without: Option<u64>,
    /// What is wrong.
    pub wrong: Wrong,
}

/// Lets a rank die `deaths` times, after stores that lie evenly among all that ranks do: after every store, if there are as many
/// deaths. The others have to come as far as they can, with right results; then, in fresh memory, they and a schedule of their own go on
/// without it, and every other time without one more. Yields the first death that shows something wrong.
///
/// # Errors
/// As of [`explore`]; or the kernels are for several nodes.
pub fn deaths(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    deaths: u64,
    tick: impl Fn() + Sync,
) -> Result<Option<WrongDeath>, WorkloadError> {
    threads::pool()?;
    let Exploration { inputs, resident_blocks, .. } = exploration;
    room_for(variants)?;
    let problem: Arc<dyn Problem> = Arc::from(suite.problem(variants, inputs)?);
    let (whole, ranks) = (SimSession::new(Arc::clone(&problem))?, problem.ranks());
    if ranks < 2 || problem.nodes() > 1 {
        let found = format!("{ranks} ranks on {} nodes", problem.nodes());
        return Err(InputError::not_allowed("--deaths", found, "at least 2 ranks on one node").into());
    }
    let options = |seed| Options { resident_blocks: *resident_blocks, ..schedule(seed) };
    let stores = match whole.run(&options(inputs.seed)) {
        Ok(ran) => ran.report.stores,
        Err(findings) => {
            let (seed, death) = (inputs.seed, Death { rank: 0, after: u64::MAX });
            return Ok(Some(WrongDeath { seed, death, without: None, wrong: Wrong::Protocol(findings) }));
        }
    };
    // One before the first store of each.
    let places: u64 = stores.iter().map(|stores| stores + 1).sum();
    let of = |n: u64| {
        let mut after = if deaths >= places { n % places } else { n * places / deaths };
        let of_rank = |rank: &u32| {
            let own = stores[*rank as usize] + 1;
            let here = after < own;
            after -= if here { 0 } else { own };
            here
        };
        let rank = (0..ranks).find(of_rank).unwrap_or(0);
        Death { rank, after }
    };
    let sessions: Mutex<BTreeMap<u64, Arc<SimSession>>> = Mutex::default();
    let session = |without: u64| {
        let mut all = sessions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(session) = all.get(&without) {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(SimSession::without(Arc::clone(&problem), without)?);
        all.insert(without, Arc::clone(&session));
        Ok::<_, WorkloadError>(session)
    };
    let one = |n: u64| {
        let (seed, death) = (inputs.seed.wrapping_add(n), of(n));
        let wrong = |without, wrong| Ok(Some(WrongDeath { seed, death, without, wrong }));
        match whole.run_until_death(&Options { death: Some(death), ..options(seed) }) {
            Err(findings) => return wrong(None, Wrong::Protocol(findings)),
            Ok(ran) if !ran.verdict.ok() => return wrong(None, Wrong::Result(ran.verdict)),
            Ok(_) => {}
        }
        let other = (u64::from(death.rank) + 1 + n / 2 % u64::from(ranks - 1)) % u64::from(ranks);
        let more = if n % 2 == 1 && ranks > 2 { 1 << other } else { 0 };
        let without = 1 << death.rank | more;
        match session(without)?.run(&options(seed)) {
            Err(findings) => wrong(Some(without), Wrong::Protocol(findings)),
            Ok(ran) if !ran.verdict.ok() => wrong(Some(without), Wrong::Result(ran.verdict)),
            Ok(_) => Ok(None),
        }
    };
    let found = (0..deaths as usize).into_par_iter().with_max_len(1).find_map_first(|n| {
        let found = one(n as u64);
        tick();
        found.transpose()
    });
    found.transpose()
}

/// Odd seeds seek bad schedules; even ones are random. So the seed alone says what to replay.
pub(super) fn schedule(seed: u64) -> Options {
    let strategy = if seed % 2 == 1 { Strategy::Adversarial } else { Strategy::Random };
    Options { seed, strategy, ..Options::default() }
}

fn one(session: &SimSession, options: &Options) -> Option<Wrong> {
    match session.run(options) {
        Err(findings) => Some(Wrong::Protocol(findings)),
        Ok(ran) if !ran.verdict.ok() => Some(Wrong::Result(ran.verdict)),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_strategies_get_their_turn() {
        let strategies = [0, 1, 2].map(|seed| schedule(seed).strategy);
        assert_eq!(strategies, [Strategy::Random, Strategy::Adversarial, Strategy::Random]);
        assert_eq!(schedule(5).seed, 5);
    }
}
