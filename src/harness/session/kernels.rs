//! The kernels of launches as the simulator takes them.

use std::sync::Arc;

use peerwarp_codegen::ir::{ParamKind, Verified, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, HostMemory, Machine};

use crate::harness::workload::{RankMemory, WorkloadError};
use crate::runtime::op::{BufferSpec, LaunchSpec};

/// Lanes of the warps that are simulated. Nothing but the order of float sums depends on it.
const WARP_SIZE: u32 = 32;

/// Kernels with the buffers that their parameters are, in the order of their launches.
#[derive(Debug)]
pub(super) struct Kernels {
    pub bound: Vec<(Arc<Compiled>, Bindings)>,
    /// Names of the words that count epochs.
    pub epochs: Vec<String>,
}

impl Kernels {
    /// Traces, verifies and compiles.
    pub fn new(
        launches: &[LaunchSpec],
        compile: &mut dyn FnMut(Verified) -> Compiled,
    ) -> Result<Kernels, WorkloadError> {
        let (mut bound, mut epochs) = (vec![], vec![]);
        for launch in launches {
            let kernel =
                verify(launch.variant.trace(WARP_SIZE)?).map_err(|e| WorkloadError::Kernel(e.to_string()))?;
            let kernel = Arc::new(compile(kernel));
            let mut bindings = Bindings::new();
            for p in &kernel.kernel().params {
                let buffer = launch.buffer(&p.name);
                bindings = bindings.buffer(&p.name, buffer);
                if p.kind == ParamKind::EpochWord && !epochs.iter().any(|e| e == buffer) {
                    epochs.push(buffer.to_owned());
                }
            }
            bound.push((kernel, bindings));
        }
        Ok(Kernels { bound, epochs })
    }

    /// Lets all of them begin in the epochs after `epoch`, as if so many rounds had gone before.
    pub fn start_after(&self, machine: &mut Machine, epoch: u32) -> Result<(), WorkloadError> {
        self.epochs.iter().try_for_each(|word| machine.start_epoch(word, epoch)).map_err(WorkloadError::from)
    }
}

/// Declares buffers on all ranks.
pub(super) fn declare(machine: &mut Machine, buffers: &[BufferSpec]) -> Result<(), WorkloadError> {
    for BufferSpec { name, param, .. } in buffers {
        machine.buffer(name, param.kind, param.dtype, param.len)?;
    }
    Ok(())
}

impl RankMemory for HostMemory<'_, '_> {
    fn rank(&self) -> u32 {
        HostMemory::rank(self)
    }

    fn read(&mut self, buffer: &str, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
        HostMemory::read(self, buffer, at..at + bytes as u64).map_err(|e| e.to_string())
    }

    fn write(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<(), String> {
        HostMemory::write(self, buffer, at, bytes).map_err(|e| e.to_string())
    }

    fn size(&self, buffer: &str) -> Result<u64, String> {
        HostMemory::size(self, buffer).map_err(|e| e.to_string())
    }

    fn poison(&self) -> Option<u8> {
        None
    }
}
