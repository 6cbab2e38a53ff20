//! Launches that are under way on a GPU at once, of several ranks or on several streams: how they are launched, and whether blocks of
//! all of them fit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use super::RuntimeError;
use super::gpu::{GpuInfo, LaunchConfig};
use super::handles::{LoadedKernel, Residency};
use super::world::lock;

/// How many ranks are on a GPU, how many launches each may have under way, and the kernels that they have loaded.
///
/// One rank may be within any kernel of the world while another is within any other one, and waits for it. All have the same
/// kernels, so that each process decides by its own, and all decide alike.
#[derive(Debug)]
pub(super) struct Tenants {
    /// Ranks on the GPU that has the most.
    most: u32,
    /// Launches that a rank may have under way.
    at_once: u32,
    loaded: Mutex<Vec<Weak<Residency>>>,
}

impl Tenants {
    /// Of ranks whose GPUs sit there, with so many launches of each at once.
    pub fn of<'a>(gpus: impl Iterator<Item = &'a str>, at_once: u32) -> Tenants {
        let mut ranks = BTreeMap::<&str, u32>::new();
        gpus.for_each(|gpu| *ranks.entry(gpu).or_default() += 1);
        Tenants { most: ranks.into_values().max().unwrap_or(1), at_once, loaded: Mutex::default() }
    }

    /// Ranks on the GPU that has the most.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Launches that may be under way on that GPU.
    pub fn launches(&self) -> u32 {
        self.most * self.at_once
    }

    /// How a kernel is launched. Where others are under way its blocks have no SM to themselves, and do not come before the kernel
    /// before them has ended, as they would take the room of another launch's. That all of them fit is checked here: drivers may
    /// run kernels for which they see to that one at a time. NVIDIA's 580 does not for ranks that share a GPU; of two streams of a
    /// rank one waited for the other.
    pub fn config(&self, config: LaunchConfig) -> LaunchConfig {
        match self.launches() {
            0 | 1 => config,
            _ => LaunchConfig {
                cooperative: false,
                exclusive_sm_bytes: None,
                overlaps_previous: false,
                ..config
            },
        }
    }

    /// Takes in a kernel if its blocks, and those of any other one that is loaded, fit on a GPU for all launches at once.
    ///
    /// Where SMs hold `n` blocks or more of each kernel, one with less than `n` of whatever mixture has room for another. So
    /// there is always room, wherever blocks are, if all launches together have at most `n` for each SM.
    pub fn admit(&self, kernel: LoadedKernel) -> Result<LoadedKernel, RuntimeError> {
        if self.launches() <= 1 {
            return Ok(kernel);
        }
        let mut loaded = lock(&self.loaded);
        loaded.retain(|known| known.strong_count() > 0);
        let all: Vec<Arc<Residency>> = loaded.iter().filter_map(Weak::upgrade).collect();
        let new = kernel.residency();
        let all: Vec<&Residency> = all.iter().chain([new]).map(Arc::as_ref).collect();
        fit_together(&all, self.launches(), kernel.gpu().info())?;
        loaded.push(Arc::downgrade(new));
        Ok(kernel)
    }
}

