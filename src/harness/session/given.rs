//! Launches on simulated ranks with somebody's own data, instead of a problem's inputs and reference.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerwarp_codegen::dsl::Binding;
use peerwarp_codegen::family::DynKernel;
use peerwarp_codegen::ir::{Const, ParamKind, Planted, Verified};
use peerwarp_codegen::sim::{Compiled, FindingKind, Findings, Machine, Memory, Options, Report};

use super::kernels::{Kernels, declare};
use super::room_for;
use crate::harness::workload::{RankMemory, WorkloadError};
use crate::runtime::op::{BufferSpec, LaunchSpec, buffers};

/// The host's part of such a run. It is called on each rank before the first launch and after each one, whenever that rank is
/// there: ranks don't wait for each other in between.
pub trait HostSteps: Send + Sync {
    /// Writes what the next launch takes, and reads what the last one yields; `launches` of this rank are over. Reads and writes
    /// are checked like those of kernels.
    ///
    /// # Errors
    /// Why it cannot go on, in words: a finding, which ends the run.
    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String>;

    /// The numbers that a rank passes by value. One that says how many rows there are says that there are as many as can be,
    /// unless the result says it; where buffers end earlier, no kernel may read on.
    fn numbers(&self, _rank: u32) -> Vec<(String, Const)> {
        vec![]
    }
}

/// Launches that share buffers by name, traced and compiled for the simulator: run any number of times, each time in memory that
/// no launch has written yet.
pub struct SimLaunches {
    ranks: u32,
    buffers: Vec<BufferSpec>,
    kernels: Kernels,
}

impl fmt::Debug for SimLaunches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLaunches").field("ranks", &self.ranks).field("buffers", &self.buffers).finish()
    }
}

/// What launches leave in memory of their own: it lasts from one run to the next, as on a GPU. A run that fails changes nothing.
#[derive(Debug, Default)]
pub struct Lasting {
    left: Mutex<Left>,
}

#[derive(Debug, Default)]
struct Left {
    /// Runs that left something, which is the epoch after which the next one begins.
    runs: u32,
    /// Rank, buffer, first byte and bytes.
    content: Vec<(u32, String, u64, Vec<u8>)>,
}

impl Lasting {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, machine: &mut Machine) -> Result<(), WorkloadError> {
        let left = self.left();
        left.content.iter().try_for_each(|(rank, name, at, bytes)| machine.write(*rank, name, *at, bytes))?;
        Ok(())
    }

    fn keep(&self, launches: &SimLaunches, memory: &Memory) -> Result<(), WorkloadError> {
        let mut kept = vec![];
        let lasts = |b: &&BufferSpec| {
            b.binding == Binding::State && matches!(b.param.kind, ParamKind::Local | ParamKind::Symmetric)
        };
        for name in launches.buffers.iter().filter(lasts).map(|b| &b.name) {
            for rank in 0..launches.ranks {
                let all = memory.read::<u8>(rank, name)?;
                for range in memory.written(rank, name)? {
                    let bytes = all[range.start as usize..range.end as usize].to_vec();
                    kept.push((rank, name.clone(), range.start, bytes));
                }
            }
        }
        let mut left = self.left();
        *left = Left { runs: left.runs.wrapping_add(1), content: kept };
        Ok(())
    }
}

impl SimLaunches {
    /// Traces and compiles the kernels.
    ///
    /// # Errors
    /// There are no launches, they disagree on a buffer, a kernel cannot be traced or does not verify, or the ranks have no room.
    pub fn new(launches: &[LaunchSpec]) -> Result<SimLaunches, WorkloadError> {
        SimLaunches::build(launches, &mut |kernel| Compiled::new(kernel))
    }

