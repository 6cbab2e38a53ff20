//! A kernel of any family on simulated ranks, with a caller's bytes by the names of its parameters.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use peerwarp_codegen::dsl::{Binding, ParamSpec};
use peerwarp_codegen::family::DynKernel;
use peerwarp_codegen::ir::Const;
use peerwarp_codegen::sim::{Findings, Options};

use super::{HostSteps, SimLaunches};
use crate::harness::workload::{RankMemory, WorkloadError};
use crate::input::InputError;
use crate::runtime::op::{LaunchSpec, enough_rows};

/// Most ranks of a world, as kernels address them by a mask of 64 bits.
const RANKS: RangeInclusive<u32> = 1..=64;

/// Why a run on simulated ranks failed.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The kernel, or what was passed.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// What the checker found.
    #[error(transparent)]
    Found(Box<Findings>),
}

/// Simulated ranks, and how their schedules are drawn.
#[derive(Debug)]
pub struct SimRanks {
    ranks: u32,
    seed: u64,
    check_races: bool,
    /// Number of runs.
    runs: AtomicU32,
}

impl SimRanks {
    /// `seed` decides the schedules; `check_races` looks for races, uninitialised and stale reads.
    ///
    /// # Errors
    /// `ranks` is not 1 to 64.
    pub fn new(ranks: u32, seed: u64, check_races: bool) -> Result<SimRanks, InputError> {
        match RANKS.contains(&ranks) {
            true => Ok(SimRanks { ranks, seed, check_races, runs: AtomicU32::new(0) }),
            false => {
                let allowed = format!("{} to {}", RANKS.start(), RANKS.end());
                Err(InputError::not_allowed("ranks", ranks, allowed))
            }
        }
    }

    /// World size.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Runs the first `count` launches with a host. Each run draws a schedule from the seed and the run's number, and is in the
    /// epoch after the run before it: so a caller meets both halves of double buffers.
    ///
    /// # Errors
    /// As of [`SimLaunches::run`].
    pub fn run<H: HostSteps + 'static>(
        &self,
        launches: &SimLaunches,
        count: usize,
        host: H,
    ) -> Result<Arc<H>, SimError> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(number.into());
        let options = Options { seed, race_checks: self.check_races, ..Options::default() };
        let host = Arc::new(host);
        let steps: Arc<dyn HostSteps> = Arc::clone(&host) as _;
        launches.run(count, number, &steps, &options)?.map_err(SimError::Found)?;
        Ok(host)
    }
}

/// Bytes of each rank, by a parameter's name.
pub type OfRanks<B> = Vec<(String, Vec<B>)>;

/// A kernel with memory of its own on simulated ranks.
#[derive(Debug)]
pub struct SimOperation {
    ranks: Arc<SimRanks>,
    launches: SimLaunches,
    params: Vec<ParamSpec>,
}

impl SimOperation {
    /// Traces and compiles the kernel.
    ///
    /// # Errors
    /// The kernel is for another world size; and as of [`SimLaunches::new`].
    pub fn new(ranks: Arc<SimRanks>, variant: Arc<dyn DynKernel>) -> Result<SimOperation, WorkloadError> {
        if variant.ranks() != ranks.ranks {
            let allowed = format!("{}, the size of the world", ranks.ranks);
            return Err(InputError::not_allowed("ranks", variant.ranks(), allowed).into());
        }
        let params = variant.params();
        let launches = SimLaunches::new(&[LaunchSpec::new(variant.family_name(), Arc::clone(&variant))])?;
        Ok(SimOperation { ranks, launches, params })
    }

    /// The kernel's parameters.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// World size.
    pub fn ranks(&self) -> u32 {
        self.ranks.ranks
    }