/// Whether blocks of so many launches on a GPU fit at once, each of any of these kernels.
fn fit_together(all: &[&Residency], launches: u32, gpu: &GpuInfo) -> Result<(), RuntimeError> {
    let (largest, narrowest) = (all.iter().max_by_key(|k| k.blocks), all.iter().min_by_key(|k| k.per_sm));
    let (Some(largest), Some(narrowest)) = (largest, narrowest) else { return Ok(()) };
    let fit = narrowest.per_sm * gpu.sms / launches;
    if largest.blocks <= fit {
        return Ok(());
    }
    Err(RuntimeError::NotResidentTogether {
        kernel: largest.entry.clone(),
        blocks: largest.blocks,
        gpu: gpu.ordinal,
        launches,
        fit,
        narrowest: narrowest.entry.clone(),
        per_sm: narrowest.per_sm,
        sms: gpu.sms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::gpu::Gpu;
    use crate::runtime::mock::{Machine, MockGpu};

    fn kernel(entry: &str, blocks: u32, per_sm: u32) -> Residency {
        Residency { entry: entry.into(), blocks, per_sm }
    }

    #[test]
    fn blocks_of_all_ranks_fit_at_once_or_it_is_an_error_that_says_how_many_do() {
        let machine = Machine::default();
        let gpu = MockGpu::new(&machine, 0);
        let (wide, narrow) = (kernel("wide", 132, 2), kernel("narrow", 8, 1));
        let check = |all: &[&Residency], ranks| fit_together(all, ranks, gpu.info());
        assert_eq!(gpu.info().sms, 132);
        check(&[], 2).unwrap();
        // To the last block.
        check(&[&wide], 2).unwrap();
        check(&[&kernel("wider", 133, 2)], 2).unwrap_err();
        check(&[&wide], 3).unwrap_err();
        check(&[&kernel("wide", 44, 1)], 3).unwrap();
        // A block of `narrow` needs an SM that is empty, and `wide` may have one on each.
        assert_eq!(
            check(&[&narrow, &wide], 2).unwrap_err().to_string(),
            "2 launches may be under way on GPU 0, which holds 66 blocks for each (narrow leaves room for 1 on each of 132 SMs), and \
             wide needs 132 resident at once: use variants with fewer blocks or threads, or have fewer ranks a GPU or launches at once"
        );
        check(&[&narrow, &kernel("small", 66, 4)], 2).unwrap();
    }

    /// Two SMs beside each other may have no room for a cluster where single ones have.
    #[test]
    fn clusters_are_counted_by_the_driver_and_share_no_gpu() {
        let machine = Arc::new(Machine::default());
        let gpu: Arc<dyn Gpu> = Arc::new(MockGpu::new(&machine, 0));
        let load = |grid: u32, clustered: u32, runs_in_parts: bool| {
            machine.clustered.store(clustered, std::sync::atomic::Ordering::Relaxed);
            let config = LaunchConfig { grid, block_threads: 32, runs_in_parts, ..LaunchConfig::default() };
            // SAFETY: the mock executes nothing.
            unsafe { LoadedKernel::new(&gpu, b"", "pairs", config) }
        };
        load(132, 0, false).unwrap();
        load(130, 130, false).unwrap();
        assert_eq!(
            load(132, 130, false).unwrap_err().to_string(),
            "pairs needs 132 blocks resident at once and GPU 0 holds 130 (1 on each of 132 SMs): use a variant with fewer blocks"
        );
        let shared = Tenants::of(["a", "a"].iter().copied(), 1);
        shared.admit(load(132, 130, true).unwrap()).unwrap();
        let said = shared.admit(load(2, 132, false).unwrap()).unwrap_err().to_string();
        assert!(
            said.contains("holds 0 blocks for each (pairs leaves room for 0 on each of 132 SMs)"),
            "{said}"
        );
    }

    #[test]
    fn only_launches_that_share_a_gpu_are_launched_otherwise() {
        let asked = LaunchConfig {
            grid: 5,
            cooperative: true,
            exclusive_sm_bytes: Some(7),
            overlaps_previous: true,
            ..LaunchConfig::default()
        };
        let (alone, shared) = (["a", "b"], ["a", "b", "a"]);
        let of = |gpus: &[&'static str]| Tenants::of(gpus.iter().copied(), 1);
        assert_eq!((of(&alone).most(), of(&alone).config(asked)), (1, asked));
        let plain = LaunchConfig { grid: 5, ..LaunchConfig::default() };
        assert_eq!((of(&shared).most(), of(&shared).config(asked)), (2, plain));
        let two = |gpus: &[&'static str]| Tenants::of(gpus.iter().copied(), 2);
        assert_eq!((two(&alone).most(), two(&alone).launches(), two(&alone).config(asked)), (1, 2, plain));
        assert_eq!(two(&shared).launches(), 4);
    }
}
