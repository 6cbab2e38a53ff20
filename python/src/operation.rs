//! A kernel of any family on simulated ranks.

use std::sync::{Arc, Mutex};

use peerwarp::codegen::dsl::ParamSpec;
use peerwarp::codegen::ir::{Const, Dtype, ParamKind};
use peerwarp::harness::session::{HostSteps, SimLaunches};
use peerwarp::harness::workload::RankMemory;
use peerwarp::runtime::op::LaunchSpec;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::{Failure, detached};
use crate::kernel::Kernel;
use crate::simulated::{Ranks, lock};
use crate::world::SimulatedWorld;

/// A kernel with its own memory on each rank.
#[pyclass(frozen)]
pub struct SimulatedOperation {
    ranks: Arc<Ranks>,
    launches: SimLaunches,
    params: Vec<ParamSpec>,
}

/// A number that is passed by value.
#[derive(FromPyObject)]
pub enum Number {
    Whole(i64),
    /// Above what an `i64` holds.
    Large(u64),
    Real(f64),
}

impl Number {
    /// As a kernel takes it.
    pub fn of(&self, name: &str, dtype: Dtype) -> Result<Const, Failure> {
        let whole = match *self {
            Number::Whole(n) => Some(i128::from(n)),
            Number::Large(n) => Some(i128::from(n)),
            Number::Real(_) => None,
        };
        let found = match dtype {
            Dtype::I32 => whole.and_then(|n| i32::try_from(n).ok()).map(Const::I32),
            Dtype::U32 => whole.and_then(|n| u32::try_from(n).ok()).map(Const::U32),
            Dtype::U64 => whole.and_then(|n| u64::try_from(n).ok()).map(Const::U64),
            Dtype::F32 => Some(self.real()).map(|x| Const::F32((x as f32).to_bits())),
            Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => None,
        };
        let value = match *self {
            Number::Whole(n) => n.to_string(),
            Number::Large(n) => n.to_string(),
            Number::Real(x) => x.to_string(),
        };
        found.ok_or_else(|| Failure::invalid(name, value, format!("a number that fits {dtype}")))
    }

    fn real(&self) -> f64 {
        match *self {
            Number::Whole(n) => n as f64,
            Number::Large(n) => n as f64,
            Number::Real(x) => x,
        }
    }
}

/// Writes what the caller passes, and reads what the kernel leaves in its outputs. What it does not write stays the caller's.
struct Passing {
    /// By operand and rank.
    operands: Vec<(String, Vec<PyBackedBytes>)>,
    /// The operands that are outputs, by operand and rank.
    out: Vec<(String, Vec<Mutex<Vec<u8>>>)>,
    /// By rank.
    numbers: Vec<Vec<(String, Const)>>,
}

impl HostSteps for Passing {
    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let rank = memory.rank() as usize;
        if launches == 0 {
            return self.operands.iter().try_for_each(|(name, each)| memory.write(name, 0, &each[rank]));
        }
        for (name, each) in &self.out {
            let mut kept = lock(&each[rank]);
            *kept = memory.read(name, 0, kept.len())?;
        }
        Ok(())
    }

    fn numbers(&self, rank: u32) -> Vec<(String, Const)> {
        self.numbers[rank as usize].clone()
    }
}

#[pymethods]
impl SimulatedOperation {
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, SimulatedWorld>,
        kernel: &Bound<'_, Kernel>,
    ) -> Result<SimulatedOperation, Failure> {
        let (world, kernel) = (world.get(), kernel.get());
        detached(py, || {
            let ranks = Arc::clone(&world.ranks);
            if kernel.variant.ranks() != ranks.ranks {
                let allowed = format!("{}, the size of the world", ranks.ranks);
                return Err(Failure::invalid("ranks", kernel.variant.ranks(), allowed));
            }
            let spec = LaunchSpec::new(kernel.variant.family_name(), Arc::clone(&kernel.variant));
            Ok(SimulatedOperation {
                ranks,
                launches: SimLaunches::new(&[spec])?,
                params: kernel.variant.params(),
            })
        })
    }

    /// Runs it. `operands` has for each operand the bytes of each rank, `numbers` for each number the value of each rank. Returns for
    /// each output the bytes of each rank.
    fn run<'py>(
        &self,
        py: Python<'py>,
        operands: Vec<(String, Vec<PyBackedBytes>)>,
        numbers: Vec<(String, Vec<Number>)>,
    ) -> Result<Vec<Vec<Bound<'py, PyBytes>>>, Failure> {
        let ranks = self.ranks.ranks as usize;
        let mut of_ranks = vec![vec![]; ranks];
        for (name, each) in &numbers {
            let param = self.params.iter().find(|p| p.name == *name && p.kind == ParamKind::Scalar);
            let dtype = param.ok_or_else(|| Failure::invalid("number", name, "one of the kernel's"))?.dtype;
            for (of_rank, number) in of_ranks.iter_mut().zip(each) {
                of_rank.push((name.clone(), number.of(name, dtype)?));
            }
        }
        let is_out = |name: &str| self.params.iter().any(|p| p.name == name && p.binding.writes());
        let room = |each: &[PyBackedBytes]| each.iter().map(|b| Mutex::new(vec![0; b.len()])).collect();
        let out = operands.iter().filter(|(name, _)| is_out(name));
        let out = out.map(|(name, each)| (name.clone(), room(each))).collect();
        let host =
            detached(py, || self.ranks.run(&self.launches, 1, Passing { operands, out, numbers: of_ranks }))?;
        let bytes = |each: &Mutex<Vec<u8>>| PyBytes::new(py, &lock(each));
        Ok(host.out.iter().map(|(_, each)| each.iter().map(bytes).collect()).collect())
    }
}