    /// Runs it once. `operands` has the bytes of each rank for each operand, `numbers` the numbers of each rank. Returns the bytes
    /// of each rank for each output; what the kernel does not write stays as it was passed.
    ///
    /// # Errors
    /// There is no operand of a name, or it is shorter than what the kernel uses; and what the checker found.
    pub fn run<B: AsRef<[u8]> + Send + Sync + 'static>(
        &self,
        operands: OfRanks<B>,
        numbers: Vec<Vec<(String, Const)>>,
    ) -> Result<OfRanks<Vec<u8>>, SimError> {
        let used = operands.iter().map(|(name, each)| self.used_of_ranks(name, each, &numbers));
        let used = used.collect::<Result<Vec<_>, _>>()?;
        let room = |each: &[B]| each.iter().map(|b| Mutex::new(b.as_ref().to_vec())).collect();
        let passing = |((name, each), used): ((String, Vec<B>), _)| {
            let is_out = self.params.iter().any(|p| p.name == name && p.binding.writes());
            Passing { out: if is_out { room(&each) } else { vec![] }, name, each, used }
        };
        let operands = operands.into_iter().zip(used).map(passing).collect();
        let host = self.ranks.run(&self.launches, 1, Host { operands, numbers })?;
        let bytes = |out: &Mutex<Vec<u8>>| std::mem::take(&mut *lock(out));
        let outputs = host.operands.iter().filter(|operand| !operand.out.is_empty());
        Ok(outputs.map(|o| (o.name.clone(), o.out.iter().map(bytes).collect())).collect())
    }

    /// How many of `given` bytes of an operand the kernel uses on a rank that passes these numbers.
    ///
    /// # Errors
    /// There are fewer, a number says that there are more rows than can be, or there is no operand of this name.
    pub fn used(&self, name: &str, given: u64, numbers: &[(String, Const)]) -> Result<u64, WorkloadError> {
        let known = self.launches.buffers().iter().filter(|b| b.binding != Binding::State);
        let spec = known.clone().find(|b| b.name == name);
        let spec =
            spec.ok_or_else(|| InputError::unknown("operand", name, known.map(|b| b.name.as_str())))?;
        let scalar = spec.param.rows.as_ref().map(|rows| &rows.scalar);
        let rows = match numbers.iter().find(|(name, _)| Some(name) == scalar) {
            Some((_, Const::U32(rows))) => Some((*rows).into()),
            _ => None,
        };
        Ok(enough_rows(spec, rows, given)?)
    }

    fn used_of_ranks<B: AsRef<[u8]>>(
        &self,
        name: &str,
        each: &[B],
        numbers: &[Vec<(String, Const)>],
    ) -> Result<Vec<usize>, WorkloadError> {
        let ranks = self.ranks.ranks;
        if each.len() != ranks as usize {
            let allowed = format!("{ranks}, one for each rank");
            return Err(InputError::not_allowed(format!("ranks of {name}"), each.len(), allowed).into());
        }
        let of_rank = |(rank, bytes): (usize, &B)| {
            let numbers = numbers.get(rank).map_or(&[][..], Vec::as_slice);
            Ok(self.used(name, bytes.as_ref().len() as u64, numbers)? as usize)
        };
        each.iter().enumerate().map(of_rank).collect()
    }
}

/// An operand that is passed.
struct Passing<B> {
    name: String,
    /// By rank.
    each: Vec<B>,
    /// Bytes of them that the kernel uses, by rank.
    used: Vec<usize>,
    /// By rank, of an output.
    out: Vec<Mutex<Vec<u8>>>,
}

/// Writes what the caller passes, and reads what the kernel leaves in its outputs.
struct Host<B> {
    operands: Vec<Passing<B>>,
    numbers: Vec<Vec<(String, Const)>>,
}

impl<B: AsRef<[u8]> + Send + Sync> HostSteps for Host<B> {
    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let rank = memory.rank() as usize;
        for Passing { name, each, used, out } in &self.operands {
            let used = used[rank];
            if launches == 0 {
                memory.write(name, 0, &each[rank].as_ref()[..used])?;
            } else if let Some(out) = out.get(rank) {
                lock(out)[..used].copy_from_slice(&memory.read(name, 0, used)?);
            }
        }
        Ok(())
    }

    fn numbers(&self, rank: u32) -> Vec<(String, Const)> {
        self.numbers.get(rank as usize).cloned().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
