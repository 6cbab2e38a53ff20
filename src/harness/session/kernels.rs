//! The kernels of launches as the simulator takes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use peerwarp_codegen::dsl::{ParamSpec, Rows};
use peerwarp_codegen::ir::{Const, ParamKind, Verified, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, HostMemory, Machine, WARP_SIZE};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::harness::workload::{RankMemory, WorkloadError};
use crate::runtime::op::{BufferSpec, LaunchSpec, as_in};

/// Kernels with the buffers that their parameters are, in the order of their launches.
#[derive(Debug)]
pub(super) struct Kernels {
    pub bound: Vec<(Arc<Compiled>, Bindings)>,
    /// Of each of them the parameters that are numbers, and what these are called in the operation.
    called: Vec<Vec<(String, String)>>,
    /// Names of the words that count epochs.
    pub epochs: Vec<String>,
    /// Of each buffer of which launches have as many rows as a number says, by name: which number, and what it is.
    rows: BTreeMap<String, ParamSpec>,
}

/// Numbers that are passed by value, by name.
pub(crate) type Numbers = [(String, Const)];

impl Kernels {
    /// Traces, verifies and compiles.
    pub fn new(
        launches: &[LaunchSpec],
        compile: &mut dyn FnMut(Verified) -> Compiled,
    ) -> Result<Kernels, WorkloadError> {
        let (mut bound, mut called, mut epochs, mut rows) = (vec![], vec![], vec![], BTreeMap::new());
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
            for param in launch.variant.params() {
                if let Some(Rows { scalar, most }) = &param.rows {
                    bindings = bindings.scalar(scalar, Const::U32(u32::try_from(*most).unwrap_or(u32::MAX)));
                    rows.insert(launch.buffer(&param.name).to_owned(), as_in(launch, &param));
                }
            }
            let numbers = kernel.kernel().params.iter().filter(|p| p.kind == ParamKind::Scalar);
            called.push(numbers.map(|p| (p.name.clone(), launch.buffer(&p.name).to_owned())).collect());
            bound.push((kernel, bindings));
        }
        Ok(Kernels { bound, called, epochs, rows })
    }

    /// Ranks for them, on as many nodes as they are for.
    pub fn machine(&self, ranks: u32) -> Machine {
        let first = self.bound.first().map(|(compiled, _)| compiled.kernel());
        first.map_or_else(|| Machine::new(ranks), |kernel| Machine::of_nodes(kernel.nodes, kernel.ranks))
    }

    /// The launches, with numbers that they pass.
    pub fn passing(&self, numbers: &Numbers) -> impl Iterator<Item = (&Arc<Compiled>, Bindings)> {
        self.bound.iter().zip(&self.called).map(|((kernel, bindings), called)| {
            let told =
                |called: &str| numbers.iter().find(|(name, _)| name == called).map(|(_, value)| *value);
            let passed = called.iter().filter_map(|(param, called)| Some((param, told(called)?)));
            (kernel, passed.fold(bindings.clone(), |all, (param, value)| all.scalar(param, value)))
        })
    }

    /// Where buffers end, in bytes by name, of which there are as many rows as these numbers say.
    pub fn ends(&self, numbers: &Numbers) -> Vec<(String, u64)> {
        let end = |(name, param): (&String, &ParamSpec)| (name.clone(), end_of(param, numbers));
        self.rows.iter().map(end).collect()
    }

    /// Draws the row counts that `numbers` leaves out. In turn a rank has no row, all rows, and twice a random number of rows.
    pub fn drawn_rows(&self, numbers: &Numbers, seed: u64, turn: (u32, u32)) -> Vec<(String, Const)> {
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for rows in self.rows.values().filter_map(|param| param.rows.as_ref()) {
            let least = most.entry(&rows.scalar).or_insert(rows.most);
            *least = rows.most.min(*least);
        }
        most.retain(|name, _| numbers.iter().all(|(given, _)| given != name));
        let mut draw = Draw::new(seed, turn);
        most.into_iter().map(|(name, most)| (name.to_owned(), Const::U32(draw.rows(most)))).collect()
    }

    /// Lets all of them begin in the epochs after `epoch`, as if so many rounds had gone before.
    pub fn start_after(&self, machine: &mut Machine, epoch: u32) -> Result<(), WorkloadError> {
        self.epochs.iter().try_for_each(|word| machine.start_epoch(word, epoch)).map_err(WorkloadError::from)
    }
}

/// Row counts of a rank in a round.
struct Draw {
    in_turn: u64,
    rng: ChaCha8Rng,
}

impl Draw {
    fn new(seed: u64, (rank, round): (u32, u32)) -> Draw {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(u64::from(round) << 32 | u64::from(rank));
        Draw { in_turn: seed.wrapping_add(rank.into()).wrapping_add(round.into()) % 4, rng }
    }

    fn rows(&mut self, most: u64) -> u32 {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        match self.in_turn {
            0 => 0,
            1 => most,
            _ => self.rng.random_range(0..=most),
        }
    }
}

/// Bytes of a parameter's rows, where these numbers are passed.
pub(super) fn end_of(param: &ParamSpec, numbers: &Numbers) -> u64 {
    let told = |rows: &Rows| {
        numbers.iter().find_map(|(name, value)| match value {
            Const::U32(there) if *name == rows.scalar => Some(u64::from(*there)),
            Const::U32(_) | Const::Bool(_) | Const::I32(_) | Const::U64(_) | Const::F32(_) => None,
        })
    };
    param.bytes_of_rows(param.rows.as_ref().and_then(told).unwrap_or(u64::MAX))
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

    fn holds(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<bool, String> {
        let there = self.view::<u8>(buffer, at..at + bytes.len() as u64).map_err(|e| e.to_string())?;
        Ok(there == bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_drawn_with_none_and_all() {
        for seed in 0..8 {
            for rank in 0..2 {
                let rows: Vec<u32> = (0..4).map(|round| Draw::new(seed, (rank, round)).rows(5)).collect();
                assert!(rows.contains(&0) && rows.contains(&5), "{seed}, {rank}: {rows:?}");
                assert!(rows.iter().all(|rows| *rows <= 5), "{seed}, {rank}: {rows:?}");
            }
        }
        let some: Vec<u32> = (0..64).map(|seed| Draw::new(4 * seed + 2, (0, 0)).rows(5)).collect();
        assert!((0..=5).all(|rows| some.contains(&rows)), "{some:?}");
        assert_eq!(Draw::new(u64::MAX, (1, 1)).rows(u64::MAX), u32::MAX);
    }
}