    /// As [`SimLaunches::new`], with bugs planted into the kernels by `plant`.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn planted(
        launches: &[LaunchSpec],
        plant: &mut dyn FnMut(&mut Planted),
    ) -> Result<SimLaunches, WorkloadError> {
        SimLaunches::build(launches, &mut |kernel| {
            let mut kernel = Planted::from(kernel);
            plant(&mut kernel);
            Compiled::planted(kernel)
        })
    }

    fn build(
        launches: &[LaunchSpec],
        compile: &mut dyn FnMut(Verified) -> Compiled,
    ) -> Result<SimLaunches, WorkloadError> {
        let variants: Vec<Arc<dyn DynKernel>> =
            launches.iter().map(|launch| launch.variant.clone()).collect();
        room_for(&variants)?;
        let ranks = variants.first().map_or(0, |variant| variant.ranks());
        Ok(SimLaunches { ranks, buffers: buffers(launches)?, kernels: Kernels::new(launches, compile)? })
    }

    /// World size.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The buffers of all launches.
    pub fn buffers(&self) -> &[BufferSpec] {
        &self.buffers
    }

    /// Runs the first `launches` launches on all ranks under one schedule, in the epochs after `epoch`, as if so many rounds had
    /// gone before. What they leave for the launches that would follow, signals to wait for and packets to take, is no finding.
    ///
    /// # Errors
    /// The launches are for different world sizes. What the checker found, or what a host step said, is inside.
    pub fn run(
        &self,
        launches: usize,
        epoch: u32,
        host: &Arc<dyn HostSteps>,
        options: &Options,
    ) -> Result<Result<Report, Box<Findings>>, WorkloadError> {
        self.run_in(None, launches, epoch, host, options)
    }

    /// Runs all launches as [`SimLaunches::run`] does, in memory that holds what the run before left, and in the epoch after that.
    ///
    /// # Errors
    /// As there.
    pub fn run_after(
        &self,
        lasting: &Lasting,
        host: &Arc<dyn HostSteps>,
        options: &Options,
    ) -> Result<Result<Report, Box<Findings>>, WorkloadError> {
        let epoch = lasting.left().runs;
        self.run_in(Some(lasting), self.kernels.bound.len(), epoch, host, options)
    }

    fn run_in(
        &self,
        lasting: Option<&Lasting>,
        launches: usize,
        epoch: u32,
        host: &Arc<dyn HostSteps>,
        options: &Options,
    ) -> Result<Result<Report, Box<Findings>>, WorkloadError> {
        let mut machine = self.kernels.machine(self.ranks);
        declare(&mut machine, &self.buffers)?;
        if let Some(lasting) = lasting {
            lasting.write(&mut machine)?;
        }
        for rank in 0..self.ranks {
            let numbers = host.numbers(rank);
            let ends = self.kernels.ends(&numbers);
            machine.host(rank, "host", move |memory| {
                ends.iter().try_for_each(|(name, bytes)| memory.end(name, *bytes)).map_err(|e| e.to_string())
            })?;
            add_step(&mut machine, rank, 0, host)?;
            for ((kernel, bindings), over) in self.kernels.passing(&numbers).take(launches).zip(1..) {
                machine.launch(rank, kernel, &bindings)?;
                add_step(&mut machine, rank, over, host)?;
            }
        }
        self.kernels.start_after(&mut machine, epoch)?;
        let goes_on = launches < self.kernels.bound.len();
        Ok(match machine.run(options) {
            Ok(outcome) => {
                if let Some(lasting) = lasting {
                    lasting.keep(self, &outcome.memory)?;
                }
                Ok(outcome.report)
            }
            Err(found) if goes_on && is_left_over(&found) => Ok(found.report),
            Err(found) => Err(found),
        })
    }
}

/// Whether nothing was found but what later launches may wait for or take.
fn is_left_over(found: &Findings) -> bool {
    let left = [FindingKind::UnwaitedSignal, FindingKind::UntakenPacket];
    found.dropped == 0 && found.list.iter().all(|finding| left.contains(&finding.kind))
}

