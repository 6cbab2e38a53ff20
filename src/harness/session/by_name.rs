//! A kernel of any family on simulated ranks, with a caller's bytes by the names of its parameters.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerwarp_codegen::dsl::{Binding, ParamSpec};
use peerwarp_codegen::family::DynKernel;
use peerwarp_codegen::ir::Const;
use peerwarp_codegen::sim::{Findings, Options};

use super::{HostSteps, Lasting, SimLaunches};
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
        if !RANKS.contains(&ranks) {
            let allowed = format!("{} to {}", RANKS.start(), RANKS.end());
            return Err(InputError::not_allowed("ranks", ranks, allowed));
        }
        Ok(SimRanks { ranks, seed, check_races, runs: AtomicU32::new(0) })
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
        let (number, options) = self.next();
        let host = Arc::new(host);
        let steps: Arc<dyn HostSteps> = Arc::clone(&host) as _;
        launches.run(count, number, &steps, &options)?.map_err(SimError::Found)?;
        Ok(host)
    }

    /// The number of the next run, and how it runs.
    fn next(&self) -> (u32, Options) {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(number.into());
        (number, Options { seed, race_checks: self.check_races, ..Options::default() })
    }
}

/// Bytes of each rank, by an operand's name.
pub type OfRanks = Vec<(String, Vec<Vec<u8>>)>;

/// A kernel with memory of its own on simulated ranks.
#[derive(Debug)]
pub struct SimOperation {
    ranks: Arc<SimRanks>,
    launches: SimLaunches,
    lasting: Lasting,
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
        Ok(SimOperation { ranks, launches, lasting: Lasting::default(), params })
    }

    /// The kernel's parameters.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// World size.
    pub fn ranks(&self) -> u32 {
        self.ranks.ranks
    }

    /// Runs it once, with the bytes and the numbers of each rank, in memory of its own that holds what the run before left. Returns the bytes of the outputs; what the kernel does not write
    /// stays as it was passed.
    ///
    /// # Errors
    /// As of [`SimOperation::used`]; and what the checker found.
    pub fn run(&self, operands: OfRanks, numbers: Vec<Vec<(String, Const)>>) -> Result<OfRanks, SimError> {
        let passing = |(name, each): (String, Vec<Vec<u8>>)| {
            let used =
                each.iter().zip(&numbers).map(|(b, numbers)| self.used(&name, b.len() as u64, numbers));
            let used = used.collect::<Result<_, WorkloadError>>()?;
            let is_output = self.params.iter().any(|p| p.name == name && p.binding.writes());
            Ok(Passing { name, is_output, used, each: each.into_iter().map(Mutex::new).collect() })
        };
        let operands = operands.into_iter().map(passing).collect::<Result<_, WorkloadError>>()?;
        let host = Arc::new(Host { operands, numbers });
        let steps: Arc<dyn HostSteps> = Arc::clone(&host) as _;
        let (_, options) = self.ranks.next();
        self.launches.run_after(&self.lasting, &steps, &options)?.map_err(SimError::Found)?;
        let bytes = |each: &Mutex<Vec<u8>>| std::mem::take(&mut *lock(each));
        let outputs = host.operands.iter().filter(|operand| operand.is_output);
        Ok(outputs.map(|o| (o.name.clone(), o.each.iter().map(bytes).collect())).collect())
    }

    /// How many of `given` bytes of an operand the kernel uses on a rank that passes these numbers.
    ///
    /// # Errors
    /// The operand is unknown, it has fewer bytes, or a number asks for more rows than there can be.
    pub fn used(&self, name: &str, given: u64, numbers: &[(String, Const)]) -> Result<u64, WorkloadError> {
        let known = self.launches.buffers().iter().filter(|b| b.binding != Binding::State);
        let spec = known.clone().find(|b| b.name == name);
        let spec =
            spec.ok_or_else(|| InputError::unknown("operand", name, known.map(|b| b.name.as_str())))?;
        let scalar = spec.param.rows.as_ref().map(|rows| &rows.scalar);
        let rows = numbers.iter().find(|(name, _)| Some(name) == scalar).map(|(_, number)| number);
        let rows = if let Some(Const::U32(rows)) = rows { Some((*rows).into()) } else { None };
        Ok(enough_rows(spec, rows, given)?)
    }
}

/// An operand that is passed, by rank.
struct Passing {
    name: String,
    is_output: bool,
    /// Bytes that the kernel uses.
    used: Vec<u64>,
    each: Vec<Mutex<Vec<u8>>>,
}

/// Writes what the caller passes, and reads what the kernel leaves in its outputs.
struct Host {
    operands: Vec<Passing>,
    numbers: Vec<Vec<(String, Const)>>,
}

impl HostSteps for Host {
    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let rank = memory.rank() as usize;
        for Passing { name, is_output, used, each } in &self.operands {
            let (Some(each), Some(&used)) = (each.get(rank), used.get(rank)) else {
                return Err(format!("{name}: nothing for rank {rank}"));
            };
            let (mut bytes, used) = (lock(each), used as usize);
            match launches {
                0 => memory.write(name, 0, &bytes[..used])?,
                _ if *is_output => bytes[..used].copy_from_slice(&memory.read(name, 0, used)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn numbers(&self, rank: u32) -> Vec<(String, Const)> {
        self.numbers.get(rank as usize).cloned().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