fn add_step(
    machine: &mut Machine,
    rank: u32,
    launches: usize,
    host: &Arc<dyn HostSteps>,
) -> Result<(), WorkloadError> {
    let host = Arc::clone(host);
    Ok(machine.host(rank, "host", move |memory| host.step(launches, memory))?)
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::dsl::prelude::Transport;
    use peerwarp_codegen::family::Family;
    use peerwarp_codegen::ir::Dtype;
    use peerwarp_codegen::ir::mutate::{Mutation, every, mutate};

    use super::*;
    use crate::families::collectives::{AllGather, AllGatherKey};
    use crate::harness::workload::{Turn, Workload};

    /// What a workload passes and expects, passed and taken by hand.
    struct ByHand {
        config: AllGather,
        out: Mutex<Vec<Vec<u8>>>,
    }

    impl HostSteps for ByHand {
        fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
            let turn = Turn { seed: 3, rank: memory.rank(), round: 0 };
            if launches == 0 {
                return self.config.inputs(turn).iter().try_for_each(|contents| contents.write(memory));
            }
            let bytes = memory.size("out")?;
            self.out.lock().unwrap()[turn.rank as usize] = memory.read("out", 0, bytes as usize)?;
            Ok(())
        }
    }

    fn config() -> AllGather {
        let key = AllGatherKey::new(100, 3, Dtype::Bf16);
        AllGather::with_defaults(&key).unwrap()
    }

    fn host() -> Arc<ByHand> {
        Arc::new(ByHand { config: config(), out: Mutex::new(vec![vec![]; 3]) })
    }

    fn spec() -> [LaunchSpec; 1] {
        [LaunchSpec::new("gather", config().into_variant())]
    }

    #[test]
    fn launches_with_data_given_by_hand_yield_what_the_reference_says_in_any_epoch() {
        let launches = SimLaunches::new(&spec()).unwrap();
        assert_eq!(launches.ranks(), 3);
        assert!(launches.buffers().iter().any(|b| b.name == "x" && b.param.len == 100));
        for epoch in [0, 1, 2, u32::MAX] {
            let host = host();
            let steps: Arc<dyn HostSteps> = Arc::clone(&host) as _;
            launches.run(1, epoch, &steps, &Options::default().with_seed(epoch.into())).unwrap().unwrap();
            for (rank, out) in (0..).zip(&*host.out.lock().unwrap()) {
                let expected = config().expected(Turn { seed: 3, rank, round: 0 });
                assert_eq!(*out, expected[0].bytes, "rank {rank} after epoch {epoch}");
            }
        }
    }

    /// Reads before anything was written.
    struct Hasty;

    impl HostSteps for Hasty {
        fn step(&self, _: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
            memory.read("x", 0, 4)?;
            match memory.rank() {
                0 => Err("no data".into()),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn what_the_host_does_wrong_and_bugs_in_kernels_are_findings() {
        let options = Options::default();
        let hasty: Arc<dyn HostSteps> = Arc::new(Hasty);
        let found = SimLaunches::new(&spec()).unwrap().run(1, 0, &hasty, &options).unwrap().unwrap_err();
        assert!(found.has(FindingKind::UninitializedRead) && found.has(FindingKind::HostFailed), "{found}");
        assert!(found.to_string().contains("no data"), "{found}");

        // Signals that order nothing.
        let flags = AllGather { protocol: Transport::Flags, ..config() };
        let spec = [LaunchSpec::new("gather", flags.into_variant())];
        let relaxed = SimLaunches::planted(&spec, &mut |kernel| {
            let relax = every(kernel).into_iter().find(|m| matches!(m.mutation, Mutation::Relax(_)));
            *kernel = mutate(kernel, &relax.unwrap().mutation).unwrap();
        });
        let host: Arc<dyn HostSteps> = host();
        let found = relaxed.unwrap().run(1, 0, &host, &options).unwrap().unwrap_err();
        assert!(found.has(FindingKind::DataRace), "{found}");
    }

    #[test]
    fn without_launches_nothing_runs() {
        let none = SimLaunches::new(&[]).unwrap();
        let host: Arc<dyn HostSteps> = Arc::new(Hasty);
        assert_eq!(none.run(0, 0, &host, &Options::default()).unwrap().unwrap().picks, 1);
    }
}
